//! Connections that go with their requests, in rings of servers that are
//! [`godwit_core::request::Connection`]: frames are lost, late and repeated, machines die and
//! come back, shares move, and links carry nothing of what servers send each other.
//!
//! One history is of one connection. What must hold is in `audit.rs`.

mod audit;
mod client;
mod fault;
mod frame;
mod node;
mod settle;
mod world;

use std::fmt;

use clap::ValueEnum;

use world::World;

/// Faults and words of one history, before all is well again.
const STEPS: u32 = 160;

/// A rule that is broken, to see that it is missed. The model is never touched: it is told
/// less than is true, or what it says is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rule {
    /// A server is silent from its question on.
    Silent,
    /// What was refused is remembered.
    OneAnswer,
    /// Silence of whom was asked gives nothing back.
    Waits,
    /// Only who is known to be without power is dead.
    Proved,
    /// A standby writes a question down before it sends it on.
    ToldFirst,
    /// A standby's twin ends with the answer.
    TwinEnds,
    /// What a target's agent has ruled out is never accepted.
    Ruling,
    /// The agents settle what the link does not carry.
    Agents,
    /// Each question has a number of its own.
    Numbered,
    /// No new twin is made of a connection while its question is open.
    NoTwinMeanwhile,
    /// No share moves whose connection has no twin.
    MovesWithTwin,
    /// Who has taken over what another server had takes no new connection in its place.
    OnlyOwn,
    /// Whose twin it is, is asked in place of an owner that has failed.
    InItsPlace,
    /// What an owner has asked, the next one settles without a copy of it.
    WithoutCopy,
    /// A question that was put again, as its standby was to hear the answer, is let go then.
    LetsGo,
    /// Who gets a share learns what has gone on from there.
    Heirs,
    /// Who has forgotten what it had accepted does not deny it.
    Remembers,
}

impl Rule {
    /// Every one.
    pub const ALL: [Self; 17] = [
        Self::Silent,
        Self::OneAnswer,
        Self::Waits,
        Self::Proved,
        Self::ToldFirst,
        Self::TwinEnds,
        Self::Ruling,
        Self::Agents,
        Self::Numbered,
        Self::NoTwinMeanwhile,
        Self::MovesWithTwin,
        Self::OnlyOwn,
        Self::InItsPlace,
        Self::WithoutCopy,
        Self::LetsGo,
        Self::Heirs,
        Self::Remembers,
    ];
}

/// What many histories have come to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    /// How many.
    pub histories: u64,
    /// Deaths, returns, moves, frames that were lost or repeated.
    pub faults: u64,
    /// Questions that were accepted.
    pub handoffs: u64,
    /// Questions that were refused or ruled out.
    pub refusals: u64,
    /// Takeovers.
    pub takeovers: u64,
    /// Connections that were lost with a machine.
    pub lost: u64,
}

impl Sums {
    const fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.faults += other.faults;
        self.handoffs += other.handoffs;
        self.refusals += other.refusals;
        self.takeovers += other.takeovers;
        self.lost += other.lost;
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections with requests: {} faults, {} handoffs, {} refusals, {} takeovers, {} lost",
            self.histories, self.faults, self.handoffs, self.refusals, self.takeovers, self.lost
        )
    }
}

/// What was found wrong.
#[derive(Debug, Clone)]
pub struct Wrong {
    /// The history.
    pub seed: u64,
    /// The last line says what is wrong, those before how that came about.
    pub story: Vec<String>,
}

/// Runs so many histories, or until one is wrong.
///
/// # Errors
/// Says which.
pub fn run(seed: u64, histories: u64, broken: Option<Rule>) -> Result<Sums, Wrong> {
    let mut sums = Sums::default();
    for seed in seed..seed.saturating_add(histories) {
        let world = history(seed, broken, false);
        if world.is_wrong() {
            let story = history(seed, broken, true).into_story();
            return Err(Wrong { seed, story });
        }
        sums.add(&world.sums());
    }
    Ok(sums)
}

fn history(seed: u64, broken: Option<Rule>, is_tracing: bool) -> World {
    let mut world = World::new(seed, broken, is_tracing);
    for _ in 0..STEPS {
        world.step();
    }
    world.recover();
    world
}
