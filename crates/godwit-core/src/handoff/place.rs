//! Where one connection is, and what is under way for it.

use std::time::Duration;

use godwit_wire::{Epoch, FlowEpoch, Party};

use super::{COMMIT_AGAIN, Course, FROZEN_PATIENCE};
use crate::{MonoTime, PeerId};

/// Where a connection is, as this node has decided or been told for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Not here, and never was.
    Elsewhere,
    /// Here: this node speaks.
    Here,
    /// Handed over; the target has not said that it speaks.
    Committed {
        /// The attempt.
        epoch: FlowEpoch,
        /// Where to.
        to: PeerId,
        /// The life in which the target has made its socket ([`super::Speaker`]):
        /// in a later one it would not know whether that has spoken.
        life: Epoch,
    },
    /// Handed over, and there.
    Moved {
        /// The attempt.
        epoch: FlowEpoch,
        /// Where to.
        to: PeerId,
    },
}

/// How a connection came to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// Who had it before, and forwards what its client sends there.
    pub from: PeerId,
    /// The number under which it was placed here.
    pub epoch: FlowEpoch,
    /// The origin has heard that it was. Until then it may ask, and the connection
    /// does not move on: an origin that could not ask any more would not know
    /// whether it may reclaim.
    pub settled: bool,
}

/// What must outlive the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Written {
    /// Where the connection is.
    pub place: Place,
    /// How it came here, if by a handoff.
    pub arrival: Option<Arrival>,
    /// The greatest number that was used here for it: none is used twice.
    pub spent: FlowEpoch,
}

/// The attempt that is under way, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attempt {
    None,
    /// Origin: others are asked for first.
    Queued {
        to: PeerId,
    },
    /// Origin: the target was asked.
    Asked {
        to: PeerId,
        until: MonoTime,
    },
    /// Origin: the target is ready, others are frozen.
    Waiting {
        to: PeerId,
    },
    /// Origin: the driver makes bytes of it.
    Freezing {
        to: PeerId,
        since: MonoTime,
    },
    /// Origin: the target has the bytes, or gets them.
    Frozen {
        to: PeerId,
        since: MonoTime,
    },
    /// Origin: the target has a socket of it; others of its party are waited for.
    Agreed {
        to: PeerId,
        since: MonoTime,
        life: Epoch,
    },
    /// Origin: the commit waits for its answer.
    Answering {
        again: MonoTime,
        gap: Duration,
    },
    /// Target: the driver looks.
    Looking {
        from: PeerId,
    },
    /// Target: segments wait.
    Holding {
        from: PeerId,
    },
    /// Target: the driver makes the socket.
    Restoring {
        from: PeerId,
    },
    /// Target: the socket is there.
    Prepared {
        from: PeerId,
    },
    /// Target: it is committed if the others of its party are.
    Consented {
        from: PeerId,
    },
    /// Target: it is committed, and the driver lets it speak.
    Placing {
        from: PeerId,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) arrival: Option<Arrival>,
    pub(super) attempt: Attempt,
    /// How far the latest attempt has come.
    pub(super) course: Course,
    /// With which others that attempt is made.
    pub(super) party: Party,
    /// The connection has ended, and its origin has still to hear that it was here.
    pub(super) over: bool,
    /// Since when its target could not be asked, while its client was silent.
    pub(super) unreached: Option<MonoTime>,
    /// The greatest number that was used here for this connection.
    pub(super) spent: FlowEpoch,
}

impl Entry {
    pub(super) const fn new(place: Place) -> Self {
        Self {
            place,
            arrival: None,
            attempt: Attempt::None,
            course: Course::NONE,
            party: Party::ALONE,
            over: false,
            unreached: None,
            spent: FlowEpoch::NATIVE,
        }
    }
}

impl Entry {
    /// Whether both are of one party, and neither is committed.
    pub(super) fn is_with(&self, other: &Self) -> bool {
        !self.party.is_alone()
            && self.party == other.party
            && self.attempt.peer().is_some()
            && self.attempt.peer() == other.attempt.peer()
            && self.attempt.arrives() == other.attempt.arrives()
    }
}

impl Attempt {
    pub(super) fn answering(again: MonoTime) -> Self {
        Self::Answering {
            again,
            gap: COMMIT_AGAIN,
        }
    }

    /// With whom, as long as it is not committed.
    pub(super) const fn peer(&self) -> Option<PeerId> {
        match self {
            Self::None | Self::Answering { .. } | Self::Placing { .. } => None,
            Self::Queued { to }
            | Self::Asked { to, .. }
            | Self::Waiting { to }
            | Self::Freezing { to, .. }
            | Self::Frozen { to, .. }
            | Self::Agreed { to, .. } => Some(*to),
            Self::Looking { from }
            | Self::Holding { from }
            | Self::Restoring { from }
            | Self::Prepared { from }
            | Self::Consented { from } => Some(*from),
        }
    }

    /// Whether this node is the target of it.
    const fn arrives(&self) -> bool {
        match self {
            Self::Looking { .. }
            | Self::Holding { .. }
            | Self::Restoring { .. }
            | Self::Prepared { .. }
            | Self::Consented { .. }
            | Self::Placing { .. } => true,
            Self::None
            | Self::Queued { .. }
            | Self::Asked { .. }
            | Self::Waiting { .. }
            | Self::Freezing { .. }
            | Self::Frozen { .. }
            | Self::Agreed { .. }
            | Self::Answering { .. } => false,
        }
    }

    /// The target's attempts have no deadline: the origin has.
    pub(super) fn due(&self) -> Option<MonoTime> {
        match self {
            Self::Asked { until, .. } => Some(*until),
            Self::Freezing { since, .. }
            | Self::Frozen { since, .. }
            | Self::Agreed { since, .. } => Some(since.saturating_add(FROZEN_PATIENCE)),
            Self::Answering { again, .. } => Some(*again),
            Self::None
            | Self::Queued { .. }
            | Self::Waiting { .. }
            | Self::Looking { .. }
            | Self::Holding { .. }
            | Self::Restoring { .. }
            | Self::Prepared { .. }
            | Self::Consented { .. }
            | Self::Placing { .. } => None,
        }
    }
}
