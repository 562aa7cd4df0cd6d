//! What breaks while a connection goes to another server: one side goes on with it, byte
//! for byte, or it is reset and said to be lost.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::roam::Manner;
use godwit_lab::cluster::{Cluster, EventReport};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::moving::{
    FAR, answer, ask, far, freeze, hand_over, light, other, start, start_with, state, wait_state,
    whereabouts,
};
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{assert_no_reset, service_v4, service_v6, stage, until, witness};
use nix::sys::signal::Signal;

/// Longer than a connection is silent for an answer, shorter than what an idle link
/// survives.
const CUT: Duration = Duration::from_millis(1200);

/// The link between the agents is cut at any moment of a move, for longer than an
/// origin waits: one side goes on, with each byte, and the next move succeeds.
#[test]
fn a_link_that_is_cut_on_the_way_costs_time_only() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|service| Roamer::start(&lab, service));
    for roamer in &roamers {
        hand_over(&cluster, roamer, Host::A);
        hand_over(&cluster, roamer, Host::B);
    }
    for (index, delay) in (0..4).map(|step| (step % 2, Duration::from_micros(500) * step)) {
        let roamer = &roamers[usize::try_from(index).expect("small")];
        let asked = ask(&cluster, roamer, Host::A);
        thread::sleep(delay);
        lab.cut(Host::B, &[Network::Control]).expect("it is cut");
        thread::sleep(CUT);
        lab.heal(Host::B, &[Network::Control])
            .expect("it is healed");
        let said = answer(asked);
        roamer.goes_on();
        let at = whereabouts(&cluster, roamer);
        eprintln!("cut after {delay:?}: at {at}, {}", said.trim());
        if at == Host::B {
            hand_over(&cluster, roamer, Host::B);
        }
        roamer.goes_on();
    }
    for roamer in roamers {
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// An agent dies and leaves what it has.
fn kill(cluster: &mut Cluster<'_>, host: Host) {
    let agent = cluster.agent(host).expect("it was started");
    agent.signal(Signal::SIGKILL).expect("it runs");
    agent.wait(DEADLINE).expect("it ends");
}

/// An agent is killed at any moment of a move and started again.
fn agent_dies(host: Host) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, _servers) = start(&lab);
    for step in 0..4 {
        let service = [service_v4(), service_v6()][step % 2];
        let roamer = Roamer::start(&lab, service);
        hand_over(&cluster, &roamer, Host::A);
        hand_over(&cluster, &roamer, Host::B);
        let delay = Duration::from_micros(800) * u32::try_from(step).expect("small");
        let asked = ask(&cluster, &roamer, Host::A);
        thread::sleep(delay);
        kill(&mut cluster, host);
        cluster.start_agent(host).expect("it starts again");
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
        let goes_on = roamer.goes_on_or_breaks();
        let said = answer(asked);
        eprintln!("killed after {delay:?}: {goes_on} {}", said.trim());
        if goes_on {
            // What the dead agent had committed may still come to its end.
            until("it moves", || {
                let at = whereabouts(&cluster, &roamer);
                let moved = cluster.hand_over_flow(&roamer.flow, at, other(at));
                moved
                    .inspect_err(|error| eprintln!("at {at}: {error:#}"))
                    .ok()
            });
            roamer.goes_on();
            roamer.end();
        } else {
            // For a moment its socket speaks, and no server has it yet.
            assert!(host == Host::B && said.contains("\"silent_ms\""), "{said}");
        }
    }
}

/// Its origin goes on, whatever the target's agent had of it.
#[test]
fn a_target_that_dies_on_the_way_gives_back() {
    agent_dies(Host::B);
}

/// The next agent finds what was silent, and lets it go on or forwards.
#[test]
fn an_origin_that_dies_on_the_way_leaves_nothing_silent() {
    agent_dies(Host::A);
}

/// How long a stream may stand still after its move was called off. By itself its service
/// would speak again some 200 ms after that at the earliest, its client later.
const AT_ONCE: Duration = Duration::from_millis(100);

/// A move to b begins, and b's agent stops: how long the stream stood still after that was
/// called off.
fn call_off(cluster: &mut Cluster<'_>, roamer: &Roamer) -> Duration {
    loop {
        let asked = freeze(cluster, roamer);
        let signal = |cluster: &mut Cluster<'_>, signal| {
            let agent = cluster.agent(Host::B).expect("it was started");
            agent.signal(signal).expect("it runs");
        };
        signal(cluster, Signal::SIGSTOP);
        let patience = asked.set_read_timeout(Some(CUT * 2));
        patience.expect("a socket");
        let said = answer(asked);
        let (since, heard) = (Instant::now(), roamer.heard());
        if said.contains("target_silent") {
            until("it goes on", || (roamer.heard() > heard).then_some(()));
            let stood = since.elapsed();
            signal(cluster, Signal::SIGCONT);
            roamer.goes_on();
            return stood;
        }
        // It had all that it needed already.
        signal(cluster, Signal::SIGCONT);
        wait_state(cluster, Host::B, roamer, "here");
        hand_over(cluster, roamer, Host::B);
    }
}

/// The target's agent stops while it keeps what a client says: that it has read all, and
/// has room again. Its server waits for that, as it always says all that the client has
/// room for, and the client has nothing else to say. It need not wait for a timer.
#[test]
fn a_stream_goes_on_at_once_where_it_was() {
    let Some(lab) = far() else {
        return;
    };
    let hasty = Manner {
        pace: Duration::ZERO,
        ..Manner::default()
    };
    let (mut cluster, _servers) = start_with(&lab, hasty);
    let capture = witness(&lab);
    // One is where its handshake was, the other has been away and back.
    for (service, was_away) in [(service_v4(), false), (service_v6(), true)] {
        let roamer = Roamer::saying(&lab, service, 64 << 10);
        if was_away {
            hand_over(&cluster, &roamer, Host::A);
            hand_over(&cluster, &roamer, Host::B);
        }
        // Others may have the machine for a moment.
        let mut stood = [(); 3].map(|()| call_off(&mut cluster, &roamer));
        eprintln!("stood still for {stood:?}");
        stood.sort_unstable();
        assert!(stood[1] < AT_ONCE, "{stood:?}");
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The origin's agent dies when a connection has been stopped, or given away: its server
/// has the stopped socket, and meets the next agent only when that has long decided what
/// becomes of it. Nobody told the server then: the one connection stood still, the other
/// left a socket in the way of its own return (`in_use`).
#[test]
fn a_stopped_socket_is_not_forgotten_with_its_agent() {
    let Some(lab) = far() else {
        return;
    };
    let (mut cluster, mut servers) = start_with(&lab, light());
    let capture = witness(&lab);
    for (service, given) in [(service_v4(), false), (service_v6(), true)] {
        let roamer = Roamer::light(&lab, service);
        let asked = freeze(&cluster, &roamer);
        if given {
            // The word of that is on the way back.
            wait_state(&cluster, Host::B, &roamer, "here");
        }
        kill(&mut cluster, Host::A);
        servers[0].signal(Signal::SIGSTOP).expect("it runs");
        cluster.start_agent(Host::A).expect("it starts again");
        cluster
            .wait_owner(Host::A, DEADLINE)
            .expect("it owns its share");
        if given {
            roamer.goes_on();
            // It is asked for, and settled.
            thread::sleep(FAR * 20);
        }
        servers[0].signal(Signal::SIGCONT).expect("it was stopped");
        assert_eq!(answer(asked), "", "nobody is left to answer");
        roamer.goes_on();
        let at = whereabouts(&cluster, &roamer);
        assert_eq!(at, if given { Host::B } else { Host::A });
        hand_over(&cluster, &roamer, at);
        roamer.goes_on();
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Gives a connection away, and cuts b off before the word of that is there: b has a
/// socket of it that has said nothing, and nobody else can know that.
fn commit_in_vain(lab: &Lab, cluster: &Cluster<'_>, roamer: &Roamer) -> UnixStream {
    until("it is committed, and nobody hears it", || {
        let asked = freeze(cluster, roamer);
        let given = until("it is decided", || {
            let flows = cluster.flows(Host::A).ok()?.flows;
            let flow = flows.into_iter().find(|flow| flow.flow == roamer.flow)?;
            (flow.state != "away" || flow.at.is_some()).then_some(flow.state == "away")
        });
        lab.cut(Host::B, &[Network::Data]).expect("it is cut");
        let clone = asked.try_clone().expect("descriptors are left");
        clone.set_read_timeout(Some(FAR)).expect("a socket");
        let said = answer(clone);
        if given && said.is_empty() {
            asked.set_read_timeout(Some(DEADLINE)).expect("a socket");
            return Some(asked);
        }
        // It was called off, or this machine was too slow.
        eprintln!("{}", said.trim());
        lab.heal(Host::B, &[Network::Data]).expect("it is healed");
        let at = whereabouts(cluster, roamer);
        if at == Host::B {
            hand_over(cluster, roamer, at);
        }
        None
    })
}

/// Its machine is started anew before anybody hears what the target did. The client may
/// know more than the origin's socket does: the connection is reset, and both sides see it.
#[test]
fn a_target_that_forgets_costs_the_connection() {
    for service in [service_v4(), service_v6()] {
        let Some(lab) = far() else {
            return;
        };
        // What waits in its queues is to be there in one round trip.
        let light = Manner {
            chunk: 512,
            ..Manner::default()
        };
        let (mut cluster, _servers) = start_with(&lab, light);
        let roamer = Roamer::saying(&lab, service, 64 << 10);
        let asked = commit_in_vain(&lab, &cluster, &roamer);
        lab.crash(Host::B).expect("its power fails");
        cluster.power_off(Host::B).expect("its memory is gone");
        lab.reboot(Host::B).expect("it is started");
        cluster.start_agent(Host::B).expect("it starts");
        let said = answer(asked);
        assert!(said.contains("target_restarted"), "{said}");
        assert!(!roamer.goes_on_or_breaks(), "nobody has it");
        let events = cluster.event_reports(Host::A).expect("it answers");
        let lost = |event: &&EventReport| {
            event.event == "flow_lost"
                && event.flow.as_ref() == Some(&roamer.flow)
                && event.reason.as_deref() == Some("target_restarted")
        };
        assert_eq!(events.iter().filter(lost).count(), 1);
    }
}

/// Longer than a target counts on it that an origin is back, and so long that a client
/// repeats itself after that (RFC 6298 as Linux has it: 0.2, 0.6, 1.4 and 3 s).
const LONG_AWAY: Duration = Duration::from_secs(4);

/// The origin's agent dies when connections have been stopped, and comes back late. Its
/// data path forwards to a node that did not get them: that reset them after 2 s.
fn agent_is_long_away(target_begins_anew: bool) {
    let Some(lab) = far() else {
        return;
    };
    let (mut cluster, _servers) = start_with(&lab, light());
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|service| Roamer::light(&lab, service));
    until("both are stopped", || {
        let asked = roamers.each_ref().map(|it| ask(&cluster, it, Host::A));
        let are_stopped = || {
            let stopped = |it: &Roamer| state(&cluster, Host::A, it).as_deref() == Some("away");
            roamers.iter().all(stopped)
        };
        let end = Instant::now() + FAR * 4;
        while Instant::now() < end {
            if are_stopped() {
                return Some(asked);
            }
        }
        // One of them may have gone.
        for roamer in &roamers {
            if whereabouts(&cluster, roamer) == Host::B {
                hand_over(&cluster, roamer, Host::B);
            }
        }
        None
    });
    kill(&mut cluster, Host::A);
    if target_begins_anew {
        thread::sleep(FAR * 2);
        kill(&mut cluster, Host::B);
        cluster.start_agent(Host::B).expect("it starts again");
    }
    thread::sleep(LONG_AWAY);
    cluster.start_agent(Host::A).expect("it starts again");
    for roamer in roamers {
        roamer.goes_on();
        let at = whereabouts(&cluster, &roamer);
        eprintln!("goes on at {at}");
        hand_over(&cluster, &roamer, at);
        roamer.goes_on();
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

#[test]
fn an_origins_agent_may_come_back_late() {
    agent_is_long_away(false);
}

#[test]
fn an_origins_agent_may_come_back_late_and_its_targets_anew() {
    agent_is_long_away(true);
}

/// Words that two agents exchange over one move, up to `done`.
const WORDS: usize = 6;

/// Connections that are at a, all of whose agents and servers know each other.
fn far_roamers(lab: &Lab, cluster: &Cluster<'_>) -> Vec<Roamer> {
    let services = [service_v4(), service_v6()].into_iter().cycle();
    let services = services.take(WORDS);
    let roamers: Vec<_> = services
        .map(|service| Roamer::light(lab, service))
        .collect();
    let first = Roamer::light(lab, service_v4());
    hand_over(cluster, &first, Host::A);
    first.end();
    roamers
}

/// Asks for a move to b of one after the other, until the first word about the last of
/// them is under way, the second word about the one before, and so on.
fn meet_each_step(cluster: &Cluster<'_>, roamers: &[Roamer]) -> Vec<UnixStream> {
    let since = Instant::now();
    let mut due = Duration::ZERO;
    let mut asked = Vec::new();
    for roamer in roamers {
        thread::sleep(due.saturating_sub(since.elapsed()));
        asked.push(ask(cluster, roamer, Host::A));
        due += FAR;
    }
    thread::sleep((due - FAR / 2).saturating_sub(since.elapsed()));
    asked
}

/// What a node says of them: not stopped, stopped, and committed.
fn assert_met(cluster: &Cluster<'_>, roamers: &[Roamer]) {
    let flows = cluster.flows(Host::A).expect("it answers").flows;
    let of = |roamer: &Roamer| flows.iter().find(|flow| flow.flow == roamer.flow);
    let steps = roamers.iter().map(|roamer| {
        let flow = of(roamer).expect("it is known");
        (flow.state == "away", flow.at.is_some())
    });
    let steps: Vec<_> = steps.collect();
    for step in [(false, false), (true, false), (true, true)] {
        assert!(steps.contains(&step), "{step:?} was not met: {steps:?}");
    }
}

/// An agent is killed while each word of a move is under way, and started again: each
/// connection goes on, on one side or the other, and can go to the other one.
fn agent_dies_at_each_step(host: Host) {
    let Some(lab) = far() else {
        return;
    };
    let (mut cluster, _servers) = start_with(&lab, light());
    let capture = witness(&lab);
    let roamers = far_roamers(&lab, &cluster);
    let asked = meet_each_step(&cluster, &roamers);
    assert_met(&cluster, &roamers);
    kill(&mut cluster, host);
    cluster.start_agent(host).expect("it starts again");
    all_go_on(&cluster, roamers, asked);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// On one side or the other, and then on the other one, to the end.
fn all_go_on(cluster: &Cluster<'_>, roamers: Vec<Roamer>, asked: Vec<UnixStream>) {
    for ((roamer, asked), words) in roamers.into_iter().zip(asked).zip((1..=WORDS).rev()) {
        roamer.goes_on();
        let said = answer(asked);
        let at = whereabouts(cluster, &roamer);
        eprintln!("{words} words said: at {at} {}", said.trim());
        hand_over(cluster, &roamer, at);
        roamer.goes_on();
        roamer.end();
    }
}

#[test]
fn a_targets_agent_may_die_at_each_step() {
    agent_dies_at_each_step(Host::B);
}

#[test]
fn an_origins_agent_may_die_at_each_step() {
    agent_dies_at_each_step(Host::A);
}

/// The link is lost while each word of a move is under way, and each word with it: each
/// connection goes on, on one side or the other, and can go to the other one.
#[test]
fn each_word_may_be_lost() {
    let Some(lab) = far() else {
        return;
    };
    let (cluster, _servers) = start_with(&lab, light());
    let capture = witness(&lab);
    let roamers = far_roamers(&lab, &cluster);
    let asked = meet_each_step(&cluster, &roamers);
    assert_met(&cluster, &roamers);
    lab.cut(Host::B, &[Network::Data]).expect("it is cut");
    for host in Host::SERVERS {
        until("the link is lost", || {
            let peers = cluster.status(host).ok()?.peers;
            peers.iter().all(|peer| !peer.linked).then_some(())
        });
    }
    lab.heal(Host::B, &[Network::Data]).expect("it is healed");
    all_go_on(&cluster, roamers, asked);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The target's machine goes dark while each word of a move is under way. What had not
/// been committed goes on at once, and its mover hears why; what had been is the dead
/// machine's, and its origin forwards to that and says no word.
#[test]
fn a_targets_machine_may_die_at_each_step() {
    let Some(lab) = far() else {
        return;
    };
    let (cluster, _servers) = start_with(&lab, light());
    let capture = witness(&lab);
    let roamers = far_roamers(&lab, &cluster);
    let asked = meet_each_step(&cluster, &roamers);
    lab.crash(Host::B).expect("b crashes");
    for ((roamer, asked), words) in roamers.into_iter().zip(asked).zip((1..=WORDS).rev()) {
        // It may be committed, and then nobody can say what becomes of it.
        let patience = asked.set_read_timeout(Some(CUT * 2));
        patience.expect("a socket");
        let said = answer(asked);
        eprintln!("{words} words said: {}", said.trim());
        let reasons = ["target_silent", "link_lost"];
        let stays = reasons.iter().any(|reason| said.contains(reason));
        // The fourth word, upon which it is committed, may have left b or not.
        assert!(stays == (words < 4) || words == 4, "{words}: {said}");
        if stays {
            roamer.goes_on();
            roamer.end();
        } else {
            wait_state(&cluster, Host::A, &roamer, "away");
        }
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}
