//! What is remembered of flows for as long as scans of the flow table see them.
//!
//! A flow's end is reported, but the report can be lost (the ring buffer was
//! full): a memory that waits for it would grow for ever.

use std::collections::BTreeMap;

use godwit_wire::FlowKey;

/// A value for some of the flows that the last whole scan has seen.
#[derive(Debug)]
pub struct Remembered<V> {
    flows: BTreeMap<FlowKey, V>,
    /// During a scan: those that it has not seen yet.
    unseen: BTreeMap<FlowKey, V>,
}

impl<V> Default for Remembered<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> Remembered<V> {
    /// Of no flow.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            flows: BTreeMap::new(),
            unseen: BTreeMap::new(),
        }
    }

    /// A scan begins; [`saw`](Self::saw) comes for each flow before it is asked
    /// about.
    pub fn begin(&mut self) {
        self.unseen.append(&mut self.flows);
    }

    /// The scan has come to this flow.
    pub fn saw(&mut self, flow: FlowKey) {
        if !self.unseen.is_empty()
            && let Some(value) = self.unseen.remove(&flow)
        {
            self.flows.insert(flow, value);
        }
    }

    /// The scan is over. If it was `whole`, what it did not see is forgotten.
    pub fn end(&mut self, whole: bool) {
        if !whole {
            self.flows.append(&mut self.unseen);
        }
        self.unseen.clear();
    }

    /// Of this flow.
    #[must_use]
    pub fn get(&self, flow: &FlowKey) -> Option<&V> {
        self.flows.get(flow)
    }

    /// Gives what was remembered before.
    pub fn insert(&mut self, flow: FlowKey, value: V) -> Option<V> {
        self.flows.insert(flow, value)
    }

    /// It has ended.
    pub fn remove(&mut self, flow: &FlowKey) {
        self.flows.remove(flow);
        self.unseen.remove(flow);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.flows.clear();
        self.unseen.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn flow(port: u16) -> FlowKey {
        FlowKey {
            client: SocketAddr::from(([10, 9, 0, 10], port)).into(),
            service: SocketAddr::from(([10, 9, 0, 100], 80)).into(),
        }
    }

    /// After a scan of `seen` in which the last flow gets a new value.
    fn scanned(seen: &[u16], whole: bool) -> Vec<Option<u32>> {
        let mut remembered = Remembered::new();
        for port in 1..4 {
            remembered.insert(flow(port), u32::from(port));
        }
        remembered.begin();
        for port in seen {
            remembered.saw(flow(*port));
        }
        if let Some(last) = seen.last() {
            remembered.insert(flow(*last), 9);
        }
        remembered.end(whole);
        (1..4)
            .map(|port| remembered.get(&flow(port)).copied())
            .collect()
    }

    #[test]
    fn a_flow_that_a_scan_does_not_see_is_forgotten() {
        assert_eq!(scanned(&[1, 3], true), [Some(1), None, Some(9)]);
        assert_eq!(scanned(&[], true), [None, None, None]);
    }

    /// A scan goes on in steps: others note ends in between.
    #[test]
    fn what_ends_during_a_scan_is_not_remembered() {
        let mut remembered = Remembered::new();
        for port in [1, 2] {
            remembered.insert(flow(port), port);
        }
        remembered.begin();
        remembered.saw(flow(1));
        for port in [1, 2] {
            remembered.remove(&flow(port));
            remembered.saw(flow(port));
        }
        remembered.end(true);
        assert_eq!(remembered.get(&flow(1)), None);
        assert_eq!(remembered.get(&flow(2)), None);
    }

    #[test]
    fn a_scan_that_was_cut_short_forgets_nothing() {
        assert_eq!(scanned(&[1, 2], false), [Some(1), Some(9), Some(3)]);
        assert_eq!(scanned(&[], false), [Some(1), Some(2), Some(3)]);
    }
}
