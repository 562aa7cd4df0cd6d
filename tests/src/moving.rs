//! Clusters whose connections move one by one, and what tests do with them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use godwit_lab::apps::roam::{self, Manner};
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};

use crate::DEADLINE;
use crate::roaming::Roamer;
use crate::stage::{PORT, stage, until};

/// One way to b and back, where the agents' words share the clients' network: so long
/// that each step of a move can be met.
pub const FAR: Duration = Duration::from_millis(150);

/// Of a service whose connections move one by one.
pub fn options() -> ClusterOptions {
    let service = Service {
        standby: "snapshot",
        ..Service::new("web", PORT)
    };
    ClusterOptions {
        services: vec![service],
        ..ClusterOptions::unfenced()
    }
}

/// Agents, then servers that are known to them.
///
/// # Panics
/// If one does not start.
pub fn start(lab: &Lab) -> (Cluster<'_>, [Process; 2]) {
    start_with(lab, Manner::default())
}

/// As [`start`], with servers of another manner.
///
/// # Panics
/// As [`start`].
pub fn start_with(lab: &Lab, manner: Manner) -> (Cluster<'_>, [Process; 2]) {
    start_as(lab, options(), manner)
}

/// The same of another cluster.
///
/// # Panics
/// As [`start`].
pub fn start_as(lab: &Lab, options: ClusterOptions, manner: Manner) -> (Cluster<'_>, [Process; 2]) {
    let cluster = Cluster::start(lab, options).expect("the agents start");
    for host in Host::SERVERS {
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
    }
    let servers = Host::SERVERS.map(|host| serve_with(lab, &cluster, host, manner));
    (cluster, servers)
}

/// A server of one machine.
///
/// # Panics
/// If it does not start.
pub fn serve(lab: &Lab, cluster: &Cluster<'_>, host: Host) -> Process {
    serve_with(lab, cluster, host, Manner::default())
}

fn serve_with(lab: &Lab, cluster: &Cluster<'_>, host: Host, manner: Manner) -> Process {
    let agent = cluster.app_socket(host).expect("the machine is there");
    roam::start_with(lab.node(host), PORT, &agent, manner).expect("the server starts")
}

/// The other one of both servers.
pub fn other(host: Host) -> Host {
    if host == Host::A { Host::B } else { Host::A }
}

/// A connection goes to the other server; soon after start that may need a moment.
/// How many milliseconds it is silent.
///
/// # Panics
/// If it does not move.
pub fn hand_over(cluster: &Cluster<'_>, roamer: &Roamer, from: Host) -> f64 {
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

/// Where a node says that a connection is.
pub fn state(cluster: &Cluster<'_>, host: Host, roamer: &Roamer) -> Option<String> {
    let flows = cluster.flows(host).ok()?.flows;
    let found = flows.into_iter().find(|flow| flow.flow == roamer.flow)?;
    Some(found.state)
}

/// Waits until a node says that a connection is in a state.
///
/// # Panics
/// If that does not come about.
pub fn wait_state(cluster: &Cluster<'_>, host: Host, roamer: &Roamer, wanted: &str) {
    until(wanted, || {
        (state(cluster, host, roamer).as_deref() == Some(wanted)).then_some(())
    });
}

/// Why a connection stays where it is.
///
/// # Panics
/// If it moves.
pub fn refused(cluster: &Cluster<'_>, roamer: &Roamer, from: Host) -> String {
    let moved = cluster.hand_over_flow(&roamer.flow, from, other(from));
    format!("{:#}", moved.expect_err("it does not move"))
}

/// Waits until a node knows of none of these connections.
///
/// # Panics
/// If it goes on knowing one.
pub fn wait_forgotten(cluster: &Cluster<'_>, host: Host, flows: &[String]) {
    until("it is forgotten", || {
        let left = cluster.flows(host).ok()?.flows;
        let known = left.iter().any(|flow| flows.contains(&flow.flow));
        (!known).then_some(())
    });
}

/// Asks for a move, and does not wait for the answer.
///
/// # Panics
/// If there is no agent.
pub fn ask(cluster: &Cluster<'_>, roamer: &Roamer, from: Host) -> UnixStream {
    let socket = cluster.socket(from).expect("the machine is there");
    let mut stream = UnixStream::connect(socket).expect("the agent listens");
    let (flow, to) = (&roamer.flow, other(from));
    let wish = format!("{{\"cmd\":\"move_flows\",\"flow\":\"{flow}\",\"to\":\"{to}\"}}\n");
    stream.write_all(wish.as_bytes()).expect("it reads");
    stream
}

/// What the agent has said to that: nothing if it was killed.
pub fn answer(stream: UnixStream) -> String {
    let mut line = String::new();
    // Nothing, from an agent that has been killed.
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

/// Where a connection is by now.
///
/// # Panics
/// If nobody has it, or both.
pub fn whereabouts(cluster: &Cluster<'_>, roamer: &Roamer) -> Host {
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

/// A manner for [`far`]: what waits in queues at b crosses the long line in one go or two.
/// More would take longer than an origin has its connection stand still.
pub fn light() -> Manner {
    Manner {
        chunk: 64,
        ..Manner::default()
    }
}

/// A lab in which b is far away, and its agent, too. `None` as with [`stage`].
///
/// # Panics
/// As [`stage`].
pub fn far() -> Option<Lab> {
    let lab = stage(LabOptions {
        control_network: false,
        ..LabOptions::default()
    })?;
    lab.delay(Host::B, FAR).expect("the link is delayed");
    Some(lab)
}

/// Asks for a move to b, until a has stopped the connection for it.
///
/// # Panics
/// If that does not come about.
pub fn freeze(cluster: &Cluster<'_>, roamer: &Roamer) -> UnixStream {
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
