//! What people hear of: log lines, `godwit events`.
//!
//! Names and field names are stable. Times are spans, so that a reader needs
//! no clock to understand an event.

use std::time::Duration;

use godwit_wire::{
    Epoch, FlowId, Generation, GoodbyeReason, LeaveReason, MoveRefusal, NodeName, ShareId,
    UnprotectedReason,
};

use super::input::StonithFault;
use super::wish::MoveError;
use crate::MonoTime;
use crate::handoff::{Course, HandoffError};
use crate::share::{Reason, State};

/// Something that happened, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When this node learnt of it.
    pub at: MonoTime,
    /// What it was.
    pub kind: EventKind,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Another node.
    Peer {
        /// Which.
        peer: NodeName,
        /// What of it.
        news: PeerNews,
    },
    /// Who owns a share, and who stands by.
    Share {
        /// Which.
        share: ShareId,
        /// What of it.
        news: ShareNews,
    },
    /// One connection.
    Flow {
        /// The share that it belongs to.
        share: ShareId,
        /// Which.
        flow: FlowId,
        /// What of it.
        news: FlowNews,
    },
}

/// What happened to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerNews {
    /// Its heartbeats arrive.
    Up {
        /// How long it had been silent; `None` the first time.
        silent_for: Option<Duration>,
    },
    /// It is silent.
    Down {
        /// For how long.
        silent_for: Duration,
    },
    /// Its agent has been started anew.
    Restarted,
    /// Its agent says that it ends.
    Goodbye {
        /// Why.
        reason: GoodbyeReason,
    },
    /// The control link to it is up: it has said hello.
    LinkUp,
    /// The control link to it, by which it had said hello, is down.
    LinkDown,
    /// It speaks no version of the messages that we speak.
    Incompatible {
        /// Oldest version that it speaks.
        min_version: u8,
        /// Latest version that it speaks.
        max_version: u8,
    },
    /// It said what it must not say, and was ignored.
    Misbehaved {
        /// What it did.
        what: &'static str,
    },
    /// It runs with another configuration. A warning: work goes on.
    ConfigDiffers,
    /// The command that powers it off has been started.
    StonithStarted,
    /// It has been powered off.
    StonithSucceeded,
    /// It could not be powered off; that is tried again, and until then nothing
    /// is taken over from it.
    StonithFailed {
        /// Why.
        fault: StonithFault,
    },
}

/// What happened to a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareNews {
    /// This node's part changed.
    RoleChanged {
        /// Its state before.
        prev: State,
        /// Its state now.
        state: State,
        /// Why.
        reason: Reason,
        /// The owner's epoch, as far as it is known.
        epoch: Epoch,
    },
    /// This node continues another's connections.
    TakeoverStarted {
        /// The owner that was.
        from: NodeName,
        /// Our epoch.
        epoch: Epoch,
        /// Why.
        reason: Reason,
        /// Time since the old owner was last heard.
        detection: Duration,
        /// The generation whose twins are served; none if there were none.
        generation: Generation,
    },
    /// Another node claims the share while we own it.
    ClaimDisputed {
        /// Who.
        peer: NodeName,
        /// Its epoch.
        peer_epoch: Epoch,
        /// Our epoch.
        epoch: Epoch,
    },
    /// This node's server died, and it keeps silent for another to take over.
    ShareReleased {
        /// The standby that may.
        peer: NodeName,
        /// Its generation.
        generation: Generation,
    },
    /// Nobody took over from a node whose server died: clients see its end.
    NoTaker,
    /// As a standby: the owner's server died, and clients would not be served here.
    TakeoverDeclined {
        /// Why: our own died within a second of it, and what did that to both must not go on
        /// to a third; or it is stopped.
        reason: MoveRefusal,
    },
    /// A standby is in sync: new connections are protected.
    StandbyJoined {
        /// The standby.
        peer: NodeName,
        /// Its generation.
        generation: Generation,
    },
    /// The other node has failed too often within a minute: it is not admitted
    /// to the in-sync set for a while, and this one goes on alone.
    StandbyHeldOff {
        /// The other node.
        peer: NodeName,
        /// For how long.
        hold: Duration,
        /// How often, on either side.
        failures: u32,
    },
    /// A standby is in sync, and yet could not take over if this node failed: too
    /// few voters without it know the lease.
    NoQuorum,
    /// It could again.
    QuorumBack,
    /// A standby is no longer in sync: its flows go on unprotected.
    StandbyLeft {
        /// The standby.
        peer: NodeName,
        /// Its generation.
        generation: Generation,
        /// Why.
        reason: LeaveReason,
    },
    /// This node has handed the share over, and stands by for its new owner.
    Moved {
        /// The new owner.
        to: NodeName,
    },
    /// A planned move did not take place.
    MoveRefused {
        /// Why.
        error: MoveError,
    },
    /// Our lease has ended: we are silent, and try to have it back.
    LeaseLapsed,
    /// We have it back, and nobody owned in between.
    LeaseRegained {
        /// How long we were silent.
        silent_for: Duration,
    },
}

/// What happened to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowNews {
    /// It goes on unprotected.
    Demoted {
        /// Why.
        reason: UnprotectedReason,
    },
    /// This node has promised its owner not to serve it.
    GivenUp {
        /// Why.
        reason: UnprotectedReason,
    },
    /// It was not, and is protected again.
    ProtectedAgain {
        /// Since its standby was told of it.
        took: Duration,
    },
    /// Its twin on this node closed before it ended.
    TwinClosed,
    /// No twin could be made for it on this node.
    MaterialiseFailed,
    /// Its twin on this node says something else than its owner.
    Diverged {
        /// Length or content.
        reason: UnprotectedReason,
        /// Whether it is given up for that.
        demoted: bool,
    },
    /// Its twin lags by more than `lag_limit`, and its client waits.
    Waiting,
    /// It has gone to another server by itself.
    Moved {
        /// Where it is.
        to: NodeName,
        /// When it came how far.
        course: Course,
    },
    /// It was to, and is still here.
    Stayed {
        /// Where it was to go.
        to: NodeName,
        /// Why it did not.
        reason: HandoffError,
    },
    /// It was given to another server, and nobody knows whether that has spoken: it
    /// is reset.
    Lost {
        /// Where it was to go.
        to: NodeName,
        /// Why that is not known.
        reason: HandoffError,
    },
    /// It has come from another server by itself.
    Arrived {
        /// Where it was.
        from: NodeName,
        /// When it came how far.
        course: Course,
    },
    /// It had gone to another server by itself, and is over there: nothing is
    /// forwarded any more.
    Over {
        /// Where it was.
        to: NodeName,
    },
    /// It had, and for very long neither its client nor that server has been heard:
    /// nothing is forwarded any more.
    Forgotten {
        /// Where it was.
        to: NodeName,
        /// How long its client has been silent.
        silent: Duration,
    },
}

/// The value of a field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// A name or an address.
    Text(String),
    /// A number without a unit.
    Count(u64),
    /// A time span; show it in milliseconds.
    Span(Duration),
}

type Fields = Vec<(&'static str, Field)>;

impl EventKind {
    /// The stable name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Peer { news, .. } => news.name(),
            Self::Share { news, .. } => news.name(),
            Self::Flow { news, .. } => news.name(),
        }
    }

    /// Whether somebody should look at it.
    pub const fn is_warning(&self) -> bool {
        match self {
            Self::Peer { news, .. } => news.is_warning(),
            Self::Share { news, .. } => news.is_warning(),
            Self::Flow { news, .. } => news.is_warning(),
        }
    }

    /// The share concerned, if it is about one.
    pub const fn share(&self) -> Option<ShareId> {
        match self {
            Self::Peer { .. } => None,
            Self::Share { share, .. } | Self::Flow { share, .. } => Some(*share),
        }
    }

    /// The fields but for the share, with their stable names.
    pub fn fields(&self) -> Vec<(&'static str, Field)> {
        match self {
            Self::Peer { peer, news } => prefix("peer", text(peer), news.fields()),
            Self::Share { news, .. } => news.fields(),
            Self::Flow { flow, news, .. } => prefix("flow", text(&flow.key), news.fields()),
        }
    }
}

impl PeerNews {
    const fn name(&self) -> &'static str {
        match self {
            Self::Up { .. } => "peer_up",
            Self::Down { .. } => "peer_down",
            Self::Restarted => "peer_restarted",
            Self::Goodbye { .. } => "peer_goodbye",
            Self::LinkUp => "link_up",
            Self::LinkDown => "link_down",
            Self::Incompatible { .. } => "peer_incompatible",
            Self::Misbehaved { .. } => "peer_misbehaved",
            Self::ConfigDiffers => "config_differs",
            Self::StonithStarted => "stonith_started",
            Self::StonithSucceeded => "stonith_succeeded",
            Self::StonithFailed { .. } => "stonith_failed",
        }
    }

    const fn is_warning(&self) -> bool {
        match self {
            Self::Down { .. }
            | Self::Incompatible { .. }
            | Self::Misbehaved { .. }
            | Self::ConfigDiffers
            | Self::StonithStarted
            | Self::StonithSucceeded
            | Self::StonithFailed { .. } => true,
            Self::Up { .. }
            | Self::Restarted
            | Self::Goodbye { .. }
            | Self::LinkUp
            | Self::LinkDown => false,
        }
    }

    fn fields(&self) -> Fields {
        match self {
            Self::Up { silent_for } => silent_for
                .map(|span| ("silent_for", Field::Span(span)))
                .into_iter()
                .collect(),
            Self::Down { silent_for } => vec![("silent_for", Field::Span(*silent_for))],
            Self::Goodbye { reason } => vec![("reason", text(reason))],
            Self::Incompatible {
                min_version,
                max_version,
            } => vec![
                ("min_version", Field::Count(u64::from(*min_version))),
                ("max_version", Field::Count(u64::from(*max_version))),
            ],
            Self::Misbehaved { what } => vec![("what", text(what))],
            Self::Restarted
            | Self::LinkUp
            | Self::LinkDown
            | Self::ConfigDiffers
            | Self::StonithStarted
            | Self::StonithSucceeded => Vec::new(),
            Self::StonithFailed { fault } => vec![("reason", text(&fault.as_str()))],
        }
    }
}

impl ShareNews {
    const fn name(&self) -> &'static str {
        match self {
            Self::RoleChanged { .. } => "role_changed",
            Self::TakeoverStarted { .. } => "takeover_started",
            Self::ClaimDisputed { .. } => "claim_disputed",
            Self::ShareReleased { .. } => "share_released",
            Self::NoTaker => "no_taker",
            Self::TakeoverDeclined { .. } => "takeover_declined",
            Self::StandbyJoined { .. } => "standby_joined",
            Self::StandbyHeldOff { .. } => "standby_held_off",
            Self::NoQuorum => "no_quorum",
            Self::QuorumBack => "quorum_back",
            Self::StandbyLeft { .. } => "standby_left",
            Self::Moved { .. } => "share_moved",
            Self::MoveRefused { .. } => "move_refused",
            Self::LeaseLapsed => "lease_lapsed",
            Self::LeaseRegained { .. } => "lease_regained",
        }
    }

    const fn is_warning(&self) -> bool {
        match self {
            Self::TakeoverStarted { .. }
            | Self::ClaimDisputed { .. }
            | Self::StandbyHeldOff { .. }
            | Self::NoQuorum
            | Self::StandbyLeft { .. }
            | Self::LeaseLapsed
            | Self::LeaseRegained { .. }
            | Self::ShareReleased { .. }
            | Self::NoTaker
            | Self::MoveRefused { .. }
            | Self::TakeoverDeclined { .. } => true,
            Self::Moved { .. }
            | Self::RoleChanged { .. }
            | Self::StandbyJoined { .. }
            | Self::QuorumBack => false,
        }
    }

    fn fields(&self) -> Fields {
        match self {
            Self::RoleChanged {
                prev,
                state,
                reason,
                epoch,
            } => vec![
                ("prev", text(&prev.as_str())),
                ("state", text(&state.as_str())),
                ("reason", text(&reason.as_str())),
                ("epoch", text(epoch)),
            ],
            Self::TakeoverStarted {
                from,
                epoch,
                reason,
                detection,
                generation,
            } => vec![
                ("from", text(from)),
                ("epoch", text(epoch)),
                ("reason", text(&reason.as_str())),
                ("detection", Field::Span(*detection)),
                ("generation", count(*generation)),
            ],
            Self::ClaimDisputed {
                peer,
                peer_epoch,
                epoch,
            } => vec![
                ("peer", text(peer)),
                ("peer_epoch", text(peer_epoch)),
                ("epoch", text(epoch)),
            ],
            Self::NoTaker => Vec::new(),
            Self::TakeoverDeclined { reason } => vec![("reason", text(&reason.as_str()))],
            Self::ShareReleased { peer, generation } | Self::StandbyJoined { peer, generation } => {
                vec![("peer", text(peer)), ("generation", count(*generation))]
            }
            Self::StandbyHeldOff {
                peer,
                hold,
                failures,
            } => vec![
                ("peer", text(peer)),
                ("hold", Field::Span(*hold)),
                ("failures", Field::Count(u64::from(*failures))),
            ],
            Self::StandbyLeft {
                peer,
                generation,
                reason,
            } => vec![
                ("peer", text(peer)),
                ("generation", count(*generation)),
                ("reason", text(reason)),
            ],
            Self::Moved { to } => vec![("to", text(to))],
            Self::MoveRefused { error } => vec![("reason", text(&error.as_str()))],
            Self::LeaseLapsed | Self::NoQuorum | Self::QuorumBack => Vec::new(),
            Self::LeaseRegained { silent_for } => vec![("silent_for", Field::Span(*silent_for))],
        }
    }
}

impl FlowNews {
    const fn is_warning(&self) -> bool {
        match self {
            Self::Demoted { .. }
            | Self::TwinClosed
            | Self::MaterialiseFailed
            | Self::Diverged { .. }
            | Self::Stayed { .. }
            | Self::Lost { .. }
            | Self::Forgotten { .. }
            | Self::Waiting => true,
            // Of a promise its owner tells.
            Self::GivenUp { .. }
            | Self::ProtectedAgain { .. }
            | Self::Moved { .. }
            | Self::Arrived { .. }
            | Self::Over { .. } => false,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Demoted { .. } => "flow_demoted",
            Self::GivenUp { .. } => "flow_given_up",
            Self::ProtectedAgain { .. } => "flow_protected_again",
            Self::TwinClosed => "twin_closed",
            Self::MaterialiseFailed => "materialise_failed",
            Self::Diverged { .. } => "flow_diverged",
            Self::Waiting => "flow_waiting",
            Self::Moved { .. } => "flow_moved",
            Self::Stayed { .. } => "flow_stayed",
            Self::Lost { .. } => "flow_lost",
            Self::Arrived { .. } => "flow_arrived",
            Self::Over { .. } => "flow_over",
            Self::Forgotten { .. } => "flow_forgotten",
        }
    }

    fn fields(&self) -> Fields {
        match self {
            Self::Demoted { reason } | Self::GivenUp { reason } => {
                vec![("reason", text(reason))]
            }
            Self::Diverged { reason, demoted } => {
                let action = if *demoted { "demote" } else { "report" };
                vec![("reason", text(reason)), ("action", text(&action))]
            }
            Self::ProtectedAgain { took } => vec![("took", Field::Span(*took))],
            Self::Over { to } => vec![("to", text(to))],
            Self::Forgotten { to, silent } => {
                vec![("to", text(to)), ("silent", Field::Span(*silent))]
            }
            Self::Moved { to, course } => {
                let mut fields = vec![("to", text(to)), ("silent", Field::Span(course.silent()))];
                fields.extend(spans(course.at_origin()));
                fields
            }
            Self::Stayed { to, reason } | Self::Lost { to, reason } => {
                vec![("to", text(to)), ("reason", text(&reason.as_str()))]
            }
            Self::Arrived { from, course } => {
                let mut fields = vec![("from", text(from))];
                fields.extend(spans(course.at_target()));
                fields
            }
            Self::TwinClosed | Self::MaterialiseFailed | Self::Waiting => Vec::new(),
        }
    }
}

fn spans(took: [(&'static str, Duration); 5]) -> impl Iterator<Item = (&'static str, Field)> {
    took.into_iter()
        .map(|(name, span)| (name, Field::Span(span)))
}

fn prefix(name: &'static str, value: Field, mut rest: Fields) -> Fields {
    rest.insert(0, (name, value));
    rest
}

fn text(value: &impl ToString) -> Field {
    Field::Text(value.to_string())
}

fn count(generation: Generation) -> Field {
    Field::Count(u64::from(generation.0))
}
