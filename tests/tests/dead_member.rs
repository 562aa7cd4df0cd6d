//! A machine dies and stays dead for a minute: nobody may wait for it.
//!
//! What is said to a dead neighbour waits in the kernel, three seconds at a time, until
//! its link-layer address is given up. When heartbeats to all peers left by one socket,
//! that held up those to the witness, and the survivor lost its lease in every round.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::cells::BACKENDS;
use godwit_tests::ring::{Ring, next, of, on_ring, own};
use godwit_tests::stage::{in_sync, stage, wait_protected};
use godwit_tests::stream::connect;
use godwit_tests::vigil::{Vigil, Vigils};

/// How long it stays dead.
const DEAD: Duration = Duration::from_secs(60);

/// A takeover is over by then.
const OVER: Duration = Duration::from_secs(1);

/// A wait that a person notices; a stall of the fault above was six times as long.
const LONG: Duration = Duration::from_millis(100);

/// No machine that runs tests excuses more.
const TOO_LONG: Duration = Duration::from_millis(400);

/// A machine may disturb one client and not the control. The fault above came twenty
/// times a minute.
const EXCUSED: usize = 3;

/// How often each client asks.
const ECHO: Duration = Duration::from_millis(20);

/// As [`ECHO`]: nginx closes a connection after a thousand requests.
const REQUEST: Duration = Duration::from_millis(100);

/// Of the server that nobody protects.
const CONTROL: u16 = 81;

fn judge(vigils: Vigils, crash: Instant) -> Result<()> {
    let since = crash + OVER;
    thread::sleep(DEAD.saturating_sub(crash.elapsed()));
    let verdict = vigils.judge(since, LONG)?;
    println!("{verdict}");
    let worst = verdict.unexplained.iter().map(|(_, _, length)| *length);
    let worst = worst.max().unwrap_or_default();
    ensure!(verdict.unexplained.len() <= EXCUSED, "{verdict}");
    ensure!(worst < TOO_LONG, "{verdict}");
    Ok(())
}

/// A client of a server on `host` that is no service.
fn control(lab: &Lab, host: Host) -> Result<(Process, Vigil)> {
    let server = server::start(lab.node(host), CONTROL)?;
    let stream = connect(lab.client(), (host.v4(), CONTROL).into())?;
    Ok((server, Vigil::echo("control", ECHO, stream)?))
}

/// The owner of a pair dies.
fn pair(fencing: Fencing, control_network: bool) -> Result<()> {
    let options = LabOptions {
        control_network,
        witness: fencing == Fencing::Lease,
        ..LabOptions::default()
    };
    let Some(lab) = stage(options) else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let options = ClusterOptions {
        fencing,
        ..ClusterOptions::default()
    };
    let cluster: Cluster<'_> = in_sync(&lab, options);
    let (_server, control) = control(&lab, Host::B)?;
    let mut clients = Vec::new();
    for address in SERVICE {
        let stream = connect(lab.client(), (address, 80).into())?;
        let local = stream.local_addr()?;
        clients.push(Vigil::echo(&address.to_string(), ECHO, stream)?);
        wait_protected(&cluster, Host::A, local);
    }
    let vigils = Vigils::new(control, clients);
    let crash = Instant::now();
    lab.crash(Host::A)?;
    judge(vigils, crash)
}

#[test]
fn a_dead_member_of_a_pair_with_a_witness_holds_nobody_up() -> Result<()> {
    // On one network with the clients, as small clusters have it.
    pair(Fencing::Lease, false)
}

#[test]
fn a_dead_member_of_a_pair_of_two_voters_holds_nobody_up() -> Result<()> {
    pair(Fencing::None, true)
}

/// Six clients, two of each server; one of these dies.
fn ring(ring: &mut Ring<'_>) -> Result<()> {
    let (_server, control) = control(ring.lab, Host::A)?;
    let mut clients = Vec::new();
    for host in BACKENDS {
        for mut client in ring.clients_of(host) {
            ring.wait_protected(host, &client);
            let name = format!("{host}'s {}", client.local());
            clients.push(Vigil::start(&name, REQUEST, move || {
                let by = client.served("/d/name");
                ensure!(["a", "b", "c"].contains(&&*by), "served by {by}");
                Ok(())
            }));
        }
    }
    let vigils = Vigils::new(control, clients);
    let crash = Instant::now();
    ring.lab.crash(Host::B).context("b dies")?;
    judge(vigils, crash)?;
    let taker = next(Host::B);
    ring.wait_owner(taker, &of(Host::B), None);
    ring.wait_owner(taker, &own(), Some(next(taker)));
    Ok(())
}

#[test]
fn a_dead_member_of_a_ring_holds_nobody_up() {
    on_ring(Fencing::Lease, "", |site| ring(site).expect("nobody waits"));
}
