//! Network devices of this namespace, and which of them carry the frames of
//! another (rtnetlink(7), RTM_NEWLINK).

use std::collections::BTreeSet;
use std::io;

use godwit_wire::MacAddr;
use nix::sys::socket::SockProtocol;

use crate::netlink::{NLM_F_DUMP, Netlink, attribute, u32_at};

const RTM_GETLINK: u16 = 18;
/// struct ifinfomsg
const IFINFOMSG: usize = 16;
// include/uapi/linux/if.h
const IFF_LOOPBACK: u32 = 0x8;
const IFF_RUNNING: u32 = 0x40;
const IFF_NOARP: u32 = 0x80;
// include/uapi/linux/if_link.h
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_GROUP: u16 = 27;
const IFLA_CARRIER_CHANGES: u16 = 35;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_PROG_ID: u16 = 4;

/// Kinds that hand their frames to the device that IFLA_LINK names, as they
/// are. A veth names its peer there, a tunnel what its packets are wrapped for.
const STACKED: [&str; 6] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "dsa"];

/// One network device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Index in this network namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// What it is to rtnetlink (`vlan`, `bridge`); hardware has no kind.
    pub kind: Option<String>,
    /// The bond, bridge, team or VRF that it is a port of.
    pub master: Option<u32>,
    /// What IFLA_LINK names, if that is in this namespace too.
    pub link: Option<u32>,
    /// Whether it is loopback.
    pub is_loopback: bool,
    /// Whether it is up and has a carrier.
    pub is_running: bool,
    /// Whether it resolves no addresses (IFF_NOARP), and answers none who do.
    pub is_mute: bool,
    /// How often its carrier has come or gone since it was made.
    pub carrier_changes: u32,
    /// Link-layer address, if that has six bytes.
    pub mac: Option<MacAddr>,
    /// Longest packet that it takes, in bytes.
    pub mtu: u32,
    /// Kind of its outermost queueing discipline (tc(8)).
    pub qdisc: String,
    /// Number of the XDP program in its path.
    pub xdp: Option<u32>,
    /// The group that it is in (`ip link set DEV group`); 0 unless somebody says so.
    pub group: u32,
}

/// The devices of a network namespace at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices(Vec<Device>);

impl Devices {
    /// Reads those of the calling thread's namespace.
    ///
    /// # Errors
    /// Fails if the kernel's list can't be read.
    pub fn read() -> io::Result<Self> {
        let entries = Netlink::open(SockProtocol::NetlinkRoute)?.request(
            RTM_GETLINK,
            NLM_F_DUMP,
            &[0; IFINFOMSG],
        )?;
        Ok(Self(
            entries.iter().filter_map(|entry| device(entry)).collect(),
        ))
    }

    /// Every device.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.0.iter()
    }

    /// The devices that the frames of `top` leave through, at any depth: ports
    /// of a bond, bridge or team, what a VLAN or macvlan is stacked on.
    pub fn below(&self, top: u32) -> BTreeSet<u32> {
        let mut below = BTreeSet::new();
        let mut above = vec![top];
        while let Some(upper) = above.pop() {
            let link = self.get(upper).and_then(Device::stacked_on);
            let ports = self.iter().filter(|port| port.master == Some(upper));
            for lower in ports.map(|port| port.index).chain(link) {
                if lower != top && below.insert(lower) {
                    above.push(lower);
                }
            }
        }
        below
    }

    /// Every way out of this machine that is not the one of `service`: all but
    /// loopback, `service` itself and what is below it.
    pub fn others(&self, service: u32) -> BTreeSet<u32> {
        let below = self.below(service);
        self.iter()
            .filter(|device| !device.is_loopback && device.index != service)
            .map(|device| device.index)
            .filter(|index| !below.contains(index))
            .collect()
    }

    /// The device of that name.
    pub fn named(&self, name: &str) -> Option<&Device> {
        self.iter().find(|device| device.name == name)
    }

    /// Name of the bridge that a device is, or is a port of.
    pub fn bridge_of(&self, device: &Device) -> Option<&str> {
        let upper = device.master.and_then(|master| self.get(master));
        let same = self.get(device.index);
        let mut both = [same, upper].into_iter().flatten();
        let bridge = both.find(|it| it.kind.as_deref() == Some("bridge"))?;
        Some(&bridge.name)
    }

    /// The device of that index.
    pub fn get(&self, index: u32) -> Option<&Device> {
        self.iter().find(|device| device.index == index)
    }
}

impl FromIterator<Device> for Devices {
    fn from_iter<T: IntoIterator<Item = Device>>(devices: T) -> Self {
        Self(devices.into_iter().collect())
    }
}

impl Device {
    /// The device that takes its frames as they are, if it is a VLAN, macvlan
    /// or the like.
    pub fn stacked_on(&self) -> Option<u32> {
        let kind = self.kind.as_deref()?;
        self.link.filter(|_| STACKED.contains(&kind))
    }
}

pub(crate) fn device(entry: &[u8]) -> Option<Device> {
    let attributes = entry.get(IFINFOMSG..)?;
    let number = |kind| u32_at(attribute(attributes, kind)?, 0);
    let foreign = attribute(attributes, IFLA_LINK_NETNSID).is_some();
    let kind =
        attribute(attributes, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_KIND));
    Some(Device {
        index: u32_at(entry, 4)?,
        name: text(attribute(attributes, IFLA_IFNAME)?),
        kind: kind.map(text),
        master: number(IFLA_MASTER),
        link: number(IFLA_LINK).filter(|_| !foreign),
        is_loopback: u32_at(entry, 8)? & IFF_LOOPBACK != 0,
        is_running: u32_at(entry, 8)? & IFF_RUNNING != 0,
        is_mute: u32_at(entry, 8)? & IFF_NOARP != 0,
        carrier_changes: number(IFLA_CARRIER_CHANGES).unwrap_or(0),
        mac: attribute(attributes, IFLA_ADDRESS)
            .and_then(|mac| mac.try_into().ok())
            .map(MacAddr),
        mtu: number(IFLA_MTU).unwrap_or(0),
        qdisc: attribute(attributes, IFLA_QDISC).map_or_else(String::new, text),
        group: number(IFLA_GROUP).unwrap_or(0),
        xdp: attribute(attributes, IFLA_XDP)
            .and_then(|xdp| u32_at(attribute(xdp, IFLA_XDP_PROG_ID)?, 0))
            .filter(|id| *id != 0),
    })
}

/// Strings of the kernel end with a zero byte.
fn text(value: &[u8]) -> String {
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETH0: u32 = 2;
    const ETH1: u32 = 3;
    const TOP: u32 = 10;
    const MIDDLE: u32 = 11;

    fn device(index: u32, kind: Option<&str>) -> Device {
        Device {
            index,
            name: format!("d{index}"),
            kind: kind.map(str::to_owned),
            master: None,
            link: None,
            is_loopback: index == 1,
            ..Device::default()
        }
    }

    fn port(index: u32, master: u32) -> Device {
        Device {
            master: Some(master),
            ..device(index, None)
        }
    }

    fn stacked(index: u32, kind: &str, link: u32) -> Device {
        Device {
            link: Some(link),
            ..device(index, Some(kind))
        }
    }

    fn machine(devices: impl IntoIterator<Item = Device>) -> Devices {
        std::iter::once(device(1, None)).chain(devices).collect()
    }

    fn set(indices: &[u32]) -> BTreeSet<u32> {
        indices.iter().copied().collect()
    }

    #[test]
    fn ports_are_below_their_bond_bridge_or_team() {
        for kind in ["bond", "bridge", "team"] {
            let host = machine([
                port(ETH0, TOP),
                port(ETH1, TOP),
                device(TOP, Some(kind)),
                device(20, None),
            ]);
            assert_eq!(host.below(TOP), set(&[ETH0, ETH1]), "{kind}");
            assert_eq!(host.others(TOP), set(&[20]), "{kind}");
        }
    }

    #[test]
    fn a_vlan_is_above_its_device_and_what_that_is_made_of() {
        let host = machine([
            port(ETH0, MIDDLE),
            port(ETH1, MIDDLE),
            device(MIDDLE, Some("bond")),
            stacked(TOP, "vlan", MIDDLE),
            stacked(12, "vlan", MIDDLE),
        ]);
        assert_eq!(host.below(TOP), set(&[ETH0, ETH1, MIDDLE]));
        // Its sister leads elsewhere.
        assert_eq!(host.others(TOP), set(&[12]));
    }

    #[test]
    fn a_bridge_over_a_vlan_over_a_card() {
        let mut vlan = stacked(MIDDLE, "vlan", ETH0);
        vlan.master = Some(TOP);
        let host = machine([device(ETH0, None), vlan, device(TOP, Some("bridge"))]);
        assert_eq!(host.below(TOP), set(&[ETH0, MIDDLE]));
    }

    #[test]
    fn what_is_above_or_beside_is_not_below() {
        // A card that is a port, or carries a VLAN, is the service interface.
        let host = machine([
            port(ETH0, MIDDLE),
            device(MIDDLE, Some("bridge")),
            stacked(12, "vlan", ETH0),
        ]);
        assert_eq!(host.below(ETH0), set(&[]));
        assert_eq!(host.others(ETH0), set(&[MIDDLE, 12]));
    }

    #[test]
    fn the_other_end_of_a_veth_and_the_way_of_a_tunnel_are_not_below() {
        for kind in ["veth", "gretap", "vxlan", "wireguard"] {
            let host = machine([device(ETH0, None), stacked(TOP, kind, ETH0)]);
            assert_eq!(host.below(TOP), set(&[]), "{kind}");
        }
    }

    #[test]
    fn a_circle_comes_to_an_end() {
        let mut bridge = device(TOP, Some("bridge"));
        bridge.master = Some(MIDDLE);
        let mut other = stacked(MIDDLE, "macvlan", TOP);
        other.master = Some(TOP);
        assert_eq!(machine([bridge, other]).below(TOP), set(&[MIDDLE]));
    }

    #[test]
    fn messages_of_the_kernel_are_read() {
        let mut message = vec![0, 0, 1, 0, 7, 0, 0, 0, 0x43, 0x10, 0, 0, 0, 0, 0, 0];
        let mut push = |kind: u16, value: &[u8]| {
            crate::netlink::push_attribute(&mut message, kind, value);
        };
        push(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]);
        push(IFLA_IFNAME, b"eth0.100\0");
        push(IFLA_MTU, &1496_u32.to_ne_bytes());
        push(IFLA_CARRIER_CHANGES, &5_u32.to_ne_bytes());
        push(IFLA_QDISC, b"noqueue\0");
        push(IFLA_XDP, &[8, 0, 4, 0, 77, 0, 0, 0]);
        push(IFLA_LINK, &2u32.to_ne_bytes());
        push(IFLA_MASTER, &9u32.to_ne_bytes());
        push(
            IFLA_LINKINFO,
            &[9, 0, 1, 0, b'v', b'l', b'a', b'n', 0, 0, 0, 0],
        );
        let read = super::device(&message).expect("complete");
        let wanted = Device {
            name: "eth0.100".into(),
            master: Some(9),
            is_running: true,
            carrier_changes: 5,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 9])),
            mtu: 1496,
            qdisc: "noqueue".into(),
            xdp: Some(77),
            ..stacked(7, "vlan", 2)
        };
        assert_eq!(read, wanted);
        // The device below is in another namespace: the number means nothing here.
        crate::netlink::push_attribute(&mut message, IFLA_LINK_NETNSID, &[0; 4]);
        assert_eq!(super::device(&message).and_then(|read| read.link), None);
        for cut in 0..IFINFOMSG {
            assert_eq!(super::device(&message[..cut]), None);
        }
    }

    #[test]
    fn this_machine_has_loopback() {
        let devices = Devices::read().expect("netlink works");
        let loopback: Vec<_> = devices.iter().filter(|d| d.is_loopback).collect();
        assert!(
            matches!(&loopback[..], [lo] if lo.name == "lo"),
            "{loopback:?}"
        );
    }
}
