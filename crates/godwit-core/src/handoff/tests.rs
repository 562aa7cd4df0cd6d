//! One origin, one target, step by step.

use godwit_wire::{Epoch, FlowEpoch, HandoffRefusal};

use super::*;

const ORIGIN: PeerId = PeerId(0);
const TARGET: PeerId = PeerId(1);

fn flow(port: u16) -> FlowId {
    FlowId {
        key: godwit_wire::FlowKey {
            client: format!("10.9.0.10:{port}").parse().unwrap(),
            service: "10.9.0.100:80".parse().unwrap(),
        },
        irs: godwit_wire::SeqNumber(7),
    }
}

fn id(port: u16, epoch: u32) -> HandoffId {
    HandoffId {
        flow: flow(port),
        epoch: FlowEpoch(epoch),
    }
}

/// In its first life.
const fn by(peer: PeerId) -> Speaker {
    let life = Epoch(1);
    Speaker { peer, life }
}

fn at(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn orders(node: &mut Handoffs) -> Vec<Order> {
    std::iter::from_fn(|| node.poll_order()).collect()
}

fn news(node: &mut Handoffs) -> Vec<News> {
    std::iter::from_fn(|| node.poll_news()).collect()
}

fn say(to: PeerId, id: HandoffId, step: Step) -> Order {
    Order::Say { to, id, step }
}

/// An origin whose connection is frozen since `at(1)`.
fn frozen() -> Handoffs {
    let mut origin = Handoffs::new();
    origin.begin(flow(1), TARGET, at(0)).unwrap();
    origin.handle_step(by(TARGET), id(1, 1), Step::Ready, at(1));
    origin.handle_frozen(id(1, 1), Ok(at(1)), at(1));
    orders(&mut origin);
    origin
}

fn committed() -> Handoffs {
    let mut origin = frozen();
    origin.handle_step(by(TARGET), id(1, 1), Step::Prepared, at(2));
    orders(&mut origin);
    origin
}

/// A target in which a silent socket waits for the word.
fn prepared() -> Handoffs {
    let mut target = Handoffs::new();
    target.handle_step(by(ORIGIN), id(1, 1), Step::Prepare(Party::ALONE), at(0));
    target.handle_held(id(1, 1), Ok(()), at(1));
    target.handle_step(by(ORIGIN), id(1, 1), Step::State, at(1));
    target.handle_restored(id(1, 1), Ok(()), at(1));
    orders(&mut target);
    target
}

#[test]
fn an_origin_asks_freezes_commits_and_releases() {
    let (id, mut origin) = (id(1, 1), Handoffs::new());
    origin.begin(flow(1), TARGET, at(0)).unwrap();
    assert_eq!(
        orders(&mut origin),
        [say(TARGET, id, Step::Prepare(Party::ALONE))]
    );
    origin.handle_step(by(TARGET), id, Step::Ready, at(1));
    assert_eq!(orders(&mut origin), [Order::Freeze { id, to: TARGET }]);
    origin.handle_frozen(id, Ok(at(1)), at(1));
    assert_eq!(orders(&mut origin), [say(TARGET, id, Step::State)]);
    origin.handle_step(by(TARGET), id, Step::Prepared, at(2));
    let commit = Order::Commit { id, to: TARGET };
    assert_eq!(orders(&mut origin), [commit, say(TARGET, id, Step::Commit)]);
    origin.handle_step(by(TARGET), id, Step::Done, at(4));
    let settled = say(TARGET, id, Step::Settled);
    assert_eq!(orders(&mut origin), [Order::Release(id), settled]);
    let [
        News::Moved {
            to: TARGET, course, ..
        },
    ] = news(&mut origin)[..]
    else {
        panic!("it has moved");
    };
    assert_eq!(course.silent(), Duration::from_millis(3));
    let took = course.at_origin().map(|(_, took)| took.as_millis());
    assert_eq!(took, [1, 0, 0, 1, 2]);
    assert_eq!(origin.poll_timeout(), None);
}

#[test]
fn a_target_holds_restores_and_speaks_when_it_is_told() {
    let (id, mut target) = (id(1, 1), Handoffs::new());
    let from = ORIGIN;
    target.handle_step(by(ORIGIN), id, Step::Prepare(Party::ALONE), at(0));
    assert_eq!(orders(&mut target), [Order::Hold { id, from }]);
    target.handle_held(id, Ok(()), at(1));
    assert_eq!(orders(&mut target), [say(ORIGIN, id, Step::Ready)]);
    target.handle_step(by(ORIGIN), id, Step::State, at(1));
    assert_eq!(orders(&mut target), [Order::Restore(id)]);
    target.handle_restored(id, Ok(()), at(2));
    assert_eq!(orders(&mut target), [say(ORIGIN, id, Step::Prepared)]);
    target.handle_step(by(ORIGIN), id, Step::Commit, at(2));
    let done = say(ORIGIN, id, Step::Done);
    assert_eq!(orders(&mut target), [Order::Place(id)]);
    target.handle_step(by(ORIGIN), id, Step::Commit, at(3));
    target.handle_link_lost(ORIGIN, at(3));
    assert_eq!(orders(&mut target), [], "it is told when it speaks");
    target.handle_placed(id, at(4));
    assert_eq!(orders(&mut target), [done]);
    let [
        News::Arrived {
            from: ORIGIN,
            course,
            ..
        },
    ] = news(&mut target)[..]
    else {
        panic!("it has arrived");
    };
    let took = course.at_target().map(|(_, took)| took.as_millis());
    assert_eq!(took, [1, 0, 1, 0, 2]);
    target.handle_step(by(ORIGIN), id, Step::Commit, at(4));
    assert_eq!(orders(&mut target), [done], "it speaks once");
}

#[test]
fn a_target_that_does_not_answer_costs_the_patience_at_most() {
    let mut asked = Handoffs::new();
    asked.begin(flow(1), TARGET, at(0)).unwrap();
    orders(&mut asked);
    assert_eq!(
        asked.poll_timeout(),
        Some(at(0).saturating_add(ASK_PATIENCE))
    );
    asked.handle_timeout(at(0).saturating_add(ASK_PATIENCE));
    let abort = say(TARGET, id(1, 1), Step::Abort);
    assert_eq!(orders(&mut asked), [abort], "it never stopped");

    let mut silent = frozen();
    assert_eq!(
        silent.poll_timeout(),
        Some(at(1).saturating_add(FROZEN_PATIENCE))
    );
    silent.handle_timeout(at(1).saturating_add(FROZEN_PATIENCE));
    assert_eq!(orders(&mut silent), [Order::Thaw(id(1, 1)), abort]);
    let stayed = News::Stayed {
        flow: flow(1),
        to: TARGET,
        reason: HandoffError::TargetSilent,
    };
    assert_eq!(news(&mut silent), [stayed]);
    silent.handle_step(by(TARGET), id(1, 1), Step::Prepared, at(2000));
    assert_eq!(orders(&mut silent), [], "too late");
}

#[test]
fn a_commit_is_said_again_and_never_called_off() {
    let mut origin = committed();
    let mut gaps = Vec::new();
    let mut last = at(2);
    for _ in 0..8 {
        let due = origin.poll_timeout().unwrap();
        gaps.push(due.since(last).as_millis());
        origin.handle_timeout(due);
        assert_eq!(orders(&mut origin), [say(TARGET, id(1, 1), Step::Commit)]);
        last = due;
    }
    assert_eq!(gaps, [20, 20, 40, 80, 160, 320, 640, 1000]);
    origin.handle_link_lost(TARGET, last);
    assert_eq!(orders(&mut origin), [], "the target may speak");
    assert_eq!(
        origin.begin(flow(1), TARGET, last),
        Err(HandoffError::NotHere)
    );
}

#[test]
fn a_refused_commit_is_taken_back() {
    let mut origin = committed();
    let refused = Step::Refused(HandoffRefusal::Forgotten);
    origin.handle_step(by(PeerId(2)), id(1, 1), refused, at(3));
    assert_eq!(orders(&mut origin), [], "said by somebody else");
    origin.handle_step(by(TARGET), id(1, 1), refused, at(3));
    assert_eq!(orders(&mut origin), [Order::Reclaim(id(1, 1))]);
}

/// A machine that was started anew has forgotten whether it has spoken.
#[test]
fn what_was_committed_to_an_earlier_life_is_lost() {
    let refused = Step::Refused(HandoffRefusal::Forgotten);
    let lost = [Order::Lose(id(1, 1)), Order::Forget(flow(1))];
    let news_of_it = News::Lost {
        flow: flow(1),
        to: TARGET,
        reason: HandoffError::TargetRestarted,
    };
    for life in [Epoch::NONE, Epoch(2)] {
        let later = Speaker { life, ..by(TARGET) };
        let mut origin = committed();
        origin.handle_step(later, id(1, 1), refused, at(3));
        assert_eq!(orders(&mut origin), lost);
        assert_eq!(news(&mut origin), [news_of_it]);
        assert_eq!(origin.poll_timeout(), None);

        // The origin's next agent knows what life it was.
        let mut next = Handoffs::new();
        next.handle_resumed(flow(1), committed().written(&flow(1)).unwrap(), at(9));
        let mut same = next.clone();
        next.handle_step(later, id(1, 1), refused, at(10));
        assert_eq!(orders(&mut next), lost);
        same.handle_step(by(TARGET), id(1, 1), refused, at(10));
        assert_eq!(orders(&mut same), [Order::Reclaim(id(1, 1))]);

        // What it has not been told to do it has not done.
        let mut early = frozen();
        early.handle_step(later, id(1, 1), refused, at(3));
        let abort = say(TARGET, id(1, 1), Step::Abort);
        assert_eq!(orders(&mut early), [Order::Thaw(id(1, 1)), abort]);
    }
    // One that had no name for its life can't say that it is the same.
    let nameless = Speaker {
        life: Epoch::NONE,
        ..by(TARGET)
    };
    let mut origin = frozen();
    origin.handle_step(nameless, id(1, 1), Step::Prepared, at(2));
    orders(&mut origin);
    origin.handle_step(nameless, id(1, 1), refused, at(3));
    assert_eq!(orders(&mut origin), lost);
}

#[test]
fn a_target_that_forgot_says_so_and_one_that_aborted_gives_back() {
    let mut fresh = Handoffs::new();
    fresh.handle_step(by(ORIGIN), id(1, 1), Step::Commit, at(0));
    let refused = Step::Refused(HandoffRefusal::Forgotten);
    assert_eq!(orders(&mut fresh), [say(ORIGIN, id(1, 1), refused)]);

    let mut target = prepared();
    target.handle_step(by(ORIGIN), id(1, 1), Step::Abort, at(5));
    let discard = Order::Discard {
        id: id(1, 1),
        from: ORIGIN,
        moved: None,
    };
    assert_eq!(orders(&mut target), [discard]);
    target.handle_step(by(ORIGIN), id(1, 1), Step::Commit, at(6));
    assert_eq!(orders(&mut target), [say(ORIGIN, id(1, 1), refused)]);
}

#[test]
fn only_a_few_are_frozen_at_a_time() {
    let mut origin = Handoffs::new();
    let ports = 0..2 * u16::try_from(MAX_FROZEN).unwrap();
    for port in ports.clone() {
        origin.begin(flow(port), TARGET, at(0)).unwrap();
        origin.handle_step(by(TARGET), id(port, 1), Step::Ready, at(1));
    }
    let freezes = |orders: Vec<Order>| {
        let freeze = |order: &&Order| matches!(order, Order::Freeze { .. });
        orders.iter().filter(freeze).count()
    };
    assert_eq!(freezes(orders(&mut origin)), MAX_FROZEN);
    origin.handle_frozen(id(0, 1), Err(HandoffRefusal::NotMovable), at(2));
    assert_eq!(freezes(orders(&mut origin)), 1, "one left, one more");
    origin.handle_frozen(id(1, 1), Ok(at(2)), at(2));
    origin.handle_step(by(TARGET), id(1, 1), Step::Prepared, at(2));
    assert_eq!(freezes(orders(&mut origin)), 1, "a commit makes room");
}

#[test]
fn a_target_is_asked_for_a_few_at_a_time() {
    let mut origin = Handoffs::new();
    let few = u16::try_from(MAX_ASKED).unwrap();
    for port in 0..2 * few {
        origin.begin(flow(port), TARGET, at(0)).unwrap();
    }
    let asked = |origin: &mut Handoffs| {
        let orders = orders(origin).into_iter();
        let asked = orders.filter(|order| {
            matches!(
                order,
                Order::Say {
                    step: Step::Prepare(Party::ALONE),
                    ..
                }
            )
        });
        asked.map(|order| order.flow()).collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut origin), (0..few).map(flow).collect::<Vec<_>>());
    let refused = Step::Refused(HandoffRefusal::NoServer);
    for port in 1..few / 2 {
        origin.handle_step(by(TARGET), id(port, 1), refused, at(1));
    }
    origin.handle_step(by(TARGET), id(0, 1), Step::Ready, at(2));
    origin.handle_frozen(id(0, 1), Ok(at(2)), at(2));
    assert_eq!(asked(&mut origin), [], "not one by one");
    origin.handle_step(by(TARGET), id(0, 1), Step::Prepared, at(3));
    let more = few..few + few / 2;
    let more = more.map(flow).collect::<Vec<_>>();
    assert_eq!(asked(&mut origin), more, "refusals and commits make room");
    // Those that wait are not overdue; with the link all are over, asked or not.
    let due = at(ASK_PATIENCE.as_millis().try_into().unwrap());
    assert_eq!(origin.poll_timeout(), Some(due.min(at(23))));
    news(&mut origin);
    origin.handle_link_lost(TARGET, at(4));
    assert_eq!(news(&mut origin).len(), usize::from(2 * few - few / 2));
    assert_eq!(
        asked(&mut origin),
        [],
        "nobody is asked on a link that is gone"
    );
}

#[test]
fn the_next_attempt_is_not_confused_by_answers_to_the_last() {
    let mut origin = frozen();
    origin.handle_step(
        by(TARGET),
        id(1, 1),
        Step::Refused(HandoffRefusal::NoServer),
        at(2),
    );
    origin.begin(flow(1), TARGET, at(3)).unwrap();
    orders(&mut origin);
    origin.handle_step(by(TARGET), id(1, 1), Step::Ready, at(4));
    assert_eq!(orders(&mut origin), []);
    origin.handle_step(by(TARGET), id(1, 2), Step::Ready, at(5));
    assert_eq!(
        orders(&mut origin),
        [Order::Freeze {
            id: id(1, 2),
            to: TARGET
        }]
    );
}

#[test]
fn what_has_come_goes_on_only_when_its_origin_knows() {
    let mut target = prepared();
    target.handle_step(by(ORIGIN), id(1, 1), Step::Commit, at(2));
    target.handle_placed(id(1, 1), at(4));
    orders(&mut target);
    let third = PeerId(2);
    let early = target.begin(flow(1), third, at(3));
    assert_eq!(early, Err(HandoffError::AlreadyMoving));
    assert_eq!(orders(&mut target), [say(ORIGIN, id(1, 1), Step::Done)]);
    target.handle_step(by(ORIGIN), id(1, 1), Step::Settled, at(4));
    orders(&mut target);
    target.begin(flow(1), third, at(5)).unwrap();
    assert_eq!(
        orders(&mut target),
        [say(third, id(1, 2), Step::Prepare(Party::ALONE))]
    );
}

#[test]
fn the_end_of_a_connection_is_told_to_whoever_forwards_to_it() {
    let mut target = prepared();
    target.handle_step(by(ORIGIN), id(1, 1), Step::Commit, at(2));
    target.handle_placed(id(1, 1), at(4));
    orders(&mut target);
    target.handle_ended(flow(1), at(3));
    let done = say(ORIGIN, id(1, 1), Step::Done);
    assert_eq!(orders(&mut target), [done], "its number may be asked for");
    target.handle_step(by(ORIGIN), id(1, 1), Step::Settled, at(4));
    let over = say(ORIGIN, id(1, 1), Step::Over);
    assert_eq!(orders(&mut target), [over, Order::Forget(flow(1))]);

    let mut origin = committed();
    origin.handle_step(by(TARGET), id(1, 1), Step::Done, at(4));
    orders(&mut origin);
    news(&mut origin);
    origin.handle_step(by(TARGET), id(1, 1), Step::Over, at(5));
    assert_eq!(orders(&mut origin), [Order::Forget(flow(1))]);
    let over = News::Over {
        flow: flow(1),
        to: TARGET,
    };
    assert_eq!(news(&mut origin), [over]);
}

/// An origin whose connection is at the target, and its next agent.
fn forwarding() -> [Handoffs; 2] {
    let mut origin = committed();
    origin.handle_step(by(TARGET), id(1, 1), Step::Done, at(4));
    orders(&mut origin);
    news(&mut origin);
    let mut next = Handoffs::new();
    next.handle_resumed(flow(1), origin.written(&flow(1)).unwrap(), at(5));
    [origin, next]
}

const fn silence(lasted: u64, linked: bool) -> Silence {
    Silence {
        lasted: Duration::from_secs(lasted),
        patience: Duration::from_secs(30),
        linked,
    }
}

#[test]
fn a_target_is_asked_about_a_client_that_is_silent() {
    for mut origin in forwarding() {
        let asks = [say(TARGET, id(1, 1), Step::Settled)];
        for seconds in [1, 100, 10_000] {
            origin.handle_silence(flow(1), silence(seconds, true), at(1000 * seconds));
            assert_eq!(orders(&mut origin), asks, "it may live, and say nothing");
        }
        origin.handle_step(by(TARGET), id(1, 1), Step::Over, at(11_000_000));
        assert_eq!(orders(&mut origin), [Order::Forget(flow(1))]);
        origin.handle_silence(flow(1), silence(20_000, true), at(20_000_000));
        assert_eq!(orders(&mut origin), []);
    }
}

#[test]
fn a_target_answers_only_for_what_it_has_nothing_of() {
    let mut target = prepared();
    target.handle_step(by(ORIGIN), id(1, 1), Step::Settled, at(2));
    target.handle_step(by(ORIGIN), id(1, 1), Step::Commit, at(2));
    target.handle_placed(id(1, 1), at(2));
    orders(&mut target);
    for _ in 0..2 {
        target.handle_step(by(ORIGIN), id(1, 1), Step::Settled, at(3));
        assert_eq!(orders(&mut target), []);
    }
    // It came under another number since, from somewhere else: it is known all the same.
    target.handle_step(by(PeerId(2)), id(1, 1), Step::Settled, at(4));
    assert_eq!(orders(&mut target), []);

    let (id, from) = (id(2, 1), ORIGIN);
    target.handle_step(by(from), id, Step::Settled, at(5));
    assert_eq!(orders(&mut target), [Order::Look { id, from }]);
    target.handle_absent(id, from);
    assert_eq!(orders(&mut target), [say(from, id, Step::Over)]);
    // It has come meanwhile.
    target.handle_step(by(from), id, Step::Prepare(Party::ALONE), at(6));
    orders(&mut target);
    target.handle_absent(id, from);
    assert_eq!(orders(&mut target), []);
}

#[test]
fn who_can_not_be_asked_is_waited_for() {
    for mut origin in forwarding() {
        for (seconds, lasted) in [(100, 100), (120, 120), (129, 129)] {
            origin.handle_silence(flow(1), silence(lasted, false), at(1000 * seconds));
            assert_eq!(orders(&mut origin), []);
        }
        // Its client has spoken, or its target could be asked: it begins anew.
        origin.handle_silence(flow(1), silence(1, false), at(140_000));
        assert_eq!(orders(&mut origin), []);
        origin.handle_silence(flow(1), silence(50, true), at(190_000));
        orders(&mut origin);
        origin.handle_silence(flow(1), silence(60, false), at(200_000));
        origin.handle_silence(flow(1), silence(89, false), at(229_999));
        assert_eq!(orders(&mut origin), []);
        origin.handle_silence(flow(1), silence(90, false), at(230_000));
        assert_eq!(orders(&mut origin), [Order::Forget(flow(1))]);
        let forgotten = News::Forgotten {
            flow: flow(1),
            to: TARGET,
            silent: Duration::from_secs(90),
        };
        assert_eq!(news(&mut origin), [forgotten]);
    }
}

/// It was told to speak, and is never heard again: nobody knows whether it did.
#[test]
fn what_was_committed_to_nobody_is_lost_in_the_end() {
    let mut origin = committed();
    origin.handle_link_lost(TARGET, at(3));
    origin.handle_silence(flow(1), silence(60, false), at(60_000));
    assert_eq!(orders(&mut origin), []);
    origin.handle_silence(flow(1), silence(90, false), at(90_000));
    let lost = [Order::Lose(id(1, 1)), Order::Forget(flow(1))];
    assert_eq!(orders(&mut origin), lost);
    let reason = HandoffError::TargetSilent;
    let (flow, to) = (flow(1), TARGET);
    assert_eq!(news(&mut origin), [News::Lost { flow, to, reason }]);
    assert_eq!(origin.poll_timeout(), None);
}

#[test]
fn a_restart_remembers_what_was_written_down() {
    let written = committed().written(&flow(1)).unwrap();
    let mut origin = Handoffs::new();
    origin.handle_resumed(flow(1), written, at(9));
    assert_eq!(origin.poll_timeout(), Some(at(9)), "asks at once");

    let mut target = prepared();
    target.handle_step(by(ORIGIN), id(1, 1), Step::Commit, at(2));
    let written = target.written(&flow(1)).unwrap();
    let mut target = Handoffs::new();
    target.handle_resumed(flow(1), written, at(9));
    let done = say(ORIGIN, id(1, 1), Step::Done);
    assert_eq!(orders(&mut target), [done], "nobody has said that it knows");
    target.handle_step(by(ORIGIN), id(1, 1), Step::Commit, at(10));
    assert_eq!(orders(&mut target), [done], "and it does not speak twice");
}

#[test]
fn a_connection_that_comes_back_is_forwarded_again_if_it_does_not() {
    let mut origin = committed();
    origin.handle_step(by(TARGET), id(1, 1), Step::Done, at(4));
    orders(&mut origin);
    let (back, from) = (id(1, 2), TARGET);
    origin.handle_step(by(TARGET), back, Step::Prepare(Party::ALONE), at(5));
    assert_eq!(orders(&mut origin), [Order::Hold { id: back, from }]);
    origin.handle_held(back, Ok(()), at(4));
    orders(&mut origin);
    origin.handle_step(by(TARGET), back, Step::Abort, at(6));
    let discard = Order::Discard {
        id: back,
        from,
        moved: Some(TARGET),
    };
    assert_eq!(orders(&mut origin), [discard]);
}
