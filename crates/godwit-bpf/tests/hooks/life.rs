//! Births and ends of a flow, where two CPUs or two machines may be early.

use godwit_bpf::{Hook, Order, OrderError, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{Role, TcpFlags, UnprotectedReason};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, flow_id, from_service, on_bench, tapped, to_service, twin,
};

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

/// The standby had promised not to serve a flow that it had no twin of, and the
/// handshake came late: the twin that it made could not be told from a whole one.
#[test]
fn a_twin_that_is_born_after_its_flow_was_let_go_is_not_served() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        let standby = Host::B.mac(Network::Data);
        for (port, v6) in [(7, false), (8, true)] {
            let flow = flow_id(port, v6);
            let marked = bench.order_for(flow, Order::NotInSync(UnprotectedReason::NotConfirmed));
            assert!(marked.is_ok(), "{marked:?}");
            let next = IRS.wrapping_add(1);
            let syn = tapped(to_service(port, v6, IRS, 0, TcpFlags::SYN, b""));
            bench.expect(Hook::Tap, "SYN", &syn, DROP, "tapped_syn");
            let both = TcpFlags::SYN.with(ACK);
            let syn_ack = twin(standby, port, v6, (ISS, next), both, b"");
            bench.expect(Hook::Tap, "SYN-ACK", &syn_ack, DROP, "tapped_syn_ack");
            let third = tapped(to_service(port, v6, next, ISS + 1, ACK, b""));
            bench.pass(Hook::Tap, &third);
            let born = bench.flows().get(flow.key).expect("the map can be read");
            assert!(born.is_some_and(|flow| flow.twin && flow.not_in_sync));
        }
    });
}

/// The end of a handshake that began in an earlier stay: to its owner the flow is
/// not protected by this one, so its twin would lack what is said meanwhile.
#[test]
fn a_handshake_of_an_earlier_stay_makes_no_twin() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for (port, v6) in [(7, false), (8, true)] {
            bench.stand_by(1);
            let next = IRS.wrapping_add(1);
            let syn = tapped(to_service(port, v6, IRS, 0, TcpFlags::SYN, b""));
            bench.expect(Hook::Tap, "SYN", &syn, DROP, "tapped_syn");
            let both = TcpFlags::SYN.with(ACK);
            let syn_ack = twin(standby, port, v6, (ISS, next), both, b"");
            bench.expect(Hook::Tap, "SYN-ACK", &syn_ack, DROP, "tapped_syn_ack");
            bench.stand_by(2);
            let third = tapped(to_service(port, v6, next, ISS + 1, ACK, b""));
            bench.expect(Hook::Tap, "third ACK", &third, DROP, "no_handshake");
            let key = flow_id(port, v6).key;
            let born = bench.flows().get(key).expect("the map can be read");
            assert!(born.is_none(), "{born:?}");
        }
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
