//! Where this node is on the link now.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use godwit_wire::MacAddr;

/// The service interface's number and MAC address. Threads that outlive a change look here.
#[derive(Debug)]
pub(crate) struct Place {
    ifindex: AtomicU32,
    /// Six bytes, and two that are 0.
    mac: AtomicU64,
}

impl Place {
    pub(crate) fn new(ifindex: u32, mac: MacAddr) -> Self {
        Self {
            ifindex: ifindex.into(),
            mac: word(mac).into(),
        }
    }

    pub(crate) fn ifindex(&self) -> u32 {
        self.ifindex.load(Ordering::Relaxed)
    }

    pub(crate) fn mac(&self) -> MacAddr {
        let [a, b, c, d, e, f, _, _] = self.mac.load(Ordering::Relaxed).to_ne_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    pub(super) fn set(&self, ifindex: u32, mac: MacAddr) {
        self.ifindex.store(ifindex, Ordering::Relaxed);
        self.mac.store(word(mac), Ordering::Relaxed);
    }
}

fn word(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}
