//! What a run has come to.

use std::fmt;

use crate::fault::FaultKind;

/// Sums over one history, or over many.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Histories.
    pub histories: u64,
    /// Faults that changed a role or hit a stream with bytes in flight.
    pub faults: u64,
    /// The same, by kind, in the order of [`FaultKind::ALL`].
    pub by_kind: [u64; FaultKind::ALL.len()],
    /// Faults that were injected, whether they count or not.
    pub injected: u64,
    /// Changes of owner that continued another's connections.
    pub takeovers: u64,
    /// Planned moves that came to their end.
    pub moves: u64,
    /// Connections that went to another server by themselves.
    pub singles: u64,
    /// Those that were reset since their target had crashed in the middle of it.
    pub lost: u64,
    /// Connections that were reset since their share moved, by force, without them.
    pub forced: u64,
    /// Connections that a node went on serving whose owner was gone.
    pub continued: u64,
    /// Standbys that were let go since no twin was born there.
    pub unproved: u64,
    /// Standbys that left since something around them was wrong.
    pub unfit: u64,
    /// Shares that were added, and begun where their address was.
    pub homes: u64,
    /// Running connections that a new standby came to protect.
    pub reprotected: u64,
    /// Connections that clients opened.
    pub streams: u64,
    /// Of these, complete.
    pub completed: u64,
    /// Of these, ended by a reset with a reason.
    pub resets: u64,
    /// Segments that left a host after its lease was given back.
    pub late: u64,
    /// True time that has passed in the histories, in milliseconds.
    pub simulated_ms: u64,
    /// Things that happened.
    pub steps: u64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.faults += other.faults;
        for (sum, more) in self.by_kind.iter_mut().zip(other.by_kind) {
            *sum += more;
        }
        self.injected += other.injected;
        self.takeovers += other.takeovers;
        self.moves += other.moves;
        self.singles += other.singles;
        self.lost += other.lost;
        self.forced += other.forced;
        self.continued += other.continued;
        self.unproved += other.unproved;
        self.unfit += other.unfit;
        self.homes += other.homes;
        self.reprotected += other.reprotected;
        self.streams += other.streams;
        self.completed += other.completed;
        self.resets += other.resets;
        self.late += other.late;
        self.simulated_ms += other.simulated_ms;
        self.steps += other.steps;
    }
}

/// All but the last line of what a run prints.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, count) in FaultKind::ALL.iter().zip(self.by_kind) {
            writeln!(f, "{count:>10}  {}", kind.as_str())?;
        }
        writeln!(
            f,
            "{} histories, {} s simulated, {} steps, {} faults injected",
            self.histories,
            self.simulated_ms / 1000,
            self.steps,
            self.injected
        )?;
        writeln!(
            f,
            "{} standbys let go at which no twin was born, {} that were unfit; {} shares begun \
             where their address was",
            self.unproved, self.unfit, self.homes
        )?;
        write!(
            f,
            "{} planned moves, {} connections reset by force; {} connections moved by themselves, {} lost on their way, {} completed, \
             {} continued at a takeover, {} protected again, {} reset with a reason, {} segments late after a release",
            self.moves,
            self.forced,
            self.singles,
            self.lost,
            self.completed,
            self.continued,
            self.reprotected,
            self.resets,
            self.late
        )
    }
}
