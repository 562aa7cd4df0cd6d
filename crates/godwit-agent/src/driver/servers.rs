//! The server processes behind the services: whether one listens, and what
//! follows when one dies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use godwit_bpf::{Phase, ProcessExit};
use godwit_core::director::unheard;
use godwit_core::{Beat, Listening, MonoTime, PeerId, ServerExit};
use godwit_sock::{Listeners, has_tcp_socket};
use godwit_wire::{NodeName, Role, ShareId};

use super::doubters::Doubters;
use super::dying::DyingServers;
use super::ground::Ground;
use super::pauses::{self, Pauses};
use super::registration::Registrations;
use super::resets::{ResetReason, reset};
use super::revive::let_go;
use crate::clock;
use crate::config::{Config, PeerRole, ServiceConfig};
use crate::heartbeat::ShareBoard;

/// How often listeners are looked for while all are there.
const CALM: Duration = Duration::from_millis(500);

/// As [`CALM`], while one is not: a server that is restarted is waited for.
const ANXIOUS: Duration = Duration::from_millis(50);

/// For how long after a listener went or came [`ANXIOUS`] holds.
const ANXIETY: Duration = Duration::from_secs(30);

/// A process that shared its listener has died: by now the others of its group
/// have closed theirs too, if they died with it.
const AFTERMATH: Duration = Duration::from_millis(3);

/// Looks because of listeners that were closed come at most so often: any process may
/// close as many as it likes.
const CLOSED_PAUSE: Duration = Duration::from_millis(20);

/// An io_uring gives its files back by itself, some time behind its process.
const LINGERING: Duration = Duration::from_millis(500);

/// When to look for listeners, and what was seen.
#[derive(Debug)]
pub(super) struct Servers {
    due: MonoTime,
    /// When it was last looked.
    looked: MonoTime,
    /// Shares that nothing listens for.
    missing: BTreeSet<ShareId>,
    /// The addresses of a share at which nothing listens, if there are any.
    silent: BTreeMap<ShareId, Vec<SocketAddr>>,
    /// Until when a listener that is missing is waited for.
    anxious_until: MonoTime,
    /// Whether processes have registered that need to.
    pub(super) registrations: Registrations,
    /// Shares a process of which has died that had shared its listener.
    /// Until when.
    doubtful: BTreeMap<ShareId, MonoTime>,
    dying: DyingServers,
    /// Those that stand before services of this node.
    directors: Vec<(PeerId, NodeName)>,
    /// Of these such as this node does not prove itself to.
    pub(super) doubters: Doubters,
    /// What other nodes say of theirs.
    pub(super) pauses: Pauses,
}

impl Servers {
    pub(super) fn new(config: &Config, now: MonoTime) -> Self {
        Self {
            due: now,
            looked: MonoTime::ZERO,
            missing: BTreeSet::new(),
            silent: BTreeMap::new(),
            anxious_until: MonoTime::ZERO,
            registrations: Registrations::default(),
            doubtful: BTreeMap::new(),
            dying: DyingServers::default(),
            directors: directors(config).collect(),
            doubters: Doubters::new(config.node.name),
            pauses: Pauses::new(config),
        }
    }

    /// Notes how far a process is that dies. Whether the record says anything new.
    fn note_exit(&mut self, exit: &ProcessExit, now: MonoTime) -> bool {
        let is_new = self.dying.note(exit);
        if exit.last_listener {
            self.missing.insert(exit.share);
            self.look_in(ANXIOUS, now);
        } else if exit.cut || exit.listened && !exit.dying {
            let until = now.saturating_add(LINGERING);
            self.doubtful.insert(exit.share, until);
            let pause = if exit.cut { Duration::ZERO } else { AFTERMATH };
            self.look_in(pause, now);
        }
        is_new
    }

    /// A listener is being closed, perhaps one of the services'.
    pub(super) fn note_closed(&mut self, now: MonoTime) {
        let early = self.looked.saturating_add(CLOSED_PAUSE);
        self.due = self.due.min(early.max(now.saturating_add(AFTERMATH)));
    }

    fn look_in(&mut self, pause: Duration, now: MonoTime) {
        self.due = self.due.min(now.saturating_add(pause));
    }

    /// What a heartbeat says beside what the core makes of it.
    pub(super) fn note_beat(&mut self, peer: PeerId, beat: &Beat) {
        self.pauses.note_beat(peer, beat);
        if self.directors.iter().any(|(director, _)| *director == peer) {
            self.doubters.note_beat(peer, beat);
        }
    }

    /// When [`Servers::look_for_listeners`] wants to be called.
    pub(super) const fn due(&self) -> MonoTime {
        self.due
    }

    /// The addresses of a share at which nothing listens on this node.
    pub(super) fn silent(&self, share: ShareId) -> &[SocketAddr] {
        self.silent.get(&share).map_or(&[], Vec::as_slice)
    }
}

/// Directors, if one stands before a service of this node.
fn directors(config: &Config) -> impl Iterator<Item = (PeerId, NodeName)> {
    let is_directed = config.own_shares().any(|(_, it)| it.is_directed());
    let peers = (0..).map(PeerId).zip(config.others());
    let directors = peers.filter(move |(_, it)| is_directed && it.role == PeerRole::Director);
    directors.map(|(id, peer)| (id, peer.name))
}

impl Servers {
    /// The data path keeps silent what the process held: the core decides.
    pub(super) fn feed_exit(&mut self, ground: &mut Ground, exit: &ProcessExit, now: MonoTime) {
        if !self.note_exit(exit, now) {
            return;
        }
        tell_exit(ground, exit);
        let exit = ServerExit {
            share: exit.share,
            server: exit.server || exit.last_listener,
            kept: exit.kept,
            listener_lost: exit.last_listener,
            movable: true,
        };
        pass_on(ground, exit, now);
    }

    /// Tells the core of each service whether something listens there.
    pub(super) fn look_for_listeners(&mut self, ground: &mut Ground, now: MonoTime) {
        self.looked = now;
        let listeners = match Listeners::read() {
            Ok(listeners) => listeners,
            Err(error) => {
                self.due = now.saturating_add(CALM);
                return tracing::warn!(error = %error, "can't look for listeners");
            }
        };
        self.dying.forget_dead();
        let config = ground.config.clone();
        for (share, service) in config.own_shares() {
            let all = service.addresses.iter().copied();
            // The listener of a process that dies is as good as gone.
            let dying = self.dying.have_listener(share);
            let silent: Vec<_> = all.filter(|at| dying || !listeners.serve(*at)).collect();
            self.registrations.look(ground, share, &silent, now);
            self.note_listening(ground, share, silent, service.addresses.len(), now);
        }
        self.doubtful.retain(|_, until| *until > now);
        let anxious =
            !self.silent.is_empty() && now < self.anxious_until || !self.doubtful.is_empty();
        let anxious = anxious || self.registrations.awaits();
        let pause = if anxious { ANXIOUS } else { CALM };
        self.due = now.saturating_add(pause);
    }

    /// `silent`: the addresses, of `all`, at which nothing listens.
    fn note_listening(
        &mut self,
        ground: &mut Ground,
        share: ShareId,
        silent: Vec<SocketAddr>,
        all: usize,
        now: MonoTime,
    ) {
        let listening = match silent.len() {
            0 => Listening::All,
            some if some < all => Listening::Partly,
            _ => Listening::Nowhere,
        };
        if listening == Listening::Nowhere {
            self.missing.insert(share);
            if self.doubtful.remove(&share).is_some() {
                let exit = ServerExit {
                    share,
                    server: true,
                    kept: 0,
                    listener_lost: true,
                    movable: true,
                };
                pass_on(ground, exit, now);
            }
        } else {
            self.missing.remove(&share);
        }
        ground.node.handle_listening(share, listening, now);
        if self.silent(share) != silent {
            self.anxious_until = now.saturating_add(ANXIETY);
            tell_listening(ground, share, &silent);
        }
        if silent.is_empty() {
            self.silent.remove(&share);
        } else {
            self.silent.insert(share, silent);
        }
    }

    /// What heartbeats say of the shares: nothing of one that a director gives
    /// connections to while nobody listens for them here. Also which servers stand still.
    ///
    /// Not before a restart: then they stay what they were, as the data path does.
    pub(super) fn post_claims(&self, ground: &Ground, board: &ShareBoard) {
        let missing = &self.missing;
        let idle = |share| {
            let is_asked = |it: &ServiceConfig| it.is_fronted() || it.is_placed();
            let mut asked = ground.config.own_shares().filter(|(_, it)| is_asked(it));
            missing.contains(&share) && asked.any(|(own, _)| own == share)
        };
        let claims = ground.node.share_claims();
        let claims = claims.filter(|claim| !idle(claim.share));
        // A director that hears us and is not heard sends us what does not arrive.
        let silent = self
            .directors
            .iter()
            .filter(|(id, _)| ground.node.misses(*id));
        let unheard = silent.map(|(_, name)| unheard(*name));
        let pauses = ground.node.pauses().map(pauses::claim);
        board.post(unheard.chain(claims).chain(pauses).collect());
    }
}

fn could_move(ground: &Ground, share: ShareId) -> bool {
    let entry = ground.shares.get(share).map(|share| share.entry);
    entry.is_some_and(|entry| entry.role != Role::Owner || !entry.generation.is_none())
}

/// Services of one address move together: an address is in one place.
fn pass_on(ground: &mut Ground, exit: ServerExit, now: MonoTime) {
    let mates = ground.shares.mates(exit.share);
    let movable = mates.iter().all(|mate| could_move(ground, *mate));
    let concerned = exit.kept > 0 || exit.listener_lost;
    let own = ServerExit { movable, ..exit };
    ground.node.handle_server_exit(own, now);
    for mate in mates.into_iter().filter(|_| concerned) {
        let exit = ServerExit {
            share: mate,
            server: true,
            kept: 1,
            listener_lost: false,
            movable,
        };
        ground.node.handle_server_exit(exit, now);
    }
}

fn tell_exit(ground: &Ground, exit: &ProcessExit) {
    let name = ground
        .shares
        .get(exit.share)
        .map(|share| share.name.as_str());
    let (pid, flows, kept) = (
        exit.pid.to_string(),
        exit.flows.to_string(),
        exit.kept.to_string(),
    );
    let cause = match exit.code & 0x7f {
        0 => format!("code {}", exit.code >> 8),
        signal => format!("signal {signal}"),
    };
    let scope = match (exit.last_listener, exit.kept, exit.server) {
        (true, ..) => "share",
        (false, 0, false) if exit.flows > 0 => "connection",
        (false, 0, _) => "none",
        (false, ..) => "flows",
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
    ground.events.publish_own("process_exit", true, fields);
}

fn tell_listening(ground: &Ground, share: ShareId, silent: &[SocketAddr]) {
    let Some(known) = ground.shares.get(share) else {
        return;
    };
    let addresses = listed(silent);
    let fields = [
        ("service", known.name.as_str()),
        ("addresses", addresses.as_str()),
    ];
    if silent.is_empty() {
        ground
            .events
            .publish_own("server_listening", false, fields.into_iter().take(1));
    } else {
        ground.events.publish_own("server_missing", true, fields);
    }
}

pub(super) fn silence(ground: &Ground, share: ShareId) {
    if let Err(error) = ground.datapath.shares.release(share) {
        tracing::error!(share = share.0, error = %error, "share not silenced");
    }
}

/// A share that this node becomes the owner of: what an earlier ownership
/// left must not silence it.
pub(super) fn end_old_silence(ground: &Ground, share: ShareId) {
    let is_new = ground
        .shares
        .get(share)
        .is_some_and(|share| share.entry.role != Role::Owner);
    if is_new {
        open(ground, share);
    }
}

fn open(ground: &Ground, share: ShareId) {
    if let Err(error) = ground.datapath.shares.open(share) {
        tracing::error!(share = share.0, error = %error, "share not opened");
    }
}

/// Clients of a dead process are told, as its kernel could not: of a socket
/// that still closes, the kernel repeats the FIN by itself. Clients of
/// others hear what the silence has kept from them.
pub(super) fn reopen(ground: &mut Ground, share: ShareId) {
    open(ground, share);
    let mut flows = Vec::new();
    let scanned = ground.datapath.flows.for_each(|flow| {
        if flow.share == share && flow.phase != Phase::Ended {
            flows.push(flow);
        }
    });
    if let Err(error) = scanned {
        tracing::error!(error = %error, "can't read the flows to reopen");
    }
    let (now, mut dead) = (clock::now(), Vec::new());
    for flow in flows {
        if has_tcp_socket(ground.voice.ifindex, flow.id.key).is_ok_and(|exists| !exists) {
            dead.push((flow, ResetReason::NoTaker));
        } else if !flow.orphaned && flow.is_held() {
            let_go(ground, &flow, now);
        }
    }
    reset(ground, share, &dead);
}

/// Addresses as people read them.
pub(super) fn listed(addresses: &[SocketAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Pair, directed};

    #[test]
    fn directors_are_missed_where_they_stand_before_a_service() {
        let config = directed("a", "");
        let names = directors(&config).map(|(id, name)| (id, name.to_string()));
        let expected = [(PeerId(1), "d1".to_owned()), (PeerId(2), "d2".to_owned())];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert_eq!(directors(&Pair::new().a).count(), 0);
    }
}
