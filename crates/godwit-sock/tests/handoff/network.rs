//! Two servers that have the same service address, and a client whose route
//! says which of them it talks to.
//!
//! What the data path of an agent does is done with routes here: *hold* sends
//! what arrives for the service to the server's [`HoldTun`], *forward* to the other
//! server; a mark on a socket drops what that socket says.

use std::net::IpAddr;
use std::process::Command;

use godwit_lab::{Lab, LabOptions, Node};
use godwit_sock::HoldTun;

/// Of the service, on loopback of both servers.
pub(crate) const SERVICE_V4: &str = "10.77.0.1";
pub(crate) const SERVICE_V6: &str = "fd77::1";
/// `SO_MARK` of a socket that may not speak.
pub(crate) const SILENT: u32 = 77;

/// What a server does with segments that arrive for the service.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// Its kernel gets them.
    Pass,
    /// They wait in the tun.
    Hold,
    /// The other server gets them: they were on their way when it was moved.
    Forward,
}

/// One of the two servers.
pub(crate) struct Server<'a> {
    pub(crate) node: &'a Node,
    pub(crate) hold: HoldTun,
    family: &'static str,
    other: IpAddr,
}

impl<'a> Server<'a> {
    fn new(node: &'a Node, other: &Node, family: &'static str) -> Self {
        for (key, value) in [
            ("ipv4.conf.all.forwarding", "1"),
            ("ipv6.conf.all.forwarding", "1"),
            // Routes decide, also where there is a socket.
            ("ipv4.tcp_early_demux", "0"),
            ("ipv4.conf.all.send_redirects", "0"),
            ("ipv4.conf.eth0.send_redirects", "0"),
        ] {
            node.netns()
                .sysctl(key, value)
                .expect("the machine is there");
        }
        for (family, service) in [("-4", SERVICE_V4), ("-6", SERVICE_V6)] {
            // Before the kernel finds that the service's address is its own.
            for rule in [
                "rule add pref 100 lookup local",
                "rule del pref 0",
                &format!("rule add pref 5 fwmark {SILENT} lookup 205"),
                &format!("rule add pref 10 iif eth0 to {service} lookup 200"),
                "route add blackhole default table 205",
            ] {
                ip(node, family, rule);
            }
        }
        ip(node, "-4", &format!("addr add {SERVICE_V4}/32 dev lo"));
        ip(
            node,
            "-6",
            &format!("addr add {SERVICE_V6}/128 dev lo nodad"),
        );
        let hold = node.enter(|| HoldTun::open("hold"));
        let hold = hold.expect("the machine is there").expect("root may");
        Self {
            node,
            hold,
            family,
            other: address(other, family),
        }
    }

    pub(crate) fn on_arrival(&self, what: Arrival) {
        let other = self.other;
        let command = match what {
            Arrival::Pass => "route del default table 200",
            Arrival::Hold => "route replace default dev hold table 200",
            Arrival::Forward => &format!("route replace default via {other} dev eth0 table 200"),
        };
        ip(self.node, self.family, command);
    }
}

/// Both servers and the client; all flows are of one family.
pub(crate) struct Net<'a> {
    pub(crate) client: &'a Node,
    pub(crate) servers: [Server<'a>; 2],
    service: &'static str,
    family: &'static str,
}

/// A lab, or `None` with the reason printed.
pub(crate) fn lab() -> Option<Lab> {
    if let Err(why) = Lab::available() {
        eprintln!("skipped: {why}");
        return None;
    }
    let options = LabOptions {
        control_network: false,
        ..LabOptions::default()
    };
    Some(Lab::new(options).expect("a lab can be built"))
}

impl<'a> Net<'a> {
    pub(crate) fn new(lab: &'a Lab, service: &'static str) -> Self {
        let family = if service.contains(':') { "-6" } else { "-4" };
        let net = Self {
            client: lab.client(),
            servers: [(lab.a(), lab.b()), (lab.b(), lab.a())]
                .map(|(node, other)| Server::new(node, other, family)),
            service,
            family,
        };
        net.lead_to(0);
        net
    }

    /// The client talks to this server from now on.
    pub(crate) fn lead_to(&self, server: usize) {
        let via = address(self.servers[server].node, self.family);
        let route = format!("route replace {} via {via} dev eth0", self.service);
        ip(self.client, self.family, &route);
    }
}

fn address(node: &Node, family: &str) -> IpAddr {
    let host = node.host();
    if family == "-6" {
        host.v6().into()
    } else {
        host.v4().into()
    }
}

fn ip(node: &Node, family: &str, command: &str) {
    let name = node.netns().name();
    let done = Command::new("ip")
        .args(["-n", name, family])
        .args(command.split(' '))
        .output()
        .expect("iproute2 is installed");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command}: {said}");
}
