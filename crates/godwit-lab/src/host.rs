//! Who is in a lab, and every address they have.
//!
//! Addresses are constants: a test may name them, a capture is readable, and
//! a machine that "boots again" comes back with the MAC it had.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use godwit_wire::MacAddr;

/// A machine of the lab that runs programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Runs the unmodified client.
    Client,
    /// Owns the service at the start.
    A,
    /// Stands by.
    B,
    /// A third machine on the same switch that plays by no rules.
    Attacker,
    /// Votes on leases; has no server.
    Witness,
    /// A third server.
    C,
    /// Stands in front of the servers.
    Director,
    /// So does this one, should that one fail.
    Reserve,
}

/// One of the two switched networks of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// Clients, the service address and mirrored segments (`eth0`).
    Data,
    /// Heartbeats and control messages between the servers (`eth1`).
    Control,
}

/// The service address in IPv4.
pub const SERVICE_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 100);

/// The service address in IPv6.
pub const SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x100);

/// Both service addresses, IPv4 first.
pub const SERVICE: [IpAddr; 2] = [IpAddr::V4(SERVICE_V4), IpAddr::V6(SERVICE_V6)];

impl Host {
    /// The two servers that every lab has, the first owner first.
    pub const SERVERS: [Self; 2] = [Self::A, Self::B];

    /// Short name, as in namespace names and in `[node] name`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::A => "a",
            Self::B => "b",
            Self::Attacker => "attacker",
            Self::Witness => "w",
            Self::C => "c",
            Self::Director => "d",
            Self::Reserve => "e",
        }
    }

    /// Last octet of the IPv4 addresses; 10 to 17.
    const fn number(self) -> u8 {
        match self {
            Self::Client => 10,
            Self::A => 11,
            Self::B => 12,
            Self::Attacker => 13,
            Self::Witness => 14,
            Self::C => 15,
            Self::Director => 16,
            Self::Reserve => 17,
        }
    }

    /// Address on the data network.
    pub const fn v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, 0, self.number())
    }

    /// Address on the data network; its last group reads like the IPv4 octet.
    pub fn v6(self) -> Ipv6Addr {
        let digits = 0x10 + u16::from(self.number() - 10);
        Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, digits)
    }

    /// Address on the control network.
    pub const fn control_v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, 1, self.number())
    }

    /// Hardware address on `network`: `02:00:00:00:NN:1x`.
    pub const fn mac(self, network: Network) -> MacAddr {
        let net = match network {
            Network::Data => 0,
            Network::Control => 1,
        };
        MacAddr([2, 0, 0, 0, net, 0x10 + self.number() - 10])
    }

    /// True for the machines that stand on the control network.
    pub const fn has_control(self) -> bool {
        match self {
            Self::A | Self::B | Self::C | Self::Witness | Self::Director | Self::Reserve => true,
            Self::Client | Self::Attacker => false,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Network {
    /// Interface name inside a host's namespace.
    pub const fn interface(self) -> &'static str {
        match self {
            Self::Data => "eth0",
            Self::Control => "eth1",
        }
    }

    /// Bridge name inside the switch namespace.
    pub(crate) const fn bridge(self) -> &'static str {
        match self {
            Self::Data => "br-data",
            Self::Control => "br-ctl",
        }
    }

    /// Name of `host`'s port inside the switch namespace.
    pub(crate) fn port(self, host: Host) -> String {
        match self {
            Self::Data => format!("p-{host}"),
            Self::Control => format!("c-{host}"),
        }
    }
}
