//! One run of the download: half-way the owner vanishes without a packet, or
//! the service is moved about all the time.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use godwit_wire::MacAddr;

use super::gate::Gate;
use super::view::{Progress, View};
use crate::apps::content::Content;
use crate::apps::curl::{self, Patience, Transfer};
use crate::apps::nginx::Nginx;
use crate::capture::ResetCounter;
use crate::cluster::{Cluster, ClusterOptions};
use crate::control::DETECTION;
use crate::host::{Host, Network, SERVICE_V4};
use crate::lab::{Lab, Node};
use crate::links::Shape;

/// Name of the file that is downloaded.
pub(super) const FILE: &str = "file";

/// curl gives up after this long without a byte.
const PATIENCE: Patience = Patience(3);

/// How often the download is looked at; bounds how late "half-way" is.
const LOOK: Duration = Duration::from_millis(10);

/// After a move that was refused.
pub(super) const AGAIN: Duration = Duration::from_millis(200);

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

/// What happens to the server meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Half-way, the owner dies.
    Crash,
    /// The service is moved so often, as planned; without Godwit its address is,
    /// once.
    Moves(usize),
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
    /// Connections that the client opened.
    pub(super) handshakes: u64,
    /// Whether the owner crashed, or the address was moved, before the end.
    pub(super) struck: bool,
    /// Planned moves that were carried out.
    pub(super) moves: usize,
    /// Who has the service address in the end, as the client sees it.
    pub(super) owner: &'static str,
    /// curl's last words; empty if it was satisfied.
    pub(super) said: String,
}

impl Outcome {
    /// The longest silence in milliseconds, to a tenth.
    pub(super) fn stall_ms(&self) -> f64 {
        let stall = self.stall.map_or(0.0, |stall| stall.as_secs_f64() * 1e3);
        (stall * 10.0).round() / 10.0
    }
}

/// Runs the download in a fresh `lab`, serving the files in `root`.
pub(super) fn run(
    lab: &Lab,
    root: &Path,
    content: Content,
    mbit: u64,
    (protection, trouble): (Protection, Trouble),
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
            let mut started = Cluster::start(lab, ClusterOptions::unfenced())?;
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
    let mut play = Play {
        lab,
        cluster: cluster.as_ref(),
        trouble,
        total: content.length,
        struck: None,
        moves: 0,
        gate: Gate::default(),
        refused: None,
    };
    play.watch(&mut transfer, events.as_ref(), view)?;
    let (struck, moves) = (play.struck, play.moves);
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
        handshakes: resets.opened,
        stall: struck
            .and_then(|from| meter.longest_gap_since(from))
            .map(|gap| gap.length),
        struck: struck.is_some(),
        moves,
        owner,
        said: report.said,
    })
}

/// One download under way.
struct Play<'a> {
    lab: &'a Lab,
    /// `None` without Godwit.
    cluster: Option<&'a Cluster<'a>>,
    trouble: Trouble,
    total: u64,
    /// When it first happened.
    struck: Option<Instant>,
    moves: usize,
    gate: Gate,
    /// When a move last was.
    refused: Option<Instant>,
}

impl Play<'_> {
    /// Shows the download until curl ends, and has the trouble happen.
    fn watch(
        &mut self,
        transfer: &mut Transfer,
        events: Option<&Receiver<String>>,
        view: &mut View,
    ) -> Result<()> {
        let mut owner = owner_seen_by(self.lab.client())?;
        let mut silence_said = false;
        while transfer.is_running() {
            let bytes = transfer.meter.bytes();
            self.strike(bytes, view)?;
            let now = owner_seen_by(self.lab.client())?;
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
                total: self.total,
                owner,
            })?;
            thread::sleep(LOOK);
        }
        self.gate.close(view)?;
        Ok(())
    }

    fn strike(&mut self, bytes: u64, view: &mut View) -> Result<()> {
        let half = bytes >= self.total / 2 && self.struck.is_none();
        match (self.trouble, self.cluster) {
            (Trouble::Crash, cluster @ Some(_)) if half => {
                if !self.gate.is_open(cluster, Host::A, view)? {
                    return Ok(());
                }
                self.struck = Some(self.lab.crash(Host::A)?.from);
                view.event("a is dark: link cut, processes killed, not a packet sent")?;
            }
            (Trouble::Crash, None) if half => {
                let crash = self
                    .lab
                    .crash_and_move_address(Host::A, Host::B, DETECTION)?;
                self.struck = Some(crash.from);
                view.event("a is dark: link cut, processes killed, not a packet sent")?;
            }
            (Trouble::Moves(_), None) if half => {
                self.struck = Some(Instant::now());
                self.lab.take_service_address(Host::B)?;
                view.event("b has the service address now")?;
            }
            (Trouble::Moves(count), Some(cluster)) if self.moves < count => {
                let share = self.total / (count as u64 + 1);
                let may_try = self.refused.is_none_or(|at| at.elapsed() > AGAIN);
                if may_try && bytes >= share * (self.moves as u64 + 1) {
                    self.hand_over(cluster, view)?;
                }
            }
            (Trouble::Crash | Trouble::Moves(_), _) => {}
        }
        Ok(())
    }

    fn hand_over(&mut self, cluster: &Cluster<'_>, view: &mut View) -> Result<()> {
        let [from, to] = if self.moves.is_multiple_of(2) {
            [Host::A, Host::B]
        } else {
            [Host::B, Host::A]
        };
        self.struck.get_or_insert_with(Instant::now);
        match cluster.hand_over("web", from, to) {
            Ok(report) => {
                self.moves += 1;
                view.event(&format!(
                    "move {}: {from} to {to}, silent for {:.1} ms",
                    self.moves, report.silent_ms
                ))?;
            }
            Err(error) => {
                self.refused = Some(Instant::now());
                view.event(&format!("it stays on {from}: {error:#}"))?;
            }
        }
        Ok(())
    }
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
