//! Agents come, go and are taken away under running traffic.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::apps::server;
use godwit_lab::capture::{FrameSeen, Trace};
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    PORT, assert_one_voice, assert_unnoticed, flow, in_sync, servers, service_v4, service_v6,
    stage, throughout, until, wait_flow, wait_protected, wait_unprotected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::{ArpOperation, ArpPacket, EthernetHeader, MacAddr, NeighbourSolicitation};

/// `godwit agent --detach` on `host`, to its end.
fn detach(cluster: &Cluster<'_>, host: Host) {
    let file = cluster.config_file(host).expect("it has a folder");
    let file = file.to_str().expect("the lab's folder is UTF-8");
    let output = cluster.godwit(host, &["agent", "--config", file, "--detach"]);
    let output = output.expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let pins = cluster.pins(host).expect("the machine is there");
    assert!(!pins.exists(), "{} is left", pins.display());
}

/// An upload and an echo, one in each address family; both protected.
fn protected_pair(lab: &Lab, cluster: &Cluster<'_>, owner: Host) -> [Traffic; 2] {
    let pair = [
        Traffic::start(lab, service_v4(), Load::Upload),
        Traffic::start(lab, service_v6(), Load::Echo),
    ];
    for one in &pair {
        wait_protected(cluster, owner, one.local());
    }
    pair
}

/// Whether frames for `other` pass the filter of `host`'s card.
fn takes_in(lab: &Lab, host: Host, other: Host) -> bool {
    let mut command = Command::new("bridge");
    command.args(["fdb", "show", "dev", Network::Data.interface()]);
    let output = lab.node(host).run(command, DEADLINE).expect("it ends");
    let mac = other.mac(Network::Data).to_string();
    output.stdout.lines().any(|line| line.starts_with(&mac))
}

fn finish_all<const N: usize>(traffic: [Traffic; N], since: Instant) {
    for one in traffic {
        one.finish(since, STALL_LIMIT);
    }
}

/// A node that is in no file any more, as its machine has another name: what its agent has
/// left goes with the name alone, and not while it runs.
#[test]
fn what_a_node_has_left_is_taken_away_by_its_name() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let since = Instant::now();
    let pair = protected_pair(&lab, &cluster, Host::A);
    let by_name = |cluster: &Cluster<'_>, name: &str| {
        let output = cluster.godwit(Host::B, &["agent", "--detach", "--node", name]);
        output.expect("it ends")
    };
    let refused = by_name(&cluster, "b");
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("stop it first"), "{refused:?}");
    for one in &pair {
        wait_protected(&cluster, Host::A, one.local());
    }
    let agent = cluster.agent(Host::B).expect("it was started");
    agent.kill().expect("it runs");
    let stranger = by_name(&cluster, "c");
    assert!(!stranger.status.success(), "{stranger:?}");
    let pins = cluster.pins(Host::B).expect("the machine is there");
    assert!(pins.exists(), "what it has left");
    let done = by_name(&cluster, "b");
    assert!(done.status.success(), "{done:?}");
    assert!(done.stdout.contains("is removed"), "{done:?}");
    assert!(!pins.exists(), "{} is left", pins.display());
    for one in &pair {
        wait_unprotected(&cluster, Host::A, one.local(), &["standby_lost"]);
        one.goes_on();
    }
    cluster.start_agent(Host::B).expect("another one begins");
    cluster.wait_in_sync(Host::A, DEADLINE).expect("in sync");
    finish_all(pair, since);
    assert_no_word_of(Host::B, &assert_unnoticed(capture));
}

fn assert_no_word_of(host: Host, trace: &Trace) {
    let mac = host.mac(Network::Data);
    let segments = trace.segments();
    let voices = segments.filter(|s| s.from_mac == mac && s.from.port == PORT);
    assert_eq!(voices.count(), 0, "segments of the standby at the client");
}

/// An owner that is detached serves on as if Godwit had never been there, and
/// its standby stays away from the service.
#[test]
fn detaching_the_owner_leaves_its_connections_alone() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let [upload, echo] = protected_pair(&lab, &cluster, Host::A);
    let download = Traffic::start(&lab, service_v4(), Load::Download);
    let since = Instant::now();
    detach(&cluster, Host::A);
    for one in [&upload, &echo, &download] {
        one.goes_on();
    }
    throughout("b does not claim", Duration::from_millis(500), || {
        let status = cluster.status(Host::B).expect("b answers");
        status.services[0].state == "standby"
    });
    // A new agent finds connections that it knows nothing of.
    cluster
        .start_agent(Host::A)
        .expect("the agent starts again");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync again");
    for one in [&upload, &echo, &download] {
        one.goes_on();
        let known = flow(&cluster, Host::A, one.local());
        assert!(known.is_none_or(|flow| !flow.protected), "without a twin");
    }
    let fresh = Traffic::start(&lab, service_v6(), Load::Echo);
    wait_protected(&cluster, Host::A, fresh.local());
    finish_all([upload, echo, download, fresh], since);
    assert_unnoticed(capture);
}

/// A standby that is detached ends its twins before anyone could hear them.
#[test]
fn detaching_the_standby_ends_twins_in_silence() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster, Host::A);
    for one in &pair {
        wait_flow(&cluster, Host::B, one.local(), |flow| flow.state == "twin");
    }
    until("b's card to take in what is meant for a", || {
        takes_in(&lab, Host::B, Host::A).then_some(())
    });
    let since = Instant::now();
    detach(&cluster, Host::B);
    assert!(!takes_in(&lab, Host::B, Host::A), "its filter is as before");
    for one in &pair {
        wait_unprotected(&cluster, Host::A, one.local(), &["standby_lost"]);
        one.goes_on();
    }
    cluster
        .start_agent(Host::B)
        .expect("the agent starts again");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync again");
    let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, fresh.local());
    finish_all([fresh], since);
    finish_all(pair, since);
    assert_no_word_of(Host::B, &assert_unnoticed(capture));
}

/// An agent may be restarted at any time: what it has pinned goes on, a crash
/// after that is still survived.
#[test]
fn restarting_either_agent_disturbs_nothing() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster, Host::A);
    let since = Instant::now();
    for host in Host::SERVERS {
        cluster.stop_agent(host).expect("the agent ends");
        for one in &pair {
            one.goes_on();
        }
        cluster.start_agent(host).expect("it starts again");
        cluster
            .wait_in_sync(Host::A, DEADLINE)
            .expect("both are where they were");
        for one in &pair {
            one.goes_on();
            let known = flow(&cluster, host, one.local());
            assert!(known.is_some(), "{host} forgot a flow");
        }
    }
    for one in &pair {
        wait_protected(&cluster, Host::A, one.local());
    }
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in &pair {
        one.goes_on();
    }
    finish_all(pair, since);
    assert_unnoticed(capture);
}

/// A standby's agent that is killed counts as lost; started again it stands by
/// with twins of a new generation only.
#[test]
fn a_standby_whose_agent_is_killed_returns() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let pair = protected_pair(&lab, &cluster, Host::A);
    let since = Instant::now();
    let agent = cluster.agent(Host::B).expect("it was started");
    agent.kill().expect("the agent can be killed");
    for one in &pair {
        wait_unprotected(&cluster, Host::A, one.local(), &["standby_lost"]);
        one.goes_on();
    }
    cluster.start_agent(Host::B).expect("it starts again");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync again");
    let fresh = Traffic::start(&lab, service_v4(), Load::Upload);
    wait_protected(&cluster, Host::A, fresh.local());
    finish_all(pair, since);
    // One whose client has just closed may not have a new twin yet that could.
    until("only the new connection is left", || {
        let left = |host| {
            let all = cluster.flows(host).ok()?.flows;
            Some(all.iter().filter(|flow| flow.state != "ended").count())
        };
        let one = Host::SERVERS.into_iter().all(|host| left(host) == Some(1));
        one.then_some(())
    });
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    fresh.goes_on();
    finish_all([fresh], since);
    assert_unnoticed(capture);
}

/// Without fencing both may speak when only their link fails: every way to ask
/// says so, and none does where leases hold.
#[test]
fn status_says_whether_two_owners_are_possible() {
    for (fencing, is_safe) in [(Fencing::None, false), (Fencing::Lease, true)] {
        let options = LabOptions {
            witness: fencing == Fencing::Lease,
            ..LabOptions::default()
        };
        let Some(lab) = stage(options) else {
            return;
        };
        let _servers = servers(&lab);
        let options = ClusterOptions {
            fencing,
            ..ClusterOptions::default()
        };
        let cluster = in_sync(&lab, options);
        for host in Host::SERVERS {
            let status = cluster.status(host).expect("it answers");
            assert_eq!(status.fencing.contains("unsafe"), !is_safe, "{status:?}");
            let socket = cluster.socket(host).expect("the machine is there");
            let socket = socket.to_str().expect("the lab's folder is UTF-8");
            let text = cluster.godwit(host, &["status", "--socket", socket]);
            let text = text.expect("it ends").stdout;
            let line = text.lines().find(|line| line.starts_with("fencing"));
            let line = line.expect("a line about it");
            assert_eq!(line.contains("unsafe"), !is_safe, "{line}");
        }
    }
}

/// A wrong configuration is one sentence and exit code 2; nothing is attached.
#[test]
fn a_wrong_configuration_attaches_nothing() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let cluster = Cluster::prepare(&lab, ClusterOptions::unfenced()).expect("files are written");
    let file = cluster.config_file(Host::A).expect("it has a folder");
    let right = fs::read_to_string(&file).expect("it was written");
    let wrong = [
        ("heartbeat = \"10ms\"", "heartbeat = \"10 parsecs\""),
        ("primary = \"a\"", "primary = \"nobody\""),
        ("[detect]", "[detekt]"),
        ("standby = \"shadow\"", "standby = \"shadows\""),
        ("[cluster]", "[cluster"),
    ];
    for (from, to) in wrong {
        assert!(right.contains(from), "the lab's file has no {from:?}");
        fs::write(&file, right.replace(from, to)).expect("it can be written");
        let path = file.to_str().expect("the lab's folder is UTF-8");
        let output = cluster.godwit(Host::A, &["agent", "--config", path]);
        let output = output.unwrap_or_else(|error| panic!("{to}: {error:#}"));
        assert_eq!(output.status.code(), Some(2), "{to}: {output:?}");
        let lines = output.stderr.lines().filter(|line| !line.trim().is_empty());
        assert_eq!(lines.count(), 1, "{to}: {:?}", output.stderr);
        let pins = cluster.pins(Host::A).expect("the machine is there");
        assert!(!pins.exists(), "{to}: {} is left", pins.display());
    }
    let served = lab
        .a()
        .enter(|| std::net::TcpListener::bind((SERVICE_V4, PORT)));
    let served = served.expect("the machine is there");
    assert!(
        served.is_err(),
        "the service address is up without programs"
    );
}

/// Whatever is missing at start, the agent says so in one line and leaves
/// nothing behind: not a program, not an address.
#[test]
fn an_agent_that_can_not_start_attaches_nothing() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let cluster = Cluster::prepare(&lab, ClusterOptions::unfenced()).expect("files are written");
    let file = cluster.config_file(Host::A).expect("it has a folder");
    let binary = godwit_lab::cluster::binary().expect("it was built");
    let mut unable = Command::new("setpriv");
    unable
        .arg("--bounding-set=-net_admin")
        .arg("--inh-caps=-net_admin");
    unable.arg(&binary).args(["agent", "--config"]).arg(&file);
    let mut taken = Command::new(&binary);
    taken.args(["agent", "--config"]).arg(&file);
    let control = (Host::A.control_v4(), 7400);
    let holder = lab.a().enter(|| std::net::UdpSocket::bind(control));
    let _holder = holder.expect("the machine is there").expect("it is free");
    for (what, command) in [
        ("without a capability", unable),
        ("without its port", taken),
    ] {
        let output = lab.a().run(command, DEADLINE).expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{what}: {output:?}");
        let errors = output
            .stderr
            .lines()
            .filter(|line| line.starts_with("godwit: "));
        assert_eq!(errors.count(), 1, "{what}: {:?}", output.stderr);
        let pins = cluster.pins(Host::A).expect("the machine is there");
        assert!(!pins.exists(), "{what}: {} is left", pins.display());
        let served = lab
            .a()
            .enter(|| std::net::TcpListener::bind((SERVICE_V4, PORT)));
        let served = served.expect("the machine is there");
        assert!(served.is_err(), "{what}: the service address is up");
    }
}

/// Asks the link and the standby itself for both service addresses: the owner
/// alone may answer, before and after the standby has clients to speak to.
#[test]
fn only_the_owner_answers_for_a_service_address() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let since = Instant::now();
    let pair = protected_pair(&lab, &cluster, Host::A);
    let standby = Host::B.mac(Network::Data);
    for _ in 0..3 {
        let frames = [
            who_has(MacAddr::BROADCAST),
            who_has(standby),
            solicitation().multicast_frame(),
            solicitation().frame_to(standby),
        ];
        lab.client().send_frames(&frames).expect("frames are sent");
        for one in &pair {
            one.goes_on();
        }
    }
    finish_all(pair, since);
    let trace = assert_unnoticed(capture);
    let owner = Host::A.mac(Network::Data);
    let mut answers = [0, 0];
    for frame in &trace.frames {
        match frame {
            FrameSeen::Arp(seen) if seen.packet.sender == SERVICE_V4 => {
                assert_eq!(seen.packet.sender_mac, owner, "{seen:?}");
                answers[0] += 1;
            }
            FrameSeen::Advertisement(seen) if seen.target == SERVICE_V6 => {
                assert_eq!(seen.from_mac, owner, "{seen:?}");
                answers[1] += 1;
            }
            FrameSeen::Arp(_)
            | FrameSeen::Advertisement(_)
            | FrameSeen::Segment(_)
            | FrameSeen::Other => {}
        }
    }
    assert!(
        answers.iter().all(|count| *count >= 3),
        "{answers:?} answers"
    );
}

/// The old owner comes back empty, stands by, and saves the day in its turn.
#[test]
fn an_old_owner_returns_as_standby_and_takes_over_again() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    // What a busy machine may make of a heartbeat must not be a crash here.
    let patient = ClusterOptions {
        heartbeat: Duration::from_millis(40),
        ..ClusterOptions::unfenced()
    };
    let mut cluster = in_sync(&lab, patient);
    let capture = witness(&lab);
    let first = protected_pair(&lab, &cluster, Host::A);
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in &first {
        one.goes_on();
        wait_unprotected(&cluster, Host::B, one.local(), &["after_takeover"]);
    }
    lab.reboot(Host::A).expect("a boots");
    let _a = server::start(lab.a(), PORT).expect("the server starts");
    cluster.start_agent(Host::A).expect("its agent starts");
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a stands by for b");
    for one in &first {
        one.goes_on();
    }
    let second = protected_pair(&lab, &cluster, Host::B);
    finish_all(first, since);
    let trace = capture.finish().expect("the capture is complete");
    assert_eq!(trace.resets(), 0, "segments with RST at the client");
    assert_one_voice(&trace);

    let capture = witness(&lab);
    let since = Instant::now();
    lab.crash(Host::B).expect("b crashes");
    cluster.wait_owner(Host::A, DEADLINE).expect("a takes over");
    for one in &second {
        one.goes_on();
    }
    finish_all(second, since);
    assert_unnoticed(capture);
}

/// An ARP request for the service's IPv4 address (RFC 826), from the client.
fn who_has(to: MacAddr) -> Vec<u8> {
    let client = Host::Client;
    let packet = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: client.mac(Network::Data),
        sender: client.v4(),
        target_mac: MacAddr::ZERO,
        target: SERVICE_V4,
    };
    let header = EthernetHeader {
        destination: to,
        source: client.mac(Network::Data),
        ether_type: EthernetHeader::ARP,
    };
    let mut frame = Vec::new();
    header.emit(&mut frame);
    packet.emit(&mut frame);
    frame
}

/// A neighbour solicitation for its IPv6 address (RFC 4861 section 4.3).
fn solicitation() -> NeighbourSolicitation {
    NeighbourSolicitation {
        source: Host::Client.v6(),
        mac: Host::Client.mac(Network::Data),
        target: SERVICE_V6,
    }
}
