//! Resets that a client could have noticed.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use godwit_lab::capture::{SegmentSeen, Trace};
use godwit_wire::{Endpoint, FlowKey, SeqNumber, TcpFlags};

/// How far the two sides of one connection have come to their ends.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    client: End,
    service: End,
}

/// One side's FIN, and what the other side has acknowledged of this side.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    after_fin: Option<SeqNumber>,
    acknowledged: Option<SeqNumber>,
}

/// Segments with RST, either way, of connections with a service that were not
/// over yet.
///
/// A server that has forgotten a connection answers a late duplicate of it with
/// RST (RFC 9293 §3.10.7.1): those are not counted. The connection is over for
/// both once each has acknowledged the other's FIN.
pub fn live_resets(trace: &Trace, services: &[SocketAddr]) -> Vec<SegmentSeen> {
    let mut connections = BTreeMap::<FlowKey, Ends>::new();
    let mut found = Vec::new();
    for segment in trace.segments() {
        let service = services.iter().map(|&address| Endpoint::from(address));
        let Some(key) = service.into_iter().find_map(|end| segment.flow(end)) else {
            continue;
        };
        let ends = connections.entry(key).or_default();
        if segment.flags == TcpFlags::SYN {
            *ends = Ends::default();
        }
        if segment.flags.contains(TcpFlags::RST) {
            if !(ends.client.is_over() && ends.service.is_over()) {
                found.push(*segment);
            }
            continue;
        }
        let (own, other) = if segment.from == key.client {
            (&mut ends.client, &mut ends.service)
        } else {
            (&mut ends.service, &mut ends.client)
        };
        own.speaks(segment);
        other.is_acknowledged(segment);
    }
    found
}

impl End {
    fn speaks(&mut self, segment: &SegmentSeen) {
        if segment.flags.contains(TcpFlags::FIN) {
            self.after_fin = Some(segment.seq + segment.length + 1);
        }
    }

    fn is_acknowledged(&mut self, segment: &SegmentSeen) {
        if segment.flags.contains(TcpFlags::ACK) {
            let before = self.acknowledged.unwrap_or(segment.ack);
            self.acknowledged = Some(before.max(segment.ack));
        }
    }

    fn is_over(&self) -> bool {
        match (self.after_fin, self.acknowledged) {
            (Some(end), Some(acknowledged)) => acknowledged.ge(end),
            (None, _) | (_, None) => false,
        }
    }
}
