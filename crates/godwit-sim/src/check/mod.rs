//! Every history of a small cluster, within bounds.
//!
//! Two servers and a witness run the real core, whole nodes of it: detectors,
//! leases, roles, in-sync set, moves, server processes. Around them there is a
//! model with few states: time goes by in steps of a third of a term, and whatever is
//! said in between arrives within the step, unless a fault comes in the way. *All*
//! histories are tried in which at most so many faults come, at any point and
//! after any other, and in which somebody wants so many moves. There is no bound
//! on how long a history lasts: times count from now, so the cluster comes back
//! to states in which it was before.
//!
//! What must hold is in `ghost.rs`; and whatever has happened, when nothing more
//! comes the share has an owner and a standby in sync again.

mod cluster;
mod fault;
mod flaw;
mod ghost;
mod machine;
mod obey;
mod print;
mod search;
mod time;
mod trail;
mod wire;

pub use flaw::Flaw;

use std::fmt;

use time::DRIFT_PPM;

/// How far histories go.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Faults in one history.
    pub faults: u8,
    /// Moves that somebody wants in one history.
    pub moves: u8,
    /// Steps of time in a term; at least 3.
    pub ticks: u32,
    /// Steps of time that something may last: outages, pauses, cuts.
    pub outages: Vec<u8>,
    /// Whether agents are also stopped between any two actions.
    pub between: bool,
    /// Whether faults may come from the first moment on; else from when the
    /// cluster is at rest.
    pub boot: bool,
    /// Whether the cluster at rest has the share where its primary is not.
    pub away: bool,
    /// Whether clocks are wrong: that of the primary is slow, that of the
    /// witness is fast.
    pub drift: bool,
    /// What is missing.
    pub flaw: Option<Flaw>,
    /// How many threads work on it.
    pub threads: usize,
}

impl Bounds {
    /// What CI tries. Together well below a minute.
    pub fn for_ci(threads: usize) -> [Self; 3] {
        let rest = Self {
            faults: 2,
            moves: 0,
            ticks: 3,
            outages: vec![4],
            between: false,
            boot: false,
            away: false,
            drift: true,
            flaw: None,
            threads,
        };
        let boot = Self {
            faults: 1,
            boot: true,
            between: true,
            outages: vec![1, 4],
            ..rest.clone()
        };
        let moves = Self {
            moves: 1,
            boot: false,
            ..boot.clone()
        };
        [rest, boot, moves]
    }

    fn clocks(&self) -> [i64; machine::NODES] {
        let most = if self.drift { i64::from(DRIFT_PPM) } else { 0 };
        [-most, 0, most]
    }
}

/// As people read it.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |on: bool, text: &'static str| if on { text } else { "" };
        write!(
            f,
            "{} faults, {} moves, {} steps in a term, outages of {:?}{}{}{}{}",
            self.faults,
            self.moves,
            self.ticks,
            self.outages,
            with(self.between, ", between actions"),
            with(self.boot, ", from the start"),
            with(self.away, ", away from home"),
            with(self.drift, ", wrong clocks"),
        )
    }
}

/// What all histories have come to.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Different states.
    pub states: u64,
    /// Steps between them.
    pub steps: u64,
    /// Steps of the longest way to a new state.
    pub depth: u64,
    /// What went wrong: the last line says what, those before how that came about.
    pub violation: Option<Vec<String>>,
}

/// Tries everything within the bounds, or until something is wrong.
pub fn exhaust(bounds: &Bounds) -> Verdict {
    search::Search::run(bounds)
}
