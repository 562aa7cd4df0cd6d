//! What takes a minute: connections that are silent for long, then a crash.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::LabOptions;
use godwit_lab::apps::content::Content;
use godwit_lab::apps::{redis, server};
use godwit_lab::capture::Trace;
use godwit_lab::cluster::Service;
use godwit_lab::host::{Host, SERVICE};
use godwit_tests::resp::{expect_message, publish, subscribe};
use godwit_tests::stream::{Download, connect};
use godwit_tests::{Site, lab};
use godwit_wire::{Endpoint, SeqNumber, TcpFlags};

/// How long the client with the zero window does not read before the crash.
const STOPPED: Duration = Duration::from_secs(30);

/// How long it goes on so afterwards: the survivor probes it.
const STOPPED_ON: Duration = Duration::from_secs(3);

/// A multiple of redis's own `tcp-keepalive` of five seconds.
const IDLE: Duration = Duration::from_secs(60);

const SUBSCRIBERS: u64 = 2;

/// Keep-alives of one subscriber in that time, at the very least.
const KEEP_ALIVES: u64 = 8;

/// More than the buffers of both ends can hold.
const LONG: Content = Content {
    seed: 0x51_0e,
    length: 20_000_000,
};

/// An idle subscriber, whose server sends keep-alives, and a client that stays
/// stopped with a zero window, are both there after the crash.
#[test]
fn a_minute_of_keep_alives_and_window_probes_does_no_harm() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [
        redis::start(lab.a(), 6379, 5)?,
        redis::start(lab.b(), 6379, 5)?,
        server::start(lab.a(), 80)?,
        server::start(lab.b(), 80)?,
    ];
    let services = vec![Service::new("web", 80), Service::new("redis", 6379)];
    let site = Site::start_with(&lab, services)?;
    let mut subscribers = Vec::new();
    for address in SERVICE {
        let mut subscriber = connect(lab.client(), (address, 6379).into())?;
        subscribe(&mut subscriber, "news")?;
        subscribers.push(subscriber);
    }
    thread::sleep(IDLE.saturating_sub(STOPPED));
    let mut downloads = Vec::new();
    for address in site.addresses() {
        let stream = connect(lab.client(), address)?;
        downloads.push(Download::ask(stream, LONG)?);
    }
    thread::sleep(STOPPED);
    site.wait_protected(subscribers.len() + downloads.len())?;
    if let Some(cluster) = &site.cluster {
        // The twins' keep-alives and window probes end on their own machine.
        let answered = cluster.status(Host::B)?.counted("probe_answered");
        let least = SUBSCRIBERS * KEEP_ALIVES;
        ensure!(
            answered >= least,
            "{answered} probes of twins were answered"
        );
    }
    site.crash_owner()?;
    site.wait_taken_over()?;
    thread::sleep(STOPPED_ON);
    for download in &mut downloads {
        download.read_to_end().context("the stopped client")?;
    }
    let mut publisher = connect(lab.client(), (SERVICE[0], 6379).into())?;
    publish(&mut publisher, "news", "still-here", 2)?;
    for subscriber in &mut subscribers {
        expect_message(subscriber, "news", "still-here").context("the idle subscriber")?;
    }
    let locals: Vec<_> = subscribers.iter().map(|s| s.local_addr()).collect();
    let trace = site.verify()?;
    for local in locals {
        let (asked, unanswered) = keep_alives(&trace, local?.into());
        ensure!(asked >= KEEP_ALIVES, "{asked} keep-alives in {IDLE:?}");
        // The crash may have come between question and answer.
        ensure!(unanswered <= 1, "{unanswered} of {asked} keep-alives");
    }
    Ok(())
}

/// Keep-alives to one client (RFC 9293 section 3.8.4), and those that it had not
/// answered when the next one came.
fn keep_alives(trace: &Trace, client: Endpoint) -> (u64, u64) {
    let (mut asked, mut unanswered, mut waiting) = (0, 0, false);
    let mut next = None;
    for segment in trace.segments() {
        if segment.from == client {
            waiting = false;
        } else if segment.to == client {
            let end = segment.seq + segment.length;
            let bare = segment.length == 0 && segment.flags == TcpFlags::ACK;
            if bare && next == Some(segment.seq + 1) {
                asked += 1;
                unanswered += u64::from(waiting);
                waiting = true;
            }
            next = Some(next.map_or(end, |next: SeqNumber| next.max(end)));
        }
    }
    (asked, unanswered + u64::from(waiting))
}
