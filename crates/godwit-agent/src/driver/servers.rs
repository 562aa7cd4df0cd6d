//! The server processes behind the services: whether one listens, and what
//! follows when one dies.

use std::collections::BTreeSet;
use std::time::Duration;

use godwit_bpf::{Phase, ProcessExit};
use godwit_core::{MonoTime, ServerExit};
use godwit_sock::{Listeners, has_tcp_socket};
use godwit_wire::{Role, ShareId};

use super::Driver;
use super::resets::ResetReason;
use crate::clock;
use crate::config::ServiceConfig;

/// How often listeners are looked for while all are there.
const CALM: Duration = Duration::from_millis(500);

/// As [`CALM`], while one is not: a server that is restarted is waited for.
const ANXIOUS: Duration = Duration::from_millis(50);

/// A process that shared its listener has died: by now the others of its group
/// have closed theirs too, if they died with it.
const AFTERMATH: Duration = Duration::from_millis(3);

/// When to look for listeners, and what was seen.
#[derive(Debug)]
pub(super) struct Servers {
    due: MonoTime,
    /// Shares that nothing listens for.
    missing: BTreeSet<ShareId>,
    /// Shares a process of which has died that had shared its listener.
    doubtful: BTreeSet<ShareId>,
}

impl Servers {
    pub(super) const fn new(now: MonoTime) -> Self {
        Self {
            due: now,
            missing: BTreeSet::new(),
            doubtful: BTreeSet::new(),
        }
    }

    /// When [`Driver::look_for_listeners`] wants to be called.
    pub(super) const fn due(&self) -> MonoTime {
        self.due
    }
}

impl Driver {
    /// The data path keeps silent what the process held: the core decides.
    pub(super) fn feed_exit(&mut self, exit: &ProcessExit, now: MonoTime) {
        self.tell_exit(exit);
        if exit.last_listener {
            self.servers.missing.insert(exit.share);
            self.servers.due = self.servers.due.min(now.saturating_add(ANXIOUS));
        } else if exit.listened {
            self.servers.doubtful.insert(exit.share);
            self.servers.due = self.servers.due.min(now.saturating_add(AFTERMATH));
        }
        self.pass_on(exit.share, exit.kept, exit.last_listener, now);
    }

    /// Services of one address move together: an address is in one place.
    fn pass_on(&mut self, share: ShareId, kept: u32, listener_lost: bool, now: MonoTime) {
        let mates = self.shares.mates(share);
        let movable = mates.iter().all(|mate| self.could_move(*mate));
        let concerned = kept > 0 || listener_lost;
        let own = ServerExit {
            share,
            kept,
            listener_lost,
            movable,
        };
        self.node.handle_server_exit(own, now);
        for mate in mates.into_iter().filter(|_| concerned) {
            let exit = ServerExit {
                share: mate,
                kept: 1,
                listener_lost: false,
                movable,
            };
            self.node.handle_server_exit(exit, now);
        }
    }

    fn could_move(&self, share: ShareId) -> bool {
        let entry = self.shares.get(share).map(|share| share.entry);
        entry.is_some_and(|entry| entry.role != Role::Owner || !entry.generation.is_none())
    }

    fn tell_exit(&self, exit: &ProcessExit) {
        let name = self.shares.get(exit.share).map(|share| share.name.as_str());
        let (pid, flows, kept) = (
            exit.pid.to_string(),
            exit.flows.to_string(),
            exit.kept.to_string(),
        );
        let cause = match exit.code & 0x7f {
            0 => format!("code {}", exit.code >> 8),
            signal => format!("signal {signal}"),
        };
        let scope = match (exit.last_listener, exit.kept) {
            (true, _) => "share",
            (false, 0) => "none",
            (false, _) => "flows",
        };
        let fields = [
            ("service", name.unwrap_or("")),
            ("pid", &pid),
            ("comm", &exit.comm),
            ("cause", &cause),
            ("flows", &flows),
            ("kept", &kept),
            ("scope", scope),
        ];
        self.events.publish_own("process_exit", true, fields);
    }

    /// Tells the core of each service whether something listens there.
    pub(super) fn look_for_listeners(&mut self, now: MonoTime) {
        let listeners = match Listeners::read() {
            Ok(listeners) => listeners,
            Err(error) => {
                self.servers.due = now.saturating_add(CALM);
                return tracing::warn!(error = %error, "can't look for listeners");
            }
        };
        let config = self.config.clone();
        for (share, service) in config.own_shares() {
            let listens = service.addresses.iter().any(|at| listeners.serve(*at));
            self.note_listening(share, listens, now);
        }
        let pause = if self.servers.missing.is_empty() {
            CALM
        } else {
            ANXIOUS
        };
        self.servers.due = now.saturating_add(pause);
    }

    fn note_listening(&mut self, share: ShareId, listens: bool, now: MonoTime) {
        let doubtful = self.servers.doubtful.remove(&share);
        let news = if listens {
            self.servers.missing.remove(&share)
        } else {
            self.servers.missing.insert(share)
        };
        if !listens && doubtful {
            self.pass_on(share, 0, true, now);
        }
        self.node.handle_listening(share, listens, now);
        if news && let Some(known) = self.shares.get(share) {
            let event = if listens {
                "server_listening"
            } else {
                "server_missing"
            };
            let fields = [("service", known.name.as_str())];
            self.events.publish_own(event, !listens, fields);
        }
    }

    /// What heartbeats say of the shares: nothing of one that a director gives
    /// connections to while nobody listens for them here.
    ///
    /// Before a restart they stay what they were, as the data path does.
    pub(super) fn post_claims(&self) {
        if self.restarts {
            return;
        }
        let missing = &self.servers.missing;
        let idle = |share| {
            let is_asked = |it: &ServiceConfig| it.is_fronted() || it.is_placed();
            let mut asked = self.config.own_shares().filter(|(_, it)| is_asked(it));
            missing.contains(&share) && asked.any(|(own, _)| own == share)
        };
        let claims = self.node.share_claims();
        self.board
            .post(claims.filter(|claim| !idle(claim.share)).collect());
    }

    pub(super) fn silence(&self, share: ShareId) {
        if let Err(error) = self.datapath.shares.release(share) {
            tracing::error!(share = share.0, error = %error, "share not silenced");
        }
    }

    /// A share that this node becomes the owner of: what an earlier ownership
    /// left must not silence it.
    pub(super) fn end_old_silence(&self, share: ShareId) {
        let is_new = self
            .shares
            .get(share)
            .is_some_and(|share| share.entry.role != Role::Owner);
        if is_new {
            self.open(share);
        }
    }

    fn open(&self, share: ShareId) {
        if let Err(error) = self.datapath.shares.open(share) {
            tracing::error!(share = share.0, error = %error, "share not opened");
        }
    }

    /// Clients of a dead process are told, as its kernel could not: of a socket
    /// that still closes, the kernel repeats the FIN by itself. Clients of
    /// others hear what the silence has kept from them.
    pub(super) fn reopen(&mut self, share: ShareId) {
        self.open(share);
        let mut flows = Vec::new();
        let scanned = self.datapath.flows.for_each(|flow| {
            if flow.share == share && flow.phase != Phase::Ended {
                flows.push(flow);
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows to reopen");
        }
        let (now, mut dead) = (clock::now(), Vec::new());
        for flow in flows {
            if has_tcp_socket(self.ifindex, flow.id.key).is_ok_and(|exists| !exists) {
                dead.push((flow, ResetReason::NoTaker));
            } else if !flow.orphaned && flow.is_held() {
                self.let_go(&flow, now);
            }
        }
        self.reset(share, &dead);
    }
}
