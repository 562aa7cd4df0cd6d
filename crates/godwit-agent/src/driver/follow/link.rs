//! By what a link is known again: where this changes, what was proved of it is not any more.

use godwit_sock::Device;
use godwit_wire::MacAddr;

/// What decides where frames of the service interface go, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    index: u32,
    mac: Option<MacAddr>,
    mtu: u32,
    /// The bridge or bond that it is a port of.
    master: Option<u32>,
    /// How often the carrier has come and gone: one that is back may be another switch's.
    carrier_changes: u32,
    is_running: bool,
}

impl Link {
    pub(super) const fn of(device: &Device) -> Self {
        Self {
            index: device.index,
            mac: device.mac,
            mtu: device.mtu,
            master: device.master,
            carrier_changes: device.carrier_changes,
            is_running: device.is_running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_another_one_when_a_cable_was_out_for_a_moment() {
        let plain = Device {
            index: 2,
            mtu: 1500,
            is_running: true,
            ..Device::default()
        };
        let changes: [fn(&mut Device); 6] = [
            |it| it.index = 3,
            |it| it.mac = Some(MacAddr([2, 0, 0, 0, 0, 1])),
            |it| it.mtu = 1400,
            |it| it.master = Some(7),
            |it| it.carrier_changes += 2,
            |it| it.is_running = false,
        ];
        for change in changes {
            let mut other = plain.clone();
            change(&mut other);
            assert_ne!(Link::of(&plain), Link::of(&other), "{other:?}");
        }
        let queue = Device {
            qdisc: "fq".to_owned(),
            ..plain.clone()
        };
        assert_eq!(Link::of(&plain), Link::of(&queue), "it goes the same way");
    }
}
