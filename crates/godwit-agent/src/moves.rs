//! `godwit.move/1`: how a planned move ended, as the control socket answers it.
//!
//! The schema is stable: fields may be added, none is renamed or removed.

use godwit_core::handoff::Course;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::clock::ms;

/// The schema's name and version.
pub const SCHEMA: &str = "godwit.move/1";

/// A move that was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MoveReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// The owner that was.
    pub from: String,
    /// The owner that is.
    pub to: String,
    /// The services that moved: the one asked for and all that have an address
    /// in common with it.
    pub services: Vec<String>,
    /// Connections that moved with them.
    pub flows: u64,
    /// From the last segment of the old owner to the claim of the new one, as
    /// the old one saw it, in milliseconds.
    pub silent_ms: f64,
}

/// The name and version of [`FlowMoves`].
pub const FLOWS_SCHEMA: &str = "godwit.flow_moves/1";

/// Which connections are to go to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// One, `client -> service`.
    Flow(String),
    /// Some of a service.
    Some(String, Part),
}

/// How many of some connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// At most so many.
    Count(usize),
    /// So many of a hundred, rounded up.
    Percent(u8),
}

impl Part {
    /// How many of `all`.
    pub fn of(self, all: usize) -> usize {
        match self {
            Self::Count(count) => count.min(all),
            Self::Percent(percent) => (all * usize::from(percent.min(100))).div_ceil(100),
        }
    }
}

/// Connections that were to go to another server, one by one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowMoves {
    /// [`FLOWS_SCHEMA`].
    pub schema: String,
    /// The node that had them.
    pub from: String,
    /// The node that was to have them.
    pub to: String,
    /// Those that it has.
    pub moved: Vec<MovedFlow>,
    /// Those that are where they were.
    pub stayed: Vec<FlowStayed>,
}

/// A connection that has gone to another server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MovedFlow {
    /// `client -> service`.
    pub flow: String,
    /// From the last segment here to the word that it speaks there, in milliseconds.
    pub silent_ms: f64,
    /// What the time went to.
    pub steps: MoveSteps,
}

/// What the time of a move went to, one step after the other, in milliseconds. The
/// connection is silent in the last three.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MoveSteps {
    /// The other node makes room.
    pub asked_ms: f64,
    /// The server exports its state and lets go of the connection, once it is its turn.
    pub taken_ms: f64,
    /// The socket becomes bytes.
    pub dumped_ms: f64,
    /// The other node has them and makes a socket of them.
    pub prepared_ms: f64,
    /// It is told to speak, does so, and says that.
    pub committed_ms: f64,
}

impl MoveSteps {
    pub(crate) fn of(course: &Course) -> Self {
        let [asked_ms, taken_ms, dumped_ms, prepared_ms, committed_ms] =
            course.at_origin().map(|(_, took)| ms(took));
        Self {
            asked_ms,
            taken_ms,
            dumped_ms,
            prepared_ms,
            committed_ms,
        }
    }
}

/// A connection that has not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStayed {
    /// `client -> service`.
    pub flow: String,
    /// Why.
    pub reason: String,
}

/// Why nothing, or not everything, moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveRefused {
    /// The stable name.
    pub reason: &'static str,
    /// A sentence for people.
    pub sentence: String,
}

/// A share that somebody wants to be moved.
#[derive(Debug)]
pub struct Wish {
    /// Name of the service.
    pub service: String,
    /// Name of the node that is to own it.
    pub to: String,
    /// Whether connections that can't move are reset.
    pub force: bool,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<MoveReport, MoveRefused>>,
}

/// Connections that somebody wants to be moved.
#[derive(Debug)]
pub struct FlowWish {
    /// Which connections.
    pub which: Selection,
    /// Name of the node that is to have them.
    pub to: String,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<FlowMoves, MoveRefused>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_rounded_up_and_never_more_than_all() {
        assert_eq!(Part::Percent(50).of(3), 2);
        assert_eq!(Part::Percent(1).of(1), 1);
        assert_eq!(Part::Percent(0).of(9), 0);
        assert_eq!(Part::Percent(255).of(9), 9);
        assert_eq!(Part::Count(4).of(9), 4);
        assert_eq!(Part::Count(10).of(9), 9);
    }
}
