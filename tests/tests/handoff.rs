//! Busy connections that go from server to server by themselves, both ways, byte for
//! byte.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use godwit_lab::apps::roam::Manner;
use godwit_lab::cluster::Cluster;
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::DEADLINE;
use godwit_tests::moving::{
    hand_over, options, other, refused, serve, start, start_as, start_with, state, wait_forgotten,
    wait_state,
};
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{
    assert_moved, assert_no_reset, has_event, service_v4, service_v6, stage, tcp_counter, until,
    witness,
};
use nix::sys::signal::Signal;

/// Moves of each connection.
const MOVES: usize = 20;

/// To and fro while both talk.
fn to_and_fro(service: SocketAddr) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let roamer = Roamer::start(&lab, service);
    let mut silent = Vec::new();
    let mut at = Host::A;
    for _ in 0..MOVES {
        silent.push(hand_over(&cluster, &roamer, at));
        at = other(at);
        roamer.goes_on();
    }
    let (said, heard) = roamer.end();
    silent.sort_by(f64::total_cmp);
    eprintln!("{said} bytes said, {heard} heard; silent for {silent:?} ms");
    assert_moved(&capture.finish().expect("the capture is complete"), MOVES);
    let old = tcp_counter(&lab, Host::Client, "PAWSEstab");
    assert_eq!(old, 0, "the client took segments for old ones");
}

#[test]
fn a_busy_connection_goes_to_and_fro() {
    to_and_fro(service_v4());
}

#[test]
fn a_busy_connection_goes_to_and_fro_v6() {
    to_and_fro(service_v6());
}

/// One that has just come goes on as soon as its server has taken notice of it: it was
/// refused, for it speaks before that.
#[test]
fn what_has_just_come_goes_on() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, [_home, mut server]) = start(&lab);
    let roamer = Roamer::start(&lab, service_v4());
    hand_over(&cluster, &roamer, Host::A);
    hand_over(&cluster, &roamer, Host::B);
    for _ in 0..3 {
        server.stop().expect("it runs");
        hand_over(&cluster, &roamer, Host::A);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(40));
                server.cont().expect("it is there");
            });
            let back = cluster.hand_over_flow(&roamer.flow, Host::B, Host::A);
            back.expect("it goes");
        });
        roamer.goes_on();
    }
    roamer.end();
}

/// Whoever can't take it says why, and it goes on where it is: a server that is
/// gone, an agent that does not answer, one that has died, a link that is cut.
#[test]
fn a_connection_that_can_not_go_stays() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, mut servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|service| Roamer::start(&lab, service));
    let all_stay = |cluster: &Cluster<'_>, reason: &str| {
        for roamer in &roamers {
            let why = refused(cluster, roamer, Host::A);
            assert!(why.contains(reason), "{why}");
            roamer.goes_on();
        }
    };

    let stranger = roamers[0].flow.replace(":80", ":81");
    let why = cluster.hand_over_flow(&stranger, Host::A, Host::B);
    assert!(format!("{why:?}").contains("unknown_flow"), "{why:?}");

    servers[1].signal(Signal::SIGKILL).expect("it runs");
    servers[1].wait(DEADLINE).expect("it ends");
    until("b knows", || {
        refused(&cluster, &roamers[0], Host::A)
            .contains("no_server")
            .then_some(())
    });
    all_stay(&cluster, "no_server");
    servers[1] = serve(&lab, &cluster, Host::B);

    let agent = |cluster: &mut Cluster<'_>, signal| {
        let agent = cluster.agent(Host::B).expect("it was started");
        agent.signal(signal).expect("it runs");
    };
    agent(&mut cluster, Signal::SIGSTOP);
    all_stay(&cluster, "target_silent");
    agent(&mut cluster, Signal::SIGKILL);
    until("the link is down", || {
        refused(&cluster, &roamers[0], Host::A)
            .contains("link_lost")
            .then_some(())
    });
    all_stay(&cluster, "link_lost");
    cluster.start_agent(Host::B).expect("it starts again");

    for roamer in &roamers {
        hand_over(&cluster, roamer, Host::A);
        roamer.goes_on();
    }
    for roamer in roamers {
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Agents come and go; connections that have moved go on, and can move again.
#[test]
fn what_has_moved_outlives_the_agents() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|service| Roamer::start(&lab, service));
    for roamer in &roamers {
        hand_over(&cluster, roamer, Host::A);
        wait_state(&cluster, Host::A, roamer, "away");
        wait_state(&cluster, Host::B, roamer, "here");
    }
    for host in Host::SERVERS {
        cluster.stop_agent(host).expect("it ends in order");
        for roamer in &roamers {
            roamer.goes_on();
        }
        cluster.start_agent(host).expect("it starts again");
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
    }
    for roamer in &roamers {
        hand_over(&cluster, roamer, Host::B);
        roamer.goes_on();
        wait_state(&cluster, Host::B, roamer, "away");
        wait_state(&cluster, Host::A, roamer, "here");
    }
    // What is over is forgotten on both.
    let flows = roamers.each_ref().map(|roamer| roamer.flow.clone());
    for roamer in roamers {
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
    for host in Host::SERVERS {
        wait_forgotten(&cluster, host, &flows);
    }
}

/// A cluster that soon asks about clients that are silent, and two connections at b.
fn forwarding(lab: &Lab) -> (Cluster<'_>, [Process; 2], [Roamer; 2]) {
    let mut options = options();
    options.services[0].extra = "forward_idle = \"1s\"\n".into();
    let (cluster, servers) = start_as(lab, options, Manner::default());
    let roamers = [service_v4(), service_v6()].map(|service| Roamer::start(lab, service));
    for roamer in &roamers {
        hand_over(&cluster, roamer, Host::A);
    }
    (cluster, servers, roamers)
}

/// They end while there is no link on which that could be said. Their origin asks when
/// there is one. It forwarded for them for ever.
#[test]
fn what_ended_unheard_is_not_forwarded_for_ever() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers, roamers) = forwarding(&lab);
    lab.cut(Host::B, &[Network::Control]).expect("it is cut");
    until("there is no link", || {
        let peers = cluster.status(Host::A).ok()?.peers;
        peers.iter().all(|peer| !peer.linked).then_some(())
    });
    let flows = roamers.each_ref().map(|roamer| roamer.flow.clone());
    for roamer in roamers {
        roamer.end();
    }
    wait_forgotten(&cluster, Host::B, &flows);
    let left = cluster.flows(Host::A).expect("it answers").flows;
    let away = left.iter().filter(|flow| flows.contains(&flow.flow));
    assert!(away.clone().all(|flow| flow.state == "away"));
    assert_eq!(away.count(), flows.len());
    assert!(!has_event(&cluster, Host::A, "flow_over"));
    lab.heal(Host::B, &[Network::Control])
        .expect("it is healed");
    wait_forgotten(&cluster, Host::A, &flows);
    assert!(has_event(&cluster, Host::A, "flow_over"));
}

/// The machine that had them is started anew, and knows nothing to say.
#[test]
fn a_machine_without_memory_is_not_forwarded_to() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, _servers, roamers) = forwarding(&lab);
    lab.crash(Host::B).expect("its power fails");
    cluster.power_off(Host::B).expect("its memory is gone");
    lab.reboot(Host::B).expect("it is started");
    cluster.start_agent(Host::B).expect("it starts");
    for roamer in &roamers {
        assert!(!roamer.goes_on_or_breaks(), "nobody has it");
    }
    let flows = roamers.each_ref().map(|roamer| roamer.flow.clone());
    wait_forgotten(&cluster, Host::A, &flows);
    assert!(has_event(&cluster, Host::A, "flow_over"));
}

/// Some of many, then the rest.
#[test]
fn many_move_in_one_go() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let services = [service_v4(), service_v6()].into_iter().cycle().take(16);
    let roamers: Vec<_> = services
        .map(|service| Roamer::start(&lab, service))
        .collect();
    let some = |part: &[&str]| {
        let args = [&["--service", "web"], part].concat();
        let moved = until("they move", || {
            cluster.hand_over_flows(&args, Host::A, Host::B).ok()
        });
        moved.moved
    };
    assert_eq!(some(&["--count", "4"]).len(), 4);
    assert_eq!(some(&["--percent", "50"]).len(), 6);
    assert_eq!(some(&["--percent", "100"]).len(), 6);
    for roamer in &roamers {
        roamer.goes_on();
        assert_eq!(state(&cluster, Host::B, roamer).as_deref(), Some("here"));
    }
    for roamer in roamers {
        roamer.end();
    }
    assert_moved(&capture.finish().expect("the capture is complete"), 1);
}

/// Connections from one address belong together here: with one of them the others go,
/// or none does.
#[test]
fn a_session_goes_as_a_whole_or_stays() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let manner = Manner {
        sessions: true,
        ..Manner::default()
    };
    let (cluster, mut servers) = start_with(&lab, manner);
    let capture = witness(&lab);
    let session: Vec<_> = (0..3).map(|_| Roamer::start(&lab, service_v4())).collect();
    let other = Roamer::start(&lab, service_v6());
    let one = &session[1].flow;
    let moved = until("they move", || {
        cluster.hand_over_flow(one, Host::A, Host::B).ok()
    });
    let mut moved: Vec<_> = moved.moved.into_iter().map(|it| it.flow).collect();
    let mut flows: Vec<_> = session.iter().map(|it| it.flow.clone()).collect();
    moved.sort();
    flows.sort();
    assert_eq!(moved, flows);
    for roamer in &session {
        roamer.goes_on();
        assert_eq!(state(&cluster, Host::B, roamer).as_deref(), Some("here"));
    }
    assert_ne!(state(&cluster, Host::B, &other).as_deref(), Some("here"));
    other.end();

    servers[0].signal(Signal::SIGKILL).expect("it runs");
    servers[0].wait(DEADLINE).expect("it ends");
    let answer = until("a has no server", || {
        let answer = cluster.hand_over_flow(one, Host::B, Host::A);
        let answer = format!("{:#}", answer.expect_err("nobody takes it"));
        answer.contains("no_server").then_some(answer)
    });
    for flow in &flows {
        assert!(answer.contains(flow), "{answer}");
    }
    for roamer in &session {
        roamer.goes_on();
        assert_eq!(state(&cluster, Host::B, roamer).as_deref(), Some("here"));
    }
    for roamer in session {
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}
