//! What may be done to a lab's links: cut, thin, shape, delay; and the crash.
//!
//! Everything happens at the switch, so that the machine concerned neither
//! takes part nor notices, unless the loss of carrier is what is wanted.

mod delay;
mod loss;
mod shape;

use std::time::Instant;

use anyhow::{Context as _, Result};

pub(crate) use delay::DelayLine;
pub(crate) use loss::SwitchRules;
pub use loss::{Loss, PER_MYRIAD, Way};
pub use shape::Shape;

use crate::host::{Host, Network};
use crate::lab::Lab;
use crate::tool;

/// Bridge port states of `bridge link set`, IEEE 802.1D §8.4.
const DISABLED: u8 = 0;
const FORWARDING: u8 = 3;

/// How a machine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its power fails. Its links go down with it, so the switch forgets where
    /// it was and floods what is addressed to it.
    Power,
    /// Its kernel hangs. Its links stay up, and the switch goes on to send it
    /// what nobody reads.
    Hang,
}

/// When a machine went dark.
///
/// The cut took effect between the two instants: within a few milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Just before the switch was told to drop.
    pub from: Instant,
    /// Just after the switch drops every frame from and to the machine.
    pub until: Instant,
}

impl Lab {
    /// Makes the switch drop all frames from and to `host`, on all `networks`
    /// at once; the host keeps its carrier and notices nothing.
    ///
    /// # Errors
    /// Fails if the switch refuses.
    pub fn cut(&self, host: Host, networks: &[Network]) -> Result<Crash> {
        let from = Instant::now();
        self.set_ports(host, networks, DISABLED)?;
        let until = Instant::now();
        Ok(Crash { from, until })
    }

    /// Ends [`cut`](Self::cut).
    ///
    /// # Errors
    /// Fails if the switch refuses.
    pub fn heal(&self, host: Host, networks: &[Network]) -> Result<()> {
        self.set_ports(host, networks, FORWARDING)
    }

    /// Pulls `host`'s plug out of the switch: it loses its carrier.
    ///
    /// # Errors
    /// Fails if there is no such port.
    pub fn unplug(&self, host: Host, network: Network) -> Result<()> {
        let port = network.port(host);
        self.switch.ip(&[format!("link set {port} down")])
    }

    /// Ends [`unplug`](Self::unplug).
    ///
    /// # Errors
    /// Fails if there is no such port.
    pub fn plug(&self, host: Host, network: Network) -> Result<()> {
        let port = network.port(host);
        self.switch.ip(&[format!("link set {port} up")])
    }

    /// What comes over `host`'s link has whole checksums, as if it came over a wire.
    ///
    /// A segment that has not seen a wire yet has none, only a note for a card to make one
    /// (`CHECKSUM_PARTIAL`), which is lost if XDP sends it on. So the switch's end makes it.
    ///
    /// # Errors
    /// Fails without `ethtool`, or if there is no such port.
    pub fn make_checksums(&self, host: Host, network: Network) -> Result<()> {
        let port = network.port(host);
        let run = || tool::run("ethtool", &["-K", &port, "tx", "off"]);
        self.switch.enter(run)?.map(drop)
    }

    /// Runs `work` where the switch is, with the name of `host`'s port.
    ///
    /// # Errors
    /// Fails if the switch is gone.
    pub fn at_port<T: Send>(
        &self,
        host: Host,
        network: Network,
        work: impl FnOnce(&str) -> T + Send,
    ) -> Result<T> {
        let port = network.port(host);
        self.switch.enter(|| work(&port))
    }

    /// The machine's power fails; see [`die`](Self::die).
    ///
    /// # Errors
    /// Fails if the switch refuses or a process survives.
    pub fn crash(&self, host: Host) -> Result<Crash> {
        self.die(host, Death::Power)
    }

    /// The machine dies: not one more frame leaves it, then all its processes
    /// are killed. [`reboot`](Self::reboot) brings the machine back, empty.
    ///
    /// The order matters: a killed process's sockets send FIN or RST.
    ///
    /// # Errors
    /// Fails if the switch refuses or a process survives.
    pub fn die(&self, host: Host, death: Death) -> Result<Crash> {
        let networks = self.networks_of(host);
        let crash = match death {
            Death::Power => self.unplug_all(host, networks)?,
            Death::Hang => self.cut(host, networks)?,
        };
        let netns = self.node(host).netns();
        netns
            .kill_all()
            .with_context(|| format!("killing what runs on {host}"))?;
        // What the kernel still has to say, retransmissions above all, ends here.
        let down = self.networks_of(host).iter();
        let lines = down.map(|network| format!("link set {} down", network.interface()));
        netns.ip(&lines.collect::<Vec<_>>())?;
        Ok(crash)
    }

    /// Rules of the switch itself, in the language of nft(8), family `bridge`.
    ///
    /// # Errors
    /// Fails if the kernel refuses them.
    pub fn filter(&self, rules: &str) -> Result<()> {
        self.switch.nft(rules)
    }

    /// Drops a share of the frames that `loss` names; replaces an earlier rule
    /// for the same pair, and a share of 0 removes it.
    ///
    /// # Errors
    /// Fails if the kernel lacks nftables for bridges.
    pub fn lose(&self, loss: Loss) -> Result<()> {
        // A panic while holding the lock can't leave the set half written.
        let mut rules = self.rules.lock().unwrap_or_else(|e| e.into_inner());
        rules.set(loss);
        self.switch.nft(&rules.render())
    }

    /// Frames dropped by the rules of [`lose`](Self::lose) since they were last
    /// changed.
    ///
    /// # Errors
    /// Fails if there are no rules.
    pub fn frames_lost(&self) -> Result<u64> {
        let list = ["-j", "list", "table", "bridge", "godwit_lab"];
        let text = self.switch.enter(|| tool::run("nft", &list))??;
        let json: serde_json::Value = serde_json::from_str(&text).context("reading nft's JSON")?;
        let objects = json["nftables"].as_array().into_iter().flatten();
        let terms =
            objects.flat_map(|object| object["rule"]["expr"].as_array().into_iter().flatten());
        Ok(terms
            .filter_map(|term| term["counter"]["packets"].as_u64())
            .sum())
    }

    /// Makes the switch drop all that one machine sends to another's MAC on a
    /// network: what goes the other way passes.
    ///
    /// # Errors
    /// Fails if the kernel lacks nftables for bridges.
    pub fn cut_way(&self, network: Network, from: Host, to: Host) -> Result<()> {
        self.set_pair((network, from, to), true)
    }

    /// Ends [`cut_way`](Self::cut_way).
    ///
    /// # Errors
    /// As that.
    pub fn heal_way(&self, network: Network, from: Host, to: Host) -> Result<()> {
        self.set_pair((network, from, to), false)
    }

    fn set_pair(&self, way: (Network, Host, Host), cut: bool) -> Result<()> {
        let mut rules = self.rules.lock().unwrap_or_else(|e| e.into_inner());
        rules.set_cut(way, cut);
        self.switch.nft(&rules.render())
    }

    /// Makes the switch drop all frames of one direction of `host`'s link, or no
    /// longer.
    ///
    /// # Errors
    /// Fails if the kernel lacks nftables for bridges.
    pub fn set_way(&self, host: Host, network: Network, way: Way, open: bool) -> Result<()> {
        let mut rules = self.rules.lock().unwrap_or_else(|e| e.into_inner());
        rules.set_way((host, network, way), open);
        self.switch.nft(&rules.render())
    }

    /// Limits the rate of `host`'s data link in both directions; `None` lifts it.
    ///
    /// # Errors
    /// Fails if the kernel lacks TBF, or nftables' egress hook and `dup`.
    pub fn shape(&self, host: Host, shape: Option<Shape>) -> Result<()> {
        let port = Network::Data.port(host);
        let sides = [
            (&self.switch, port.as_str()),
            (self.node(host).netns(), Network::Data.interface()),
        ];
        for (netns, interface) in sides {
            let line = shape.map_or_else(
                || format!("qdisc replace dev {interface} root noqueue"),
                |shape| shape.command(interface),
            );
            netns.batch("tc", &[line])?;
        }
        self.switch.nft(&shape::disown(&port, shape.is_some()))
    }

    fn unplug_all(&self, host: Host, networks: &[Network]) -> Result<Crash> {
        let from = Instant::now();
        let ports = networks.iter().map(|net| self.switch_port(host, *net));
        let lines = ports.map(|port| format!("link set {port} down"));
        self.switch.ip(&lines.collect::<Vec<_>>())?;
        let until = Instant::now();
        Ok(Crash { from, until })
    }

    fn set_ports(&self, host: Host, networks: &[Network], state: u8) -> Result<()> {
        // One batch is one process: the ports follow each other in microseconds.
        let lines = networks.iter().map(|network| {
            format!(
                "link set dev {} state {state}",
                self.switch_port(host, *network)
            )
        });
        self.switch.batch("bridge", &lines.collect::<Vec<_>>())
    }
}
