//! What clients send while their connections are on their way to this node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use godwit_sock::{HoldTun, only_repeats};
use godwit_wire::{FlowKey, Segment, TcpSnapshot};

/// Packets of one connection that are kept; its client repeats what is more. The newest
/// are: of one that still runs elsewhere the others have arrived there.
const MAX_PACKETS: usize = 4096;

/// The device that packets are redirected to, and those that were in it.
#[derive(Debug)]
pub(super) struct Waiting {
    tun: HoldTun,
    packets: BTreeMap<FlowKey, Vec<Vec<u8>>>,
    /// Those of which nothing is kept, nor handed to our kernel.
    unwanted: BTreeSet<FlowKey>,
    /// How many of each went nowhere, since [`Waiting::begin`].
    dropped: BTreeMap<FlowKey, usize>,
}

impl Waiting {
    pub(super) const fn new(tun: HoldTun) -> Self {
        Self {
            tun,
            packets: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            dropped: BTreeMap::new(),
        }
    }

    pub(super) const fn device(&self) -> u32 {
        self.tun.index()
    }

    /// From now on packets of a connection are kept.
    pub(super) fn begin(&mut self, flow: FlowKey) {
        self.unwanted.remove(&flow);
        self.packets.insert(flow, Vec::new());
    }

    /// Takes what is in the device by now: what is kept stays, what belongs to nobody any
    /// more goes to our kernel. Not what comes meanwhile, which might have no end, and
    /// this thread has more to do.
    pub(super) fn sort(&mut self) {
        for _ in 0..HoldTun::QUEUE {
            let packet = match self.tun.take() {
                Ok(Some(packet)) => packet,
                Ok(None) => return,
                Err(error) => {
                    return tracing::error!(error = %error, "held packets can't be read");
                }
            };
            let flow = flow_of(&packet);
            if let Some(flow) = flow.filter(|flow| self.unwanted.contains(flow)) {
                self.count(flow, 1);
                continue;
            }
            match flow.and_then(|flow| Some((flow, self.packets.get_mut(&flow)?))) {
                Some((flow, kept)) => {
                    let full = kept.len() == MAX_PACKETS;
                    if full {
                        kept.drain(..MAX_PACKETS / 2);
                    }
                    kept.push(packet);
                    if full {
                        self.count(flow, MAX_PACKETS / 2);
                    }
                }
                None => self.put_back(&packet),
            }
        }
    }

    /// What has been kept of a connection and was not taken yet.
    pub(super) fn take(&mut self, flow: FlowKey) -> Vec<Vec<u8>> {
        self.take_some(flow, MAX_PACKETS)
    }

    /// The oldest of that, at most so many.
    pub(super) fn take_some(&mut self, flow: FlowKey, most: usize) -> Vec<Vec<u8>> {
        self.sort();
        let Some(kept) = self.packets.get_mut(&flow) else {
            return Vec::new();
        };
        kept.drain(..most.min(kept.len())).collect()
    }

    /// Nothing is kept of it any more; what comes of it is our kernel's.
    pub(super) fn end(&mut self, flow: FlowKey) {
        self.packets.remove(&flow);
        self.unwanted.remove(&flow);
        self.dropped.remove(&flow);
    }

    /// The same of one whose packets nobody gets any more. How many went nowhere.
    pub(super) fn end_in_silence(&mut self, flow: FlowKey) -> usize {
        let left = self.take(flow).len();
        self.count(flow, left);
        let dropped = self.dropped.remove(&flow).unwrap_or(0);
        self.end(flow);
        dropped
    }

    fn count(&mut self, flow: FlowKey, dropped: usize) {
        *self.dropped.entry(flow).or_default() += dropped;
    }

    /// What comes of one that was ignored is kept again.
    pub(super) fn heed(&mut self, flow: FlowKey) {
        if self.unwanted.remove(&flow) {
            self.begin(flow);
        }
    }

    /// Nothing is kept of it any more, and what comes of it is nobody's.
    pub(super) fn ignore(&mut self, flow: FlowKey) {
        let kept = self.packets.remove(&flow).map_or(0, |kept| kept.len());
        self.count(flow, kept);
        self.unwanted.insert(flow);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Hands our kernel what has waited for a socket; what says nothing new would
    /// count as a sign of loss.
    pub(super) fn release(&mut self, flow: FlowKey, snapshot: &TcpSnapshot) {
        for packet in self.take(flow) {
            if !only_repeats(&packet, snapshot) {
                self.put_back(&packet);
            }
        }
    }

    /// A packet that arrives for our kernel.
    pub(super) fn put_back(&self, packet: &[u8]) {
        if let Err(error) = self.inject(packet) {
            tracing::warn!(error = %error, "a packet was lost on its way to our kernel");
        }
    }

    /// The same.
    ///
    /// # Errors
    /// If it is none, or the device is gone.
    pub(super) fn inject(&self, packet: &[u8]) -> io::Result<()> {
        self.tun.put_back(packet)
    }
}

/// The connection of a client's packet.
pub(super) fn flow_of(packet: &[u8]) -> Option<FlowKey> {
    let segment = Segment::parse(packet).ok()?;
    Some(FlowKey {
        client: segment.source,
        service: segment.destination,
    })
}
