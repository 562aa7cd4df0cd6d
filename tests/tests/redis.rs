//! An unmodified redis over a crash of its server.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use godwit_lab::apps::redis;
use godwit_lab::meter::Meter;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::resp::{bulk, expect_message, publish, subscribe};
use godwit_tests::stream::{connect, expect, expect_no_stall, send};
use godwit_tests::{DEADLINE, Site, lab, until};

const PORT: u16 = 6379;

/// Rounds of the tests, and their pause: a second and a half in all.
const ROUNDS: u64 = 300;
const PAUSE: Duration = Duration::from_millis(5);

/// Commands of each kind that are sent before the first reply is read.
const PIPELINE: u64 = 50;

/// A pipeline of SET and GET over one connection gets every reply, each once,
/// and the survivor has all that was ever set.
#[test]
fn pipelined_commands_outlive_their_server() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = servers(&lab, 0)?;
    let site = Site::start(&lab, PORT)?;
    let [address, _] = site.addresses();
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
