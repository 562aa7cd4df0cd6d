use std::net::SocketAddr;

use godwit_wire::SeqNumber;
use godwit_wire::app::{Carried, SnapshotKind, SnapshotPlace};

use super::super::PART;
use super::super::room::UNDER_WAY;
use super::*;
use crate::FlowEventKind;

const SHARE: ShareId = ShareId(2);
const STAY: Generation = Generation(5);

/// A server that waits.
type Asker = u32;

fn flow() -> FlowId {
    FlowId {
        key: FlowKey {
            client: SocketAddr::from(([10, 9, 0, 50], 40_000)).into(),
            service: SocketAddr::from(([10, 9, 0, 100], 80)).into(),
        },
        irs: SeqNumber(1000),
    }
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(1_000_000_000 + ms * 1_000_000)
}

fn look(standing: Standing) -> Look {
    Look {
        share: SHARE,
        flow: flow(),
        generation: STAY,
        standing,
        current: true,
    }
}

fn committed(bytes: usize) -> Committed<()> {
    let place = SnapshotPlace {
        offset: 0,
        length: 0,
        kind: SnapshotKind::Commit,
        read: 1,
        written: 2,
    };
    let carried = Carried {
        kind: place.kind,
        bytes: Vec::new(),
    };
    Committed {
        exported: Exported { place, carried },
        output: vec![0; bytes],
        weight: None,
    }
}

fn whole() -> FlowEvent {
    FlowEvent {
        share: SHARE,
        flow: flow(),
        generation: STAY,
        kind: FlowEventKind::Whole,
    }
}

/// Where one connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nobody waits.
    Idle,
    /// A new twin lacks a commit that can't be had yet.
    Lacking,
    /// A server waits, and there is no twin.
    Waiting,
    Sent,
    Held,
    Refused,
}

const PLACES: [At; 6] = [
    At::Idle,
    At::Lacking,
    At::Waiting,
    At::Sent,
    At::Held,
    At::Refused,
];

/// What happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    /// A server commits, while its flow stands so.
    Commit(Standing),
    /// It can't be copied.
    Spoiled,
    /// A new standby lacks what was safe, and it can be had.
    Again,
    /// The same, and it can't be had.
    Lack,
    /// A look is due, while the flow stands so.
    Look(Standing),
    /// Another connection has its addresses now.
    Another,
    /// More time than anybody has passes.
    Late,
    /// The standby has come to the number that was sent last, while the flow stands so.
    Come(Standing),
    /// It has come to an older one.
    ComeTooLate,
    End,
    Link,
}

fn inputs() -> Vec<Input> {
    let each = Standing::ALL.into_iter();
    let of = |make: fn(Standing) -> Input| each.clone().map(make);
    of(Input::Commit)
        .chain(of(Input::Look))
        .chain(of(Input::Come))
        .chain([Input::Spoiled, Input::Again, Input::Lack, Input::Another])
        .chain([Input::Late, Input::ComeTooLate, Input::End, Input::Link])
        .collect()
}

struct World {
    commits: Commits<Asker, ()>,
    exports: Exports,
    now: u64,
    /// How many servers have asked; the next one has this number.
    asked: Asker,
    answered: Vec<(Asker, Option<CommitRefusal>)>,
    /// The number that was sent last.
    number: u64,
    sent: usize,
    given_up: usize,
    passed: usize,
}

impl World {
    fn new() -> Self {
        let services = [(flow().key.service, SHARE)].into();
        Self {
            commits: Commits::default(),
            exports: Exports::new(services, at(0)),
            now: 0,
            asked: 0,
            answered: Vec::new(),
            number: 0,
            sent: 0,
            given_up: 0,
            passed: 0,
        }
    }

    fn at(place: At) -> Self {
        let mut world = Self::new();
        match place {
            At::Idle => {}
            At::Lacking => world.feed(Input::Lack),
            At::Waiting => world.feed(Input::Commit(Standing::Confirming)),
            At::Sent => world.feed(Input::Commit(Standing::Answering)),
            At::Held => {
                world.feed(Input::Commit(Standing::Answering));
                world.feed(Input::Come(Standing::Answering));
            }
            At::Refused => world.feed(Input::Spoiled),
        }
        assert_eq!(world.place(), place);
        world
    }

    fn place(&self) -> At {
        match self.commits.pending.get(&flow().key) {
            None => At::Idle,
            Some(pending) => match pending.stage {
                Stage::Waiting if pending.committed.is_none() => At::Lacking,
                Stage::Waiting => At::Waiting,
                Stage::Sent(_) => At::Sent,
                Stage::Held => At::Held,
                Stage::Refused(_) => At::Refused,
            },
        }
    }

    fn ask(&mut self) -> Asker {
        self.asked += 1;
        self.asked - 1
    }

    fn commit(
        &mut self,
        standing: Standing,
        asker: Option<Asker>,
        state: Result<Committed<()>, CommitRefusal>,
    ) {
        let (look, now) = (Some(look(standing)), at(self.now));
        self.commits
            .handle_commit(look, asker, state, &mut self.exports, now);
    }

    fn tick(&mut self, found: Option<Look>) {
        let now = at(self.now);
        self.commits
            .handle_timeout(|_, _| found, &mut self.exports, now);
    }

    fn feed(&mut self, input: Input) {
        self.now += 1;
        match input {
            Input::Commit(standing) => {
                let asker = Some(self.ask());
                self.commit(standing, asker, Ok(committed(0)));
            }
            Input::Spoiled => {
                let asker = Some(self.ask());
                self.commit(Standing::Served, asker, Err(CommitRefusal::Unprotected));
            }
            Input::Again => self.commit(Standing::Answering, None, Ok(committed(0))),
            Input::Lack => self
                .commits
                .handle_lack(look(Standing::Answering), at(self.now)),
            Input::Look(standing) => self.tick(Some(look(standing))),
            Input::Another => {
                let mut other = look(Standing::Served);
                other.flow.irs += 1;
                self.tick(Some(other));
            }
            Input::Late => {
                self.now += 11_000;
                self.tick(Some(look(Standing::Answering)));
            }
            Input::Come(standing) => {
                let (number, look) = (self.number, Some(look(standing)));
                self.commits
                    .handle_held(flow(), number, look, &mut self.exports);
            }
            Input::ComeTooLate => {
                let (number, look) = (self.number.wrapping_sub(1), Some(look(Standing::Served)));
                self.commits
                    .handle_held(flow(), number, look, &mut self.exports);
            }
            Input::End => self.commits.handle_end(|_, of| of == flow()),
            Input::Link => {
                self.commits.handle_link_change();
                self.exports.forget();
            }
        }
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.commits.poll_action() {
            match action {
                CommitAction::Send(_, parcel) => {
                    self.sent += 1;
                    self.number = parcel.commit.expect("it is one");
                }
                CommitAction::GiveUp(..) => self.given_up += 1,
                CommitAction::Answer(asker, refusal) => self.answered.push((asker, refusal)),
                CommitAction::Pass(_) => self.passed += 1,
            }
        }
    }
}

/// Where a connection is behind each input at each place: what is not said here leaves it where
/// it is.
fn next(place: At, input: Input) -> At {
    use Standing::{Alone, Answering, Confirming, Rejoining, Served};
    match (place, input) {
        // A flow that is being given up stays so until that is known.
        (At::Refused, Input::End) => At::Idle,
        (At::Refused, Input::Late) => At::Idle,
        (At::Refused, _) => At::Refused,
        // Nothing is safe where there is no standby, and nothing waits.
        (_, Input::Commit(Alone)) => place,
        (_, Input::Commit(Confirming | Rejoining)) => At::Waiting,
        (_, Input::Commit(Answering | Served)) => At::Sent,
        (_, Input::Spoiled) => At::Refused,
        (At::Idle | At::Lacking, Input::Again) => At::Sent,
        (At::Waiting | At::Sent | At::Held, Input::Again) => place,
        (At::Idle, Input::Lack) => At::Lacking,
        (At::Lacking | At::Waiting | At::Sent | At::Held, Input::Lack) => place,
        (At::Idle, _) => At::Idle,
        (_, Input::Late) => At::Refused,
        (_, Input::End) => At::Idle,
        (At::Waiting, Input::Look(Answering | Served)) => At::Sent,
        (At::Waiting, Input::Look(Alone) | Input::Another) => At::Refused,
        (At::Held, Input::Look(Served)) => At::Idle,
        (At::Sent | At::Held, Input::Link) => At::Waiting,
        (At::Sent, Input::Come(Served)) => At::Idle,
        (At::Sent, Input::Come(_)) => At::Held,
        (At::Lacking | At::Waiting | At::Sent | At::Held, _) => place,
    }
}

#[test]
fn every_input_at_every_place() {
    for place in PLACES {
        for input in inputs() {
            let mut world = World::at(place);
            world.feed(input);
            assert_eq!(world.place(), next(place, input), "{input:?} at {place:?}");
        }
    }
}

/// Each server that waits is answered once, whatever happens, and with "safe" only if its
/// standby stood there and would serve the flow.
#[test]
fn every_server_is_answered_once() {
    for place in PLACES {
        for first in inputs() {
            for second in inputs() {
                let mut world = World::at(place);
                let mut safe = 0;
                for input in [first, second] {
                    let before = world.place();
                    let answered = world.answered.len();
                    world.feed(input);
                    let answers = world.answered.get(answered..).expect("they are added");
                    for (_, refusal) in answers {
                        if refusal.is_none() {
                            let comes =
                                before == At::Sent && input == Input::Come(Standing::Served);
                            let looks =
                                before == At::Held && input == Input::Look(Standing::Served);
                            assert!(comes || looks, "{place:?} {first:?} {second:?}");
                            safe += 1;
                        }
                    }
                }
                world.feed(Input::Late);
                world.feed(Input::Late);
                let mut who: Vec<_> = world.answered.iter().map(|(asker, _)| *asker).collect();
                who.sort_unstable();
                let all: Vec<_> = (0..world.asked).collect();
                assert_eq!(who, all, "{place:?} {first:?} {second:?}");
                assert!(world.commits.pending.is_empty());
                let told_safe = world.answered.iter().filter(|(_, why)| why.is_none());
                assert_eq!(told_safe.count(), safe);
            }
        }
    }
}

/// The word that a new twin has all else waits for the commit, and comes once.
#[test]
fn a_twin_that_lacks_a_commit_does_not_count() {
    let mut world = World::new();
    world.commits.handle_whole(whole());
    world.commits.handle_exports(&[flow().key], |_| true);
    world.carry_out();
    assert_eq!(world.passed, 0, "it has committed");
    world.feed(Input::Again);
    world.feed(Input::Look(Standing::Answering));
    assert_eq!(world.passed, 0);
    world.feed(Input::Come(Standing::Answering));
    assert_eq!((world.passed, world.sent), (1, 1));
    world.commits.handle_exports(&[flow().key], |_| true);
    world.carry_out();
    assert_eq!(world.passed, 1);
    let mut never = World::new();
    never.commits.handle_whole(whole());
    never.commits.handle_exports(&[flow().key], |_| false);
    never.carry_out();
    assert_eq!(never.passed, 1, "it never committed");
}

/// A newer commit takes the place of the one before, and both servers hear of the newer.
#[test]
fn a_newer_commit_answers_for_the_older() {
    let mut world = World::at(At::Sent);
    let first = world.number;
    world.feed(Input::Commit(Standing::Served));
    assert!(world.number > first);
    world.feed(Input::ComeTooLate);
    assert_eq!(world.answered, []);
    world.feed(Input::Come(Standing::Served));
    assert_eq!(world.answered, [(0, None), (1, None)]);
}

/// A commit that finds no room goes once there is some, before what comes later.
#[test]
fn one_without_room_waits() {
    let mut world = World::new();
    let (first, second) = (world.ask(), world.ask());
    world.commit(
        Standing::Served,
        Some(first),
        Ok(committed(UNDER_WAY * PART)),
    );
    world.carry_out();
    let mut other = look(Standing::Served);
    other.flow.key.client.port += 1;
    let state = Ok(committed(PART));
    world
        .commits
        .handle_commit(Some(other), Some(second), state, &mut world.exports, at(0));
    world.carry_out();
    assert_eq!(world.sent, 1);
    let found = |_, key| {
        Some(if key == flow().key {
            look(Standing::Served)
        } else {
            other
        })
    };
    world
        .commits
        .handle_timeout(found, &mut world.exports, at(1));
    world.carry_out();
    assert_eq!(world.sent, 1);
    world.feed(Input::Come(Standing::Served));
    world
        .commits
        .handle_timeout(found, &mut world.exports, at(3));
    world.carry_out();
    assert_eq!(world.sent, 2);
    assert_eq!(world.answered, [(first, None)]);
}

/// If no standby would serve the flow anyway, the server hears that at once.
#[test]
fn who_is_given_up_already_is_told_so() {
    let mut world = World::at(At::Refused);
    assert_eq!(world.given_up, 1);
    world.commits.handle_given_up(flow().key);
    world.carry_out();
    assert_eq!(world.answered, [(0, Some(CommitRefusal::Unprotected))]);
}
