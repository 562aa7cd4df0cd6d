use std::collections::{BTreeMap, BTreeSet};

use godwit_wire::{Endpoint, FlowKey, NodeName, SeqNumber};
use proptest::prelude::*;

use super::*;

const SMALL: u32 = 251;

fn member(number: u16, weight: u16) -> Member {
    Member {
        name: NodeName::new(&format!("node-{number}")).expect("a name"),
        id: BackendId(number),
        weight,
    }
}

fn equals(count: u16) -> Vec<Member> {
    (0..count).map(|number| member(number, 1)).collect()
}

fn flow(number: u32) -> FlowKey {
    let [a, b, c, d] = number.to_be_bytes();
    let client: std::net::SocketAddr = ([10, 0, a, b], u16::from_be_bytes([c, d])).into();
    FlowKey {
        client: client.into(),
        service: "10.9.0.100:80".parse::<Endpoint>().expect("an endpoint"),
    }
}

fn shares(table: &[Option<BackendId>]) -> BTreeMap<BackendId, usize> {
    let mut shares = BTreeMap::new();
    for backend in table.iter().flatten() {
        *shares.entry(*backend).or_insert(0) += 1;
    }
    shares
}

#[test]
fn a_table_is_of_a_prime_size() {
    for prime in [251, 65_537, 1_048_573] {
        assert_eq!(TableSize::new(prime).map(TableSize::get), Some(prime));
    }
    for other in [0, 1, 2, 241, 252, 65_536, 1_048_583] {
        assert_eq!(TableSize::new(other), None, "{other}");
    }
    assert_eq!(TableSize::new(65_537), Some(TableSize::default()));
}

#[test]
fn slots_are_split_as_weights_say() {
    for count in [1, 2, 3, 7, 32] {
        let shares = shares(&lookup_table(TableSize::DEFAULT, &equals(count)));
        let (least, most) = (shares.values().min(), shares.values().max());
        let (least, most) = (*least.expect("one"), *most.expect("one"));
        assert_eq!(shares.len(), usize::from(count));
        assert!(most - least <= 1, "{count}: {shares:?}");
    }
    let table = lookup_table(
        TableSize::DEFAULT,
        &[member(0, 1), member(1, 2), member(2, 0)],
    );
    let shares = shares(&table);
    assert_eq!(shares.len(), 2, "one of no weight gets nothing");
    let (one, two) = (shares[&BackendId(0)], shares[&BackendId(1)]);
    assert!(two.abs_diff(2 * one) <= 2, "{shares:?}");
}

#[test]
fn without_back_ends_slots_lead_nowhere() {
    for members in [vec![], vec![member(3, 0)]] {
        let table = lookup_table(TableSize::DEFAULT, &members);
        assert!(table.iter().all(Option::is_none));
        let mut slots = Slots::new(table.len());
        assert!(slots.change(&table, |_| true).is_empty());
        for word in [Word::Syn(SeqNumber(1)), Word::Other] {
            assert_eq!(slots.get(0).place(word, None, |_| true, |_| true), None);
        }
    }
}

/// Slots of others that change when one of the members goes, of all.
fn collateral(size: TableSize, members: &[Member], gone: usize) -> f64 {
    let before = lookup_table(size, members);
    let rest: Vec<_> = members
        .iter()
        .enumerate()
        .filter_map(|(at, member)| (at != gone).then_some(*member))
        .collect();
    let after = lookup_table(size, &rest);
    let lost = members[gone].id;
    let changed = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after && **before != Some(lost));
    changed.count() as f64 / before.len() as f64
}

/// The same table from the other side: one that comes is one that went.
#[test]
fn few_slots_change_beside_those_of_the_lost_one() {
    let bounds = [
        (2, 0.001),
        (3, 0.001),
        (8, 0.0025),
        (32, 0.005),
        (100, 0.01),
    ];
    for (count, bound) in bounds {
        let members = equals(count);
        let each = (0..members.len()).step_by(members.len().div_ceil(8));
        let changed: Vec<_> = each
            .map(|gone| collateral(TableSize::DEFAULT, &members, gone))
            .collect();
        let worst = changed.iter().copied().fold(0.0, f64::max);
        println!("{count} back-ends: beside 1/{count}, {worst:.4} of the slots change");
        assert!(worst <= bound, "{count} back-ends: {worst}");
    }
}

#[test]
fn flows_are_spread_over_the_slots() {
    let size = TableSize::new(SMALL).expect("a prime");
    let mut counts = vec![0_u32; SMALL as usize];
    for number in 0..SMALL * 400 {
        counts[FlowHash::new(&flow(number), 7).slot(size) as usize] += 1;
    }
    // Of 400 a slot, the standard deviation is 20.
    let (least, most) = (counts.iter().min(), counts.iter().max());
    assert!(
        least > Some(&300) && most < Some(&500),
        "{least:?} {most:?}"
    );
    let moved = (0..1000).filter(|number| {
        let [a, b] = [7, 8].map(|seed| FlowHash::new(&flow(*number), seed).slot(size));
        a != b
    });
    assert!(moved.count() > 950, "the seed matters");
}

/// What a director knows of its flows, and what is true of them.
struct World {
    members: Vec<Member>,
    /// Those that live; of weight 0 they drain.
    alive: BTreeSet<BackendId>,
    slots: Slots,
    entries: BTreeMap<u32, Entry>,
    /// Where each flow's connection is.
    held: BTreeMap<u32, (BackendId, SeqNumber)>,
    /// Back-ends say what they do not know.
    tell: bool,
}

impl World {
    fn new(count: u16) -> Self {
        let mut world = Self {
            members: equals(count),
            alive: (0..count).map(BackendId).collect(),
            slots: Slots::new(SMALL as usize),
            entries: BTreeMap::new(),
            held: BTreeMap::new(),
            tell: true,
        };
        world.change();
        world
    }

    fn size() -> TableSize {
        TableSize::new(SMALL).expect("a prime")
    }

    fn change(&mut self) {
        let alive = &self.alive;
        let members: Vec<_> = self
            .members
            .iter()
            .filter(|member| alive.contains(&member.id))
            .copied()
            .collect();
        let table = lookup_table(Self::size(), &members);
        self.slots.change(&table, |id| alive.contains(&id));
        // With its back-end a connection is gone.
        self.held.retain(|_, (backend, _)| alive.contains(backend));
    }

    /// A SYN: who is asked knows whether the connection goes on there, or it begins anew.
    fn open(&mut self, number: u32, irs: SeqNumber) -> Option<Placed> {
        let placed = self.say(number, Word::Syn(irs))?;
        let lives = self.held.get(&number).map(|(backend, _)| *backend);
        if placed.route != Route::Asked || lives == Some(placed.backend) {
            return Some(placed);
        }
        self.say(number, Word::Unknown(irs, placed.backend))
    }

    fn say(&mut self, number: u32, word: Word) -> Option<Placed> {
        let slot = FlowHash::new(&flow(number), 1).slot(Self::size());
        let entry = self.entries.get(&number).copied();
        let placed = self.slots.get(slot).place(
            word,
            entry,
            |id| self.alive.contains(&id),
            |_| self.tell,
        )?;
        match placed.entry {
            Some(entry) => self.entries.insert(number, entry),
            None => self.entries.remove(&number),
        };
        Some(placed)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Open(u32, u32),
    Forge(u32, u32),
    Talk,
    Fail(u16),
    Return(u16),
    Weigh(u16, u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..400_u32, any::<u32>()).prop_map(|(flow, irs)| Step::Open(flow, irs)),
        3 => (0..400_u32, any::<u32>()).prop_map(|(flow, irs)| Step::Forge(flow, irs)),
        2 => Just(Step::Talk),
        1 => (0..5_u16).prop_map(Step::Fail),
        1 => (0..5_u16).prop_map(Step::Return),
        1 => (0..5_u16, 0..4_u16).prop_map(|(backend, weight)| Step::Weigh(backend, weight)),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Directors that know the same back-ends fill the same table, though each has
    /// heard of them in an order of its own and numbers them itself.
    #[test]
    fn the_order_of_arrival_does_not_matter(
        order in Just((0..9_u16).collect::<Vec<_>>()).prop_shuffle(),
        weights in prop::collection::vec(0..5_u16, 9),
    ) {
        let weighted = |number: u16| member(number, weights[usize::from(number)]);
        let members: Vec<_> = (0..9).map(weighted).collect();
        let size = World::size();
        let one = lookup_table(size, &members);
        let numbered: Vec<_> = order
            .iter()
            .zip(100..)
            .map(|(number, id)| Member { id: BackendId(id), ..weighted(*number) })
            .collect();
        let other: Vec<_> = lookup_table(size, &numbered)
            .into_iter()
            .map(|slot| slot.map(|id| BackendId(order[usize::from(id.0 - 100)])))
            .collect();
        prop_assert_eq!(one, other);
    }

    /// Whatever comes, goes or drains: a connection stays where it is for as long as
    /// that back-end lives, and new ones go where the table says. Nor does it change place
    /// for a SYN of its four-tuple, which anybody can send, if back-ends say what they know.
    #[test]
    fn a_connection_never_changes_place(steps in steps(), tell in any::<bool>()) {
        let mut world = World::new(5);
        world.tell = tell;
        for step in steps {
            match step {
                Step::Open(number, irs) => {
                    let irs = SeqNumber(irs);
                    // Its SYN may come twice, the table may change in between.
                    let repeat = world.held.get(&number).copied().filter(|(_, was)| *was == irs);
                    if repeat.is_none() {
                        world.held.remove(&number);
                    }
                    let Some(placed) = world.open(number, irs) else { continue };
                    prop_assert!(world.alive.contains(&placed.backend));
                    if repeat.is_none() {
                        world.held.insert(number, (placed.backend, irs));
                    }
                }
                Step::Forge(number, irs) if tell => {
                    world.open(number, SeqNumber(irs));
                }
                Step::Forge(..) => {}
                Step::Talk => {
                    for (number, (backend, _)) in world.held.clone() {
                        let placed = world.say(number, Word::Other);
                        prop_assert_eq!(placed.map(|it| it.backend), Some(backend), "{}", number);
                    }
                }
                Step::Fail(number) => {
                    world.alive.remove(&BackendId(number));
                    world.change();
                }
                Step::Return(number) => {
                    world.alive.insert(BackendId(number));
                    world.change();
                }
                Step::Weigh(number, weight) => {
                    world.members[usize::from(number)].weight = weight;
                    world.change();
                }
            }
        }
    }
}

/// What an entry costs is paid only where it is needed.
#[test]
fn only_changed_slots_have_entries() {
    let mut world = World::new(4);
    for number in 0..2_000 {
        world.say(number, Word::Syn(SeqNumber(1)));
    }
    assert!(world.entries.is_empty(), "the table has never changed");
    // One drains: what it has stays, new connections go to the other three.
    world.members[2].weight = 0;
    world.change();
    let drained = |slot: &Slot| slot.base == Some(BackendId(2));
    let mixed = world.slots.all().iter().filter(|slot| slot.mixed).count();
    let of_it = world
        .slots
        .all()
        .iter()
        .filter(|slot| drained(slot))
        .count();
    assert!(mixed >= of_it && mixed < of_it * 2, "{mixed} of {of_it}");
    for number in 2_000..4_000 {
        let placed = world.open(number, SeqNumber(1)).expect("somebody");
        assert_ne!(placed.backend, BackendId(2), "it drains");
    }
    let share = world.entries.len() as f64 / 2_000.0;
    assert!(share < 0.5, "{share}");
    // And then it is gone: its slots need no entries any more.
    world.alive.remove(&BackendId(2));
    world.change();
    assert!(!world.slots.all().iter().any(drained));
}

/// A SYN that comes again goes where the first one went: that back-end may have answered.
#[test]
fn a_repeated_syn_is_no_new_connection() {
    let there = |_| true;
    let slot = Slot {
        now: Some(BackendId(2)),
        base: Some(BackendId(0)),
        mixed: true,
    };
    let before = Some(Entry {
        backend: BackendId(1),
        irs: SeqNumber(7),
    });
    let again = slot.place(Word::Syn(SeqNumber(7)), before, there, there);
    assert_eq!(
        again.map(|it| (it.backend, it.entry)),
        Some((BackendId(1), before))
    );
    let another = slot
        .place(Word::Syn(SeqNumber(8)), before, there, |_| false)
        .expect("somebody");
    assert_eq!((another.backend, another.route), (BackendId(2), Route::New));
    let gone = slot
        .place(Word::Other, before, |id| id != BackendId(1), there)
        .expect("somebody");
    assert_eq!((gone.backend, gone.route), (BackendId(0), Route::Base));
}

/// Only of who was asked, and no more often than it was: an answer of another is none.
#[test]
fn nobody_answers_for_who_was_asked() {
    let there = |_| true;
    let slot = Slot {
        now: Some(BackendId(2)),
        base: Some(BackendId(0)),
        mixed: true,
    };
    let irs = SeqNumber(7);
    let asked = slot.place(Word::Syn(irs), None, there, there);
    let asked = asked.expect("somebody");
    assert_eq!((asked.backend, asked.route), (BackendId(0), Route::Asked));
    assert_eq!(asked.entry, None, "nothing is known yet");
    let answer = |by, entry| slot.place(Word::Unknown(irs, BackendId(by)), entry, there, there);
    assert_eq!(answer(1, None), None);
    let begun = answer(0, None).expect("it begins");
    assert_eq!((begun.backend, begun.route), (BackendId(2), Route::New));
    // The SYN came twice, and so does the answer.
    let again = answer(0, begun.entry).expect("it has begun");
    assert_eq!((again.backend, again.entry), (BackendId(2), begun.entry));
    // It has gone to another one meanwhile, which that one does not know of.
    let moved = Some(Entry {
        backend: BackendId(1),
        irs: SeqNumber(1),
    });
    assert_eq!(answer(0, moved), None);
    let unmixed = Slot {
        base: slot.now,
        mixed: false,
        ..slot
    };
    let placed = unmixed.place(Word::Unknown(irs, BackendId(2)), None, there, there);
    assert_eq!(placed, None, "nobody was asked");
}
