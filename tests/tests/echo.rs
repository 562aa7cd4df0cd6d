//! Many connections at once to an echo server and a bulk sender, over a crash.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use godwit_lab::LabOptions;
use godwit_lab::apps::client::{Client, Rounds};
use godwit_lab::apps::content::Content;
use godwit_lab::apps::server;
use godwit_lab::host::Host;
use godwit_lab::links::Shape;
use godwit_lab::meter::Meter;
use godwit_tests::stream::expect_no_stall;
use godwit_tests::{DEADLINE, Site, lab, until};

/// Connections of each test, half of them over IPv6.
const CONNECTIONS: usize = 8;

/// Connections of the bulk test: a quarter for each direction and family.
const BULK: usize = 64;

/// Bytes of each.
const BULK_LENGTH: u64 = 768 * 1024;

/// What every `echo` connection does: two seconds of small exchanges.
const ROUNDS: Rounds = Rounds {
    count: 200,
    request: 150,
    reply: None,
    pause: Duration::from_millis(10),
};

/// What one connection does with its client.
type Work = fn(&mut Client, u64, &Meter) -> Result<()>;

/// Echo sessions, half of them over IPv6, go on over a crash of the server.
#[test]
fn echo_sessions_do_not_notice_that_their_server_died() -> Result<()> {
    let work: Work = |client, _, meter| client.exchange(ROUNDS, meter).map(drop);
    cross_a_crash(CONNECTIONS, 30 * ROUNDS.request as u64, None, |_| work)
}

/// Of 64 connections that are busy in both directions none loses a byte.
#[test]
fn sixty_four_busy_connections_outlive_their_server() -> Result<()> {
    let up: Work = |client, seed, meter| client.put(content(seed), meter);
    let down: Work = |client, seed, meter| {
        let verdict = client.get(content(seed), meter)?;
        anyhow::ensure!(verdict.exact, "{verdict:?}");
        Ok(())
    };
    // A queue for all windows at once: no loss but that of the crash.
    let shape = Some(Shape {
        queue: Duration::from_millis(100),
        ..Shape::mbit(200)
    });
    cross_a_crash(BULK, BULK_LENGTH / 8, shape, |n| {
        if n % 4 < 2 { up } else { down }
    })
}

const fn content(seed: u64) -> Content {
    Content {
        seed,
        length: BULK_LENGTH,
    }
}

/// Runs `work` over `count` connections; the owner crashes when all of them
/// together have made `progress` bytes each.
fn cross_a_crash(
    count: usize,
    progress: u64,
    shape: Option<Shape>,
    work: impl Fn(usize) -> Work,
) -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    lab.shape(Host::Client, shape)?;
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    let addresses = site.addresses();
    let connect = |address: SocketAddr| Client::connect(address, DEADLINE);
    let mut clients = Vec::new();
    for number in 0..count {
        let address = addresses[number % 2];
        clients.push((lab.client().enter(|| connect(address))??, work(number)));
    }
    site.wait_protected(count)?;
    let meters = (0..count).map(|_| Meter::default()).collect::<Vec<_>>();
    let crash = thread::scope(|scope| {
        let workers = clients.iter_mut().zip(&meters).enumerate();
        let workers = workers.map(|(number, ((client, work), meter))| {
            let work = *work;
            scope.spawn(move || work(client, number as u64, meter))
        });
        let workers = workers.collect::<Vec<_>>();
        until("the connections to be busy", || {
            let done = workers.iter().all(|worker| !worker.is_finished());
            let sum = meters.iter().map(Meter::bytes).sum::<u64>();
            Ok(!done || sum >= progress * count as u64)
        })?;
        site.wait_protected(count)?;
        let crash = site.crash_owner()?;
        for (number, worker) in workers.into_iter().enumerate() {
            let outcome = worker.join().map_err(|_| anyhow!("a client panicked"))?;
            outcome.with_context(|| format!("connection {number}"))?;
        }
        anyhow::Ok(crash)
    })?;
    for (number, meter) in meters.iter().enumerate() {
        expect_no_stall(meter, crash.from).with_context(|| format!("connection {number}"))?;
    }
    site.verify().map(drop)
}
