//! Servers that commit snapshots, at an owner whose
//! [`Commits`](godwit_core::snapshot::commit::Commits) is the real one: links are lost with what
//! is on them, owners and standbys die, standbys are let go and get in sync again.
//!
//! What a standby does, and what data paths say of flows, is a model. What must hold:
//!
//! - A commit that was answered is never gone back behind: by no later owner, whatever the answer.
//!   "Safe" means that a standby has it, "not safe" that none would serve the connection.
//! - Each is answered once, and within its bound.

mod owner;
mod standby;
mod world;

use std::fmt;

use clap::ValueEnum;

use world::World;

/// What agents or standbys fail to do, to see that it is missed. The machine itself is never
/// touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// A standby answers before its twin stands at the commit.
    EarlyAnswer,
    /// A connection is given up without a word to its standby.
    GivenUpUnsaid,
    /// A new twin counts before the machine lets that word pass.
    CountsAtOnce,
    /// That a twin was there is believed of the next twin, too.
    HeldStays,
    /// Those who wait are not looked after.
    NoLook,
}

impl Fault {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::EarlyAnswer,
        Self::GivenUpUnsaid,
        Self::CountsAtOnce,
        Self::HeldStays,
        Self::NoLook,
    ];
}

/// What many histories have come to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    /// Links that were lost, machines that died, twins and standbys that were let go.
    pub faults: u64,
    /// Commits that were answered "safe".
    pub safe: u64,
    /// Those that were answered otherwise.
    pub refused: u64,
    /// Connections that went on at a new owner, from a commit.
    pub goes_on: u64,
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "commits: {} faults, {} safe, {} refused, {} connections went on",
            self.faults, self.safe, self.refused, self.goes_on
        )
    }
}

/// What was found wrong.
#[derive(Debug, Clone)]
pub struct Wrong {
    /// The history.
    pub seed: u64,
    /// What is wrong with it.
    pub what: String,
}

/// Runs so many histories, or until one is wrong.
///
/// # Errors
/// Says which.
pub fn run(seed: u64, histories: u64, fault: Option<Fault>) -> Result<Sums, Wrong> {
    let mut sums = Sums::default();
    for seed in seed..seed.saturating_add(histories) {
        let mut world = World::new(seed, fault, sums);
        if let Some(what) = world.run() {
            return Err(Wrong { seed, what });
        }
        sums = world.sums();
    }
    Ok(sums)
}
