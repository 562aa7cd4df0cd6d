//! What a machine could see on its wire: a capture, and a counter of resets.
//!
//! A [`Capture`] is exact and costs time; a `Wire` keeps a few words per flow
//! and may run for days; a [`ResetCounter`] costs next to
//! nothing and is enough to know that a client saw no RST.

mod frame;
mod pcap;
mod question;
mod stopwatch;
mod wire;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

pub use frame::{AdvertisementSeen, ArpSeen, FrameSeen, SegmentSeen};
pub use pcap::Trace;
pub(crate) use question::Question;
pub(crate) use stopwatch::{Stays, Stopwatch};
pub(crate) use wire::{Books, Reset, Voice, Wire};

use crate::host::Network;
use crate::lab::{Node, which};
use crate::process::Process;
use crate::tool;

/// Bytes kept of each frame: Ethernet, IPv6 and TCP with all options.
const SNAP_LENGTH: &str = "134";

/// A capture that did not grow for this long has all that has passed.
const SETTLED: Duration = Duration::from_millis(50);

/// A tcpdump that runs on one machine.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
}

impl Capture {
    /// Starts capturing the TCP segments and ARP and ICMPv6 packets that pass
    /// `node`'s interface, both ways.
    ///
    /// # Errors
    /// Fails if tcpdump is missing or does not begin within five seconds.
    pub fn start(node: &Node, network: Network) -> Result<Self> {
        let program = which("tcpdump").context("tcpdump is not installed")?;
        let file = node.folder()?.join(format!("{}.pcap", network.interface()));
        let mut command = Command::new(program);
        command
            .args(["-i", network.interface(), "-n", "-s", SNAP_LENGTH])
            // 32 MiB for the kernel: a burst must not be lost.
            .args(["-B", "32768", "--nano", "-Z", "root"])
            // Else the kernel keeps the last second of frames for itself, and
            // tcpdump leaves without them.
            .args(["--immediate-mode", "-U", "-w"])
            .arg(&file)
            .arg("tcp or arp or icmp6");
        let mut tcpdump = node.spawn("tcpdump", command)?;
        let end = Instant::now() + Duration::from_secs(5);
        while !tcpdump.log().contains("listening on") {
            if !tcpdump.is_running() || Instant::now() > end {
                bail!("tcpdump does not capture: {}", tcpdump.log().trim());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(Self { tcpdump, file })
    }

    /// Ends the capture and returns what was seen, in order.
    ///
    /// # Errors
    /// Fails if the kernel dropped frames: a count from it would be a guess.
    pub fn finish(mut self) -> Result<Trace> {
        self.drain()?;
        self.tcpdump.signal(Signal::SIGINT)?;
        self.tcpdump.wait(Duration::from_secs(5))?;
        let log = self.tcpdump.log();
        if !log.contains("\n0 packets dropped by kernel") {
            bail!("the capture is not complete: {}", log.trim());
        }
        let bytes = fs::read(&self.file).context("reading the capture")?;
        Trace::parse(&bytes)
    }

    /// Waits until tcpdump has written what the kernel has for it.
    fn drain(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(5);
        let length = || fs::metadata(&self.file).map(|file| file.len());
        let mut before = length().context("looking at the capture")?;
        loop {
            thread::sleep(SETTLED);
            let now = length().context("looking at the capture")?;
            if now == before || Instant::now() > end {
                return Ok(());
            }
            before = now;
        }
    }
}

/// Counts TCP segments with RST on one machine, in nftables.
#[derive(Debug)]
pub struct ResetCounter {
    node: Node,
}

/// TCP segments with RST since the counter started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resets {
    /// That came in.
    pub received: u64,
    /// That went out.
    pub sent: u64,
    /// Connections that were begun here: SYNs that went out, repeated ones too.
    pub opened: u64,
}

impl ResetCounter {
    /// Starts counting on `node`, from 0.
    ///
    /// # Errors
    /// Fails if the kernel lacks nftables.
    pub fn start(node: &Node) -> Result<Self> {
        node.netns().nft(RESET_RULES)?;
        Ok(Self { node: node.clone() })
    }

    /// What was counted until now.
    ///
    /// # Errors
    /// Fails if the rules are gone.
    pub fn read(&self) -> Result<Resets> {
        let list = ["-j", "list", "counters", "table", "inet", "godwit_lab"];
        let text = self.node.enter(|| tool::run("nft", &list))??;
        let json: serde_json::Value = serde_json::from_str(&text).context("reading nft's JSON")?;
        let count = |name: &str| {
            let objects = json["nftables"].as_array().into_iter().flatten();
            let mut counters = objects.map(|object| &object["counter"]);
            let found = counters.find(|counter| counter["name"] == name);
            found
                .and_then(|counter| counter["packets"].as_u64())
                .with_context(|| format!("nft has no counter {name}"))
        };
        Ok(Resets {
            received: count("received")?,
            sent: count("sent")?,
            opened: count("opened")?,
        })
    }
}

const RESET_RULES: &str = "
table inet godwit_lab
delete table inet godwit_lab
table inet godwit_lab {
counter received { }
counter sent { }
counter opened { }
chain in {
type filter hook prerouting priority -300; policy accept;
tcp flags & rst == rst counter name received
}
chain out {
type filter hook postrouting priority 300; policy accept;
tcp flags & rst == rst counter name sent
tcp flags & (syn | ack) == syn counter name opened
}
}
";
