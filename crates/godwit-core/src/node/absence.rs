//! An owner without a server hands its share over to a standby that has one.
//!
//! A process that dies is reported by the data path, see `server.rs`. This is for what
//! the data path does not see: a server that was stopped in order, that closed its
//! listener, or whose sockets outlived it in an io_uring. New clients of such an owner
//! are refused by its kernel, while a standby that is in sync would serve them.
//!
//! The share moves as planned moves do: its protected connections go on at the standby.
//! Connections without a twin would be lost, so the owner asks without force first. Its
//! server usually drains meanwhile. After [`FORCE_AFTER`] the connections that are left
//! are reset: one of them must not keep every new client away.

use std::time::Duration;

use super::action::{Action, MoveAction};
use super::context::Context;
use super::moving::Moving;
use super::peer::PeerSide;
use super::share::ShareSide;
use super::wish::{MoveCause, MoveWish};
use crate::share::State;
use crate::{MonoTime, PeerId};

/// A listener that is closed and opened again within this time was never missing.
const CONFIRM: Duration = Duration::from_millis(40);

/// How long an owner counts as new.
const NEW_OWNER: Duration = Duration::from_secs(10);

/// As [`CONFIRM`], for a new owner: two servers that come and go must not toss the
/// share to and fro.
const CONFIRM_NEW: Duration = Duration::from_secs(2);

/// How long a move without force is tried.
const FORCE_AFTER: Duration = Duration::from_secs(3);

/// The first pause between two tries; doubled up to [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Since when this node owns, and has no server meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tenancy {
    /// When another owner's share came here; zero if it began here.
    since: MonoTime,
    /// `None` while something listens.
    absence: Option<Absence>,
}

impl Tenancy {
    pub(super) const fn new(now: MonoTime) -> Self {
        Self {
            since: now,
            absence: None,
        }
    }
}

/// Since when an owner has no server, and when it hands the share over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Absence {
    since: MonoTime,
    due: MonoTime,
    pause: Duration,
}

impl Absence {
    /// As the owner since `owned_since`: nothing listens any more.
    fn new(owned_since: MonoTime, now: MonoTime) -> Self {
        let is_new = now.since(owned_since) < NEW_OWNER;
        let wait = if is_new { CONFIRM_NEW } else { CONFIRM };
        Self {
            since: now,
            due: now.saturating_add(wait),
            pause: SHORTEST_PAUSE,
        }
    }

    /// One more try; whether it is to be forced.
    fn try_again(&mut self, now: MonoTime) -> bool {
        self.due = now.saturating_add(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        now.since(self.since) >= FORCE_AFTER
    }
}

impl ShareSide {
    /// Whether something listens has been looked at.
    pub(super) fn note_absence(&mut self, now: MonoTime) {
        let owns = self.machine.state() == State::Owner;
        if !owns || !self.server.is_gone() {
            self.server.tenancy.absence = None;
        } else if self.server.tenancy.absence.is_none() {
            self.server.tenancy.absence = Some(Absence::new(self.server.tenancy.since, now));
        }
    }

    /// When the owner's next try is due, if there is a standby to ask.
    pub(super) fn absence_due(&self, peers: &[PeerSide]) -> Option<MonoTime> {
        let ready = |peer: PeerId| {
            let side = peers.get(usize::from(peer.0));
            side.is_some_and(PeerSide::is_ready)
        };
        let anyone = self.in_sync.members().any(ready);
        let absence = self
            .server
            .tenancy
            .absence
            .filter(|_| anyone && self.may_hand_over())?;
        Some(absence.due)
    }

    /// A service that is to close with its server stays, and so does a share that is on
    /// its way.
    fn may_hand_over(&self) -> bool {
        self.machine.state() == State::Owner
            && self.server.hands_over()
            && matches!(self.moves.moving, Moving::No)
    }

    /// As the owner: asks for the move when it is due.
    pub(super) fn settle_absence(&mut self, context: &mut Context<'_>) {
        if self
            .absence_due(context.peers)
            .is_none_or(|due| context.now < due)
        {
            return;
        }
        let mut members = self.in_sync.members();
        let peer = members.find(|peer| context.is_ready(*peer));
        let (Some(peer), Some(absence)) = (peer, &mut self.server.tenancy.absence) else {
            return;
        };
        let force = absence.try_again(context.now);
        let to = context.peer_name(peer);
        let wish = MoveWish {
            to,
            force,
            cause: MoveCause::ServerMissing,
        };
        let share = self.id;
        context
            .out
            .act(Action::Move(share, MoveAction::Ask { wish }));
    }
}
