//! Where one connection is, and what is under way for it.

use std::time::Duration;

use godwit_wire::{Epoch, FlowEpoch};

use super::{COMMIT_AGAIN, FROZEN_PATIENCE};
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
    /// Origin: the commit waits for its answer.
    Answering {
        since: MonoTime,
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
    /// The connection has ended, and its origin has still to hear that it was here.
    pub(super) over: bool,
    /// The greatest number that was used here for this connection.
    pub(super) spent: FlowEpoch,
}

impl Entry {
    pub(super) const fn new(place: Place) -> Self {
        Self {
            place,
            arrival: None,
            attempt: Attempt::None,
            over: false,
            spent: FlowEpoch::NATIVE,
        }
    }
}

impl Attempt {
    pub(super) fn answering(since: MonoTime, again: MonoTime) -> Self {
        Self::Answering {
            since,
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
            | Self::Frozen { to, .. } => Some(*to),
            Self::Looking { from }
            | Self::Holding { from }
            | Self::Restoring { from }
            | Self::Prepared { from } => Some(*from),
        }
    }

    /// The target's attempts have no deadline: the origin has.
    pub(super) fn due(&self) -> Option<MonoTime> {
        match self {
            Self::Asked { until, .. } => Some(*until),
            Self::Freezing { since, .. } | Self::Frozen { since, .. } => {
                Some(since.saturating_add(FROZEN_PATIENCE))
            }
            Self::Answering { again, .. } => Some(*again),
            Self::None
            | Self::Queued { .. }
            | Self::Waiting { .. }
            | Self::Looking { .. }
            | Self::Holding { .. }
            | Self::Restoring { .. }
            | Self::Prepared { .. }
            | Self::Placing { .. } => None,
        }
    }
}
