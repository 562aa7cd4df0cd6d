//! One run of the download: half-way, the owner vanishes without a packet.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use godwit_wire::MacAddr;

use super::view::{Progress, View};
use crate::apps::content::Content;
use crate::apps::curl::{self, Patience, Transfer};
use crate::apps::nginx::Nginx;
use crate::capture::ResetCounter;
use crate::cluster::{Cluster, ClusterOptions};
use crate::control::DETECTION;
use crate::host::{Host, Network, SERVICE_V4};
use crate::lab::{Lab, Node};
use crate::links::{Crash, Shape};

/// Name of the file that is downloaded.
pub(super) const FILE: &str = "file";

/// curl gives up after this long without a byte.
const PATIENCE: Patience = Patience(3);

/// How often the download is looked at; bounds how late "half-way" is.
const LOOK: Duration = Duration::from_millis(10);

/// Agents must have found each other by then.
const IN_SYNC: Duration = Duration::from_secs(20);

/// What protects the download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// Godwit, on both servers.
    Godwit,
    /// Nothing but a service address that moves to the survivor.
    MovedAddress,
}

/// How the download ended.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Bytes that curl wrote.
    pub(super) bytes: u64,
    /// True if they are the file, all of it.
    pub(super) exact: bool,
    /// SHA-256 of them, in hexadecimal.
    pub(super) digest: String,
    /// Segments with RST that the client got or sent.
    pub(super) resets: u64,
    /// The longest silence that the client saw from the crash on.
    pub(super) stall: Option<Duration>,
    /// Whether the owner crashed before the end.
    pub(super) crashed: bool,
    /// Who has the service address in the end, as the client sees it.
    pub(super) owner: &'static str,
    /// curl's last words; empty if it was satisfied.
    pub(super) said: String,
}

/// Runs the download in a fresh `lab`, serving the files in `root`.
pub(super) fn run(
    lab: &Lab,
    root: &Path,
    content: Content,
    mbit: u64,
    protection: Protection,
    view: &mut View,
) -> Result<Outcome> {
    lab.shape(Host::Client, Some(Shape::mbit(mbit)))?;
    let _servers = [
        Nginx::start(lab.a(), root, 80)?,
        Nginx::start(lab.b(), root, 80)?,
    ];
    view.event("nginx runs on both servers, a and b")?;
    let mut cluster = None;
    let mut events = None;
    match protection {
        Protection::Godwit => {
            let mut started = Cluster::start(lab, ClusterOptions::default())?;
            started.wait_in_sync(Host::A, IN_SYNC)?;
            events = Some(follow(&started)?);
            cluster = Some(started);
            view.event("godwit: a owns the service, b shadows it")?;
        }
        Protection::MovedAddress => {
            lab.take_service_address(Host::A)?;
            view.event("a has the service address; b will get it when a is gone")?;
        }
    }
    let resets = ResetCounter::start(lab.client())?;
    let url = format!("http://{SERVICE_V4}/{FILE}");
    let mut transfer = curl::download(lab.client(), &url, content, PATIENCE)?;
    view.event(&format!("curl {url}"))?;
    let crash = watch(
        lab,
        &mut transfer,
        content.length,
        protection,
        events.as_ref(),
        view,
    )?;
    let owner = owner_seen_by(lab.client())?;
    let meter = Arc::clone(&transfer.meter);
    let report = transfer.finish(Duration::from_secs(1))?;
    let resets = resets.read()?;
    drop(cluster);
    Ok(Outcome {
        bytes: report.verdict.bytes,
        exact: report.verdict.exact && report.status.success(),
        digest: report.verdict.digest.to_string(),
        resets: resets.received + resets.sent,
        stall: crash
            .and_then(|crash| meter.longest_gap_since(crash.from))
            .map(|gap| gap.length),
        crashed: crash.is_some(),
        owner,
        said: report.said,
    })
}

/// Shows the download until curl ends, and lets the owner die half-way.
fn watch(
    lab: &Lab,
    transfer: &mut Transfer,
    total: u64,
    protection: Protection,
    events: Option<&Receiver<String>>,
    view: &mut View,
) -> Result<Option<Crash>> {
    let mut crash = None;
    let mut owner = owner_seen_by(lab.client())?;
    let mut silence_said = false;
    while transfer.is_running() {
        let bytes = transfer.meter.bytes();
        if crash.is_none() && bytes >= total / 2 {
            crash = Some(match protection {
                Protection::Godwit => lab.crash(Host::A)?,
                Protection::MovedAddress => {
                    lab.crash_and_move_address(Host::A, Host::B, DETECTION)?
                }
            });
            view.event("a is dark: link cut, processes killed, not a packet sent")?;
        }
        let now = owner_seen_by(lab.client())?;
        if now != owner {
            owner = now;
            view.event(&format!("the client finds the service at {owner}"))?;
        }
        for line in events.into_iter().flat_map(Receiver::try_iter) {
            view.event(&format!("godwit on b: {line}"))?;
        }
        let silent = transfer
            .meter
            .last()
            .map_or(Duration::ZERO, |last| last.elapsed());
        if silent > Duration::from_secs(1) && !silence_said {
            silence_said = true;
            view.event("not a byte for one second")?;
        }
        view.progress(Progress {
            bytes,
            total,
            owner,
        })?;
        thread::sleep(LOOK);
    }
    Ok(crash)
}

/// The lines of `godwit events --follow` on b, until the receiver is dropped.
fn follow(cluster: &Cluster<'_>) -> Result<Receiver<String>> {
    let (mut process, output) = cluster.follow_events(Host::B)?;
    let (sender, receiver) = mpsc::channel();
    let read = move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        // Whatever ended it, the process goes with its reader.
        let _ = process.kill();
    };
    thread::Builder::new()
        .name("events".to_owned())
        .spawn(read)
        .context("starting a thread")?;
    Ok(receiver)
}

/// Name of the server that the client's ARP table has for the service address.
fn owner_seen_by(client: &Node) -> Result<&'static str> {
    // `self` would be the main thread, which is in another namespace.
    let table = client.enter(|| fs::read_to_string("/proc/thread-self/net/arp"))?;
    let table = table.context("reading the client's ARP table")?;
    Ok(owner_in(&table, SERVICE_V4))
}

/// Columns: address, hardware type, flags, hardware address, mask, device.
fn owner_in(table: &str, service: Ipv4Addr) -> &'static str {
    let wanted = service.to_string();
    let mut rows = table.lines().map(|line| line.split_whitespace());
    let row = rows.find_map(|mut row| (row.next()? == wanted).then_some(row));
    let mac = row.and_then(|mut row| row.nth(2));
    let is = |host: &Host| {
        let address: MacAddr = host.mac(Network::Data);
        mac == Some(address.to_string().as_str())
    };
    Host::SERVERS
        .iter()
        .find(|host| is(host))
        .map_or("?", |host| host.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_the_server_with_the_mac_in_the_table() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device
10.9.0.11        0x1         0x2         02:00:00:00:00:11     *        eth0
10.9.0.100       0x1         0x2         02:00:00:00:00:12     *        eth0
";
        assert_eq!(owner_in(table, SERVICE_V4), "b");
        assert_eq!(owner_in(table, Ipv4Addr::new(10, 9, 0, 11)), "a");
        assert_eq!(owner_in("", SERVICE_V4), "?");
    }
}
