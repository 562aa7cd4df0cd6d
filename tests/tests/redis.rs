//! An unmodified redis over a crash of its server.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use godwit_lab::apps::redis;
use godwit_lab::host::Host;
use godwit_lab::meter::Meter;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::resp::{bulk, expect_message, publish, subscribe};
use godwit_tests::stage::tcp_counter;
use godwit_tests::stream::{connect, expect, expect_no_stall, send};
use godwit_tests::{DEADLINE, Site, lab, until};

const PORT: u16 = 6379;

/// Rounds of the tests, and their pause: a second and a half in all.
const ROUNDS: u64 = 300;
const PAUSE: Duration = Duration::from_millis(5);

/// Commands of each kind that are sent before the first reply is read.
const PIPELINE: u64 = 50;

#[test]
fn pipelined_commands_outlive_their_server() -> Result<()> {
    pipelined_commands_cross(0)
}

#[test]
fn pipelined_commands_outlive_their_server_v6() -> Result<()> {
    pipelined_commands_cross(1)
}

/// A pipeline of SET and GET over one connection gets every reply, each once,
/// and the survivor has all that was ever set.
fn pipelined_commands_cross(family: usize) -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = servers(&lab, 0)?;
    let site = Site::start(&lab, PORT)?;
    let address = site.addresses()[family];
    let mut stream = connect(lab.client(), address)?;
    let work = |round: u64| {
        let (mut commands, mut replies) = (String::new(), String::new());
        for number in round * PIPELINE..(round + 1) * PIPELINE {
            let value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_string();
            write!(
                commands,
                "SET k{number} {value}\r\nGET k{number}\r\nINCR n\r\n"
            )?;
            write!(replies, "+OK\r\n{}:{}\r\n", bulk(&value), number + 1)?;
        }
        send(&mut stream, commands)?;
        expect(&mut stream, replies)
    };
    cross(&site, 1, work)?;
    // INCR ran once for each command, on the survivor too.
    let count = ROUNDS * PIPELINE;
    let size = redis::cli(lab.client(), address, &["DBSIZE"], DEADLINE)?;
    anyhow::ensure!(size.stdout.trim() == (count + 1).to_string(), "{size:?}");
    site.verify().map(drop)
}

/// A subscriber gets each message once and in order, whichever server it came
/// from; publisher and subscriber use different families.
#[test]
fn a_subscriber_misses_nothing() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = servers(&lab, 0)?;
    let site = Site::start(&lab, PORT)?;
    let [v4, v6] = site.addresses();
    let mut subscriber = connect(lab.client(), v6)?;
    subscribe(&mut subscriber, "news")?;
    // Order between connections is the application's: the twin must have seen
    // the subscription before the first message.
    site.wait_caught_up()?;
    let mut publisher = connect(lab.client(), v4)?;
    let work = |round: u64| {
        let text = format!("message-{round}");
        publish(&mut publisher, "news", &text, 1)?;
        expect_message(&mut subscriber, "news", &text)
    };
    cross(&site, 2, work)?;
    site.verify().map(drop)
}

/// A client that was silent when its owner died is not probed: a message for it
/// leaves all the same when it is there, not after the kernel's persist timer.
#[test]
fn a_push_to_an_idle_client_waits_for_no_timer() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = servers(&lab, 0)?;
    let site = Site::start(&lab, PORT)?;
    let mut subscribers = Vec::new();
    for address in site.addresses().into_iter().cycle().take(SUBSCRIBERS) {
        let mut subscriber = connect(lab.client(), address)?;
        subscribe(&mut subscriber, "news")?;
        subscribers.push(subscriber);
    }
    site.wait_protected(SUBSCRIBERS)?;
    thread::sleep(IDLE);
    site.crash_owner()?;
    site.wait_taken_over()?;
    thread::sleep(ALL_TOLD);
    let probes = || tcp_counter(&lab, Host::B, "TCPWinProbe");
    let before = probes();
    let mut publisher = connect(lab.client(), site.addresses()[0])?;
    let count = u32::try_from(SUBSCRIBERS)?;
    publish(&mut publisher, "news", "still-here", count)?;
    for subscriber in &mut subscribers {
        expect_message(subscriber, "news", "still-here")?;
    }
    let probes = probes() - before;
    anyhow::ensure!(probes == 0, "{probes} windows were probed first");
    site.verify().map(drop)
}

const SUBSCRIBERS: usize = 8;

/// For the survivor to tell its twins that they serve now, which takes it a few
/// milliseconds and shows nowhere.
const ALL_TOLD: Duration = Duration::from_millis(300);

/// Longer than a client may be silent to be probed after a takeover.
const IDLE: Duration = Duration::from_millis(2500);

fn servers(lab: &Lab, keepalive: u32) -> Result<[Process; 2]> {
    Ok([
        redis::start(lab.a(), PORT, keepalive)?,
        redis::start(lab.b(), PORT, keepalive)?,
    ])
}

/// Works round for round; the owner crashes when a third of them are done.
fn cross(
    site: &Site<'_>,
    connections: usize,
    mut work: impl FnMut(u64) -> Result<()> + Send,
) -> Result<()> {
    let meter = Meter::default();
    let crash = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for round in 0..ROUNDS {
                work(round).with_context(|| format!("round {round}"))?;
                meter.record(1);
                thread::sleep(PAUSE);
            }
            anyhow::Ok(())
        });
        until("a third of the rounds", || {
            Ok(worker.is_finished() || meter.bytes() >= ROUNDS / 3)
        })?;
        site.wait_protected(connections)?;
        let crash = site.crash_owner()?;
        worker
            .join()
            .map_err(|_| anyhow!("the client panicked"))??;
        anyhow::Ok(crash)
    })?;
    expect_no_stall(&meter, crash.from)
}
