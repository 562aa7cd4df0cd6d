//! One history: storms of faults with calm between, and at the end a cluster
//! that has to be whole again.

use crate::client::Stage;
use crate::mutant::Mutant;
use crate::plan::{MS, Plan, SERVERS};
use crate::tally::Tally;
use crate::world::{Happening, World};

/// Long enough for every deadline of the core: an announced restart, a cold
/// start, a standby that may not come back at once.
const RECOVERY_NS: u64 = 30_000 * MS;

/// The same if standbys are held off: at most for a minute.
const HELD_OFF_NS: u64 = 60_000 * MS;

/// The same if a share is added meanwhile.
const EDITS_NS: u64 = 30_000 * MS;

/// What one history has come to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Names it: the same seed is the same history.
    pub seed: u64,
    /// Sums.
    pub tally: Tally,
    /// What was found wrong.
    pub violation: Option<String>,
}

/// Runs the history of a seed. With `tracing` it says what happens.
pub fn run(seed: u64, mutant: Option<Mutant>, tracing: bool) -> Outcome {
    let plan = Plan::new(seed, mutant);
    let mut world = World::new(plan, seed, tracing);
    world.trace(|world| format!("{:?}", world.plan));
    let begun_ns = world.now_ns;
    world.begin_addition(0);
    world.calm(4_000 * MS);
    for _ in 0..world.plan.weather.storms {
        if world.violation.is_some() {
            break;
        }
        world.storm();
        world.calm(world.plan.weather.calm_ns);
    }
    world.recover();
    world.tally.simulated_ms = (world.now_ns - begun_ns) / MS;
    Outcome {
        seed,
        tally: world.tally,
        violation: world.violation,
    }
}

impl World {
    /// No faults until all is well, or for so long after those that last have ended.
    fn calm(&mut self, at_most_ns: u64) {
        let right_ns = self.all_right_ns().max(self.now_ns);
        let end_ns = right_ns + at_most_ns;
        let is_well = |world: &Self| world.now_ns >= right_ns && world.is_whole();
        while self.violation.is_none() && self.now_ns < end_ns && !is_well(self) {
            self.run_until(self.now_ns + 20 * MS);
        }
        self.run_until(self.now_ns + self.plan.weather.gap_ns);
    }

    fn storm(&mut self) {
        self.storm += 1;
        self.storming = true;
        self.trace(|_| "a storm begins".to_owned());
        let storm = self.storm;
        self.begin_addition(storm);
        self.queue.push(self.now_ns, Happening::Harm { storm });
        let lasts_ns = self
            .random
            .between(self.plan.weather.storm_ns / 4, self.plan.weather.storm_ns);
        self.run_until(self.now_ns + lasts_ns);
        self.storming = false;
        self.trace(|_| "the storm is over".to_owned());
    }

    /// Whether each share has an owner and a standby in sync.
    pub(crate) fn is_whole(&self) -> bool {
        let mut shares = (0..self.plan.shares).filter(|share| self.is_added(*share));
        shares.all(|share| {
            let whole = |owner: usize| {
                let (one, two) = (
                    self.hosts[owner].kernel.entries[share],
                    self.hosts[1 - owner].kernel.entries[share],
                );
                self.can_speak(owner, share)
                    && two.role == godwit_wire::Role::Shadow
                    && !one.generation.is_none()
                    && (one.generation, one.epoch) == (two.generation, two.epoch)
            };
            (0..SERVERS).any(whole)
        })
    }

    /// All faults end: every share has to be whole, every connection has to
    /// come to its end.
    fn recover(&mut self) {
        self.network.heal();
        self.put_right();
        for node in 0..self.plan.nodes {
            self.hosts[node].kernel.deep_until_ns = 0;
        }
        self.open = false;
        let held_off_ns = if self.plan.habits.flap_limit > 0 {
            HELD_OFF_NS
        } else {
            0
        };
        let edits_ns = self.plan.addition.as_ref().map_or(0, |_| EDITS_NS);
        let end_ns = self.now_ns + RECOVERY_NS + held_off_ns + edits_ns;
        let mut rested = 0;
        let mut edits = Some(self.plan.weather.storms + 1);
        while self.violation.is_none() && self.now_ns < end_ns {
            self.run_until(self.now_ns + 50 * MS);
            if self.is_whole()
                && self.all_think()
                && let Some(storm) = edits.take()
            {
                self.begin_addition(storm);
            }
            let idle = |slot: usize| self.clients[slot].stage == Stage::Idle;
            let added = (0..self.plan.shares).all(|share| self.is_added(share));
            let done = added && self.is_whole() && (0..self.clients.len()).all(idle);
            rested = if done { rested + 1 } else { 0 };
            if rested == 4 {
                self.audit_homes();
                return;
            }
        }
        self.violate(|world| {
            let open = |slot: &usize| world.clients[*slot].stage != Stage::Idle;
            let open: Vec<_> = (0..world.clients.len()).filter(open).collect();
            let flows = |slot: &usize| {
                let clients = (*slot, world.clients[*slot]);
                (
                    clients,
                    [0, 1].map(|node: usize| world.hosts[node].kernel.flows[*slot]),
                )
            };
            let flows: Vec<_> = open.iter().map(flows).collect();
            let entries: Vec<_> = (0..SERVERS)
                .map(|node| world.hosts[node].kernel.entries)
                .collect();
            format!("not whole again: {entries:?}, connections {flows:?} go on")
        });
    }
}
