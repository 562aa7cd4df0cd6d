//! What a client says after a takeover on a connection that is over.

use godwit_bpf::{Hook, Order, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{EthernetHeader, Role, Segment, SeqNumber, TcpFlags, UnprotectedReason};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, REDIRECT, SHARE, flow_id, from_service, mirrored, on_bench,
    to_service, twin,
};
use crate::moves::shadow;

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 100] = [7; 100];

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

/// The standby has taken over, and nobody stands by for it.
fn take_over(bench: &Bench) {
    bench.lose_standby();
}

fn forget(bench: &Bench) {
    bench.order(Order::Forget).expect("it is removed");
}

/// The client repeats its data, and our kernel, without a socket, its RST: from
/// where the client is, which has got more than the twin had said.
fn expect_refused(bench: &Bench, v6: bool, [heard, said]: [&str; 2]) {
    let data = to_service(7, v6, CLIENT, SERVICE + 500, ACK, &DATA);
    bench.expect(Hook::Tap, "data again", &data, NEXT, heard);
    assert_eq!(bench.put(Hook::Tap, 0, &data).frame, data, "as it is");
    let refusal = from_service(7, v6, SERVICE, 0, TcpFlags::RST, b"");
    bench.expect(Hook::Gate, "RST", &refusal, NEXT, said);
}

/// The first RST may be lost; plain TCP answers every segment that comes.
#[test]
fn a_reset_after_a_takeover_is_said_to_whoever_asks_again() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            take_over(bench);
            let flags = TcpFlags::RST.with(ACK);
            let reset = from_service(7, v6, SERVICE, CLIENT, flags, b"");
            bench.expect(Hook::Gate, "RST", &reset, NEXT, "own_rst");
            assert_eq!(bench.flow().phase, Phase::Ended);
            for _ in 0..2 {
                expect_refused(bench, v6, ["client_segment", "own_rst"]);
            }
            forget(bench);
        }
    });
}

/// The agent's RST may be lost, or be answered by a client that has got more than
/// we know (RFC 5961 section 3.2). The socket that we do not serve is silent.
#[test]
fn a_connection_that_nobody_serves_is_reset_whenever_its_client_asks() {
    on_bench(|bench| {
        for (v6, closed) in [(false, false), (true, false), (false, true), (true, true)] {
            shadow(bench, 7, v6);
            if closed {
                let reset = from_service(7, v6, SERVICE, CLIENT, TcpFlags::RST.with(ACK), b"");
                bench.expect(Hook::Gate, "its RST", &reset, DROP, "suppressed_rst");
                assert_eq!(bench.flow().phase, Phase::Closed);
            } else {
                let given_up = Order::NotInSync(UnprotectedReason::NotConfirmed);
                bench.order(given_up).expect("it is marked");
            }
            take_over(bench);
            let reason = "unprotected_at_takeover";
            let data = to_service(7, v6, CLIENT, SERVICE, ACK, &DATA);
            bench.expect(Hook::Tap, "data", &data, DROP, reason);
            let refusal = from_service(7, v6, SERVICE, 0, TcpFlags::RST, b"");
            bench.expect(Hook::Gate, "RST before the agent's", &refusal, DROP, reason);
            bench.order(Order::End).expect("it ends");
            expect_refused(bench, v6, [reason; 2]);
            for (what, flags) in [("RST", TcpFlags::RST.with(ACK)), ("data", ACK)] {
                let socket = from_service(7, v6, SERVICE, CLIENT, flags, b"");
                bench.expect(Hook::Gate, what, &socket, DROP, reason);
            }
            forget(bench);
        }
    });
}

/// It was given up before it had a twin here, and its owner has died: of a client that
/// only listens nothing would come. What there is to ask it with is found.
#[test]
fn a_client_whose_connection_never_had_a_twin_can_be_asked() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        for v6 in [false, true] {
            let flow = flow_id(7, v6);
            let waiting = || bench.datapath.half_open.waiting().expect("it can be read");
            assert!(waiting().iter().all(|half| half.key != flow.key));
            let given_up = Order::NotInSync(UnprotectedReason::NotConfirmed);
            bench.order_for(flow, given_up).expect("it is marked");
            let found = waiting().into_iter().find(|half| half.key == flow.key);
            let half = found.expect("it is remembered");
            assert_eq!((half.irs, half.share, half.tapped), (flow.irs, SHARE, true));
            assert!(half.born_ns > 0, "since when");
        }
        take_over(bench);
        for v6 in [false, true] {
            let (next, heard) = (CLIENT.wrapping_add(300), SERVICE + 500);
            let answer = to_service(7, v6, next, heard, ACK, b"");
            bench.expect(Hook::Tap, "where it is", &answer, NEXT, "no_flow");
            let refusal = from_service(7, v6, heard, 0, TcpFlags::RST, b"");
            bench.expect(Hook::Gate, "RST", &refusal, NEXT, "unprotected_at_takeover");
        }
    });
}

/// Both have closed, and the old owner died before it told the client that its
/// FIN had arrived: the twin, in LAST-ACK, is gone with the client's ACK.
#[test]
fn a_client_that_repeats_its_fin_hears_that_it_arrived() {
    on_bench(|bench| {
        let owner = Host::B.mac(Network::Data);
        let (fin, next) = (TcpFlags::FIN.with(ACK), CLIENT.wrapping_add(1));
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let closed = mirrored(7, v6, (CLIENT, SERVICE), fin, b"");
            bench.expect(Hook::Tap, "its FIN", &closed, NEXT, "tapped_segment");
            let ours = from_service(7, v6, SERVICE, next, fin, b"");
            bench.expect(Hook::Gate, "the twin's FIN", &ours, DROP, "unsent");
            let owners = twin(owner, 7, v6, (SERVICE, CLIENT), fin, b"");
            bench.expect(Hook::Tap, "its owner's", &owners, DROP, "owner_segment");
            let got = mirrored(7, v6, (next, SERVICE + 1), ACK, b"");
            bench.expect(Hook::Tap, "its ACK", &got, NEXT, "tapped_segment");
            assert_eq!(bench.flow().phase, Phase::Ended);
            take_over(bench);
            let again = to_service(7, v6, CLIENT, SERVICE + 1, fin, b"");
            let said = bench.put(Hook::Tap, 0, &again);
            assert_eq!(said.verdict, REDIRECT);
            let said = Segment::parse(&said.frame[EthernetHeader::LEN..]);
            let said = said.expect("it is a segment");
            assert_eq!((said.flags, said.payload.len()), (ACK, 0));
            assert_eq!(
                (said.seq, said.ack),
                (SeqNumber(SERVICE + 1), SeqNumber(next))
            );
            bench.expect(Hook::Tap, "once more", &again, REDIRECT, "last_ack");
            let idle = to_service(7, v6, next, SERVICE + 1, ACK, b"");
            bench.expect(Hook::Tap, "in TIME-WAIT", &idle, NEXT, "client_segment");
            let refusal = from_service(7, v6, SERVICE + 1, 0, TcpFlags::RST, b"");
            bench.expect(Hook::Gate, "our RST", &refusal, DROP, "late_rst");
            forget(bench);
        }
    });
}

/// A twin that was not whole yet, and its client closed all the same: nobody needs a
/// RST for that.
#[test]
fn a_client_that_has_heard_its_owner_out_has_parted() {
    on_bench(|bench| {
        let owner = Host::B.mac(Network::Data);
        let (fin, next) = (TcpFlags::FIN.with(ACK), CLIENT.wrapping_add(1));
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let given_up = Order::NotInSync(UnprotectedReason::NotConfirmed);
            bench.order(given_up).expect("it is marked");
            let owners = twin(owner, 7, v6, (SERVICE + 300, CLIENT), fin, b"");
            bench.expect(Hook::Tap, "its owner's FIN", &owners, DROP, "owner_segment");
            let closed = mirrored(7, v6, (CLIENT, SERVICE + 300), fin, b"");
            bench.expect(Hook::Tap, "the client's", &closed, NEXT, "tapped_segment");
            assert!(!bench.flow().parted, "it may lack the FIN");
            let got = mirrored(7, v6, (next, SERVICE + 301), ACK, b"");
            bench.expect(Hook::Tap, "its ACK", &got, NEXT, "tapped_segment");
            assert!(bench.flow().parted);
            assert_ne!(bench.flow().phase, Phase::Ended, "to the twin it goes on");
            forget(bench);
        }
    });
}

/// The unit of the client's window may be larger than what the client has and the
/// twin has not sent: its kernel can't send just that, and its application is not
/// behind for it.
#[test]
fn what_a_twin_tries_beyond_its_client_it_has_answered() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let acked = |upto: u32| {
                let ack = mirrored(7, v6, (CLIENT, SERVICE + upto), ACK, b"");
                bench.expect(Hook::Tap, "client's ACK", &ack, NEXT, "tapped_segment");
            };
            let told = || {
                let ack = from_service(7, v6, bench.flow().snd_nxt.0, CLIENT, ACK, b"");
                let told = bench.put(Hook::Gate, 0, &ack);
                assert_eq!(told.verdict, REDIRECT);
                let told = Segment::parse(&told.frame[EthernetHeader::LEN..]);
                told.expect("it is a segment").seq.0 - SERVICE
            };
            acked(60);
            assert_eq!(told(), 0, "it has tried nothing");
            let data = from_service(7, v6, SERVICE, CLIENT, ACK, &DATA);
            bench.expect(Hook::Gate, "100 bytes", &data, DROP, "unsent");
            assert_eq!(bench.flow().snd_nxt, SeqNumber(SERVICE), "in its kernel");
            assert_eq!(told(), 60);
            acked(130);
            assert_eq!(told(), 100, "no more than it tried");
            bench.expect(Hook::Gate, "again", &data, REDIRECT, "reflected");
            assert_eq!(told(), 100);
            forget(bench);
        }
    });
}
