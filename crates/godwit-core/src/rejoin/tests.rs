//! Every input in every state, and the times between.

use godwit_wire::{FlowKey, SeqNumber};

use super::*;

fn flow(n: u16) -> FlowId {
    FlowId {
        key: FlowKey {
            client: format!("10.9.0.10:{n}").parse().expect("an endpoint"),
            service: "10.9.0.100:80".parse().expect("an endpoint"),
        },
        irs: SeqNumber(1),
    }
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn fresh(n: u16) -> Candidate {
    Candidate {
        flow: flow(n),
        past: Past::None,
    }
}

fn orders(rejoin: &mut Rejoin) -> Vec<Order> {
    std::iter::from_fn(|| rejoin.poll_order()).collect()
}

fn begun() -> Rejoin {
    let mut rejoin = Rejoin::new();
    rejoin.handle_candidates(&[fresh(1)], at(0));
    assert_eq!(orders(&mut rejoin), [Order::Begin(flow(1))]);
    rejoin
}

fn admitting() -> Rejoin {
    let mut rejoin = begun();
    rejoin.handle_twin(flow(1), at(1));
    rejoin.handle_whole(flow(1), at(2));
    assert_eq!(
        orders(&mut rejoin),
        [Order::Feed(flow(1)), Order::Admit(flow(1))]
    );
    rejoin
}

#[test]
fn a_flow_is_handed_over_step_by_step() {
    let mut rejoin = admitting();
    rejoin.handle_admitted(flow(1));
    assert_eq!(orders(&mut rejoin), [Order::Protect(flow(1))]);
    assert_eq!(rejoin.handle_protected(flow(1), at(3)), Some(at(0)));
    assert_eq!(rejoin.count(), 0);
    assert_eq!(rejoin.poll_timeout(), None);
}

/// A snapshot of many megabytes, behind others' snapshots.
#[test]
fn what_is_long_on_its_way_is_waited_for_longer() {
    let mut rejoin = begun();
    let delay = Duration::from_secs(2);
    rejoin.handle_delay(flow(1), delay);
    let due = at(0).saturating_add(ANSWER_DEADLINE + delay);
    assert_eq!(rejoin.poll_timeout(), Some(due));
    rejoin.handle_timeout(at(2400));
    assert_eq!(orders(&mut rejoin), []);
    rejoin.handle_timeout(due);
    assert_eq!(orders(&mut rejoin), [Order::GiveUp(flow(1))]);
    rejoin.handle_delay(flow(1), delay);
    assert_eq!(rejoin.poll_timeout(), None, "it is over");
}

#[test]
fn what_finds_no_room_need_not_rest() {
    let mut rejoin = begun();
    rejoin.handle_postponed(flow(1));
    assert_eq!(rejoin.count(), 0);
    rejoin.handle_candidates(&[fresh(1)], at(50));
    assert_eq!(orders(&mut rejoin), [Order::Begin(flow(1))]);
}

/// Its client stood still for 0.7 s, and with `on_lag = "wait"` for a minute.
#[test]
fn a_twin_that_lacks_what_is_gone_is_given_up_at_once() {
    let mut rejoin = begun();
    let [before, behind] = [SeqNumber(7), SeqNumber(8)];
    rejoin.handle_starved(flow(1), before, at(1));
    assert_eq!(orders(&mut rejoin), [], "its client is not behind the gate");
    rejoin.handle_twin(flow(1), at(2));
    assert_eq!(orders(&mut rejoin), [Order::Feed(flow(1))]);
    rejoin.handle_starved(flow(1), before, at(2));
    rejoin.handle_starved(flow(1), behind, at(3));
    assert_eq!(orders(&mut rejoin), [], "it gets on by the tap");
    rejoin.handle_starved(flow(1), behind, at(4));
    assert_eq!(orders(&mut rejoin), [Order::GiveUp(flow(1))]);
    rejoin.handle_candidates(&[fresh(1)], at(5));
    assert_eq!(orders(&mut rejoin), [], "it rests");
}

#[test]
fn what_is_under_way_is_not_begun_again() {
    let mut rejoin = begun();
    rejoin.handle_candidates(&[fresh(1)], at(1));
    assert_eq!(orders(&mut rejoin), []);
}

#[test]
fn a_standby_that_makes_no_twin_is_asked_again_later_and_later() {
    let mut rejoin = begun();
    let mut now = at(0).saturating_add(ANSWER_DEADLINE);
    assert_eq!(rejoin.poll_timeout(), Some(now));
    for failures in 0..9 {
        rejoin.handle_timeout(now);
        assert_eq!(orders(&mut rejoin), [Order::GiveUp(flow(1))]);
        let rest = REST * (1 << failures.min(MAX_DOUBLINGS));
        let before = now
            .saturating_add(rest)
            .saturating_sub(Duration::from_millis(1));
        let stale = Candidate {
            flow: flow(1),
            past: Past::Failed,
        };
        rejoin.handle_candidates(&[stale], before);
        assert_eq!(orders(&mut rejoin), [], "after {failures} failures");
        now = now.saturating_add(rest);
        rejoin.handle_candidates(&[stale], now);
        assert_eq!(orders(&mut rejoin), [Order::Begin(flow(1))]);
        now = now.saturating_add(ANSWER_DEADLINE);
    }
}

/// Its twin lagged, or its server closed it: the next may do better. If it does
/// not, the flow rests longer; if it does for a while, that is forgotten.
#[test]
fn what_the_standby_gave_up_is_tried_again() {
    let failed = Candidate {
        flow: flow(1),
        past: Past::Failed,
    };
    let mut rejoin = Rejoin::new();
    let mut now = at(0);
    for rest in [1, 2, 4, 1] {
        let due = now.saturating_add(Duration::from_secs(rest));
        for early in [now, due.saturating_sub(Duration::from_millis(1))] {
            rejoin.handle_candidates(&[failed], early);
            assert_eq!(orders(&mut rejoin), [], "a rest of {rest} s");
        }
        rejoin.handle_candidates(&[failed], due);
        assert_eq!(orders(&mut rejoin), [Order::Begin(flow(1))]);
        assert_eq!(rejoin.handle_protected(flow(1), due), Some(due));
        // Not offered while it is protected.
        let lasts = Duration::from_secs(if rest == 4 { 64 } else { 63 });
        now = due.saturating_add(lasts);
        rejoin.handle_candidates(&[], now);
    }
    rejoin.handle_ended(flow(1));
}

#[test]
fn a_twin_that_said_other_things_is_not_tried_again() {
    let wrong = Candidate {
        flow: flow(1),
        past: Past::Wrong,
    };
    let mut rejoin = Rejoin::new();
    for seconds in [0, 1, 1000] {
        rejoin.handle_candidates(&[wrong], at(seconds * 1000));
        assert_eq!(orders(&mut rejoin), []);
    }
}

#[test]
fn a_twin_is_fed_until_it_has_all_or_takes_too_long() {
    let mut rejoin = begun();
    rejoin.handle_twin(flow(1), at(1));
    orders(&mut rejoin);
    let mut now = at(1);
    for interval in [20, 40, 80, 160, 160, 160] {
        now = now.saturating_add(Duration::from_millis(interval));
        assert_eq!(rejoin.poll_timeout(), Some(now));
        rejoin.handle_timeout(now);
        assert_eq!(orders(&mut rejoin), [Order::Feed(flow(1))]);
    }
    rejoin.handle_timeout(at(0).saturating_add(2 * CATCH_UP_DEADLINE));
    assert_eq!(orders(&mut rejoin), [Order::GiveUp(flow(1))]);
}

/// Its client waits at the gate for what is lacking.
#[test]
fn a_twin_that_lacks_something_is_fed_at_short_intervals() {
    let mut rejoin = begun();
    rejoin.handle_twin(flow(1), at(1));
    for round in 0..10 {
        let fed = at(1 + 20 * round);
        rejoin.handle_timeout(fed);
        rejoin.handle_fed(flow(1), fed);
        let next = fed.saturating_add(FEED_INTERVAL);
        assert_eq!(rejoin.poll_timeout(), Some(next), "round {round}");
    }
    rejoin.handle_fed(flow(2), at(500));
    assert_eq!(rejoin.count(), 1);
}

#[test]
fn a_standby_that_may_serve_the_twin_is_asked_before_the_flow_goes_on() {
    let mut rejoin = admitting();
    let mut now = at(2);
    for _ in 1..ADMIT_ATTEMPTS {
        now = now.saturating_add(ADMIT_INTERVAL);
        rejoin.handle_timeout(now);
        assert_eq!(orders(&mut rejoin), [Order::Admit(flow(1))]);
    }
    now = now.saturating_add(ADMIT_INTERVAL);
    rejoin.handle_timeout(now);
    assert_eq!(orders(&mut rejoin), [Order::Demote(flow(1))]);
    rejoin.handle_admitted(flow(1));
    assert_eq!(orders(&mut rejoin), [], "too late");
}

#[test]
fn words_about_other_flows_or_out_of_turn_change_nothing() {
    let mut rejoin = begun();
    rejoin.handle_twin(flow(2), at(1));
    rejoin.handle_whole(flow(2), at(1));
    rejoin.handle_admitted(flow(2));
    rejoin.handle_admitted(flow(1));
    rejoin.handle_lost(flow(2), at(1));
    assert_eq!(rejoin.handle_protected(flow(2), at(3)), None);
    assert_eq!(orders(&mut rejoin), []);
    assert_eq!(rejoin.state(&flow(1)), Some(State::Asked));
    rejoin.handle_ended(flow(1));
    assert_eq!(rejoin.count(), 0);
}

#[test]
fn a_crowd_is_handed_over_in_turns() {
    let all = crowd(100);
    let mut rejoin = Rejoin::new();
    rejoin.handle_candidates(&all, at(0));
    assert_eq!(orders(&mut rejoin).len(), MAX_CROWD);
    for candidate in &all {
        rejoin.handle_twin(candidate.flow, at(1));
    }
    orders(&mut rejoin);
    // Those that only catch up do not keep others waiting.
    rejoin.handle_candidates(&all, at(0).saturating_add(CROWD_TIME));
    assert_eq!(count_begun(&mut rejoin), 36);
}

/// The next look is some 100 ms away: with 64 flows a look ten thousand would
/// take a quarter of a minute.
#[test]
fn one_that_is_done_makes_room_for_the_next() {
    let all = crowd(1000);
    let mut rejoin = Rejoin::new();
    rejoin.handle_candidates(&all, at(0));
    assert_eq!(count_begun(&mut rejoin), MAX_CROWD);
    for (done, candidate) in all.iter().enumerate() {
        let left = all.len() - done - 1;
        rejoin.handle_protected(candidate.flow, at(1));
        assert_eq!(rejoin.count(), left.min(MAX_CROWD));
        assert_eq!(count_begun(&mut rejoin), usize::from(left >= MAX_CROWD));
    }
    assert_eq!(rejoin.poll_timeout(), None);
}

/// The standby can't be refusing thousands at once: the rest waits for a look.
#[test]
fn one_that_failed_makes_no_room_at_once() {
    let all = crowd(100);
    let mut rejoin = Rejoin::new();
    rejoin.handle_candidates(&all, at(0));
    orders(&mut rejoin);
    for candidate in all.iter().take(MAX_CROWD) {
        rejoin.handle_lost(candidate.flow, at(1));
    }
    assert_eq!((rejoin.count(), count_begun(&mut rejoin)), (0, 0));
    rejoin.handle_candidates(&all, at(50));
    assert_eq!(count_begun(&mut rejoin), 36, "the others rest");
}

/// What waited is as it was at the last look.
#[test]
fn what_waits_is_offered_anew_each_time() {
    let mut rejoin = Rejoin::new();
    rejoin.handle_candidates(&crowd(100), at(0));
    rejoin.handle_candidates(&crowd(64), at(50));
    orders(&mut rejoin);
    rejoin.handle_protected(flow(1), at(51));
    assert_eq!(count_begun(&mut rejoin), 0);
}

fn crowd(count: u16) -> Vec<Candidate> {
    (1..=count).map(fresh).collect()
}

fn count_begun(rejoin: &mut Rejoin) -> usize {
    let orders = orders(rejoin);
    let begun = orders
        .iter()
        .filter(|order| matches!(order, Order::Begin(_)));
    begun.count()
}
