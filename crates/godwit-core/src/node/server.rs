//! The server process behind a share: what follows when it dies.
//!
//! ```text
//!  owner                                     standby
//!  its server dies: Silence
//!     ── ServerLost ────────────────────────► its own server lives: it claims
//!     ◄───────────────── claim, higher epoch
//!  steps down, ends its sockets
//!
//!  or nobody claims, or ◄──────── ServerLost  its own server died just now too, or
//!                                              serves nobody at present
//!     ── StandbyLeft ───────────────────────►
//!  Reopen: clients see the connections end
//! ```
//!
//! The data path decides nothing here but to be silent in time.

use std::time::Duration;

use godwit_wire::{Generation, LeaveReason, Message, MoveRefusal, StandbyMessage};

use super::absence::Tenancy;
use super::action::{Action, ShareAction};
use super::context::Context;
use super::event::ShareNews;
use super::input::{Listening, Registration, ServerExit};
use super::share::ShareSide;
use crate::share::{Ownership, Reason, State};
use crate::{MonoTime, PeerId};

/// Two servers that die within this time of each other died of the same thing:
/// a request that would kill the next server as well.
const SAME_CAUSE: Duration = Duration::from_secs(1);

/// The server process of one share on this node.
#[derive(Debug, Clone)]
pub(super) struct Server {
    /// Where something listens.
    listening: Listening,
    /// Whether twins that wait for a server could be given to one.
    registration: Registration,
    /// When a process of it died last.
    died: Option<MonoTime>,
    /// As the owner: silent for somebody to take over, until then.
    pub(super) released_until: Option<MonoTime>,
    /// As the owner: nobody did, and clients hear of it when no standby is in
    /// sync any more.
    pub(super) reopening: bool,
    /// How long that is; zero: never silent.
    hold: Duration,
    /// As the owner: since when it owns, and nothing listens.
    pub(super) tenancy: Tenancy,
}

impl Server {
    pub(super) fn new(hold: Duration) -> Self {
        Self {
            listening: Listening::All,
            registration: Registration::Complete,
            died: None,
            released_until: None,
            reopening: false,
            hold,
            tenancy: Tenancy::default(),
        }
    }

    /// Whether a twin of every connection can be made here, and be served.
    pub(super) fn is_listening(&self) -> bool {
        self.listening == Listening::All && self.registration != Registration::Missing
    }

    /// Whether its processes have registered, as far as they need to: what is in sync
    /// stays so for a moment without, nothing becomes so.
    pub(super) fn is_registered(&self) -> bool {
        self.registration == Registration::Complete
    }

    /// Whether nothing listens at all.
    pub(super) fn is_gone(&self) -> bool {
        self.listening == Listening::Nowhere
    }

    /// Whether an owner without a server hands its share over: not if its connections
    /// are to end with the server, or somebody is about to take it over already.
    pub(super) fn hands_over(&self) -> bool {
        !self.hold.is_zero() && self.released_until.is_none() && !self.reopening
    }

    /// Whether a share that its owner gave up is safe here: what killed the
    /// owner's server may have killed ours.
    pub(super) fn may_claim(&self, now: MonoTime) -> bool {
        self.is_listening() && !self.died_just_now(now)
    }

    /// Why this node does not become the owner when it is asked to, if it does
    /// not.
    pub(super) fn refusal(&self, now: MonoTime) -> Option<MoveRefusal> {
        if !self.is_listening() {
            Some(MoveRefusal::NoServer)
        } else if self.died_just_now(now) {
            Some(MoveRefusal::ServerDied)
        } else {
            None
        }
    }

    fn died_just_now(&self, now: MonoTime) -> bool {
        self.died.is_some_and(|died| now.since(died) < SAME_CAUSE)
    }
}

impl ShareSide {
    /// A process that took only its own connection along is no death of the server: it
    /// frees no share and gives no reason to decline one.
    pub(super) fn handle_server_exit(&mut self, exit: ServerExit, context: &mut Context<'_>) {
        if !exit.server && !exit.listener_lost {
            return;
        }
        self.server.died = Some(context.now);
        if exit.listener_lost {
            self.server.listening = Listening::Nowhere;
            self.note_absence(context.now);
        }
        match self.machine.state() {
            State::Owner => self.set_free(exit, context),
            // Twins that are lost alone are reported one by one.
            State::Shadow { owner, generation } => {
                if exit.listener_lost {
                    self.retire(owner, generation, context);
                }
            }
            State::Starting { .. } | State::Standby { .. } | State::Quitting => {}
        }
    }

    pub(super) fn handle_listening(&mut self, listening: Listening, context: &mut Context<'_>) {
        if listening == Listening::All && self.server.listening != Listening::All {
            self.asked = false;
        }
        self.server.listening = listening;
        self.note_absence(context.now);
        self.retire_without_server(context);
    }

    /// An owner without registered processes keeps its connections: they live, and nobody
    /// could go on with them.
    pub(super) fn handle_registration(
        &mut self,
        registration: Registration,
        context: &mut Context<'_>,
    ) {
        if registration == Registration::Complete && !self.server.is_registered() {
            self.asked = false;
        }
        self.server.registration = registration;
        if registration == Registration::Missing && self.machine.state() == State::Owner {
            self.leave_unregistered(context);
        }
        self.retire_without_server(context);
    }

    /// As the owner: no standby has what its server could go on from.
    fn leave_unregistered(&mut self, context: &mut Context<'_>) {
        let lease = self.lease.as_ref();
        let stays = |peer: &PeerId| !lease.is_some_and(|lease| lease.is_leaving(*peer));
        for peer in self.in_sync.members().filter(stays).collect::<Vec<_>>() {
            self.lose_standby(peer, LeaveReason::ServerLost, context);
        }
    }

    /// As the owner: has the standby take over, if there is anything to save.
    fn set_free(&mut self, exit: ServerExit, context: &mut Context<'_>) {
        let anything = exit.kept > 0 || exit.listener_lost;
        let enabled = !self.server.hold.is_zero();
        if !anything || !enabled || self.server.released_until.is_some() {
            return;
        }
        let ready = self.in_sync.members().find(|peer| context.is_ready(*peer));
        let Some(peer) = ready.filter(|_| exit.movable) else {
            self.reopen(context);
            return;
        };
        let share = self.id;
        let generation = self.in_sync.generation();
        self.server.released_until = Some(context.now.saturating_add(self.server.hold));
        context.out.act(Action::Share(share, ShareAction::Silence));
        let free = Message::Standby(self.scope(generation), StandbyMessage::ServerLost);
        context.send(peer, free);
        // Voters need not wait for the lease to run out.
        self.release(context.now);
        let peer = context.peer_name(peer);
        context.tell(share, ShareNews::ShareReleased { peer, generation });
    }

    /// As the owner: what nobody takes over ends here. The standby is told
    /// first that it may not any more.
    pub(super) fn reopen(&mut self, context: &mut Context<'_>) {
        self.server.released_until = None;
        self.server.reopening = true;
        if let Some(lease) = &mut self.lease {
            lease.proposer.handle_reclaim(context.now);
        }
        self.leave_all(LeaveReason::NotTaken, context);
        self.settle_reopening(context);
    }

    /// With leases, a majority has to know that the standby is out.
    pub(super) fn settle_reopening(&mut self, context: &mut Context<'_>) {
        if self.server.reopening && self.in_sync.generation().is_none() {
            self.server.reopening = false;
            context.out.act(Action::Share(self.id, ShareAction::Reopen));
            context.tell(self.id, ShareNews::NoTaker);
        }
    }

    pub(super) fn handle_release_timeout(&mut self, context: &mut Context<'_>) {
        let due = self.server.released_until;
        if due.is_some_and(|until| until <= context.now) {
            self.reopen(context);
        }
    }

    /// As the owner: the standby's server has died.
    pub(super) fn handle_standby_server_lost(&mut self, peer: PeerId, context: &mut Context<'_>) {
        self.handle_standby_leaves(peer, LeaveReason::ServerLost, context);
    }

    /// As a standby: the owner's server has died, and it is silent.
    pub(super) fn handle_owner_server_lost(
        &mut self,
        owner: Ownership,
        generation: Generation,
        context: &mut Context<'_>,
    ) {
        let refusal = if self.server.died_just_now(context.now) {
            Some(MoveRefusal::ServerDied)
        } else if !self.condition.takes_lost() {
            Some(MoveRefusal::NoServer)
        } else {
            None
        };
        if let Some(reason) = refusal {
            context.tell(self.id, ShareNews::TakeoverDeclined { reason });
            self.retire(owner, generation, context);
        } else {
            self.machine.handle_owner_server_lost(generation);
        }
    }

    /// An owner may be without a server, what it is after a move may not.
    pub(super) fn retire_without_server(&mut self, context: &mut Context<'_>) {
        if let (false, State::Shadow { owner, generation }) =
            (self.server.is_listening(), self.machine.state())
        {
            self.retire(owner, generation, context);
        }
    }

    /// As a standby: leaves the in-sync set.
    fn retire(&mut self, owner: Ownership, generation: Generation, context: &mut Context<'_>) {
        self.machine.handle_retired(Reason::ServerLost);
        let lost = Message::Standby(
            self.scope_under(owner, generation),
            StandbyMessage::ServerLost,
        );
        context.send(owner.peer, lost);
    }
}
