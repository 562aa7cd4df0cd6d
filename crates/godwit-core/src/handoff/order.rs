//! What is said, what is to be done, and what has come of it.

use std::time::Duration;

use godwit_wire::{Epoch, FlowId, HandoffId, HandoffRefusal, Party};

use super::Course;
use crate::PeerId;

/// Who says something of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Speaker {
    /// The node.
    pub peer: PeerId,
    /// The epoch under which it owns its share of the service. The next run of an
    /// agent finds it in its data path beside what was written down of connections;
    /// where the one is lost the other is too, and the next epoch is another.
    /// [`Epoch::NONE`]: it answers for no share.
    pub life: Epoch,
}

/// What one side says to the other of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// From the origin: make room, for this one and the others of its party.
    Prepare(Party),
    /// From the target: what the client sends waits there from now on.
    Ready,
    /// From the origin: the connection as it stands; all of it has arrived.
    State,
    /// From the target: a socket is there, and silent.
    Prepared,
    /// From the origin: speak.
    Commit,
    /// From the target: it speaks.
    Done,
    /// From the origin: it has heard that. Said again, it asks for the end.
    Settled,
    /// From the origin: it goes on by itself.
    Abort,
    /// From the target: it has not spoken under this number in this life and will not.
    Refused(HandoffRefusal),
    /// From the target: the connection is over there, or not known any more.
    Over,
}

/// Why a connection is still where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandoffError {
    /// This node does not have it.
    NotHere,
    /// It is being handed over already.
    AlreadyMoving,
    /// One side says that it can't be.
    Refused(HandoffRefusal),
    /// The target did not answer in time.
    TargetSilent,
    /// The link to the target broke.
    LinkLost,
    /// The target was started anew after it was told to speak, and can't know whether
    /// it had.
    TargetRestarted,
    /// The connection ended meanwhile.
    Ended,
    /// Another one of its session stays.
    CompanyStayed,
    /// Its session has more than [`Party::MAX`] connections.
    SessionTooLarge,
}

impl HandoffError {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotHere => "not_here",
            Self::AlreadyMoving => "already_moving",
            Self::Refused(reason) => reason.as_str(),
            Self::TargetSilent => "target_silent",
            Self::LinkLost => "link_lost",
            Self::TargetRestarted => "target_restarted",
            Self::Ended => "ended",
            Self::CompanyStayed => "company_stayed",
            Self::SessionTooLarge => "session_too_large",
        }
    }
}

/// What is to be done. Drain after every input, and carry out in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Tell the other side.
    Say {
        /// Whom.
        to: PeerId,
        /// Of which attempt.
        id: HandoffId,
        /// What; for [`Step::State`] with what [`Order::Freeze`] has made.
        step: Step,
    },
    /// Target: look whether the connection may come, and if so hold what its
    /// client sends. Answer with [`super::Handoffs::handle_held`].
    Hold {
        /// The attempt.
        id: HandoffId,
        /// Where it comes from.
        from: PeerId,
    },
    /// Origin: forward what the client sends, say nothing more, turn the socket
    /// into bytes. Answer with [`super::Handoffs::handle_frozen`]; the bytes may be
    /// sent right behind that, without waiting for [`Step::State`] to be said.
    Freeze {
        /// The attempt.
        id: HandoffId,
        /// Where to forward to.
        to: PeerId,
    },
    /// Target: make the socket, silent. Answer with [`super::Handoffs::handle_restored`].
    Restore(HandoffId),
    /// Origin: write down that it only forwards from now on, so that a restart of
    /// the agent knows.
    Commit {
        /// The attempt.
        id: HandoffId,
        /// Where to.
        to: PeerId,
    },
    /// Target: write down that the connection is here, then let it speak, with
    /// what was held first. Answer with [`super::Handoffs::handle_placed`].
    Place(HandoffId),
    /// Origin: let the frozen connection speak again.
    Thaw(HandoffId),
    /// Origin: take back what was committed, and let it speak: the target has said
    /// that it did not.
    Reclaim(HandoffId),
    /// Origin: reset the connection. It was committed, and nobody knows any more
    /// whether the target has spoken: its client may know more than the own socket.
    Lose(HandoffId),
    /// Origin: end the own socket without a segment; go on forwarding.
    Release(HandoffId),
    /// Target: end the silent socket, if there is one, and send back what was held.
    Discard {
        /// The attempt.
        id: HandoffId,
        /// Where it came from.
        from: PeerId,
        /// Where this node has handed the connection itself, earlier: forward
        /// there again.
        moved: Option<PeerId>,
    },
    /// Nothing is left of the connection here: stop forwarding.
    Forget(FlowId),
    /// Look whether our kernel has a socket of a connection of which nothing is known
    /// here. If not, answer with [`super::Handoffs::handle_absent`].
    Look {
        /// The attempt that brought it here, as the origin says.
        id: HandoffId,
        /// Who forwards for it.
        from: PeerId,
    },
}

impl Order {
    /// The connection that it is about.
    pub const fn flow(&self) -> FlowId {
        match self {
            Self::Say { id, .. }
            | Self::Hold { id, .. }
            | Self::Freeze { id, .. }
            | Self::Restore(id)
            | Self::Commit { id, .. }
            | Self::Place(id)
            | Self::Thaw(id)
            | Self::Reclaim(id)
            | Self::Lose(id)
            | Self::Release(id)
            | Self::Discard { id, .. }
            | Self::Look { id, .. } => id.flow,
            Self::Forget(flow) => *flow,
        }
    }
}

/// What happened, for events and for whoever asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// The target speaks.
    Moved {
        /// The attempt.
        id: HandoffId,
        /// Where it is.
        to: PeerId,
        /// When it came how far.
        course: Course,
    },
    /// It is where it was, and runs.
    Stayed {
        /// The connection.
        flow: FlowId,
        /// Where it was to go.
        to: PeerId,
        /// Why it did not.
        reason: HandoffError,
    },
    /// It was handed over, and is over there: nothing is forwarded any more.
    Over {
        /// The connection.
        flow: FlowId,
        /// Where it was.
        to: PeerId,
    },
    /// It was handed over, and neither its client nor its target has been heard for
    /// long: nothing is forwarded any more.
    Forgotten {
        /// The connection.
        flow: FlowId,
        /// Where it was, as far as is known.
        to: PeerId,
        /// How long its client has been silent.
        silent: Duration,
    },
    /// It is reset, for nobody knows whether the target has spoken.
    Lost {
        /// The connection.
        flow: FlowId,
        /// Where it was to go.
        to: PeerId,
        /// Why that is not known.
        reason: HandoffError,
    },
    /// It speaks here.
    Arrived {
        /// The attempt.
        id: HandoffId,
        /// Where it comes from.
        from: PeerId,
        /// When it came how far.
        course: Course,
    },
}
