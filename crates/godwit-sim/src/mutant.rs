//! Mechanisms that can be taken away, to see that the simulator notices.

use clap::ValueEnum;

/// One mechanism that is missing. The core is never touched: it is told less
/// than is true, or the model of the data path does less than it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mutant {
    /// The data path lets an owner speak beyond the end of its lease.
    NoFence,
    /// The data path lets out what its kernel acknowledges, whatever the twin has.
    NoGate,
    /// Gates open as soon as the standby is silent, before a majority knows.
    NoWait,
    /// Agents believe that all clocks are right.
    NoDrift,
    /// Agents believe that what has passed the fence has left the host.
    NoResidence,
    /// A takeover serves flows that the standby had promised not to serve.
    NoMark,
    /// Clocks of hosts stop where only leases keep an old owner silent.
    StoppedClock,
    /// The data path is told of a fence that opens before it is told that the
    /// node is no owner any more.
    FenceFirst,
    /// Marks of flows that have no twin yet are forgotten.
    NoUnborn,
    /// Sockets of an earlier generation are served at a takeover.
    NoEnd,
    /// An owner that has handed its share over goes on speaking.
    NoSilence,
    /// The target of a move owns as soon as it is ready.
    EarlyCommit,
    /// A new twin of a running flow may be served before it has caught up.
    NoCatchUp,
    /// What was decided of a connection that goes to another server does not outlive
    /// the agent.
    NoNote,
    /// An owner takes each canary for one that was born.
    BlindCanary,
    /// Agents do not see what is wrong around them.
    NoFacts,
    /// Agents do not know which shares have an address in common.
    NoHomes,
    /// What is kept of an agent's votes is what it knew when it began.
    StaleVotes,
}

impl Mutant {
    /// Every one.
    pub const ALL: [Self; 18] = [
        Self::NoFence,
        Self::NoGate,
        Self::NoWait,
        Self::NoDrift,
        Self::NoResidence,
        Self::NoMark,
        Self::StoppedClock,
        Self::FenceFirst,
        Self::NoUnborn,
        Self::NoEnd,
        Self::NoSilence,
        Self::EarlyCommit,
        Self::NoCatchUp,
        Self::NoNote,
        Self::BlindCanary,
        Self::NoFacts,
        Self::NoHomes,
        Self::StaleVotes,
    ];
}
