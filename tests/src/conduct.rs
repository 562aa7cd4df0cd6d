//! What a client can see of a service that plain TCP would not have shown it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use godwit_lab::capture::{SegmentSeen, Trace};
use godwit_lab::host::{Host, Network};
use godwit_wire::{Endpoint, FlowKey, MacAddr, SeqNumber, TcpFlags};

/// Two segments that two processors send at once may leave in either order.
const OVERTAKEN_NS: u64 = 2_000_000;

/// The same if a processor is taken away meanwhile: its segment's TSval is not
/// above the other one's.
const HELD_UP_NS: u64 = 100_000_000;

/// One segment of a service that plain TCP would not have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misconduct {
    /// The right edge of the window moved back by more than rounding to its scale
    /// may (RFC 9293 §3.8.6: SHOULD NOT; RFC 7323 §2.4).
    EdgeRetreats {
        /// The segment.
        segment: SegmentSeen,
        /// How far, in bytes.
        by: u32,
    },
    /// ECN towards a client that has not negotiated it (RFC 3168 §6.1.1).
    EcnLeaks {
        /// The segment.
        segment: SegmentSeen,
        /// What the SYN and the SYN-ACK said.
        agreed: [TcpFlags; 2],
    },
    /// Another machine went on with a TSval below one that the client has had: a
    /// client may take that for an old duplicate (RFC 7323 §5.3).
    StampRetreats {
        /// The segment.
        segment: SegmentSeen,
        /// The highest TSval before.
        before: u32,
    },
}

/// What the client of one connection was told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Window scale of either SYN; `None` before it was seen.
    client: Option<Syn>,
    service: Option<Syn>,
    ack: Option<SeqNumber>,
    edge: Option<SeqNumber>,
    /// When it was told of that edge first.
    edge_ns: u64,
    /// By a segment with this TSval.
    edge_ts: Option<u32>,
    /// Who spoke last with a time stamp, and the highest of all TSvals.
    stamp: Option<(MacAddr, u32)>,
    /// The client has sent its FIN: the window means nothing any more, and a
    /// socket in TIME-WAIT rounds it down.
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Syn {
    wscale: Option<u8>,
    flags: TcpFlags,
}

/// All of `services` in `trace`: connections whose handshake the capture holds.
pub fn misconduct(trace: &Trace, services: &[SocketAddr]) -> Vec<Misconduct> {
    let services: Vec<_> = services.iter().copied().map(Endpoint::from).collect();
    let mut connections = BTreeMap::<FlowKey, Told>::new();
    let mut found = Vec::new();
    for segment in trace.segments() {
        let Some(key) = services.iter().find_map(|&end| segment.flow(end)) else {
            continue;
        };
        let told = connections.entry(key).or_default();
        if segment.from == key.client {
            told.client_speaks(segment);
        } else if segment.to_mac == Host::Client.mac(Network::Data) {
            // Between the servers the switch may flood; the client drops that.
            found.extend(told.service_speaks(segment));
            found.extend(told.stamp_is_told(segment));
        }
    }
    found
}

impl Told {
    fn client_speaks(&mut self, segment: &SegmentSeen) {
        if segment.flags.contains(TcpFlags::SYN) {
            *self = Self {
                client: Some(Syn::of(segment)),
                ..Self::default()
            };
        }
        self.is_over |= segment.flags.contains(TcpFlags::FIN);
    }

    fn service_speaks(&mut self, segment: &SegmentSeen) -> Option<Misconduct> {
        let client = self.client?;
        if segment.flags.contains(TcpFlags::SYN) {
            self.service = Some(Syn::of(segment));
            self.ack = Some(segment.ack);
            // The window of a SYN is never scaled (RFC 7323 §2.2).
            self.edge = Some(segment.ack + u32::from(segment.window));
            self.edge_ns = segment.at_ns;
            return None;
        }
        let service = self.service?;
        if !client.asks_for_ecn() || !service.agrees_to_ecn() {
            let flags = TcpFlags(segment.flags.0 & TcpFlags::ECE.with(TcpFlags::CWR).0);
            if segment.ecn != 0 || flags != TcpFlags::default() {
                return Some(Misconduct::EcnLeaks {
                    segment: *segment,
                    agreed: [client.flags, service.flags],
                });
            }
        }
        self.window_is_told(segment, client, service)
    }

    fn window_is_told(
        &mut self,
        segment: &SegmentSeen,
        client: Syn,
        service: Syn,
    ) -> Option<Misconduct> {
        let counts = segment.flags.contains(TcpFlags::ACK);
        if self.is_over || !counts || segment.flags.contains(TcpFlags::RST) {
            return None;
        }
        // One that was overtaken on the way is no news to the client.
        if self.ack.is_some_and(|ack| segment.ack.lt(ack)) {
            return None;
        }
        let scale = client.wscale.and(service.wscale).unwrap_or(0).min(14);
        let edge = segment.ack + (u32::from(segment.window) << scale);
        let before = self.edge.unwrap_or(edge);
        self.ack = Some(segment.ack);
        let Some(by) = before.checked_distance(edge).filter(|by| by >> scale > 0) else {
            if edge.gt(before) {
                (self.edge, self.edge_ns) = (Some(edge), segment.at_ns);
                self.edge_ts = segment.ts_val;
            }
            return None;
        };
        if self.is_overtaken(segment) {
            return None;
        }
        Some(Misconduct::EdgeRetreats {
            segment: *segment,
            by,
        })
    }

    /// Segments of one machine may overtake each other, and an agent's own ones may be
    /// some milliseconds old: it counts how a machine begins.
    fn stamp_is_told(&mut self, segment: &SegmentSeen) -> Option<Misconduct> {
        let own = segment.ts_val?;
        if self.client.is_none() || segment.flags.contains(TcpFlags::RST) {
            return None;
        }
        let (voice, before) = self.stamp.unwrap_or((segment.from_mac, own));
        let retreats = SeqNumber(own).lt(SeqNumber(before));
        self.stamp = Some((segment.from_mac, if retreats { before } else { own }));
        let begins = voice != segment.from_mac;
        (begins && retreats).then_some(Misconduct::StampRetreats {
            segment: *segment,
            before,
        })
    }

    /// Whether the segment was made before the one that told of the edge.
    fn is_overtaken(&self, segment: &SegmentSeen) -> bool {
        let late = segment.at_ns.saturating_sub(self.edge_ns);
        let stamps = segment.ts_val.zip(self.edge_ts);
        let is_older = stamps.is_some_and(|(own, edge)| SeqNumber(own).le(SeqNumber(edge)));
        late < OVERTAKEN_NS || (is_older && late < HELD_UP_NS)
    }
}

impl Syn {
    const fn of(segment: &SegmentSeen) -> Self {
        Self {
            wscale: segment.wscale,
            flags: segment.flags,
        }
    }

    const fn asks_for_ecn(self) -> bool {
        self.flags.contains(TcpFlags::ECE.with(TcpFlags::CWR))
    }

    const fn agrees_to_ecn(self) -> bool {
        self.flags.contains(TcpFlags::ECE) && !self.flags.contains(TcpFlags::CWR)
    }
}

#[cfg(test)]
mod tests {
    use godwit_lab::capture::FrameSeen;
    use godwit_lab::host::SERVICE;

    use super::*;

    const ACK: TcpFlags = TcpFlags::ACK;
    const ECN: TcpFlags = TcpFlags::ECE.with(TcpFlags::CWR);

    fn service() -> SocketAddr {
        (SERVICE[0], 80).into()
    }

    fn said(by_client: bool, flags: TcpFlags, ack: u32, window: u16) -> SegmentSeen {
        let client = Endpoint::new(Host::Client.v4().to_ipv6_mapped(), 4000);
        let ends = [client, service().into()];
        let syn = flags.contains(TcpFlags::SYN);
        SegmentSeen {
            at_ns: 1_000_000_000,
            from_mac: MacAddr::ZERO,
            to_mac: Host::Client.mac(Network::Data),
            from: ends[usize::from(!by_client)],
            to: ends[usize::from(by_client)],
            flags,
            seq: SeqNumber(7),
            ack: SeqNumber(ack),
            window,
            length: 0,
            wscale: syn.then_some(2),
            ts_val: None,
            ecn: 0,
        }
    }

    /// A handshake with window scale 2 and, if they are so, ECN; then `rest`.
    fn judged(syn: TcpFlags, syn_ack: TcpFlags, rest: &[SegmentSeen]) -> Vec<Misconduct> {
        let start = [
            said(true, TcpFlags::SYN.with(syn), 0, 1000),
            said(false, TcpFlags::SYN.with(ACK).with(syn_ack), 100, 1000),
        ];
        let all = start.iter().chain(rest).copied();
        let timed = (0..).zip(all).map(|(number, segment)| SegmentSeen {
            at_ns: segment.at_ns + number * 10_000_000,
            ..segment
        });
        let frames = timed.map(FrameSeen::Segment).collect();
        misconduct(&Trace { frames }, &[service()])
    }

    fn window(told: &[(u32, u16)]) -> Vec<Misconduct> {
        let rest: Vec<_> = told.iter().map(|t| said(false, ACK, t.0, t.1)).collect();
        judged(TcpFlags::default(), TcpFlags::default(), &rest)
    }

    #[test]
    fn an_edge_that_stays_or_advances_is_right() {
        let unscaled = 1000 / 4;
        assert_eq!(window(&[(100, unscaled), (300, 200), (1100, 0)]), []);
        // One segment overtook the other.
        assert_eq!(window(&[(300, 250), (200, 250)]), []);
        // 1300, then 1297: no multiple of four from 301 on is nearer below.
        assert_eq!(window(&[(300, 250), (301, 249)]), []);
    }

    #[test]
    fn an_edge_that_retreats_is_found() {
        for (told, by) in [
            (&[(100, 249)][..], 4),
            (&[(300, 250), (400, 224)], 4),
            (&[(300, 250), (300, 0)], 1000),
        ] {
            let found = window(told);
            let [Misconduct::EdgeRetreats { by: found, .. }] = found[..] else {
                panic!("{told:?}: {found:?}");
            };
            assert_eq!(found, by, "{told:?}");
        }
    }

    #[test]
    fn segments_of_two_processors_may_overtake_each_other() {
        let window = said(false, ACK, 300, 250);
        let mut data = said(false, ACK, 300, 240);
        data.at_ns -= 9_000_000;
        let none = TcpFlags::default();
        assert_eq!(judged(none, none, &[window, data]), []);
        data.at_ns += 9_000_000;
        assert_eq!(judged(none, none, &[window, data]).len(), 1);
        // 10 ms later, as its processor was taken away meanwhile.
        let stamped = |ts_val, segment| SegmentSeen {
            ts_val: Some(ts_val),
            ..segment
        };
        let first = stamped(5, window);
        assert_eq!(judged(none, none, &[first, stamped(5, data)]), []);
        assert_eq!(judged(none, none, &[first, stamped(6, data)]).len(), 1);
    }

    #[test]
    fn a_window_behind_the_clients_fin_means_nothing() {
        let fin = said(true, TcpFlags::FIN.with(ACK), 0, 0);
        let late = said(false, ACK, 101, 0);
        assert_eq!(
            judged(TcpFlags::default(), TcpFlags::default(), &[fin, late]),
            []
        );
    }

    #[test]
    fn another_machine_goes_on_with_its_time_stamps() {
        let none = TcpFlags::default();
        let stamped = |machine, ts_val| SegmentSeen {
            from_mac: MacAddr([2, 0, 0, 0, 0, machine]),
            ts_val: Some(ts_val),
            ..said(false, ACK, 100, 1000)
        };
        let judged = |told: &[(u8, u32)]| {
            let rest: Vec<_> = told.iter().map(|t| stamped(t.0, t.1)).collect();
            judged(none, none, &rest)
        };
        assert_eq!(judged(&[(1, 5), (1, 7), (2, 7), (1, 8)]), []);
        assert_eq!(
            judged(&[(1, u32::MAX), (2, 3)]),
            [],
            "it has wrapped around"
        );
        assert_eq!(judged(&[(1, 7), (1, 5), (1, 7)]), [], "one was overtaken");
        // Also below the highest, which was not the last.
        for told in [&[(1, 7), (2, 6)][..], &[(1, 7), (1, 5), (2, 6), (2, 8)]] {
            let found = judged(told);
            let [Misconduct::StampRetreats { before: 7, .. }] = found[..] else {
                panic!("{told:?}: {found:?}");
            };
        }
    }

    #[test]
    fn ecn_leaks_unless_both_sides_agreed() {
        let none = TcpFlags::default();
        let echo = said(false, ACK.with(TcpFlags::ECE), 100, 1000);
        let reduced = said(false, ACK.with(TcpFlags::CWR), 100, 1000);
        let capable = SegmentSeen {
            ecn: 2,
            ..said(false, ACK, 100, 1000)
        };
        for leak in [echo, reduced, capable] {
            for (syn, syn_ack, leaks) in [
                (none, none, 1),
                (ECN, none, 1),
                (none, TcpFlags::ECE, 1),
                // A SYN-ACK that reflects both bits agrees to nothing.
                (ECN, ECN, 1),
                (ECN, TcpFlags::ECE, 0),
            ] {
                let found = judged(syn, syn_ack, &[leak]);
                assert_eq!(found.len(), leaks, "{syn} {syn_ack} {leak:?}");
            }
        }
    }
}
