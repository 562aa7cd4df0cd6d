use std::collections::BTreeSet;

use super::*;

const A: BackendId = BackendId(0);
const B: BackendId = BackendId(1);
const C: BackendId = BackendId(2);
const GRACE: Duration = Duration::from_millis(300);

fn roster() -> Roster {
    let config = Config {
        size: TableSize::new(251).expect("a prime"),
        grace: GRACE,
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
        roster.handle_health(id, Health::Taking);
    }
    world.obey(&mut roster);
    (roster, world)
}

/// What the data path has been told.
struct World {
    there: BTreeSet<BackendId>,
    slots: Vec<Vec<Slot>>,
}

impl World {
    fn new() -> Self {
        Self {
            there: BTreeSet::new(),
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
                    assert!(self.there.insert(id), "{id:?} was there");
                }
                Change::Backend { id, there: false } => {
                    self.there.remove(&id);
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
    roster.handle_health(A, Health::Taking);
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
            roster.handle_health(C, Health::Draining);
        } else {
            roster.handle_drain(C, true);
        }
        world.obey(&mut roster);
        assert_eq!(world.takers(0), BTreeSet::from([A, B]));
        assert_eq!(world.bases(0), BTreeSet::from([A, B, C]));
        assert!(world.there.contains(&C));
        roster.handle_health(C, Health::Gone);
        world.obey(&mut roster);
        assert_eq!(world.bases(0), BTreeSet::from([A, B]));
    }
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
    roster.handle_health(A, Health::Silent);
    for id in [B, C] {
        roster.handle_health(id, Health::Taking);
        roster.handle_serving(id, 0, true);
    }
    assert!(world.obey(&mut roster) > 0, "A is given up");
    assert_eq!(roster.state(A), BackendState::Gone);
    roster.handle_health(B, Health::Taking);
    assert_eq!(world.obey(&mut roster), 0);
    assert_eq!(roster.state(B), BackendState::Taking);
    roster.handle_drain(B, true);
    assert!(roster.is_drained(B));
    assert_eq!(roster.state(B), BackendState::Draining);
}

#[test]
fn silence_counts_when_somebody_else_is_heard() {
    let (mut roster, mut world) = running();
    roster.handle_health(A, Health::Silent);
    assert_eq!(
        world.obey(&mut roster),
        0,
        "it may be this director that is deaf"
    );
    assert!(!roster.is_deaf());
    roster.handle_health(B, Health::Taking);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([B, C]));
    roster.handle_health(A, Health::Taking);
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
}

#[test]
fn a_deaf_director_changes_nothing() {
    let (mut roster, mut world) = running();
    for id in [A, B, C] {
        roster.handle_health(id, Health::Silent);
    }
    assert!(roster.is_deaf());
    assert_eq!(world.obey(&mut roster), 0);
    // It hears again, all of them as before.
    roster.handle_health(B, Health::Taking);
    assert!(!roster.is_deaf());
    for id in [A, C] {
        roster.handle_health(id, Health::Taking);
    }
    world.obey(&mut roster);
    assert_eq!(world.takers(0), BTreeSet::from([A, B, C]));
    for id in [A, B, C] {
        roster.handle_health(id, Health::Gone);
    }
    world.obey(&mut roster);
    assert_eq!(
        world.takers(0).len(),
        1,
        "the last one is as good as nobody"
    );
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
        next.handle_health(id, Health::Taking);
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
