//! Busy connections that go from server to server by themselves, both ways, byte for
//! byte; and what breaks on the way.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::roam::{self, Manner};
use godwit_lab::cluster::{Cluster, ClusterOptions, EventReport, Service};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::DEADLINE;
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{
    PORT, assert_moved, assert_no_reset, has_event, service_v4, service_v6, stage, tcp_counter,
    until, witness,
};
use nix::sys::signal::Signal;

/// Moves of each connection.
const MOVES: usize = 20;

/// Longer than a connection is silent for an answer, shorter than what an idle link
/// survives.
const CUT: Duration = Duration::from_millis(1200);

fn options() -> ClusterOptions {
    let service = Service {
        standby: "snapshot",
        ..Service::new("web", PORT)
    };
    ClusterOptions {
        services: vec![service],
        ..ClusterOptions::default()
    }
}

/// Agents, then servers that are known to them.
fn start(lab: &Lab) -> (Cluster<'_>, [Process; 2]) {
    start_with(lab, Manner::default())
}

fn start_with(lab: &Lab, manner: Manner) -> (Cluster<'_>, [Process; 2]) {
    start_as(lab, options(), manner)
}

fn start_as(lab: &Lab, options: ClusterOptions, manner: Manner) -> (Cluster<'_>, [Process; 2]) {
    let cluster = Cluster::start(lab, options).expect("the agents start");
    for host in Host::SERVERS {
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
    }
    let servers = Host::SERVERS.map(|host| serve_with(lab, &cluster, host, manner));
    (cluster, servers)
}

fn serve(lab: &Lab, cluster: &Cluster<'_>, host: Host) -> Process {
    serve_with(lab, cluster, host, Manner::default())
}

fn serve_with(lab: &Lab, cluster: &Cluster<'_>, host: Host, manner: Manner) -> Process {
    let agent = cluster.app_socket(host).expect("the machine is there");
    roam::start_with(lab.node(host), PORT, &agent, manner).expect("the server starts")
}

fn other(host: Host) -> Host {
    if host == Host::A { Host::B } else { Host::A }
}

/// A connection goes to the other server; soon after start that may need a moment.
fn hand_over(cluster: &Cluster<'_>, roamer: &Roamer, from: Host) -> f64 {
    let mut last = String::new();
    let moved = until("it moves", || {
        match cluster.hand_over_flow(&roamer.flow, from, other(from)) {
            Ok(moved) => Some(moved),
            Err(error) => {
                let now = format!("{error:#}");
                if now != last {
                    eprintln!("{now}");
                    last = now;
                }
                None
            }
        }
    });
    moved.moved[0].silent_ms
}

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

/// Where a node says that a connection is.
fn state(cluster: &Cluster<'_>, host: Host, roamer: &Roamer) -> Option<String> {
    let flows = cluster.flows(host).ok()?.flows;
    let found = flows.into_iter().find(|flow| flow.flow == roamer.flow)?;
    Some(found.state)
}

fn wait_state(cluster: &Cluster<'_>, host: Host, roamer: &Roamer, wanted: &str) {
    until(wanted, || {
        (state(cluster, host, roamer).as_deref() == Some(wanted)).then_some(())
    });
}

/// Why a connection stays where it is.
fn refused(cluster: &Cluster<'_>, roamer: &Roamer, from: Host) -> String {
    let moved = cluster.hand_over_flow(&roamer.flow, from, other(from));
    format!("{:#}", moved.expect_err("it does not move"))
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

fn wait_forgotten(cluster: &Cluster<'_>, host: Host, flows: &[String]) {
    until("it is forgotten", || {
        let left = cluster.flows(host).ok()?.flows;
        let known = left.iter().any(|flow| flows.contains(&flow.flow));
        (!known).then_some(())
    });
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

/// Asks for a move, and does not wait for the answer.
fn ask(cluster: &Cluster<'_>, roamer: &Roamer, from: Host) -> UnixStream {
    let socket = cluster.socket(from).expect("the machine is there");
    let mut stream = UnixStream::connect(socket).expect("the agent listens");
    let (flow, to) = (&roamer.flow, other(from));
    let wish = format!("{{\"cmd\":\"move_flows\",\"flow\":\"{flow}\",\"to\":\"{to}\"}}\n");
    stream.write_all(wish.as_bytes()).expect("it reads");
    stream
}

fn answer(stream: UnixStream) -> String {
    let mut line = String::new();
    // Nothing, from an agent that has been killed.
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

/// Where it is by now.
fn whereabouts(cluster: &Cluster<'_>, roamer: &Roamer) -> Host {
    until("somebody has it", || {
        let at_b = state(cluster, Host::B, roamer);
        let at_a = state(cluster, Host::A, roamer);
        match (at_a.as_deref(), at_b.as_deref()) {
            (Some("away"), Some("here")) => Some(Host::B),
            (Some("here" | "unprotected"), None | Some("away")) => Some(Host::A),
            _ => None,
        }
    })
}

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
        let agent = cluster.agent(host).expect("it was started");
        agent.signal(Signal::SIGKILL).expect("it runs");
        agent.wait(DEADLINE).expect("it ends");
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

/// One way to b and back, where the agents' words share the clients' network: so long
/// that each step of a move can be met.
const FAR: Duration = Duration::from_millis(150);

fn far() -> Option<Lab> {
    let lab = stage(LabOptions {
        control_network: false,
        ..LabOptions::default()
    })?;
    lab.delay(Host::B, FAR).expect("the link is delayed");
    Some(lab)
}

/// Asks for a move to b, until a has stopped the connection for it.
fn freeze(cluster: &Cluster<'_>, roamer: &Roamer) -> UnixStream {
    until("the link is up", || {
        let asked = ask(cluster, roamer, Host::A);
        let end = Instant::now() + FAR * 4;
        while Instant::now() < end {
            if state(cluster, Host::A, roamer).as_deref() == Some("away") {
                return Some(asked);
            }
        }
        None
    })
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

/// The target's agent stops while it keeps what a client says: acknowledgements of all
/// that its server has sent. Its origin goes on, and need not wait for a timer to hear of
/// them.
#[test]
fn a_stream_goes_on_at_once_where_it_was() {
    let Some(lab) = far() else {
        return;
    };
    let (mut cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|service| Roamer::start(&lab, service));
    for roamer in &roamers {
        // Others may have the machine for a moment.
        let stood: Vec<_> = (0..3).map(|_| call_off(&mut cluster, roamer)).collect();
        eprintln!("stood still for {stood:?}");
        assert!(stood.iter().any(|stood| *stood < AT_ONCE), "{stood:?}");
    }
    for roamer in roamers {
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
    let (mut cluster, mut servers) = start(&lab);
    let capture = witness(&lab);
    for (service, given) in [(service_v4(), false), (service_v6(), true)] {
        let roamer = Roamer::start(&lab, service);
        let asked = freeze(&cluster, &roamer);
        if given {
            // Its state has gone there, and the commit: the word of it is on the way back.
            thread::sleep(FAR * 3);
        }
        let agent = cluster.agent(Host::A).expect("it was started");
        agent.signal(Signal::SIGKILL).expect("it runs");
        agent.wait(DEADLINE).expect("it ends");
        servers[0].signal(Signal::SIGSTOP).expect("it runs");
        cluster.start_agent(Host::A).expect("it starts again");
        cluster
            .wait_owner(Host::A, DEADLINE)
            .expect("it owns its share");
        if given {
            wait_state(&cluster, Host::B, &roamer, "here");
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
