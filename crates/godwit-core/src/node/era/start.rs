//! What a node knows of its own start.

use std::time::Duration;

use crate::MonoTime;
use crate::node::scrutiny::TOLERANCE;
use crate::share::State;

/// What is to be said of this agent's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// It is near enough.
    Near,
    /// The owner of a share says that it is more than a day from now.
    Doubted,
    /// The clock of day says that it is so much later than now, more than a day.
    Ahead(Duration),
}

/// What this node knows of its own start.
#[derive(Debug, Clone)]
pub(in crate::node) struct Era {
    /// In seconds since 1970.
    born: u32,
    /// What the clock of day says.
    pub(in crate::node) day: u32,
    /// Since when nothing has happened, and what each share does.
    pub(in crate::node) quiet: Option<(MonoTime, Vec<State>)>,
}

impl Era {
    pub(in crate::node) fn new(incarnation: u64) -> Self {
        let born = seconds(incarnation);
        Self {
            born,
            day: born,
            quiet: None,
        }
    }

    /// By how much the start of this agent is later than its clock of day, if that is much.
    pub(in crate::node) fn ahead(&self) -> Option<Duration> {
        let ahead = Duration::from_secs(self.born.saturating_sub(self.day).into());
        (ahead > TOLERANCE).then_some(ahead)
    }
}

pub(in crate::node) const fn seconds(incarnation: u64) -> u32 {
    (incarnation >> 32) as u32
}
