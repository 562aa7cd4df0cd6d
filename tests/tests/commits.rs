//! Servers that must never go back from what they export: wherever their connections go
//! on, it is there or later, and what their clients have not acknowledged reaches them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::roam::{self, DOWN, Manner, came_at, is_unsafe, safe_at};
use godwit_lab::cluster::{Cluster, FlowReport};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::DEADLINE;
use godwit_tests::eager;
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{
    assert_no_reset, service_v4, service_v6, stage, until, wait_in_sync, witness,
};
use godwit_wire::{Endpoint, FlowKey};

/// Bytes that its client does not take.
const BUFFER: usize = 16 << 10;

/// A server that has committed nothing new for so long can't say more.
const STILL: Duration = Duration::from_millis(500);

/// What comes behind what was safe.
const MUCH: usize = 1 << 20;

fn manner() -> Manner {
    Manner {
        commits: true,
        ..Manner::default()
    }
}

fn start(lab: &Lab) -> (Cluster<'_>, [Process; 2]) {
    eager::start(lab, manner())
}

/// A client that does not listen.
struct Deaf {
    stream: TcpStream,
    client: SocketAddr,
    flow: String,
    /// Bytes that it has heard all the same.
    heard: u64,
}

impl Deaf {
    fn connect(lab: &Lab, service: SocketAddr) -> Self {
        let connect = || -> std::io::Result<TcpStream> {
            let domain = socket2::Domain::for_address(service);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
            socket.set_recv_buffer_size(BUFFER)?;
            socket.connect_timeout(&service.into(), DEADLINE)?;
            Ok(socket.into())
        };
        let stream = lab.client().enter(connect).expect("the machine is there");
        let mut stream = stream.expect("the service is there");
        stream.set_read_timeout(Some(DEADLINE)).expect("it is open");
        let mut said = [0; 100];
        roam::UP.fill(0, &mut said);
        stream.write_all(&said).expect("it is open");
        let client = stream.local_addr().expect("it is connected");
        let flow = FlowKey {
            client: Endpoint::from(client),
            service: Endpoint::from(service),
        };
        Self {
            stream,
            client,
            flow: flow.to_string(),
            heard: 0,
        }
    }

    /// How much its server has said in the end; all of it is safe.
    fn wait_until_still(&self, server: &Process) -> u64 {
        let (mut last, mut since) = (None, Instant::now());
        until("its server can say no more", || {
            let safe = safe_at(&server.log(), self.client);
            if safe != last {
                (last, since) = (safe, Instant::now());
            }
            let still = since.elapsed() > STILL;
            last.filter(|said| still && *said > BUFFER as u64)
        })
    }

    fn report(&self, cluster: &Cluster<'_>, owner: Host) -> Option<FlowReport> {
        let flows = cluster.flows(owner).ok()?.flows;
        flows.into_iter().find(|flow| flow.flow == self.flow)
    }

    /// Listens to so many bytes, each of which is what its server says there.
    fn hears(&mut self, length: usize) -> std::io::Result<()> {
        let (mut heard, mut expected) = (vec![0; length], vec![0; length]);
        self.stream.read_exact(&mut heard)?;
        DOWN.fill(self.heard, &mut expected);
        let wrong = heard.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "behind {}", self.heard);
        self.heard += length as u64;
        Ok(())
    }

    /// Listens to all that was safe, and to more.
    fn hears_behind(&mut self, safe: u64) -> std::io::Result<()> {
        let length = safe.saturating_sub(self.heard);
        self.hears(usize::try_from(length).expect("little") + MUCH)
    }
}

fn both(lab: &Lab) -> [Deaf; 2] {
    [service_v4(), service_v6()].map(|service| Deaf::connect(lab, service))
}

/// All go on at b from where they were safe.
fn go_on(cluster: &mut Cluster<'_>, clients: &mut [Deaf; 2], safe: [u64; 2], server: &Process) {
    for (client, safe) in clients.iter_mut().zip(safe) {
        if let Err(error) = client.hears_behind(safe) {
            let log = |host| cluster.agent(host).map(|agent| agent.log());
            let [a, b] = Host::SERVERS.map(log).map(Option::unwrap_or_default);
            panic!("{error}\na: {a}\nb: {b}\nb's server: {}", server.log());
        }
        let came = came_at(&server.log(), client.client);
        assert!(came >= Some(safe), "{came:?}, and {safe} was safe");
    }
}

/// Its client has acknowledged next to nothing: from a snapshot that could be made again
/// the connection would begin at its beginning.
#[test]
fn what_was_safe_outlives_its_machine() {
    outlives_its_machine("");
}

/// What a server has committed is on the standby, whatever clients are told of theirs.
#[test]
fn what_was_safe_outlives_its_machine_without_a_gate() {
    outlives_its_machine("gate = \"off\"");
}

fn outlives_its_machine(extra: &str) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, servers) = eager::start_with(&lab, eager::options(extra), manner());
    let capture = witness(&lab);
    let mut clients = both(&lab);
    let safe = [&clients[0], &clients[1]].map(|client| client.wait_until_still(&servers[0]));
    lab.crash(Host::A).expect("a crashes");
    go_on(&mut cluster, &mut clients, safe, &servers[1]);
    // Before the clients end, who leave much unread.
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// kill -9.
#[test]
fn what_was_safe_outlives_its_server() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, mut servers) = start(&lab);
    let mut clients = both(&lab);
    let safe = [&clients[0], &clients[1]].map(|client| client.wait_until_still(&servers[0]));
    servers[0].kill().expect("it runs");
    go_on(&mut cluster, &mut clients, safe, &servers[1]);
}

/// The standby's twins die, and new ones are made: they are no protection before they
/// stand where the server must not go back from.
#[test]
fn a_new_twin_has_what_was_safe() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (mut cluster, mut servers) = start(&lab);
    let mut clients = both(&lab);
    for client in &clients {
        client.wait_until_still(&servers[0]);
    }
    servers[1].kill().expect("it runs");
    for client in &clients {
        until("it is not protected", || {
            let report = client.report(&cluster, Host::A)?;
            (!report.protected).then_some(())
        });
    }
    servers[1] = eager::serve(&lab, &cluster, Host::B, manner());
    wait_in_sync(&mut cluster, Host::A);
    // Nobody has the output that their clients lack.
    thread::sleep(STILL);
    for client in &clients {
        let report = client.report(&cluster, Host::A).expect("it runs");
        assert!(!report.protected, "{report:?}");
    }
    // They take some, and their server says more, which is to be safe.
    for client in &mut clients {
        until("it is protected again", || {
            client.hears(BUFFER).expect("it goes on");
            let report = client.report(&cluster, Host::A)?;
            report.protected.then_some(())
        });
    }
    let safe = [&clients[0], &clients[1]].map(|client| client.wait_until_still(&servers[0]));
    lab.crash(Host::A).expect("a crashes");
    go_on(&mut cluster, &mut clients, safe, &servers[1]);
}

/// Its client has said more than is kept for a standby that comes later: the new twin
/// is born at a snapshot, which is where the server must not go back from, or is taken
/// there before it counts.
#[test]
fn a_twin_that_is_born_late_stands_where_it_is_safe() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let slow = Manner {
        pace: Duration::from_millis(10),
        ..manner()
    };
    let (mut cluster, mut servers) = eager::start(&lab, slow);
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|at| Roamer::saying(&lab, at, BEYOND_THE_LOG));
    let report = |cluster: &Cluster<'_>, roamer: &Roamer| {
        let flows = cluster.flows(Host::A).ok()?.flows;
        flows.into_iter().find(|flow| flow.flow == roamer.flow)
    };
    for roamer in &roamers {
        until("all is said", || {
            (roamer.said() == BEYOND_THE_LOG).then_some(())
        });
    }
    servers[1].kill().expect("it runs");
    for roamer in &roamers {
        until("it is not protected", || {
            (!report(&cluster, roamer)?.protected).then_some(())
        });
    }
    servers[1] = eager::serve(&lab, &cluster, Host::B, slow);
    wait_in_sync(&mut cluster, Host::A);
    for roamer in &roamers {
        until("it is protected again", || {
            report(&cluster, roamer)?.protected.then_some(())
        });
        until("its server is safe again", || {
            (!is_unsafe(&servers[0].log(), roamer.client)).then_some(())
        });
        roamer.goes_on();
    }
    lab.crash(Host::A).expect("a crashes");
    for roamer in &roamers {
        roamer.goes_on();
        let safe = safe_at(&servers[0].log(), roamer.client);
        let came = came_at(&servers[1].log(), roamer.client);
        assert!(
            safe.is_some() && came >= safe,
            "{came:?}, and {safe:?} was safe"
        );
    }
    for roamer in roamers {
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The former owner's server is the first twin, which can't go on from a commit: the new
/// owner's server hears that its first one is not safe. Then another twin is made.
#[test]
fn what_is_safe_behind_a_move_outlives_its_machine() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, servers) = start(&lab);
    let capture = witness(&lab);
    let roamers = [service_v4(), service_v6()].map(|at| Roamer::saying(&lab, at, LITTLE));
    for roamer in &roamers {
        until("it is safe", || safe_at(&servers[0].log(), roamer.client));
    }
    let report = cluster.hand_over("web", Host::A, Host::B);
    report.unwrap_or_else(|error| panic!("{error:#}"));
    for roamer in &roamers {
        until("the new owner's server is safe", || {
            safe_at(&servers[1].log(), roamer.client)
        });
        roamer.goes_on();
    }
    lab.crash(Host::B).expect("b crashes");
    for roamer in &roamers {
        roamer.goes_on();
        let safe = safe_at(&servers[1].log(), roamer.client);
        let came = came_at(&servers[0].log(), roamer.client);
        assert!(came >= safe, "{came:?}, and {safe:?} was safe");
    }
    for roamer in roamers {
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Less than `reprotect_cap`.
const LITTLE: u64 = 20_000;

/// More than `reprotect_cap`.
const BEYOND_THE_LOG: u64 = 200 << 10;

/// The standby is gone, or does not answer: its server hears of it, and goes on.
#[test]
fn a_server_hears_that_nothing_is_safe() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, servers) = start(&lab);
    let mut client = Deaf::connect(&lab, service_v4());
    let safe = client.wait_until_still(&servers[0]);
    lab.crash(Host::B).expect("b crashes");
    // There is room for more now, and that is to be safe, too.
    client.hears_behind(safe).expect("it goes on");
    until("its server hears of it", || {
        is_unsafe(&servers[0].log(), client.client).then_some(())
    });
    let report = client.report(&cluster, Host::A).expect("it runs");
    assert!(!report.protected, "{report:?}");
    // It is served all the same.
    client.hears(MUCH).expect("it goes on");
}
