//! Connections that go on from where they have come to: by way of three servers, and back to
//! the one that clients send to.

use godwit_lab::apps::roam::Manner;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};

use godwit_tests::DEADLINE;
use godwit_tests::moving::{options, serve, start_as, state, wait_forgotten, wait_state};
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{assert_no_reset, service_v4, service_v6, stage, until, witness};
use nix::sys::signal::Signal;

const HOSTS: [Host; 3] = [Host::A, Host::B, Host::C];

fn three() -> Option<Lab> {
    stage(LabOptions {
        third: true,
        ..LabOptions::default()
    })
}

fn of_three() -> ClusterOptions {
    let of_two = options();
    let services = of_two.services.iter().map(|service| Service {
        others: &[Host::C],
        ..service.clone()
    });
    ClusterOptions {
        services: services.collect(),
        more: &[Host::C],
        ..of_two
    }
}

fn start(lab: &Lab) -> (Cluster<'_>, Vec<Process>) {
    start_three(lab, of_three())
}

fn start_three(lab: &Lab, options: ClusterOptions) -> (Cluster<'_>, Vec<Process>) {
    let (cluster, servers) = start_as(lab, options, Manner::default());
    let owner = cluster.wait_owner(Host::C, DEADLINE);
    owner.expect("it owns its share");
    let mut servers = Vec::from(servers);
    servers.push(serve(lab, &cluster, Host::C));
    (cluster, servers)
}

/// The three behind a director.
fn start_directed(lab: &Lab) -> (Cluster<'_>, Vec<Process>) {
    let mut options = of_three();
    for service in &mut options.services {
        service.extra += "front = \"director\"\n";
    }
    start_three(
        lab,
        ClusterOptions {
            // A switch's end of a veth does not poll, as XDP would need.
            sections: "[director]\nseed = \"0123456789abcdef\"\nhook = \"tcx\"\n".into(),
            more: &[Host::C, Host::Director],
            ..options
        },
    )
}

/// It goes there, perhaps after a moment: it has just come, or the agents have just
/// started.
fn go(cluster: &Cluster<'_>, roamer: &Roamer, from: Host, to: Host) {
    let mut last = String::new();
    until("it moves", || {
        let moved = cluster.hand_over_flow(&roamer.flow, from, to);
        let now = moved.as_ref().err().map(|error| format!("{error:#}"));
        if let Some(why) = now.filter(|now| *now != last) {
            eprintln!("{from} to {to}: {why}");
            last = why;
        }
        moved.ok()
    });
    roamer.goes_on();
}

fn walk(cluster: &Cluster<'_>, roamer: &Roamer, way: &[Host]) {
    for step in way.windows(2) {
        go(cluster, roamer, step[0], step[1]);
    }
}

/// They end in order, and nobody remembers them.
fn end(cluster: &Cluster<'_>, roamers: Vec<Roamer>) {
    let flows: Vec<_> = roamers.iter().map(|roamer| roamer.flow.clone()).collect();
    for roamer in roamers {
        roamer.end();
    }
    for host in HOSTS {
        wait_forgotten(cluster, host, &flows);
    }
}

/// Round and round, both ways, and to and fro at the far end: byte for byte, and when they
/// are over each server on the way forgets them.
#[test]
fn a_connection_goes_from_server_to_server_and_comes_back() {
    let Some(lab) = three() else { return };
    let (cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let roamers: Vec<_> = [service_v4(), service_v6()]
        .map(|service| Roamer::start(&lab, service))
        .into();
    let [a, b, c] = HOSTS;
    for roamer in &roamers {
        walk(&cluster, roamer, &[a, b, c, a]);
        assert_eq!(state(&cluster, a, roamer).as_deref(), Some("here"));
        walk(&cluster, roamer, &[a, c, b, a]);
        walk(&cluster, roamer, &[a, b, c, b, c, b, a]);
        walk(&cluster, roamer, &[a, b, c, a]);
    }
    end(&cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// It ends at the far end of a chain, two servers from where its client sends to: word of
/// that comes back all the way.
#[test]
fn a_connection_that_ends_far_away_is_forgotten_everywhere() {
    let Some(lab) = three() else { return };
    let (cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let [a, b, c] = HOSTS;
    let roamers: Vec<_> = [service_v4(), service_v6()]
        .map(|service| Roamer::start(&lab, service))
        .into();
    for roamer in &roamers {
        walk(&cluster, roamer, &[a, b, c]);
        for host in [a, b] {
            wait_state(&cluster, host, roamer, "away");
        }
    }
    end(&cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The agent in the middle is killed: its data path forwards without it. The next one
/// knows where they are, and the way back leads past it.
#[test]
fn an_agent_in_the_middle_is_not_needed() {
    let Some(lab) = three() else { return };
    let (mut cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let [a, b, c] = HOSTS;
    let roamers: Vec<_> = [service_v4(), service_v6()]
        .map(|service| Roamer::start(&lab, service))
        .into();
    for roamer in &roamers {
        walk(&cluster, roamer, &[a, b, c]);
    }
    let agent = cluster.agent(b).expect("it was started");
    agent.signal(Signal::SIGKILL).expect("it runs");
    agent.wait(DEADLINE).expect("it ends");
    for roamer in &roamers {
        roamer.goes_on();
    }
    // One comes back without it, the other one by way of the next.
    go(&cluster, &roamers[0], c, a);
    cluster.start_agent(b).expect("it starts again");
    let owner = cluster.wait_owner(b, DEADLINE);
    owner.expect("it owns its share");
    walk(&cluster, &roamers[1], &[c, b, a]);
    walk(&cluster, &roamers[0], &[a, b, c]);
    end(&cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The same behind a director, which gives each to any of the three, and hears nothing of
/// where it goes.
#[test]
fn a_connection_behind_a_director_goes_round_and_comes_back() {
    let Some(lab) = stage(LabOptions {
        third: true,
        director: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let (cluster, _servers) = start_directed(&lab);
    let capture = witness(&lab);
    let roamers: Vec<_> = [service_v4(), service_v6()]
        .into_iter()
        .cycle()
        .take(4)
        .map(|service| Roamer::start(&lab, service))
        .collect();
    for roamer in &roamers {
        let has = |host: &Host| state(&cluster, *host, roamer).is_some();
        let home = HOSTS.into_iter().position(|host| has(&host));
        let home = home.expect("it was given to one of them");
        let [a, b, c] = [0, 1, 2].map(|step| HOSTS[(home + step) % HOSTS.len()]);
        walk(&cluster, roamer, &[a, b, c, a]);
        walk(&cluster, roamer, &[a, c, b, c, b, a]);
    }
    end(&cluster, roamers);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The director hears where connections have gone: from then on the servers that they have
/// left are not needed any more, and may die.
#[test]
fn a_director_learns_where_connections_are_and_their_origins_may_die() {
    let Some(lab) = stage(LabOptions {
        third: true,
        director: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let (cluster, _servers) = start_directed(&lab);
    let capture = witness(&lab);
    let counted = |host: Host, reason: &str| {
        let status = cluster.status(host).expect("it answers");
        status.counted(reason)
    };
    let mut roamers: Vec<Roamer> = Vec::new();
    for service in [service_v4(), service_v6()] {
        // Until there is one at a: each is another four-tuple.
        let mut tries = (0..40).map(|_| Roamer::start(&lab, service));
        let roamer = tries.find(|roamer| state(&cluster, Host::A, roamer).is_some());
        roamers.push(roamer.expect("each third is at a"));
    }
    for roamer in &roamers {
        go(&cluster, roamer, Host::A, Host::C);
        go(&cluster, roamer, Host::C, Host::B);
    }
    until("a forwards nothing any more", || {
        let before = [Host::A, Host::C].map(|host| counted(host, "sent_on"));
        for roamer in &roamers {
            roamer.goes_on();
        }
        let after = [Host::A, Host::C].map(|host| counted(host, "sent_on"));
        (before == after).then_some(())
    });
    assert!(counted(Host::A, "told") > 0);
    assert!(counted(Host::Director, "learnt") > 0);
    lab.crash(Host::A).expect("a dies");
    for roamer in &roamers {
        roamer.goes_on();
    }
    for roamer in roamers {
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}
