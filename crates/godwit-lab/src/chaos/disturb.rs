//! What administration does to a machine that goes on running: nothing dies, something
//! that Godwit relies on changes.

use anyhow::Result;
use godwit_wire::MacAddr;

use crate::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use crate::lab::Lab;

/// A change of a machine's surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Its service interface gets another MAC, and its own back.
    Mac,
    /// Its service interface goes down and comes up: the kernel forgets its global IPv6
    /// addresses.
    Bounce,
    /// The service addresses are deleted, as by a network manager that restarts.
    Flush,
    /// Its kernel answers ARP for addresses of the same interface only, as hardening
    /// guides ask for. Service addresses are on loopback.
    Mute,
    /// A firewall rule drops what connection tracking has not seen begin, as hardening
    /// guides ask for: no twin passes it.
    Strict,
}

/// In one transaction, whether it is there or not.
const NO_RULES: &str = "table inet strict\ndelete table inet strict\n";

const RULES: &str = "table inet strict { chain in { type filter hook input priority 0; \
                     tcp flags & syn != syn ct state new drop; ct state invalid drop; }; }";

/// Set in the first octet of a MAC that is not the machine's first one.
const SPARE: u8 = 0x10;

impl Disturbance {
    /// The change itself.
    pub(super) fn happen(self, lab: &Lab, host: Host) -> Result<()> {
        let netns = lab.node(host).netns();
        let interface = Network::Data.interface();
        match self {
            Self::Mac => set_mac(lab, host, spare(host.mac(Network::Data))),
            Self::Bounce => netns.ip(&[
                format!("link set {interface} down"),
                format!("link set {interface} up"),
                own_v6(host),
            ]),
            Self::Flush => {
                // Only what is there can be deleted: a back-end behind a director, for
                // one, has its addresses elsewhere.
                let _ = netns.ip(&[format!("addr del {SERVICE_V4}/32 dev lo")]);
                let _ = netns.ip(&[format!("addr del {SERVICE_V6}/128 dev {interface}")]);
                Ok(())
            }
            Self::Mute => netns.sysctl("ipv4.conf.all.arp_ignore", "1"),
            Self::Strict => netns.nft(&format!("{NO_RULES}{RULES}")),
        }
    }

    /// What is undone when the cluster is healed.
    pub(super) fn pass(self, lab: &Lab, host: Host) -> Result<()> {
        match self {
            Self::Mac => set_mac(lab, host, host.mac(Network::Data)),
            Self::Mute => lab
                .node(host)
                .netns()
                .sysctl("ipv4.conf.all.arp_ignore", "0"),
            Self::Strict => lab.node(host).netns().nft(NO_RULES),
            Self::Bounce | Self::Flush => Ok(()),
        }
    }
}

fn set_mac(lab: &Lab, host: Host, mac: MacAddr) -> Result<()> {
    let interface = Network::Data.interface();
    let line = format!("link set {interface} address {mac}");
    lab.node(host).netns().ip(&[line])
}

/// The machine's own IPv6 address, which a network manager puts back.
fn own_v6(host: Host) -> String {
    let interface = Network::Data.interface();
    format!("addr replace {}/64 dev {interface} nodad", host.v6())
}

/// The other MAC of a machine.
const fn spare(MacAddr(mut mac): MacAddr) -> MacAddr {
    mac[0] |= SPARE;
    MacAddr(mac)
}

/// Whose MAC this is: the first one of that machine.
pub(super) const fn first(MacAddr(mut mac): MacAddr) -> MacAddr {
    mac[0] &= !SPARE;
    MacAddr(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_both_of_its_macs() {
        for host in [Host::A, Host::B, Host::C] {
            let mac = host.mac(Network::Data);
            assert_ne!(spare(mac), mac);
            assert_eq!((first(spare(mac)), first(mac)), (mac, mac));
        }
    }
}
