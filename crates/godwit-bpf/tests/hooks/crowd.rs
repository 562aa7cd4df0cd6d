//! Tables that all clients have in common: what one of them may have of each.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use godwit_bpf::{Hook, Order, OrderError, Phase};
use godwit_wire::TcpFlags;

use crate::bench::{Bench, IRS, ISS, NEXT, ends, from_service, on_bench, to_service};

const ACK: TcpFlags = TcpFlags::ACK;

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

/// What the client's address begins with, and zeroes.
fn source(v6: bool) -> Ipv6Addr {
    let mut octets = ends(1, v6).0.addr.octets();
    octets[if v6 { 8 } else { 15 }..].fill(0);
    octets.into()
}

fn crowd(bench: &Bench, sources: &[Ipv6Addr]) {
    let sources: BTreeMap<_, _> = sources.iter().map(|source| (*source, 7)).collect();
    let set = bench.datapath.crowds.replace(&sources);
    set.expect("there is room");
}

/// Its connections are its server's, and no flow comes of what it says later, though there may
/// be room by then. Other sources are protected.
#[test]
fn a_source_that_has_its_part_is_served_unprotected() {
    on_bench(|bench| {
        for v6 in [false, true] {
            crowd(bench, &[source(v6)]);
            let syn = to_service(7, v6, IRS, 0, TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
            let both = TcpFlags::SYN.with(ACK);
            let syn_ack = from_service(7, v6, ISS, CLIENT, both, b"");
            bench.expect(Hook::Gate, "SYN-ACK", &syn_ack, NEXT, "syn_ack");
            let third = to_service(7, v6, CLIENT, SERVICE, ACK, b"");
            bench.expect(Hook::Tap, "third ACK", &third, NEXT, "source_share");
            crowd(bench, &[source(!v6)]);
            let data = to_service(7, v6, CLIENT, SERVICE, ACK, b"data");
            bench.expect(Hook::Tap, "its data", &data, NEXT, "no_flow");
            let said = from_service(7, v6, SERVICE, CLIENT, ACK, b"data");
            bench.expect(Hook::Gate, "its server", &said, NEXT, "no_flow");
            bench.connect(8, v6);
            bench.order(Order::Forget).expect("there is one flow");
        }
    });
}

/// What is kept of what its client says makes room, once. A connection whose twin is being made
/// of that keeps it.
#[test]
fn a_log_makes_room_for_those_of_others() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.lose_standby();
            bench.connect(7, v6);
            let data = to_service(7, v6, CLIENT, SERVICE, ACK, &[7; 1000]);
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            assert_eq!(bench.chunks(), 3);
            assert!(bench.flow().log.chunks() >= 3);
            let before = bench.datapath.counters.by_name("log_evicted");
            bench.order(Order::DropLog).expect("it has one");
            assert_eq!(bench.datapath.counters.by_name("log_evicted"), before + 1);
            assert_eq!((bench.chunks(), bench.flow().log.chunks()), (0, 0));
            assert_eq!(bench.flow().phase, Phase::Unprotected, "nothing else");
            let again = bench.order(Order::DropLog);
            assert!(matches!(again, Err(OrderError::NoFlow)), "{again:?}");
            let more = to_service(7, v6, CLIENT.wrapping_add(1000), SERVICE, ACK, &[7; 1000]);
            bench.expect(Hook::Tap, "more", &more, NEXT, "client_segment");
            assert_eq!(bench.chunks(), 0, "it does not begin in the midst");
            bench.order(Order::Forget).expect("there is one flow");
        }
    });
}
