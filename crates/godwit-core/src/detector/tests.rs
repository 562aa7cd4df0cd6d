//! All (state, event) pairs, and the timing between them.

use proptest::prelude::*;

use super::*;

const CONFIG: Config = Config {
    interval: Duration::from_millis(10),
    misses: 3,
    drift_ppm: 1000,
};

fn ms(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

/// What can happen to a detector.
#[derive(Debug, Clone, Copy)]
enum Input {
    Beat,
    Newborn,
    Stale,
    Silence,
    Excuse,
    Farewell,
}

/// A detector that is in `state`: its peer has incarnation 1 and is at 5.
fn detector_in(state: State) -> Detector {
    let mut detector = Detector::new(CONFIG);
    if state == State::Unknown {
        return detector;
    }
    detector.handle_heartbeat(1, 5, ms(0));
    match state {
        State::Unknown | State::Alive => {}
        State::Excused => detector.handle_excuse(ms(0)),
        State::Departed => detector.handle_farewell(),
        State::Failed => detector.handle_timeout(ms(32)),
    }
    assert_eq!(detector.state(), state);
    while detector.poll_event().is_some() {}
    detector
}

fn apply(detector: &mut Detector, input: Input) {
    match input {
        Input::Beat => detector.handle_heartbeat(1, 6, ms(40)),
        Input::Newborn => detector.handle_heartbeat(2, 1, ms(40)),
        Input::Stale => detector.handle_heartbeat(0, 99, ms(40)),
        Input::Silence => {
            if let Some(deadline) = detector.poll_timeout() {
                detector.handle_timeout(deadline);
            }
        }
        Input::Excuse => detector.handle_excuse(ms(40)),
        Input::Farewell => detector.handle_farewell(),
    }
}

#[test]
fn every_state_and_event() {
    use Input::{Beat, Excuse, Farewell, Newborn, Silence, Stale};
    use State::{Alive, Departed, Excused, Failed, Unknown};
    let table = [
        (Unknown, Beat, Alive),
        (Unknown, Newborn, Alive),
        // Nothing is older than what was never heard.
        (Unknown, Stale, Alive),
        (Unknown, Silence, Unknown),
        (Unknown, Excuse, Unknown),
        (Unknown, Farewell, Departed),
        (Alive, Beat, Alive),
        (Alive, Newborn, Alive),
        (Alive, Stale, Alive),
        (Alive, Silence, Failed),
        (Alive, Excuse, Excused),
        (Alive, Farewell, Departed),
        (Excused, Beat, Excused),
        (Excused, Newborn, Alive),
        (Excused, Stale, Excused),
        (Excused, Silence, Failed),
        (Excused, Excuse, Excused),
        (Excused, Farewell, Departed),
        (Departed, Beat, Departed),
        (Departed, Newborn, Alive),
        (Departed, Stale, Departed),
        (Departed, Silence, Departed),
        (Departed, Excuse, Departed),
        (Departed, Farewell, Departed),
        (Failed, Beat, Alive),
        (Failed, Newborn, Alive),
        (Failed, Stale, Failed),
        (Failed, Silence, Failed),
        (Failed, Excuse, Failed),
        (Failed, Farewell, Departed),
    ];
    assert_eq!(table.len(), State::ALL.len() * 6);
    for (state, input, expected) in table {
        let mut detector = detector_in(state);
        apply(&mut detector, input);
        assert_eq!(detector.state(), expected, "{state:?} and {input:?}");
    }
}

#[test]
fn lost_heartbeats_below_the_threshold_keep_a_peer_alive() {
    let mut detector = detector_in(State::Alive);
    detector.handle_timeout(ms(31));
    assert_eq!(detector.state(), State::Alive);
    detector.handle_heartbeat(1, 9, ms(31));
    assert_eq!(detector.poll_timeout(), Some(ms(31 + 32)));
    assert_eq!(detector.max_interval(), Duration::from_millis(31));
}

#[test]
fn silence_fails_a_peer_once_and_says_for_how_long() {
    let mut detector = detector_in(State::Alive);
    assert_eq!(detector.poll_timeout(), Some(ms(32)));
    detector.handle_timeout(ms(33));
    detector.handle_timeout(ms(33));
    let silent_for = Duration::from_millis(33);
    assert_eq!(detector.poll_event(), Some(Event::Failed { silent_for }));
    assert_eq!(detector.poll_event(), None);
    assert_eq!(detector.poll_timeout(), None);

    detector.handle_heartbeat(1, 6, ms(50));
    let silent_for = Some(Duration::from_millis(50));
    assert_eq!(detector.poll_event(), Some(Event::Up { silent_for }));
}

#[test]
fn replayed_heartbeats_are_ignored_and_counted() {
    let mut detector = detector_in(State::Alive);
    for (incarnation, sequence) in [(1, 5), (1, 4), (0, 100)] {
        detector.handle_heartbeat(incarnation, sequence, ms(20));
    }
    assert_eq!(detector.ignored(), 3);
    assert_eq!(
        detector.poll_timeout(),
        Some(ms(32)),
        "no life from replays"
    );
}

#[test]
fn a_new_incarnation_is_a_restart() {
    let mut detector = detector_in(State::Alive);
    detector.handle_heartbeat(2, 1, ms(10));
    assert_eq!(detector.poll_event(), Some(Event::Restarted));
    assert_eq!(detector.poll_event(), None, "it was up all the time");
    detector.handle_heartbeat(1, 6, ms(11));
    assert_eq!(detector.incarnation(), Some(2), "the old one is over");
}

#[test]
fn an_announced_restart_may_take_ten_seconds() {
    let mut detector = detector_in(State::Excused);
    detector.handle_heartbeat(1, 6, ms(1));
    assert_eq!(
        detector.poll_timeout(),
        Some(ms(10_000)),
        "the last words of the old agent"
    );
    detector.handle_timeout(ms(9_999));
    assert_eq!(detector.state(), State::Excused);
    detector.handle_timeout(ms(10_000));
    assert_eq!(detector.state(), State::Failed);
}

#[test]
fn a_hello_admits_a_clock_that_was_set_back() {
    let mut detector = Detector::new(CONFIG);
    detector.handle_heartbeat(9, 1, ms(0));
    detector.handle_hello(2, ms(5));
    detector.handle_heartbeat(9, 2, ms(6));
    assert_eq!(detector.ignored(), 1, "of the agent before");
    detector.handle_heartbeat(2, 1, ms(7));
    assert_eq!(detector.incarnation(), Some(2));
}

#[test]
fn a_peer_that_says_hello_and_no_more_fails() {
    let mut detector = Detector::new(CONFIG);
    detector.handle_hello(1, ms(0));
    assert_eq!(detector.poll_timeout(), Some(ms(1000)));
    detector.handle_timeout(ms(1000));
    assert_eq!(detector.state(), State::Failed);
}

#[test]
fn a_goodbye_before_the_first_heartbeat_holds() {
    let mut detector = Detector::new(CONFIG);
    detector.handle_hello(1, ms(0));
    detector.handle_farewell();
    detector.handle_heartbeat(1, 1, ms(1));
    assert_eq!(detector.state(), State::Departed);
}

#[test]
fn who_slept_gives_one_second_chance() {
    let mut detector = detector_in(State::Alive);
    detector.handle_timeout(ms(5000));
    assert_eq!(detector.state(), State::Alive, "it was us who slept");
    assert_eq!(detector.poll_timeout(), Some(ms(5012)));
    detector.handle_timeout(ms(9000));
    assert_eq!(detector.state(), State::Failed, "not twice");
}

/// It used to take a node that was late by the whole of its patience: two that
/// stood still for 40 ms each took the other for dead.
#[test]
fn who_is_late_by_an_interval_slept() {
    let mut detector = detector_in(State::Alive);
    detector.handle_timeout(ms(32 + 10));
    assert_eq!(detector.state(), State::Alive);
    let mut detector = detector_in(State::Alive);
    detector.handle_timeout(ms(32 + 9));
    assert_eq!(detector.state(), State::Failed, "a busy node is as late");
}

#[test]
fn the_second_chance_is_renewed_by_a_heartbeat() {
    let mut detector = detector_in(State::Alive);
    detector.handle_timeout(ms(5000));
    detector.handle_heartbeat(1, 6, ms(5001));
    detector.handle_timeout(ms(9000));
    assert_eq!(detector.state(), State::Alive);
}

#[derive(Debug, Clone)]
enum Op {
    Heartbeat(u64, u64),
    Hello(u64),
    Timeout,
    Excuse,
    Farewell,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..3u64, 0..20u64)
            .prop_map(|(incarnation, sequence)| Op::Heartbeat(incarnation, sequence)),
        (0..3u64).prop_map(Op::Hello),
        Just(Op::Timeout),
        Just(Op::Excuse),
        Just(Op::Farewell),
    ]
}

proptest! {
    /// Whatever happens: an alive or excused peer has a deadline, one that is
    /// gone has none, and ups and failures take turns.
    #[test]
    fn deadlines_follow_states(ops in proptest::collection::vec((op(), 0..50u64), 0..60)) {
        let mut detector = Detector::new(CONFIG);
        let mut now = 0;
        let mut up = false;
        for (op, step) in ops {
            now += step;
            match op {
                Op::Heartbeat(incarnation, sequence) => {
                    detector.handle_heartbeat(incarnation, sequence, ms(now));
                }
                Op::Hello(incarnation) => detector.handle_hello(incarnation, ms(now)),
                Op::Timeout => detector.handle_timeout(ms(now)),
                Op::Excuse => detector.handle_excuse(ms(now)),
                Op::Farewell => {
                    detector.handle_farewell();
                    up = false;
                }
            }
            while let Some(event) = detector.poll_event() {
                match event {
                    Event::Up { .. } => up = true,
                    Event::Failed { .. } => up = false,
                    Event::Restarted => {}
                }
            }
            let deadline = detector.poll_timeout().is_some();
            match detector.state() {
                State::Alive => prop_assert!(up && deadline),
                State::Excused => prop_assert!(deadline),
                State::Failed | State::Departed => prop_assert!(!up && !deadline),
                State::Unknown => prop_assert!(!up),
            }
        }
    }
}
