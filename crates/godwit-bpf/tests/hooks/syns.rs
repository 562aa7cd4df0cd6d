//! SYNs with the addresses and ports of connections of servers that stand by for each other:
//! anybody can send one, so it ends nothing (RFC 5961 section 4).

use godwit_bpf::Hook;
use godwit_lab::host::{Host, Network};
use godwit_wire::TcpFlags;

use crate::bench::{
    DROP, IRS, ISS, NEXT, REDIRECT, SHARE, SLIP_TYPE, from_service, note, to_service,
};
use crate::ring::{
    BEGIN, BY_WAY, CAME, CLIENT, MADE, PORT, SERVICE, Slip, WARD, ack, from, goes, goes_on_to,
    listen, on_ring, request, tap_handshake, tap_syn, twin_goes_to_b, with_slip,
};

const ACK: TcpFlags = TcpFlags::ACK;

/// The number of another connection of the client's.
const LATER: u32 = IRS.wrapping_add(1 << 28);

/// A SYN that a director brings goes from the server with the twin to the owner, whose TCP
/// answers it. The twin lives, and what its client says goes on to the owner.
#[test]
fn a_syn_ends_no_twin() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        tap_handshake(bench, v6);
        let c = Host::C.mac(Network::Data).0;
        let syn = to_service(PORT, v6, LATER, 0, TcpFlags::SYN, &[]);
        for _ in 0..2 {
            let (verdict, frame) = goes(bench, &syn);
            assert_eq!((verdict, &frame[..6]), (REDIRECT, &c[..]));
            assert_eq!(frame[12..14], SLIP_TYPE);
            assert_eq!(frame[syn.len()..][5], BEGIN);
        }
        let passed = Slip {
            kind: BEGIN,
            ..BY_WAY
        };
        let back = with_slip(Host::C, syn.clone(), passed);
        bench.expect(Hook::Tap, "back", &back, DROP, "sent_back");
        let flow = bench.flow();
        assert_eq!((flow.share, flow.twin, flow.id.irs.0), (WARD, true, IRS));
        // Of the first one in a millisecond a director is told.
        let (verdict, frame) = goes(bench, &ack(v6));
        let told = note(PORT, v6, Host::C.mac(Network::Data));
        assert_eq!(verdict, REDIRECT);
        assert!(frame[..6] == c || frame[12..] == told[12..], "{frame:?}");
        // Once taken over it has a socket that speaks, and TCP answers here.
        bench.take_ward_over(WARD, Host::C);
        bench.expect(Hook::Tap, "adopted", &syn, NEXT, "syn");
        let flow = bench.flow();
        assert_eq!((flow.share, flow.id.irs.0), (WARD, IRS));
    });
}

/// c answers a SYN with the addresses and ports of this server's own connection, and mirrors
/// that: the connection lives until somebody has completed the handshake.
#[test]
fn an_answer_elsewhere_ends_nothing_here() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        bench.connect(PORT, v6);
        tap_syn(bench, v6, LATER);
        let (iss, both) = (ISS + 500, TcpFlags::SYN.with(ACK));
        let mut syn_ack = from_service(PORT, v6, iss, LATER.wrapping_add(1), both, &[]);
        syn_ack[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
        let syn_ack = from(Host::C, syn_ack);
        bench.expect(Hook::Tap, "SYN-ACK", &syn_ack, DROP, "tapped_syn_ack");
        let flow = bench.flow();
        assert_eq!((flow.share, flow.id.irs.0), (SHARE, IRS));
        let more = to_service(PORT, v6, CLIENT, SERVICE, ACK, &[]);
        bench.expect(Hook::Tap, "ACK", &more, NEXT, "client_segment");
        let third = to_service(PORT, v6, LATER.wrapping_add(1), iss + 1, ACK, &[]);
        let third = from(Host::C, third);
        bench.expect(Hook::Tap, "third", &third, NEXT, "way_cleared");
        bench.expect(Hook::Tap, "again", &third, DROP, MADE);
        let flow = bench.flow();
        assert_eq!((flow.share, flow.id.irs.0), (WARD, LATER));
    });
}

/// A copy of the owner's word that was under way for long is about an earlier stay there.
#[test]
fn a_late_copy_makes_no_twin() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        twin_goes_to_b(bench, v6);
        let late = Slip { number: 0, ..CAME };
        let late = with_slip(Host::C, request(v6), late);
        bench.expect(Hook::Tap, "late", &late, DROP, "stale_slip");
        assert_eq!(goes_on_to(bench, &ack(v6)), Host::B.mac(Network::Data).0);
    });
}
