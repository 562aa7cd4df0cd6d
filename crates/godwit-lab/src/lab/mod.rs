//! Builds a lab and takes it away again.
//!
//! Three things remove what a lab made: dropping it; a small watchdog process
//! that sees the lab's process die in any other way (a signal, an abort, a
//! SIGKILL); and the next lab, which sweeps what even the watchdog left.
//! Nothing of it needs a signal handler.

mod node;
mod sweep;
mod switch;
mod watchdog;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::unistd::Uid;

pub use node::Node;
pub use switch::{SWITCH_VARIABLE, Switch};

use crate::host::{Host, Network};
use crate::links::{DelayLine, SwitchRules};
use crate::netns::Netns;
use watchdog::Watchdog;

/// What a lab consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabOptions {
    /// Gives the servers a second network for heartbeats and control messages,
    /// so that client traffic and heartbeats can be cut apart. Default: true.
    pub control_network: bool,
    /// Adds [`Host::Attacker`]. Default: false.
    pub attacker: bool,
    /// Adds [`Host::Witness`]. Default: true, as leases are the default.
    pub witness: bool,
    /// Adds [`Host::C`]. Default: false.
    pub third: bool,
    /// Adds [`Host::Director`]. Default: false.
    pub director: bool,
    /// Adds [`Host::Reserve`]. Default: false.
    pub reserve: bool,
    /// How its switch treats packets, and whether its hosts look for others with their
    /// addresses. Default: [`Switch::of_this_test`].
    pub switch: Switch,
}

impl Default for LabOptions {
    fn default() -> Self {
        Self {
            control_network: true,
            attacker: false,
            witness: true,
            third: false,
            director: false,
            reserve: false,
            switch: Switch::of_this_test(),
        }
    }
}

/// Why this machine can't have a lab.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The calling user may not make namespaces.
    #[error("network namespaces need root")]
    NotRoot,
    /// A program that the lab calls is missing.
    #[error("`{program}` is not installed (Debian package {package})")]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// Where Debian has it.
        package: &'static str,
    },
}

/// A client, two servers or three, and a switch, each in a namespace of its own.
///
/// Dropped, it kills every process inside its namespaces, deletes them and
/// removes its folder, in this order.
#[derive(Debug)]
pub struct Lab {
    id: String,
    folder: PathBuf,
    options: LabOptions,
    pub(crate) switch: Netns,
    nodes: BTreeMap<Host, Node>,
    pub(crate) rules: Mutex<SwitchRules>,
    pub(crate) delays: Mutex<BTreeMap<Host, DelayLine>>,
    watchdog: Option<Watchdog>,
}

/// Distinguishes the labs of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Lab {
    /// Says whether this machine and user can have a lab.
    ///
    /// # Errors
    /// Returns the reason, for a test to print before it skips itself.
    pub fn available() -> Result<(), Unavailable> {
        if !Uid::effective().is_root() {
            return Err(Unavailable::NotRoot);
        }
        for (program, package) in [
            ("ip", "iproute2"),
            ("tc", "iproute2"),
            ("bridge", "iproute2"),
            ("nft", "nftables"),
            ("tcpdump", "tcpdump"),
        ] {
            if which(program).is_none() {
                return Err(Unavailable::NoProgram { program, package });
            }
        }
        Ok(())
    }

    /// Builds a lab; two at once, in one process or in several, are fine.
    ///
    /// # Errors
    /// Fails without root, or if the kernel lacks veth, bridge or namespaces.
    pub fn new(options: LabOptions) -> Result<Self> {
        Self::available()?;
        sweep::stale();
        let id = format!(
            "gw{}-{}",
            process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(format!("{}{id}", sweep::FOLDER_PREFIX));
        fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut hosts = vec![Host::Client, Host::A, Host::B];
        hosts.extend(options.attacker.then_some(Host::Attacker));
        hosts.extend(options.witness.then_some(Host::Witness));
        hosts.extend(options.third.then_some(Host::C));
        hosts.extend(options.director.then_some(Host::Director));
        hosts.extend(options.reserve.then_some(Host::Reserve));
        let switch = Netns::named(format!("{id}-switch"));
        let nodes = hosts
            .into_iter()
            .map(|host| (host, Node::new(host, &id, &folder)))
            .collect::<BTreeMap<_, _>>();
        // From here on `Drop` undoes whatever has been done.
        let mut lab = Self {
            id,
            folder,
            options,
            switch,
            nodes,
            rules: Mutex::default(),
            delays: Mutex::default(),
            watchdog: None,
        };
        lab.watchdog = Some(Watchdog::start(&lab.folder, &lab.namespaces())?);
        lab.build_switch()?;
        for node in lab.nodes.values() {
            lab.boot(node)?;
        }
        Ok(lab)
    }

    /// Identity that all of its namespaces begin with: `gw<pid>-<number>`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Folder for files that live as long as the lab.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the lab was built from.
    pub const fn options(&self) -> &LabOptions {
        &self.options
    }

    /// The machine that clients run on.
    pub fn client(&self) -> &Node {
        self.node(Host::Client)
    }

    /// The server that owns the service at the start.
    pub fn a(&self) -> &Node {
        self.node(Host::A)
    }

    /// The server that stands by at the start.
    pub fn b(&self) -> &Node {
        self.node(Host::B)
    }

    /// The machine `host`.
    ///
    /// # Panics
    /// Panics for a machine that [`LabOptions`] did not ask for.
    pub fn node(&self, host: Host) -> &Node {
        self.nodes
            .get(&host)
            .expect("a machine beside the first three is there only if `LabOptions` has it")
    }

    /// The machines of this lab.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Networks that `host` has an interface on.
    pub fn networks_of(&self, host: Host) -> &'static [Network] {
        if host.has_control() && self.options.control_network {
            &[Network::Data, Network::Control]
        } else {
            &[Network::Data]
        }
    }

    /// Registers a path, in a pseudo file system, that must go with the lab.
    ///
    /// # Errors
    /// Fails if the list, which the watchdog reads, can't be written.
    pub fn remove_at_end(&self, path: &Path) -> Result<()> {
        watchdog::remember(&self.folder, path)
    }

    /// Makes a dead machine's namespace anew and connects it, as after a boot.
    ///
    /// Its sockets, addresses, routes and processes are gone, and so are cuts,
    /// shapes and delays of its links; its MACs are not.
    ///
    /// # Errors
    /// Fails if a process inside can't be killed.
    pub fn reboot(&self, host: Host) -> Result<()> {
        let node = self.node(host);
        self.delay(host, Duration::ZERO)?;
        // A namespace may outlive its name; its links go with their other end.
        let ports = self.networks_of(host).iter().map(|net| net.port(host));
        let lines = ports.map(|port| format!("link del {port}"));
        self.switch.ip(&lines.collect::<Vec<_>>())?;
        node.netns().delete()?;
        self.boot(node)
    }

    fn namespaces(&self) -> Vec<String> {
        let hosts = self.nodes.values().map(|n| n.netns().name().to_owned());
        hosts.chain([self.switch.name().to_owned()]).collect()
    }

    fn build_switch(&self) -> Result<()> {
        Netns::create(self.switch.name().to_owned())?;
        // The switch itself has nothing to say: no MLD, no router solicitation.
        self.switch.sysctl("ipv6.conf.all.disable_ipv6", "1")?;
        self.switch.sysctl("ipv6.conf.default.disable_ipv6", "1")?;
        for family in ["iptables", "ip6tables", "arptables"] {
            let key = format!("bridge.bridge-nf-call-{family}");
            let set = self.switch.sysctl(&key, self.options.switch.netfilter());
            if let (Switch::Looks, Err(error)) = (self.options.switch, set) {
                eprintln!("the switch looks into no packets without br_netfilter: {error:#}");
            }
        }
        let mut lines = Vec::new();
        for network in [Network::Data, Network::Control] {
            let bridge = network.bridge();
            let snoops = self.options.switch.snoops();
            lines.push(format!(
                "link add {bridge} type bridge mcast_snooping {snoops}"
            ));
            lines.push(format!("link set {bridge} up"));
        }
        self.switch.ip(&lines)
    }

    fn boot(&self, node: &Node) -> Result<()> {
        let host = node.host();
        let netns = Netns::create(node.netns().name().to_owned())?;
        for scope in ["all", "default"] {
            for (key, value) in [
                ("accept_dad", self.options.switch.dad()),
                ("accept_ra", "0"),
                ("router_solicitations", "0"),
            ] {
                netns.sysctl(&format!("ipv6.conf.{scope}.{key}"), value)?;
            }
        }
        for &network in self.networks_of(host) {
            let (interface, port) = (network.interface(), network.port(host));
            self.switch.ip(&[
                format!(
                    "link add {port} type veth peer name {interface} address {} netns {}",
                    host.mac(network),
                    netns.name()
                ),
                format!("link set {port} master {} up", network.bridge()),
            ])?;
            let address = match network {
                Network::Data => host.v4(),
                Network::Control => host.control_v4(),
            };
            let mut lines = vec![
                format!("addr add {address}/24 dev {interface}"),
                format!("link set {interface} up"),
            ];
            if network == Network::Data {
                lines.push(format!("addr add {}/64 dev {interface} nodad", host.v6()));
            }
            netns.ip(&lines)?;
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Frames stop first: a dying server must not end a connection aloud.
        match self.delays.get_mut() {
            Ok(delays) => delays.clear(),
            Err(poisoned) => poisoned.into_inner().clear(),
        }
        let namespaces = self.nodes.values().map(Node::netns).chain([&self.switch]);
        let mut clean = true;
        for netns in namespaces {
            clean &= netns.delete().is_ok();
        }
        watchdog::remove_remembered(&self.folder);
        clean &= fs::remove_dir_all(&self.folder).is_ok();
        if let Some(watchdog) = self.watchdog.take().filter(|_| clean) {
            watchdog.dismiss();
        }
        // Not dismissed, the watchdog sees its pipe close and tries again.
    }
}

/// Path of an installed program.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    // Debian's root has the sbin folders in PATH, a bare `sudo` may not.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}
