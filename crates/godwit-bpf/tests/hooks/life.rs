//! Births and ends of a flow, where two CPUs or two machines may be early.

use godwit_bpf::{Hook, Order, OrderError, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{TcpFlags, UnprotectedReason};

use crate::bench::{Bench, DROP, IRS, ISS, NEXT, from_service, on_bench, to_service, twin};

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 100] = [7; 100];

/// With a tap that the network makes, the twin may have the client's segment
/// first: its acknowledgement counts, and nobody waits for another one.
#[test]
fn a_twin_may_be_faster_than_its_owner() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            bench.connect(7, v6);
            let (next, sent) = (IRS.wrapping_add(1), IRS.wrapping_add(101));
            let first = twin(standby, 7, v6, (ISS + 1, sent), ACK, b"");
            bench.expect(Hook::Tap, "the twin's ACK", &first, DROP, "twin_ack");
            let data = to_service(7, v6, next, ISS + 1, ACK, &DATA);
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            let own = from_service(7, v6, ISS + 1, sent, ACK, b"");
            bench.expect(Hook::Gate, "the owner's ACK", &own, NEXT, "spoken");
        }
    });
}

/// Both FINs and their ACKs, after the standby was lost: the flow is over, what
/// the twin held at the end does not matter.
#[test]
fn a_flow_that_lost_its_standby_ends() {
    on_bench(|bench| {
        bench.connect(7, false);
        bench.lose_standby();
        close(bench);
        assert_eq!(bench.flow().phase, Phase::Ended);
    });
}

/// The agent's order may come when the connection is already over.
#[test]
fn an_order_does_not_revive_what_is_over() {
    on_bench(|bench| {
        bench.connect(7, false);
        let reset = to_service(7, false, IRS.wrapping_add(1), ISS + 1, TcpFlags::RST, b"");
        bench.expect(Hook::Tap, "RST", &reset, NEXT, "client_rst");
        let late = bench.order(Order::Ungate(UnprotectedReason::NotConfirmed));
        assert!(matches!(late, Err(OrderError::NoFlow)), "{late:?}");
        assert_eq!(bench.flow().phase, Phase::Ended);
    });
}

fn close(bench: &Bench) {
    let (next, fin) = (IRS.wrapping_add(1), TcpFlags::FIN.with(ACK));
    let client_fin = to_service(7, false, next, ISS + 1, fin, b"");
    bench.expect(
        Hook::Tap,
        "the client's FIN",
        &client_fin,
        NEXT,
        "client_segment",
    );
    let own_fin = from_service(7, false, ISS + 1, next.wrapping_add(1), fin, b"");
    bench.expect(Hook::Gate, "our FIN", &own_fin, NEXT, "spoken");
    let last = to_service(7, false, next.wrapping_add(1), ISS + 2, ACK, b"");
    bench.expect(Hook::Tap, "its ACK", &last, NEXT, "client_segment");
}
