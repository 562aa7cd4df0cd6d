use std::collections::{BTreeMap, BTreeSet};

use super::*;

const A: BackendId = BackendId(0);
const B: BackendId = BackendId(1);
const C: BackendId = BackendId(2);
const GRACE: Duration = Duration::from_millis(300);
const BEAT: Duration = Duration::from_millis(10);

/// Milliseconds.
const fn at(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn roster() -> Roster {
    let config = Config {
        size: TableSize::new(251).expect("a prime"),
        grace: GRACE,
        heartbeat: BEAT,
        backends: ["a", "b", "c"]
            .map(|name| NodeName::new(name).expect("a name"))
            .to_vec(),
        // The second service is not served by everybody.
        services: vec![vec![(A, 1), (B, 1), (C, 2)], vec![(B, 1)]],
    };
    Roster::new(config, MonoTime::ZERO)
}

/// One that has heard all three.
fn running() -> (Roster, World) {
    let (mut roster, mut world) = (roster(), World::new());
    for id in [A, B, C] {
        assert_eq!(roster.poll_change(), None, "not all are heard");
        roster.handle_health(id, Health::Taking, at(0));
    }
    world.obey(&mut roster);
    (roster, world)
}

/// What the data path has been told.
struct World {
    there: BTreeSet<BackendId>,
    owners: BTreeMap<(usize, BackendId), BackendId>,
    slots: Vec<Vec<Slot>>,
}

impl World {
    fn new() -> Self {
        Self {
            there: BTreeSet::new(),
            owners: BTreeMap::new(),
            slots: vec![vec![Slot::default(); 251]; 2],
        }
    }

    /// Returns how many changes there were. At no moment does a slot send new
    /// connections to somebody who is not there, but while that one is being given up.
    fn obey(&mut self, roster: &mut Roster) -> usize {
        let mut count = 0;
        while let Some(change) = roster.poll_change() {
            count += 1;
            match change {
                Change::Backend { id, there: true } => {
                    self.there.insert(id);
                }
                Change::Backend { id, there: false } => {
                    self.there.remove(&id);
                }
                Change::Owner { service, id, owner } => {
                    self.owners.insert((service, id), owner);
                }
                Change::Slots { service, slots } => {
                    for (at, slot) in slots {
                        let mut ends = [slot.now, slot.base].into_iter().flatten();
                        assert!(ends.all(|id| self.there.contains(&id)));
                        self.slots[service][at as usize] = slot;
                    }
                }
            }
        }
        for id in [A, B, C] {
            assert_eq!(roster.is_there(id), self.there.contains(&id), "{id:?}");
        }
        count
    }

    fn takers(&self, service: usize) -> BTreeSet<BackendId> {
        self.slots[service]
            .iter()
            .filter_map(|slot| slot.now)
            .collect()
    }

    fn bases(&self, service: usize) -> BTreeSet<BackendId> {
        self.slots[service]
            .iter()
            .filter_map(|slot| slot.base)
            .collect()
    }
}

#[test]
fn the_first_table_has_all_in_it() {
    let (_, world) = running();
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
    assert_eq!(world.takers(1), BTreeSet::from([B]), "only its own");
    let mixed = world.slots.iter().flatten().any(|slot| slot.mixed);
    assert!(!mixed, "nothing has changed yet");
}

#[test]
fn who_is_not_heard_at_the_start_is_not_waited_for_for_ever() {
    let (mut roster, mut world) = (roster(), World::new());
    roster.handle_health(A, Health::Taking, at(0));
    let due = roster.poll_timeout().expect("it waits");
    assert_eq!(due, MonoTime::ZERO.saturating_add(GRACE));
    roster.handle_timeout(MonoTime(due.as_nanos() - 1));
    assert_eq!(world.obey(&mut roster), 0, "not yet");
    roster.handle_timeout(due);
    world.obey(&mut roster);
    assert_eq!(
        (world.takers(0), roster.poll_timeout()),
        (BTreeSet::from([A]), None)
    );
    assert!(world.takers(1).is_empty(), "nobody serves it");
}

#[test]
fn one_that_drains_keeps_what_it_has() {
    for own in [false, true] {
        let (mut roster, mut world) = running();
        if own {
            roster.handle_health(C, Health::Draining, at(0));
        } else {
            roster.handle_drain(C, true);
        }
        world.obey(&mut roster);
        assert_eq!(world.takers(0), BTreeSet::from([A, B]));
        assert_eq!(world.bases(0), BTreeSet::from([A, B, C]));
        assert!(world.there.contains(&C));
        roster.handle_health(C, Health::Gone, at(0));
        world.obey(&mut roster);
        assert_eq!(world.bases(0), BTreeSet::from([A, B]));
    }
}

#[test]
fn one_that_yields_gets_new_connections_only_where_nobody_else_does() {
    let (mut roster, mut world) = running();
    roster.handle_yielding(B, true);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), [A, C].into());
    assert_eq!(world.takers(1), [B].into(), "it is the only one");
    assert!(world.bases(0).contains(&B), "what it has stays");
    assert_eq!(roster.state(B), BackendState::Draining);
    roster.handle_yielding(B, true);
    assert_eq!(world.obey(&mut roster), 0, "it is known");
    // Others that yield, or that nobody listens at, are none that take instead.
    roster.handle_yielding(A, true);
    roster.handle_serving(C, 0, false);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), [A, B].into());
    roster.handle_yielding(B, false);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), [B].into());
    assert_eq!(roster.state(B), BackendState::Taking);
}

#[test]
fn one_whose_process_has_ended_gets_nothing_new_of_that_service() {
    let (mut roster, mut world) = running();
    roster.handle_serving(B, 0, false);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, C]));
    assert_eq!(world.bases(0), BTreeSet::from([A, B, C]));
    assert_eq!(world.takers(1), BTreeSet::from([B]), "the other one runs");
    roster.handle_serving(B, 0, true);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
}

#[test]
fn who_says_what_is_known_changes_nothing() {
    let (mut roster, mut world) = running();
    for ms in [10, 20, 30] {
        for id in [A, B, C] {
            roster.handle_serving(id, 0, true);
            roster.handle_health(id, Health::Taking, at(ms));
        }
    }
    assert_eq!(world.obey(&mut roster), 0);
    assert_eq!(roster.state(B), BackendState::Taking);
    roster.handle_drain(B, true);
    assert!(roster.is_drained(B));
    assert_eq!(roster.state(B), BackendState::Draining);
}

/// It loses new connections at once, the others when it could have been heard again.
#[test]
fn silence_counts_when_somebody_else_is_heard_for_longer() {
    let (mut roster, mut world) = running();
    roster.handle_health(A, Health::Silent, at(40));
    roster.handle_health(B, Health::Taking, at(42));
    assert_eq!(world.obey(&mut roster), 0, "A may be heard in a moment");
    assert_eq!(roster.state(A), BackendState::Doubtful);
    roster.handle_health(B, Health::Taking, at(52));
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([B, C]));
    assert_eq!(
        world.bases(0),
        BTreeSet::from([A, B, C]),
        "it keeps its own"
    );
    assert_eq!(roster.state(A), BackendState::Silent);
    // Its agent was killed, and there is another one.
    roster.handle_health(A, Health::Taking, at(9000));
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
    assert_eq!(roster.poll_timeout(), None);

    roster.handle_health(A, Health::Silent, at(10_000));
    roster.handle_health(B, Health::Taking, at(10_020));
    let due = roster.poll_timeout().expect("it is held for a while");
    assert_eq!(due, at(10_000).saturating_add(HOLD));
    roster.handle_timeout(MonoTime(due.0 - 1));
    world.obey(&mut roster);
    assert!(world.there.contains(&A));
    roster.handle_timeout(due);
    world.obey(&mut roster);
    assert!(!world.there.contains(&A));
    assert_eq!(world.bases(0), BTreeSet::from([B, C]));
    assert_eq!(roster.state(A), BackendState::Gone);
}

/// However long: the ones that it hears again one by one are all as they were.
#[test]
fn a_deaf_director_changes_nothing() {
    let (mut roster, mut world) = running();
    for id in [A, B, C] {
        roster.handle_health(id, Health::Silent, at(40));
    }
    assert!(roster.is_deaf());
    roster.handle_timeout(at(100_000));
    assert_eq!((world.obey(&mut roster), roster.poll_timeout()), (0, None));
    for (id, ms) in [(B, 100_001), (A, 100_004), (B, 100_011), (C, 100_011)] {
        roster.handle_health(id, Health::Taking, at(ms));
        assert!(!roster.is_deaf());
        assert_eq!(world.obey(&mut roster), 0, "at {ms}");
    }
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
    assert_eq!(world.bases(0), BTreeSet::from([A, B, C]));
    for id in [A, B, C] {
        roster.handle_health(id, Health::Gone, at(100_020));
    }
    world.obey(&mut roster);
    assert_eq!(
        world.takers(0).len(),
        1,
        "the last one is as good as nobody"
    );
}

/// The next director hears one of them late, or nobody before its patience is over: all
/// keep their connections.
#[test]
fn a_director_that_starts_deaf_takes_nobodys_connections() {
    let (mut before, mut world) = running();
    before.handle_drain(C, true);
    world.obey(&mut before);
    let mut next = roster();
    for (service, slots) in world.slots.iter().enumerate() {
        next.resume(service, slots.clone());
    }
    for id in [A, B, C] {
        next.resume_backend(id, MonoTime::ZERO);
        assert!(next.is_there(id), "whatever is written of it meanwhile");
    }
    next.handle_drain(C, true);
    assert_eq!(world.obey(&mut next), 0);
    let due = next.poll_timeout().expect("it waits");
    next.handle_timeout(due);
    assert_eq!(world.obey(&mut next), 0, "nobody has been heard");
    for (id, ms) in [(B, 60_000), (B, 60_020), (A, 63_000), (C, 65_000)] {
        next.handle_serving(id, 0, true);
        next.handle_health(id, Health::Taking, at(ms));
        world.obey(&mut next);
        assert_eq!(world.bases(0), BTreeSet::from([A, B, C]), "at {ms}");
    }
    assert_eq!(world.takers(0), BTreeSet::from([A, B]));
}

#[test]
fn another_director_goes_on_with_its_slots() {
    let (mut roster, mut world) = running();
    roster.handle_drain(A, true);
    world.obey(&mut roster);
    let mut next = self::roster();
    for (service, slots) in world.slots.iter().enumerate() {
        next.resume(service, slots.clone());
    }
    next.handle_drain(A, true);
    for id in [A, B, C] {
        next.handle_health(id, Health::Taking, at(0));
    }
    let told = |roster: &mut Roster| {
        let changes = std::iter::from_fn(|| roster.poll_change());
        changes
            .filter(|change| matches!(change, Change::Slots { .. }))
            .count()
    };
    assert_eq!(told(&mut next), 0, "the slots are as they were");
    let mut stranger = self::roster();
    stranger.resume(0, vec![Slot::default(); 7]);
    assert_eq!(
        stranger.slots[0].all().len(),
        251,
        "another size is not taken"
    );
}

/// What another director remembers of slots: told to one that starts, and to one that runs.
#[test]
fn what_another_director_remembers_of_slots_is_taken_on() {
    let (mut first, mut world) = running();
    first.handle_drain(B, true);
    first.handle_health(C, Health::Gone, at(10));
    world.obey(&mut first);
    let told: Vec<_> = first.slots(0).to_vec();
    let told = || told.iter().map(|slot| (slot.base, slot.mixed));
    assert!(told().any(|(base, mixed)| base == Some(B) && mixed));
    // One that has heard nobody yet.
    let mut starting = roster();
    starting.handle_slots(0, 0, told());
    for (id, health) in [(A, Health::Taking), (B, Health::Taking), (C, Health::Gone)] {
        starting.handle_health(id, health, at(20));
    }
    starting.handle_drain(B, true);
    // A slot that is mixed for nothing costs a look, no more.
    let agrees = |roster: &Roster| {
        let all = roster.slots(0).iter().zip(told());
        all.for_each(|(slot, (base, mixed))| {
            assert_eq!((slot.base, slot.mixed || !mixed), (base, true));
        });
    };
    agrees(&starting);
    // One that took B's drain for a loss, and knows better now.
    let (mut other, mut world) = running();
    other.handle_health(C, Health::Gone, at(10));
    other.handle_health(B, Health::Gone, at(10));
    other.handle_health(B, Health::Taking, at(20));
    other.handle_drain(B, true);
    world.obey(&mut other);
    other.handle_slots(0, 0, told());
    assert_eq!(world.obey(&mut other), 1, "those that are others now");
    agrees(&other);
    assert_eq!(world.slots[0], other.slots(0));
    // Nobody is sent to one that is not there.
    other.handle_slots(0, 0, [(Some(C), true)]);
    assert_ne!(other.slots(0)[0].base, Some(C));
    // Slots that there are not.
    other.handle_slots(7, 0, told());
    other.handle_slots(0, 250, told());
    world.obey(&mut other);
}

/// What one had is its standby's: its slots stay, however long it is gone, and follow.
#[test]
fn what_another_one_has_taken_over_stays_where_the_slots_say() {
    let (mut roster, mut world) = running();
    let before = world.slots[0].clone();
    for (id, owner) in [(A, A), (B, B), (C, C)] {
        roster.handle_owner(0, id, owner);
    }
    world.obey(&mut roster);
    assert_eq!(world.slots[0], before, "each has its own");
    roster.handle_health(C, Health::Silent, at(100));
    for id in [A, B] {
        roster.handle_health(id, Health::Taking, at(120));
    }
    roster.handle_owner(0, C, A);
    let is_c = |slot: &Slot| slot.base == Some(C);
    let gone = at(120).saturating_add(HOLD);
    for id in [A, B] {
        roster.handle_health(id, Health::Taking, gone);
    }
    roster.handle_timeout(gone);
    world.obey(&mut roster);
    assert_eq!(world.owners[&(0, C)], A);
    assert!(roster.is_there(C), "frames for it go to another");
    assert_eq!(roster.state(C), BackendState::Gone);
    assert_eq!(world.takers(0), BTreeSet::from([A, B]), "no new ones");
    let kept = world.slots[0].iter().filter(|slot| is_c(slot)).count();
    assert_eq!(kept, before.iter().filter(|slot| is_c(slot)).count());
    // It has its own again.
    roster.handle_health(C, Health::Taking, at(9000));
    roster.handle_owner(0, C, C);
    world.obey(&mut roster);
    assert_eq!(world.owners[&(0, C)], C);
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
}

/// One after the other has failed, and each has what was another's: new connections begin
/// there, until one has its own again.
#[test]
fn where_nobody_has_its_own_all_go_on_to_serve() {
    let (mut roster, mut world) = running();
    for (id, owner) in [(A, B), (B, C), (C, A)] {
        roster.handle_serving(id, 0, false);
        roster.handle_owner(0, id, owner);
    }
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
    roster.handle_drain(C, true);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, C]), "what C has is B's");
    roster.handle_drain(C, false);
    roster.handle_owner(0, B, B);
    roster.handle_serving(B, 0, true);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([B]));
    // Nobody listens there any more: that is no place to begin, and it has A's.
    roster.handle_serving(B, 0, false);
    roster.handle_having(B, 0, false);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([C]));
}

/// It keeps what it has, and where all stand still new connections wait for them.
#[test]
fn who_stands_still_gets_new_connections_only_where_nobody_goes_on() {
    let (mut roster, mut world) = running();
    roster.handle_serving(B, 0, Serving::Paused);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, C]));
    assert_eq!(world.bases(0), BTreeSet::from([A, B, C]));
    assert_eq!(world.takers(1), BTreeSet::from([B]), "the other one runs");
    assert!(roster.is_paused(0, B) && !roster.is_paused(1, B));
    roster.handle_serving(A, 0, false);
    roster.handle_owner(0, A, B);
    roster.handle_serving(C, 0, Serving::Paused);
    world.obey(&mut roster);
    assert_eq!(
        world.takers(0),
        BTreeSet::from([B, C]),
        "nothing listens at A, and who has what it had stands still"
    );
    roster.handle_drain(C, true);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([B]));
    roster.handle_serving(B, 0, true);
    roster.handle_drain(C, false);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([B]), "it goes on");
    roster.handle_serving(C, 0, true);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([B, C]));
    assert!(!roster.is_paused(0, C));
}

/// Nobody has taken over what it had, or who had has gone, too.
#[test]
fn what_nobody_has_is_given_away() {
    for taken in [false, true] {
        let (mut roster, mut world) = running();
        if taken {
            roster.handle_owner(0, C, A);
        }
        roster.handle_health(C, Health::Gone, at(100));
        roster.handle_health(B, Health::Taking, at(100));
        world.obey(&mut roster);
        assert_eq!(world.bases(0).contains(&C), taken);
        roster.handle_health(A, Health::Gone, at(200));
        roster.handle_health(B, Health::Taking, at(200));
        world.obey(&mut roster);
        assert_eq!(world.bases(0), BTreeSet::from([B]));
        assert!(!roster.is_there(C));
    }
}
