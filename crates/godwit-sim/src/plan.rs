//! What one history is like. Everything follows from its seed.

use std::time::Duration;

use godwit_core::Fencing;
use godwit_core::lease::Terms;

use crate::homes::Addition;
use crate::mutant::Mutant;
use crate::random::Random;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

/// Nodes 0 and 1 serve; others vote.
pub(crate) const SERVERS: usize = 2;

/// Cluster, clocks, network and weather of a history.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) mutant: Option<Mutant>,
    pub(crate) fencing: Fencing,
    pub(crate) nodes: usize,
    pub(crate) shares: usize,
    /// Clients of each share.
    pub(crate) slots: usize,
    pub(crate) heartbeat_ns: u64,
    pub(crate) misses: u32,
    /// What agents are told of leases and clocks.
    pub(crate) terms: Terms,
    /// By how much clocks are wrong at most, in parts per million.
    pub(crate) drift_ppm: u64,
    /// How long a segment may sit in queues below the data path.
    pub(crate) residence_ns: u64,
    /// Whether it always does.
    pub(crate) deep: bool,
    /// How long a primary that starts listens for an owner.
    pub(crate) grace_ns: u64,
    /// Least and greatest delay of one frame or datagram.
    pub(crate) delay_ns: (u64, u64),
    /// Frames and datagrams that are lost anyway, per mille.
    pub(crate) loss: u64,
    pub(crate) weather: Weather,
    pub(crate) habits: Habits,
    /// Clients of a service whose connections go from server to server by themselves:
    /// none, or as many as of a share.
    pub(crate) singles: usize,
    /// Of a share at the address of another one.
    pub(crate) addition: Option<Addition>,
}

/// Faults, and when they come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// Mean time between two faults in a storm.
    pub(crate) gap_ns: u64,
    /// Faults that are heavy, per mille.
    pub(crate) heavy: u64,
    /// How long a storm lasts, at most.
    pub(crate) storm_ns: u64,
    /// How long the calm after a storm lasts, at most.
    pub(crate) calm_ns: u64,
    /// How many storms there are.
    pub(crate) storms: u32,
    /// Actions between which an agent dies or is stopped, per mille.
    pub(crate) interrupt: u64,
}

impl Weather {
    fn drawn(random: &mut Random) -> Self {
        Self {
            gap_ns: random.pick(&[1, 1, 2, 5, 20]) * MS,
            heavy: random.pick(&[5, 10, 20, 80, 300]),
            storm_ns: random.between(200, 4_000) * MS,
            calm_ns: random.pick(&[100, 1500, 3000]) * MS,
            storms: 4,
            interrupt: random.pick(&[0, 1, 3]),
        }
    }
}

/// What a cluster does by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    /// Failures within a minute from which a standby is held off; 0: it never is.
    pub(crate) flap_limit: u32,
    /// How long a primary is in sync until its share goes home; `None`: it does not.
    pub(crate) failback: Option<Duration>,
    /// Addresses of a share, along each of which standbys prove that twins are born
    /// there; 0: none is asked.
    pub(crate) paths: u8,
    /// What agents have voted for outlives them.
    pub(crate) keeps: bool,
}

impl Habits {
    fn drawn(random: &mut Random) -> Self {
        let failback = random.pick(&[None, None, Some(50), Some(300)]);
        Self {
            flap_limit: random.pick(&[0, 0, 0, 2, 4]),
            failback: failback.map(Duration::from_millis),
            paths: random.pick(&[0, 1, 1, 2]),
            keeps: random.chance(750),
        }
    }
}

impl Plan {
    /// The plan of a seed. What a mutant lacks gets the chance to matter: seldom
    /// is an old owner cut off just when the new one can be elected at once.
    pub(crate) fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut plan = Self::drawn(seed, mutant);
        if seed.is_multiple_of(4) || mutant == Some(Mutant::NoNote) {
            plan.singles = plan.slots;
        }
        if let Some(Mutant::NoDrift | Mutant::NoResidence) = mutant {
            plan.weather.heavy = 500;
            plan.delay_ns = (30 * US, 60 * US);
            plan.loss = 0;
        }
        if mutant == Some(Mutant::NoResidence) {
            plan.residence_ns = 8 * MS;
            plan.deep = true;
        }
        if let Some(Mutant::NoSilence | Mutant::EarlyCommit) = mutant {
            plan.weather.heavy = 300;
        }
        if let Some(Mutant::BlindCanary | Mutant::NoFacts) = mutant {
            plan.weather.heavy = 500;
            plan.habits.paths = plan.habits.paths.max(1);
        }
        if mutant == Some(Mutant::FenceFirst) {
            plan.weather.heavy = 500;
            plan.weather.interrupt = 20;
        }
        if mutant == Some(Mutant::StaleVotes) {
            plan.weather.heavy = 300;
            plan.habits.keeps = true;
            // A vote is to bind for longer than an agent takes to start again.
            plan.terms.term *= 10;
            plan.terms.long_term = plan.terms.long_term.max(plan.terms.term);
        }
        if mutant == Some(Mutant::NoHomes) {
            plan.shares = SERVERS;
        }
        plan.addition = Addition::drawn(seed, &plan);
        if plan.addition.is_some() {
            // Each of two primaries would want both back.
            plan.habits.failback = None;
        }
        plan
    }

    /// Clients of all kinds.
    pub(crate) const fn clients(&self) -> usize {
        self.shares * self.slots + self.singles
    }

    fn drawn(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let fencing = fencing(mutant, random);
        let nodes = match fencing {
            Fencing::Lease => random.pick(&[3, 3, 3, 3, 5]),
            Fencing::None | Fencing::Stonith => random.pick(&[2, 2, 3]),
        };
        let heartbeat_ns = random.pick(&[10, 20, 30]) * MS;
        let misses = random.pick(&[2, 3, 3]);
        let term_ns = heartbeat_ns * u64::from(misses) * random.pick(&[2, 3]);
        let drift_ppm = random.pick(&[1_000, 10_000, 20_000]);
        let residence_ns = random.pick(&[0, 0, 2, 4, 8]) * MS;
        let low = random.between(30, 500) * US;
        Self {
            mutant,
            fencing,
            nodes,
            shares: random.pick(&[1, 1, 2]),
            slots: random.pick(&[3, 4, 6]),
            heartbeat_ns,
            misses,
            terms: Terms {
                term: Duration::from_nanos(term_ns),
                long_term: Duration::from_nanos(term_ns * random.between(2, 10)),
                drift_ppm: match mutant {
                    Some(Mutant::NoDrift) => 0,
                    _ => u32::try_from(drift_ppm).unwrap_or(u32::MAX),
                },
                egress_residence: match mutant {
                    Some(Mutant::NoResidence) => Duration::ZERO,
                    _ => Duration::from_nanos(residence_ns),
                },
            },
            drift_ppm,
            residence_ns,
            deep: residence_ns > 0 && random.chance(200),
            grace_ns: random.pick(&[300, 300, 20]) * MS,
            delay_ns: (low, low + random.between(20, 800) * US),
            loss: random.pick(&[0, 0, 1, 5, 20]),
            weather: Weather::drawn(random),
            habits: Habits::drawn(random),
            singles: 0,
            addition: None,
        }
    }
}

fn fencing(mutant: Option<Mutant>, random: &mut Random) -> Fencing {
    match mutant {
        // Where power switches keep an owner silent these take nothing away.
        Some(
            Mutant::NoFence
            | Mutant::NoDrift
            | Mutant::NoResidence
            | Mutant::StoppedClock
            | Mutant::FenceFirst
            | Mutant::StaleVotes,
        ) => Fencing::Lease,
        Some(
            Mutant::NoGate
            | Mutant::NoWait
            | Mutant::NoMark
            | Mutant::NoUnborn
            | Mutant::NoEnd
            | Mutant::NoSilence
            | Mutant::EarlyCommit
            | Mutant::NoCatchUp
            | Mutant::NoNote
            | Mutant::BlindCanary
            | Mutant::NoFacts
            | Mutant::NoHomes,
        )
        | None => random.pick(&[
            Fencing::Lease,
            Fencing::Lease,
            Fencing::Lease,
            Fencing::Stonith,
        ]),
    }
}
