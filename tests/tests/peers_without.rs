//! Clients whose kernels lack an option, or have one more: all cross one crash.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use godwit_lab::apps::client::Client;
use godwit_lab::apps::content::Content;
use godwit_lab::apps::server;
use godwit_lab::host::Host;
use godwit_lab::links::Shape;
use godwit_lab::meter::Meter;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stream::expect_no_stall;
use godwit_tests::{DEADLINE, Site, lab, until};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;

const CONTENT: Content = Content {
    seed: 0xbee5,
    length: 6_000_000,
};

/// What Linux has unless told otherwise. The host's own default may be bbr, which
/// takes losses for a policer's and then sends at one low rate for 48 round trips:
/// three seconds here.
const CONGESTION: &str = "cubic";

/// Of the client's kernel. Without SACK each lost segment costs a round trip, so
/// all that the twenty connections have under way fits into the queue; and a
/// writer is woken when a third of its buffer is free, whatever the rate.
const SETTINGS: [(&str, &str); 2] = [
    ("ipv4.tcp_wmem", "4096 16384 65536"),
    ("ipv4.tcp_rmem", "4096 65536 131072"),
];

/// How the client's kernel is set for one group of connections.
struct Peer {
    name: &'static str,
    /// Settings below `net.ipv4` while they connect, and what they are else.
    settings: &'static [(&'static str, &'static str, &'static str)],
    /// Highest MSS to announce, IPv4 and IPv6.
    mss: Option<[u16; 2]>,
    /// Whether `ss -i` is right about one of its connections.
    shown: fn(&[&str]) -> bool,
}

const PEERS: [Peer; 5] = [
    Peer {
        name: "without time stamps",
        settings: &[("tcp_timestamps", "0", "1")],
        mss: None,
        shown: |words| !words.contains(&"ts"),
    },
    Peer {
        name: "without SACK",
        settings: &[("tcp_sack", "0", "1")],
        mss: None,
        shown: |words| !words.contains(&"sack"),
    },
    Peer {
        name: "without window scaling",
        settings: &[("tcp_window_scaling", "0", "1")],
        mss: None,
        shown: |words| !words.iter().any(|word| word.starts_with("wscale")),
    },
    Peer {
        name: "with ECN",
        settings: &[("tcp_ecn", "1", "2")],
        mss: None,
        shown: |words| words.contains(&"ecn"),
    },
    Peer {
        // The least that IPv6 knows is 1220: its MTU is never below 1280.
        name: "with a small MSS, and none of the others",
        settings: &[
            ("tcp_timestamps", "0", "1"),
            ("tcp_sack", "0", "1"),
            ("tcp_window_scaling", "0", "1"),
        ],
        mss: Some([536, 1220]),
        shown: |words| words.contains(&"advmss:536") || words.contains(&"advmss:1220"),
    },
];

/// One connection of a peer.
struct Connection {
    name: String,
    client: Client,
    upload: bool,
    meter: Meter,
}

/// A download and an upload in both families by each kind of peer cross one
/// crash, and each connection was what it was meant to be.
#[test]
fn clients_with_fewer_options_outlive_their_server_too() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let serve = |node| server::start_with_congestion(node, 80, CONGESTION);
    let _servers = [serve(lab.a())?, serve(lab.b())?];
    for (key, value) in SETTINGS {
        lab.client().netns().sysctl(key, value)?;
    }
    // A queue for all windows at once: no loss but that of the crash.
    let shape = Shape {
        queue: Duration::from_millis(100),
        ..Shape::mbit(150)
    };
    lab.shape(Host::Client, Some(shape))?;
    let site = Site::start(&lab, 80)?;
    let mut connections = Vec::new();
    for peer in &PEERS {
        connect(&lab, &site, peer, &mut connections).context(peer.name)?;
    }
    site.wait_protected(connections.len())?;
    let crash = thread::scope(|scope| {
        let mut workers = Vec::new();
        let mut meters = Vec::new();
        for Connection {
            name,
            client,
            upload,
            meter,
        } in &mut connections
        {
            meters.push(&*meter);
            let (name, upload, meter) = (&*name, *upload, &*meter);
            let worker = scope.spawn(move || transfer(client, upload, meter).context(name.clone()));
            workers.push(worker);
        }
        // Early: no flow may be over when the slowest has begun.
        until("the transfers to be under way", || {
            let ended = workers.iter().any(|worker| worker.is_finished());
            Ok(ended || meters.iter().all(|m| m.bytes() > CONTENT.length / 16))
        })?;
        site.wait_protected(workers.len())?;
        let crash = site.crash_owner()?;
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        anyhow::Ok(crash)
    })?;
    for Connection { name, meter, .. } in &connections {
        expect_no_stall(meter, crash.from).with_context(|| name.clone())?;
    }
    site.verify().map(drop)
}

/// Opens the connections of one peer and has a look at them.
fn connect(
    lab: &Lab,
    site: &Site<'_>,
    peer: &Peer,
    connections: &mut Vec<Connection>,
) -> Result<()> {
    let netns = lab.client().netns();
    for (key, value, _) in peer.settings {
        netns.sysctl(&format!("ipv4.{key}"), value)?;
    }
    set_mss(lab, peer.mss)?;
    for address in site.addresses() {
        for upload in [false, true] {
            let dial = || Client::connect(address, DEADLINE);
            let client = lab.client().enter(dial)??;
            let congestion = OsString::from(CONGESTION);
            setsockopt(client.stream(), TcpCongestion, &congestion)?;
            let local = client.stream().local_addr()?;
            let words = shown(lab, local)?;
            let words = words.split_whitespace().collect::<Vec<_>>();
            ensure!((peer.shown)(&words), "{local} is {words:?}");
            let direction = if upload { "up" } else { "down" };
            connections.push(Connection {
                name: format!("{address} {direction}, {}, {local}", peer.name),
                client,
                upload,
                meter: Meter::default(),
            });
        }
    }
    for (key, _, value) in peer.settings {
        netns.sysctl(&format!("ipv4.{key}"), value)?;
    }
    set_mss(lab, None)
}

fn transfer(client: &mut Client, upload: bool, meter: &Meter) -> Result<()> {
    if upload {
        return client.put(CONTENT, meter);
    }
    let verdict = client.get(CONTENT, meter)?;
    ensure!(verdict.exact, "{verdict:?}");
    Ok(())
}

/// What `ss -oi` says of the client's connection at `local`.
fn shown(lab: &Lab, local: SocketAddr) -> Result<String> {
    let mut command = Command::new("ss");
    command.args(["-HtnoiO", "sport", "=", &format!(":{}", local.port())]);
    let output = lab.client().run(command, DEADLINE)?;
    ensure!(output.status.success(), "ss: {}", output.stderr);
    Ok(output.stdout)
}

/// Sets the MSS that the client announces on its network; 0 is the default.
fn set_mss(lab: &Lab, mss: Option<[u16; 2]>) -> Result<()> {
    let networks = ["10.9.0.0/24", "2001:db8:9::/64"];
    for (network, mss) in networks.into_iter().zip(mss.unwrap_or_default()) {
        let mut command = Command::new("ip");
        command.args(["route", "change", network, "dev", "eth0"]);
        command.args(["proto", "kernel", "advmss", &mss.to_string()]);
        if network.contains(':') {
            command.args(["metric", "256"]);
        } else {
            let address = Host::Client.v4().to_string();
            command.args(["scope", "link", "src", &address]);
        }
        let output = lab.client().run(command, DEADLINE)?;
        ensure!(output.status.success(), "ip: {}", output.stderr);
    }
    Ok(())
}
