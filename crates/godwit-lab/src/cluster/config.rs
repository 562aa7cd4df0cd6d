//! Writes the `godwit.toml` of a lab's servers, in the documented format.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::host::{Host, Network, SERVICE};

/// A service to protect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its addresses; [`SERVICE`] unless it is to have an owner of its own.
    pub addresses: [IpAddr; 2],
    /// Its port at both addresses.
    pub port: u16,
    /// Its owner as long as nothing fails; the other one of [`Host::SERVERS`] is its
    /// backup.
    pub primary: Host,
    /// More backups, of a service without twins.
    pub others: &'static [Host],
    /// `standby`.
    pub standby: &'static str,
    /// More lines for its `[[service]]` table, such as `gate = "off"`.
    pub extra: String,
}

/// `[detect] fencing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// Nothing.
    None,
    /// The end of its lease; [`Host::Witness`] is the third voter.
    Lease,
    /// Its power switch, [`ClusterOptions::stonith`]; the servers are the voters.
    Stonith,
}

/// How the agents of a lab are configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// `[detect] heartbeat`, whole milliseconds.
    pub heartbeat: Duration,
    /// `[detect] misses`.
    pub misses: u32,
    /// What keeps an old owner silent; [`Fencing::Lease`] needs a lab with a
    /// witness.
    pub fencing: Fencing,
    /// `[detect] stonith`; it may run for a second.
    pub stonith: String,
    /// More lines for `[detect]`, such as `egress_residence = "30ms"`.
    pub detect: String,
    /// `[detect] flap_limit`; 0, as tests let nodes fail more often than nodes do.
    pub flap_limit: u32,
    /// The services.
    pub services: Vec<Service>,
    /// More lines for `[tls]`, such as `crl = "…"`.
    pub tls: String,
    /// More sections of the file, such as `[director]`.
    pub sections: String,
    /// Nodes besides those that [`fencing`](Self::fencing) needs, such as
    /// [`Host::C`]: the lab must have them. They have no vote.
    pub more: &'static [Host],
    /// More lines of nodes' `[[peer]]` sections, such as `weight = 3`.
    pub peer_lines: &'static [(Host, &'static str)],
}

impl Service {
    /// A service of [`Host::A`] with the defaults for all but name and port.
    pub fn new(name: &str, port: u16) -> Self {
        Self {
            name: name.to_owned(),
            addresses: SERVICE,
            port,
            primary: Host::A,
            others: &[],
            standby: "shadow",
            extra: String::new(),
        }
    }

    fn table(&self) -> String {
        let [v4, v6] = self.addresses;
        let backup = match self.primary {
            Host::A => Host::B,
            Host::B
            | Host::C
            | Host::Client
            | Host::Attacker
            | Host::Witness
            | Host::Director
            | Host::Reserve => Host::A,
        };
        let backups = [backup].into_iter().chain(self.others.iter().copied());
        let backups: Vec<_> = backups.map(Host::name).collect();
        let Self {
            name,
            port,
            primary,
            standby,
            extra,
            ..
        } = self;
        format!(
            "
[[service]]
name = \"{name}\"
address = [\"{v4}:{port}\", \"[{v6}]:{port}\"]
standby = \"{standby}\"
primary = \"{primary}\"
backups = {backups:?}
{extra}
"
        )
    }
}

impl Default for ClusterOptions {
    /// What the product does if its file says nothing: heartbeats every 10 ms, three may
    /// be missed, leases with a witness as the third voter. One service `web` at port 80.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(10),
            misses: 3,
            fencing: Fencing::Lease,
            stonith: "false".into(),
            detect: String::new(),
            flap_limit: 0,
            services: vec![Service::new("web", 80)],
            tls: String::new(),
            sections: String::new(),
            peer_lines: &[],
            more: &[],
        }
    }
}

impl Fencing {
    /// Who votes, and has an agent for that.
    const fn voters(self) -> &'static [Host] {
        match self {
            Self::None | Self::Stonith => &Host::SERVERS,
            Self::Lease => &[Host::A, Host::B, Host::Witness],
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lease => "lease",
            Self::Stonith => "stonith",
        }
    }
}

impl ClusterOptions {
    /// Two voters, nothing that keeps an old owner silent, and so no witness. The named
    /// exception from the product's defaults: for demos and benchmarks that compare with
    /// what has no fence either, and for tests that stop both servers or count what one
    /// of two says. A new test takes [`Default`].
    pub fn unfenced() -> Self {
        Self {
            fencing: Fencing::None,
            ..Self::default()
        }
    }

    /// Time without a heartbeat after which a server counts as failed.
    pub fn detection(&self) -> Duration {
        self.heartbeat * self.misses
    }

    /// Who has a part in it: the machines that run an agent, a witness or a director.
    pub fn nodes(&self) -> Vec<Host> {
        [self.fencing.voters(), self.more].concat()
    }

    /// The file for `host`, whose run-time files are in `folder`.
    pub(super) fn file_for(&self, host: Host, control_network: bool, folder: &Path) -> String {
        let run = format!("run_dir = \"{}\"", folder.join("run").display());
        self.file_with(host, control_network, &run)
    }

    /// The file for `host`, with run-time files where the command line looks for them.
    pub(crate) fn file_at_home(&self, host: Host, control_network: bool) -> String {
        self.file_with(host, control_network, "")
    }

    fn file_with(&self, host: Host, control_network: bool, run: &str) -> String {
        let voters = self.fencing.voters();
        let heartbeat = self.heartbeat.as_millis();
        // Twice the detection: the rule is that it be longer than that.
        let lease = 2 * self.detection().as_millis();
        let mut text = format!(
            "[node]
name = \"{host}\"
interface = \"{interface}\"
{run}

[cluster]
voters = {voters:?}

[tls]
ca = \"ca.pem\"
cert = \"node.pem\"
key = \"node.key\"
{tls}
[detect]
heartbeat = \"{heartbeat}ms\"
misses = {misses}
lease = \"{lease}ms\"
fencing = \"{fencing}\"
stonith = {stonith:?}
stonith_limit = \"1s\"
{detect}
flap_limit = {flap_limit}
",
            tls = self.tls,
            detect = self.detect,
            voters = voters.iter().map(|node| node.name()).collect::<Vec<_>>(),
            fencing = self.fencing.as_str(),
            stonith = self.stonith,
            flap_limit = self.flap_limit,
            interface = Network::Data.interface(),
            misses = self.misses,
        );
        for peer in self.nodes() {
            let role = match peer {
                Host::Witness => "witness",
                Host::Director | Host::Reserve => "director",
                Host::Client | Host::A | Host::B | Host::C | Host::Attacker => "server",
            };
            let control = if control_network {
                peer.control_v4()
            } else {
                peer.v4()
            };
            let _ = write!(
                text,
                "
[[peer]]
name = \"{peer}\"
role = \"{role}\"
control = \"{control}:7400\"
data = \"{data}\"
",
                data = peer.v4(),
            );
            for (_, line) in self.peer_lines.iter().filter(|(of, _)| *of == peer) {
                text.push_str(line);
                text.push('\n');
            }
        }
        text.push('\n');
        text.push_str(&self.sections);
        for service in &self.services {
            text.push_str(&service.table());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::LabOptions;

    #[test]
    fn a_third_server_is_a_peer_and_a_backup() {
        let options = ClusterOptions {
            services: vec![Service {
                standby: "none",
                others: &[Host::C],
                ..Service::new("web", 80)
            }],
            more: &[Host::C],
            ..ClusterOptions::unfenced()
        };
        let file = options.file_for(Host::C, true, Path::new("/x"));
        assert!(file.contains("name = \"c\"\nrole = \"server\"\ncontrol = \"10.9.1.15:7400\""));
        assert!(file.contains("primary = \"a\"\nbackups = [\"b\", \"c\"]"));
        assert!(file.contains("voters = [\"a\", \"b\"]"));
    }

    #[test]
    fn without_a_control_network_agents_talk_on_the_data_network() {
        let options = ClusterOptions::unfenced();
        let apart = options.file_for(Host::B, true, Path::new("/x"));
        assert!(apart.contains("name = \"b\"\ninterface = \"eth0\"\nrun_dir = \"/x/run\""));
        assert!(apart.contains("control = \"10.9.1.11:7400\"\ndata = \"10.9.0.11\""));
        assert!(apart.contains("heartbeat = \"10ms\"\nmisses = 3\nlease = \"60ms\""));
        let together = options.file_for(Host::B, false, Path::new("/x"));
        assert!(together.contains("control = \"10.9.0.12:7400\""));
        assert!(together.contains("address = [\"10.9.0.100:80\", \"[2001:db8:9::100]:80\"]"));
    }

    /// What an administrator gets who leaves `[detect]` out.
    #[test]
    fn the_default_is_the_products() {
        let options = ClusterOptions::default();
        let file = options.file_for(Host::A, true, Path::new("/x"));
        assert!(file.contains("fencing = \"lease\""));
        assert!(file.contains("voters = [\"a\", \"b\", \"w\"]"), "{file}");
        assert!(LabOptions::default().witness);
    }
}
