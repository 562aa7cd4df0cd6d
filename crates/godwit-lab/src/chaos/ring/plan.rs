//! What is done to them, in which order: a function of the seed alone.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::disturb::Disturbance;
use super::super::plan::{Links, Random};
use super::super::reconfigure::How;
use super::world::{PROGRAMS, Program, SERVERS};
use crate::Unknown;
use crate::host::Host;
use crate::links::Death;

/// One thing that goes wrong, with a server that is drawn or with the director that has the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The machine goes dark, and boots again when it is healed.
    Dark(Death),
    /// These processes are stopped (SIGSTOP), and go on.
    Stopped { agent: bool, server: bool },
    /// One of its servers is killed, and starts again.
    ServerKilled,
    /// Its agent is killed, and starts again.
    AgentKilled,
    /// The switch drops what comes from it and goes to it.
    Cut(Links),
    /// The switch drops what comes from it, not what goes to it.
    Muted(Links),
    /// The switch drops what goes to it, not what comes from it.
    Deafened(Links),
    /// Its plug is pulled.
    Unplugged,
    /// So many of 10 000 of what servers say to each other are lost; then it goes dark, or
    /// not.
    Lossy { per_myriad: u16, dark: bool },
    /// A share of its own goes home, or to its standby if it is there; then the machine goes
    /// dark, or not.
    Moved { dark: bool },
    /// Nothing dies; something that its agent relies on changes.
    Disturbed(Disturbance),
    /// All nodes take changed files, this one's first.
    Reconfigured(How),
    /// That director's agent is stopped, and goes on.
    DirectorStopped,
    /// It is killed, and starts again.
    DirectorKilled,
    /// Its machine goes dark, and boots again.
    DirectorDark,
}

/// A fault, whose, when, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) fault: Fault,
    /// A server.
    pub(super) host: Host,
    /// One of its programs.
    pub(super) program: Program,
    /// How long clients are at work before it comes.
    pub(super) wait: Duration,
    /// Time between the fault and its healing.
    pub(super) hold: Duration,
}

/// The seed's sequence. Every kind comes once before any comes again.
#[derive(Debug)]
pub(super) struct Plan {
    random: Random,
    kinds: Vec<Fault>,
    deck: Vec<Fault>,
}

/// Every kind by its name; the loss of [`Fault::Lossy`] is drawn anew.
const KINDS: [(&str, Fault); 28] = [
    ("dark", Fault::Dark(Death::Power)),
    ("hung", Fault::Dark(Death::Hang)),
    ("agent.stopped", stopped(true, false)),
    ("server.stopped", stopped(false, true)),
    ("node.stopped", stopped(true, true)),
    ("server.killed", Fault::ServerKilled),
    ("agent.killed", Fault::AgentKilled),
    ("cut.data", Fault::Cut(Links::Data)),
    ("cut.control", Fault::Cut(Links::Control)),
    ("cut.all", Fault::Cut(Links::All)),
    ("muted.data", Fault::Muted(Links::Data)),
    ("muted.all", Fault::Muted(Links::All)),
    ("deafened.data", Fault::Deafened(Links::Data)),
    ("deafened.all", Fault::Deafened(Links::All)),
    ("unplugged", Fault::Unplugged),
    ("lossy", lossy(false)),
    ("lossy.dark", lossy(true)),
    ("moved", Fault::Moved { dark: false }),
    ("moved.dark", Fault::Moved { dark: true }),
    ("mac", Fault::Disturbed(Disturbance::Mac)),
    ("bounced", Fault::Disturbed(Disturbance::Bounce)),
    ("flushed", Fault::Disturbed(Disturbance::Flush)),
    ("mute", Fault::Disturbed(Disturbance::Mute)),
    ("reload", Fault::Reconfigured(How::Reload)),
    ("restart", Fault::Reconfigured(How::Restart)),
    ("director.stopped", Fault::DirectorStopped),
    ("director.killed", Fault::DirectorKilled),
    ("director.dark", Fault::DirectorDark),
];

/// Loss between servers, 1 to 20 %.
const LOSS: (u64, u64) = (100, 2000);

/// Between a fault and its healing: from less than a detection on.
const HOLD_MS: (u64, u64) = (15, 700);

const WAIT_MS: (u64, u64) = (50, 400);

const fn stopped(agent: bool, server: bool) -> Fault {
    Fault::Stopped { agent, server }
}

const fn lossy(dark: bool) -> Fault {
    Fault::Lossy {
        per_myriad: 0,
        dark,
    }
}

impl Plan {
    /// Only kinds whose names begin with one of `only` (separated by commas).
    pub(super) fn new(seed: u64, only: Option<&str>) -> Result<Self> {
        let wanted = |name: &str| {
            only.is_none_or(|only| only.split(',').any(|prefix| name.starts_with(prefix)))
        };
        let all = KINDS.into_iter().filter(|(name, _)| wanted(name));
        let kinds: Vec<_> = all.map(|(_, fault)| fault).collect();
        ensure!(
            !kinds.is_empty(),
            Unknown::new(format!(
                "no fault is called {:?}; there are: {}",
                only.unwrap_or(""),
                KINDS.map(|(name, _)| name).join(", ")
            ))
        );
        Ok(Self {
            random: Random::new(seed),
            kinds,
            deck: Vec::new(),
        })
    }

    pub(super) fn draw(&mut self) -> Draw {
        if self.deck.is_empty() {
            self.deck.clone_from(&self.kinds);
        }
        let at = self.random.index(self.deck.len());
        let mut fault = self.deck.swap_remove(at);
        if let Fault::Lossy { per_myriad, .. } = &mut fault {
            *per_myriad = u16::try_from(self.random.between(LOSS)).unwrap_or(u16::MAX);
        }
        Draw {
            fault,
            host: SERVERS[self.random.index(SERVERS.len())],
            program: PROGRAMS[self.random.index(PROGRAMS.len())],
            wait: Duration::from_millis(self.random.between(WAIT_MS)),
            hold: Duration::from_millis(self.random.between(HOLD_MS)),
        }
    }
}

impl Fault {
    /// Its name, as in `--faults`.
    pub(super) fn name(self) -> &'static str {
        let same = |other: Self| match (self, other) {
            (Self::Lossy { dark, .. }, Self::Lossy { dark: other, .. }) => dark == other,
            (one, other) => one == other,
        };
        let found = KINDS.into_iter().find(|(_, fault)| same(*fault));
        found.map_or("unnamed", |(name, _)| name)
    }

    /// Whether it is the director's.
    pub(super) const fn is_directors(self) -> bool {
        match self {
            Self::DirectorStopped | Self::DirectorKilled | Self::DirectorDark => true,
            Self::Dark(_)
            | Self::Stopped { .. }
            | Self::ServerKilled
            | Self::AgentKilled
            | Self::Cut(_)
            | Self::Muted(_)
            | Self::Deafened(_)
            | Self::Unplugged
            | Self::Lossy { .. }
            | Self::Disturbed(_)
            | Self::Reconfigured(_)
            | Self::Moved { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64, count: usize) -> Vec<Draw> {
        let mut plan = Plan::new(seed, None).expect("all kinds");
        (0..count).map(|_| plan.draw()).collect()
    }

    #[test]
    fn the_seed_alone_decides_and_every_kind_comes() {
        assert_eq!(draws(7, 50), draws(7, 50));
        assert_ne!(draws(7, 50), draws(8, 50));
        let names = draws(3, KINDS.len()).into_iter();
        let mut names: Vec<_> = names.map(|draw| draw.fault.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }

    #[test]
    fn prefixes_choose_kinds() {
        let mut plan = Plan::new(1, Some("lossy,director")).expect("five kinds");
        for _ in 0..20 {
            let name = plan.draw().fault.name();
            assert!(
                name.starts_with("lossy") || name.starts_with("director"),
                "{name}"
            );
        }
        assert!(Plan::new(1, Some("nothing")).is_err());
    }
}
