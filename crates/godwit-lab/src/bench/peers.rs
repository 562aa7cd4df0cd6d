//! The same failure for keepalived with haproxy and for Godwit, in turn: the
//! owner's power fails under a download, an upload and an echo session, while a
//! new connection is tried every ten milliseconds.
//!
//! keepalived moves the address (VRRP version 3, an advertisement every 100 ms,
//! which is fast for a machine that is shared), haproxy on each machine serves it
//! from a server beside it. Both are Debian's; without them there are no figures.

use std::fs;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::budget::Budget;
use super::pair::{PORT, Pair};
use super::report::Report;
use super::stats::Samples;
use super::stream::{Stream, Work, connect};
use crate::apps::client::Rounds;
use crate::apps::server;
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions, which};
use crate::links::{Crash, Death, Shape};
use crate::meter::Meter;
use crate::process::Process;

/// Rate of the client's link, megabits per second.
const MBIT: u64 = 200;

/// They run for some hundred milliseconds, until the failure and beyond.
const WORKS: [Work; 3] = [
    Work::Download(8_000_000),
    Work::Upload(8_000_000),
    Work::Echo(200),
];

/// Where haproxy finds the server beside it.
const BACK_END: u16 = 8081;

/// How long the streams run before the failure.
const BEFORE: Duration = Duration::from_millis(100);

/// Time between two attempts to connect, and how long each may take.
const ATTEMPT: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(1);

/// How long new connections are tried after the failure, at most.
const OUTAGE: Duration = Duration::from_secs(5);

/// keepalived must have moved the address to one of the two by then.
const SERVED: Duration = Duration::from_secs(10);

/// What one run of each takes, less what a quick benchmark has in hand.
const RUN: Duration = Duration::from_secs(9);

/// What the runs of one side gave.
#[derive(Debug, Default)]
struct Seen {
    broken: Samples,
    new: Samples,
}

/// `peers.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    ensure!(
        which("keepalived").is_some() && which("haproxy").is_some(),
        "keepalived and haproxy are not installed (Debian packages of these names)"
    );
    let (mut theirs, mut ours) = (Seen::default(), Seen::default());
    for run in budget.runs(10, 1, RUN) {
        keepalived(&mut theirs, u64::from(run))?;
        godwit(&mut ours, u64::from(run))?;
    }
    for (name, seen) in [("keepalived", &theirs), ("godwit", &ours)] {
        report.put_p50(&format!("peers.{name}.broken"), &seen.broken)?;
        report.put_p50(&format!("peers.{name}.new.p50"), &seen.new)?;
    }
    Ok(())
}

fn godwit(seen: &mut Seen, seed: u64) -> Result<()> {
    let lab = Lab::new(LabOptions {
        witness: true,
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut pair = Pair::start(&lab, options)?;
    seen.fail(&lab, seed, || pair.crash_owner(Death::Power))
}

fn keepalived(seen: &mut Seen, seed: u64) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    lab.shape(Host::Client, Some(Shape::mbit(MBIT)))?;
    let mut running = Vec::new();
    // The one that starts first has the address first, and keeps it.
    for (host, priority) in Host::SERVERS.into_iter().zip([150, 100]) {
        running.extend(start(&lab, host, priority)?);
        let end = Instant::now() + SERVED;
        while exchange(&lab).is_err() {
            ensure!(Instant::now() < end, "keepalived does not serve");
            thread::sleep(ATTEMPT);
        }
    }
    seen.fail(&lab, seed, || lab.crash(Host::A))
}

/// Server, haproxy and keepalived of one machine.
fn start(lab: &Lab, host: Host, priority: u8) -> Result<[Process; 3]> {
    let node = lab.node(host);
    let folder = node.folder()?;
    // haproxy may listen at the address before it is there.
    let balancer = folder.join("haproxy.cfg");
    let text = format!(
        "defaults\n mode tcp\n timeout connect 1s\n timeout client 60s\n timeout server 60s\n\
         listen web\n bind {SERVICE_V4}:{PORT} transparent\n server local 127.0.0.1:{BACK_END}\n"
    );
    fs::write(&balancer, text).context("writing haproxy.cfg")?;
    let router = folder.join("keepalived.conf");
    let text = format!(
        "global_defs {{\n router_id {host}\n vrrp_version 3\n}}\nvrrp_instance web {{\n \
         state BACKUP\n interface eth0\n virtual_router_id 51\n priority {priority}\n nopreempt\n \
         advert_int 0.1\n virtual_ipaddress {{\n {SERVICE_V4}/32 dev eth0\n }}\n}}\n"
    );
    fs::write(&router, text).context("writing keepalived.conf")?;
    let backend = server::start(node, BACK_END)?;
    let mut haproxy = Command::new(which("haproxy").context("it was there")?);
    haproxy.arg("-db").arg("-f").arg(&balancer);
    let mut keepalived = Command::new(which("keepalived").context("it was there")?);
    keepalived.args(["--dont-fork", "--log-console", "--vrrp"]);
    keepalived.arg("--use-file").arg(&router);
    keepalived.arg("--pid").arg(folder.join("keepalived.pid"));
    keepalived.arg("--vrrp_pid").arg(folder.join("vrrp.pid"));
    Ok([
        backend,
        node.spawn("haproxy", haproxy)?,
        node.spawn("keepalived", keepalived)?,
    ])
}

impl Seen {
    /// One failure.
    fn fail(&mut self, lab: &Lab, seed: u64, crash: impl FnOnce() -> Result<Crash>) -> Result<()> {
        let mut streams = Vec::new();
        for work in WORKS {
            streams.push(Stream::start(lab, work, seed)?);
        }
        streams.iter().try_for_each(Stream::wait_begun)?;
        thread::sleep(BEFORE);
        let crash = crash()?;
        self.new.push_ms(outage(lab, crash.until)?);
        let ended = streams.into_iter().map(|stream| stream.finish(crash.from));
        let broken = ended.filter(Result::is_err).count();
        self.broken.push(f64::from(u32::try_from(broken)?));
        Ok(())
    }
}

/// From the failure until a new connection has exchanged something.
fn outage(lab: &Lab, since: Instant) -> Result<Duration> {
    let (tell, told) = mpsc::channel();
    while since.elapsed() < OUTAGE {
        let (client, tell) = (lab.client().clone(), tell.clone());
        let attempt = move || {
            if client.enter(exchange_here).is_ok_and(|done| done.is_ok()) {
                // Only the first is waited for.
                let _ = tell.send(Instant::now());
            }
        };
        let builder = thread::Builder::new().name("attempt".to_owned());
        builder.spawn(attempt).context("starting a thread")?;
        if let Ok(at) = told.recv_timeout(ATTEMPT) {
            return Ok(at.saturating_duration_since(since));
        }
    }
    Ok(OUTAGE)
}

fn exchange(lab: &Lab) -> Result<()> {
    lab.client().enter(exchange_here)?
}

fn exchange_here() -> Result<()> {
    let once = Rounds {
        count: 1,
        request: 150,
        reply: None,
        pause: Duration::ZERO,
    };
    let mut client = connect(PATIENCE)?;
    client.exchange(once, &Meter::default()).map(drop)
}
