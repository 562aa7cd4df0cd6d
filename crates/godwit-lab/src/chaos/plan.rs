//! What is done to the cluster, in which order: a function of the seed alone.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::disturb::Disturbance;
use super::phase::Phase;
use super::reconfigure::How;
use crate::Unknown;
use crate::links::Death;

/// Numbers that look random, the same for the same seed: splitmix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

/// Whose machine, seen from the service on the lab's own server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Owner,
    Standby,
    Witness,
}

/// Which of a machine's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    Data,
    Control,
    All,
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The machine goes dark, and boots again when the cluster is healed.
    Dark(Part, Death),
    /// Its agent is stopped (SIGSTOP), and goes on.
    AgentStopped(Part),
    /// Its servers are stopped, and go on.
    ServersStopped(Part),
    /// All its processes are stopped, and go on.
    NodeStopped(Part),
    /// One of its servers is killed, and starts again.
    ServerKilled(Part),
    /// Its agent is killed, and starts again.
    AgentKilled(Part),
    /// The switch drops what comes from it and goes to it; it keeps its carrier.
    Cut(Part, Links),
    /// The switch drops what comes from it, not what goes to it.
    Muted(Part, Links),
    /// The switch drops what goes to it, not what comes from it.
    Deafened(Part, Links),
    /// Its plug is pulled.
    Unplugged(Part),
    /// So many of 10 000 mirrored segments are lost; then the owner goes dark,
    /// or not.
    TapLoss { per_myriad: u16, dark: bool },
    /// The disks of both servers are full; then a server of the owner is killed.
    DisksFull,
    /// Its agent and servers get no more memory.
    MemoryShort(Part),
    /// Its link is slow and its queue full when its agent is stopped: what is
    /// already queued leaves while the lease ends.
    Backlog(Part),
    /// Its service is moved to the standby as planned; then that one, the owner
    /// now, goes dark, or not.
    Moved { dark: bool },
    /// Nothing dies; something that its agent relies on changes.
    Disturbed(Part, Disturbance),
    /// All nodes take changed files, this one's first.
    Reconfigured(Part, How),
}

/// A fault, when, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) fault: Fault,
    /// It comes when a stream is in this phase.
    pub(super) moment: Phase,
    /// Time between the fault and its healing.
    pub(super) hold: Duration,
}

/// The seed's sequence. Every kind comes once before any comes again.
#[derive(Debug)]
pub(super) struct Plan {
    random: Random,
    kinds: Vec<(&'static str, Fault)>,
    left_out: Vec<&'static str>,
    deck: Vec<Fault>,
    /// Draws for which a vote may be missing.
    quiet: u8,
}

use Part::{Owner, Standby, Witness};

/// Every kind by its name; the loss of [`Fault::TapLoss`] is drawn anew.
const KINDS: [(&str, Fault); 48] = [
    ("dark.owner", Fault::Dark(Owner, Death::Power)),
    ("dark.standby", Fault::Dark(Standby, Death::Power)),
    ("hung.owner", Fault::Dark(Owner, Death::Hang)),
    ("agent.stopped.owner", Fault::AgentStopped(Owner)),
    ("agent.stopped.standby", Fault::AgentStopped(Standby)),
    ("agent.stopped.witness", Fault::AgentStopped(Witness)),
    ("servers.stopped.owner", Fault::ServersStopped(Owner)),
    ("servers.stopped.standby", Fault::ServersStopped(Standby)),
    ("node.stopped.owner", Fault::NodeStopped(Owner)),
    ("node.stopped.standby", Fault::NodeStopped(Standby)),
    ("server.killed.owner", Fault::ServerKilled(Owner)),
    ("server.killed.standby", Fault::ServerKilled(Standby)),
    ("agent.killed.owner", Fault::AgentKilled(Owner)),
    ("agent.killed.standby", Fault::AgentKilled(Standby)),
    ("agent.killed.witness", Fault::AgentKilled(Witness)),
    ("cut.data.owner", Fault::Cut(Owner, Links::Data)),
    ("cut.data.standby", Fault::Cut(Standby, Links::Data)),
    ("cut.control.owner", Fault::Cut(Owner, Links::Control)),
    ("cut.control.standby", Fault::Cut(Standby, Links::Control)),
    ("cut.control.witness", Fault::Cut(Witness, Links::Control)),
    ("cut.all.owner", Fault::Cut(Owner, Links::All)),
    ("muted.data.owner", Fault::Muted(Owner, Links::Data)),
    ("muted.control.owner", Fault::Muted(Owner, Links::Control)),
    ("muted.all.standby", Fault::Muted(Standby, Links::All)),
    ("deafened.data.owner", Fault::Deafened(Owner, Links::Data)),
    (
        "deafened.control.owner",
        Fault::Deafened(Owner, Links::Control),
    ),
    ("deafened.all.standby", Fault::Deafened(Standby, Links::All)),
    ("unplugged.owner", Fault::Unplugged(Owner)),
    ("unplugged.standby", Fault::Unplugged(Standby)),
    (
        "tap.lossy",
        Fault::TapLoss {
            per_myriad: 0,
            dark: false,
        },
    ),
    (
        "tap.lossy.dark",
        Fault::TapLoss {
            per_myriad: 0,
            dark: true,
        },
    ),
    ("disks.full", Fault::DisksFull),
    ("memory.short.owner", Fault::MemoryShort(Owner)),
    ("backlog.owner", Fault::Backlog(Owner)),
    ("moved", Fault::Moved { dark: false }),
    ("moved.dark", Fault::Moved { dark: true }),
    ("mac.owner", Fault::Disturbed(Owner, Disturbance::Mac)),
    ("mac.standby", Fault::Disturbed(Standby, Disturbance::Mac)),
    (
        "bounced.owner",
        Fault::Disturbed(Owner, Disturbance::Bounce),
    ),
    (
        "bounced.standby",
        Fault::Disturbed(Standby, Disturbance::Bounce),
    ),
    ("flushed.owner", Fault::Disturbed(Owner, Disturbance::Flush)),
    (
        "flushed.standby",
        Fault::Disturbed(Standby, Disturbance::Flush),
    ),
    ("mute.standby", Fault::Disturbed(Standby, Disturbance::Mute)),
    (
        "strict.standby",
        Fault::Disturbed(Standby, Disturbance::Strict),
    ),
    ("reload.owner", Fault::Reconfigured(Owner, How::Reload)),
    ("reload.standby", Fault::Reconfigured(Standby, How::Reload)),
    ("restart.owner", Fault::Reconfigured(Owner, How::Restart)),
    (
        "restart.standby",
        Fault::Reconfigured(Standby, How::Restart),
    ),
];

/// So many faults take about as long as a voter whose agent has been started
/// again keeps quiet: better those for which its vote is not missing.
const QUIET: u8 = 7;

/// Loss of the tap, 1 to 20 %.
const LOSS: (u64, u64) = (100, 2000);

/// Between a fault and its healing: shorter than a detection, and far longer
/// than a lease.
const HOLD_MS: (u64, u64) = (15, 700);

/// Phases that a fault is steered to, in turn.
const MOMENTS: [Phase; 5] = [
    Phase::Syn,
    Phase::Request,
    Phase::Response,
    Phase::Fin,
    Phase::ZeroWindow,
];

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `least` to `most`, both possible.
    pub(super) const fn between(&mut self, (least, most): (u64, u64)) -> u64 {
        least + self.next() % (most - least + 1)
    }

    /// An index below `length`, which is not 0.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.next() % length as u64).unwrap_or(0)
    }
}

impl Plan {
    /// Only kinds whose names begin with one of `only` (separated by commas),
    /// and not those that this machine can't do.
    pub(super) fn new(seed: u64, only: Option<&str>, can: fn(Fault) -> bool) -> Result<Self> {
        let wanted = |name: &str| {
            only.is_none_or(|only| only.split(',').any(|prefix| name.starts_with(prefix)))
        };
        let all = KINDS.into_iter().filter(|(name, _)| wanted(name));
        let (kinds, left_out) = all.partition::<Vec<_>, _>(|(_, fault)| can(*fault));
        let left_out: Vec<_> = left_out.into_iter().map(|(name, _)| name).collect();
        ensure!(
            !kinds.is_empty() || !left_out.is_empty(),
            Unknown::new(format!(
                "no fault is called {:?}; there are: {}",
                only.unwrap_or(""),
                names()
            ))
        );
        ensure!(
            !kinds.is_empty(),
            "this machine can't do {}",
            left_out.join(", ")
        );
        Ok(Self {
            random: Random::new(seed),
            kinds,
            left_out,
            deck: Vec::new(),
            quiet: 0,
        })
    }

    /// What was asked for and this machine can't do.
    pub(super) fn left_out(&self) -> &[&'static str] {
        &self.left_out
    }

    pub(super) fn draw(&mut self) -> Draw {
        if self.deck.is_empty() {
            self.deck = self.kinds.iter().map(|(_, fault)| *fault).collect();
        }
        let mut fault = self.take();
        if let Fault::TapLoss { per_myriad, .. } = &mut fault {
            *per_myriad = u16::try_from(self.random.between(LOSS)).unwrap_or(u16::MAX);
        }
        Draw {
            fault,
            moment: MOMENTS[self.random.index(MOMENTS.len())],
            hold: Duration::from_millis(self.random.between(HOLD_MS)),
        }
    }
}

impl Plan {
    /// One of the deck; soon after the loss of a vote, one that needs none of
    /// them, if there is any left.
    fn take(&mut self) -> Fault {
        let all = 0..self.deck.len();
        let easy = all.filter(|at| self.quiet > 0 && !self.deck[*at].needs_every_vote());
        let easy = easy.collect::<Vec<_>>();
        let at = if easy.is_empty() {
            self.random.index(self.deck.len())
        } else {
            easy[self.random.index(easy.len())]
        };
        let fault = self.deck.swap_remove(at);
        self.quiet = match fault {
            Fault::AgentKilled(_) => QUIET,
            Fault::Dark(..)
            | Fault::AgentStopped(_)
            | Fault::ServersStopped(_)
            | Fault::NodeStopped(_)
            | Fault::ServerKilled(_)
            | Fault::Cut(..)
            | Fault::Muted(..)
            | Fault::Deafened(..)
            | Fault::Unplugged(_)
            | Fault::TapLoss { .. }
            | Fault::DisksFull
            | Fault::MemoryShort(_)
            | Fault::Backlog(_)
            | Fault::Moved { .. }
            | Fault::Reconfigured(..)
            | Fault::Disturbed(..) => self.quiet.saturating_sub(1),
        };
        fault
    }
}

impl Fault {
    /// Whether it takes a vote away, or has another node ask for votes. A voter
    /// whose agent has just been started again has none for a while, and with
    /// one more fault of this sort there is no majority.
    pub(super) const fn needs_every_vote(self) -> bool {
        match self {
            Self::Dark(..)
            | Self::AgentStopped(_)
            | Self::NodeStopped(_)
            | Self::AgentKilled(_)
            | Self::Cut(_, Links::Control | Links::All)
            | Self::Muted(_, Links::Control | Links::All)
            | Self::Deafened(_, Links::Control | Links::All)
            | Self::TapLoss { dark: true, .. }
            | Self::ServerKilled(Owner)
            | Self::DisksFull
            | Self::MemoryShort(_)
            | Self::Backlog(_)
            | Self::Reconfigured(_, How::Restart)
            | Self::Moved { .. } => true,
            Self::ServersStopped(_)
            | Self::ServerKilled(Standby | Witness)
            | Self::Cut(_, Links::Data)
            | Self::Muted(_, Links::Data)
            | Self::Deafened(_, Links::Data)
            | Self::Unplugged(_)
            | Self::Disturbed(..)
            | Self::Reconfigured(_, How::Reload)
            | Self::TapLoss { dark: false, .. } => false,
        }
    }

    /// Its name, as in `--faults`.
    pub(super) fn name(self) -> &'static str {
        let same = |other: Self| match (self, other) {
            (Self::TapLoss { dark, .. }, Self::TapLoss { dark: other, .. }) => dark == other,
            (one, other) => one == other,
        };
        let found = KINDS.into_iter().find(|(_, fault)| same(*fault));
        found.map_or("unnamed", |(name, _)| name)
    }
}

/// The names of all kinds, for a person.
pub(super) fn names() -> String {
    KINDS.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64, count: usize) -> Vec<Draw> {
        let mut plan = Plan::new(seed, None, |_| true).expect("all kinds");
        (0..count).map(|_| plan.draw()).collect()
    }

    #[test]
    fn the_seed_alone_decides() {
        assert_eq!(draws(7, 100), draws(7, 100));
        assert_ne!(draws(7, 100), draws(8, 100));
    }

    #[test]
    fn every_kind_comes_once_before_any_comes_again() {
        let names = draws(3, KINDS.len())
            .into_iter()
            .map(|draw| draw.fault.name());
        let mut names = names.collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }

    #[test]
    fn a_missing_vote_is_waited_for_with_faults_that_need_none() {
        let draws = draws(5, KINDS.len());
        let killed = |draw: &Draw| matches!(draw.fault, Fault::AgentKilled(_));
        let at = draws.iter().position(killed).expect("one is killed");
        let next = draws.get(at + 1).map(|draw| draw.fault.needs_every_vote());
        assert_eq!(next, Some(false), "{at}");
    }

    #[test]
    fn prefixes_choose_kinds() {
        let mut plan = Plan::new(1, Some("tap,disks"), |_| true).expect("three kinds");
        for _ in 0..30 {
            let name = plan.draw().fault.name();
            assert!(name.starts_with("tap") || name == "disks.full", "{name}");
        }
        assert!(Plan::new(1, Some("nothing"), |_| true).is_err());
    }

    /// They were dropped without a word.
    #[test]
    fn what_a_machine_cannot_do_is_named() {
        let can = |fault| !matches!(fault, Fault::MemoryShort(_));
        let plan = Plan::new(1, None, can).expect("all but one kind");
        assert_eq!(plan.left_out(), ["memory.short.owner"]);
        let plan = Plan::new(1, Some("tap"), can).expect("two kinds");
        assert!(plan.left_out().is_empty(), "nobody asked for it");
        let refused = Plan::new(1, Some("memory"), can).expect_err("none is left");
        assert_eq!(
            refused.to_string(),
            "this machine can't do memory.short.owner"
        );
    }
}
