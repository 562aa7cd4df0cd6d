//! A director asks about a SYN, and whoever has the connection answers it itself.

use crate::bench::{DROP, IRS, ISS, REDIRECT, on_bench, tapped, to_service};
use godwit_bpf::{Hook, Moves, Order};
use godwit_lab::host::{Host, Network};
use godwit_wire::TcpFlags;

/// EtherType of notes, and the mark of a SYN that has come in once more (`gw_marks.h`).
const NOTE: [u8; 2] = [0x88, 0xb5];
const ASKED: u32 = 0x6777_000a;
/// First byte behind the Ethernet header.
const IP: usize = 14;

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;

#[test]
fn who_has_the_connection_keeps_the_syn_and_nobody_else_does() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.own_behind(Moves::Home);
            let syn = tapped(to_service(7, v6, IRS.wrapping_add(1 << 20), 0, SYN, b""));
            let mut question = syn.clone();
            question[12..IP].copy_from_slice(&NOTE);
            // The kernel is to see it as what it is.
            let heard = bench.put(Hook::Tap, 0, &question);
            assert_eq!(heard.verdict, REDIRECT);
            assert_eq!(heard.frame, syn);
            let answer = bench.put(Hook::Tap, ASKED, &syn);
            assert_eq!(answer.verdict, REDIRECT);
            assert_eq!(
                answer.frame[..6],
                Host::B.mac(Network::Data).0,
                "to who asks"
            );
            assert_eq!(answer.frame[6..12], Host::A.mac(Network::Data).0);
            assert_eq!(answer.frame[12..], question[12..]);
            let count = |name: &str| {
                let counts = bench.counts();
                counts.into_iter().find(|it| it.0 == name).map(|it| it.1)
            };
            let unknown = count("asked_unknown");
            assert!(unknown > Some(0), "{unknown:?}");
            // Nothing is kept of it.
            bench.pass_marked(Hook::Tap, ASKED, &syn);
            assert!(count("asked_unknown") > unknown);
            bench.connect(7, v6);
            let (_, reasons) = bench.pass_marked(Hook::Tap, ASKED, &syn);
            assert!(reasons.iter().any(|it| it == "asked_known"), "{reasons:?}");
            assert!(
                !reasons.iter().any(|it| it == "asked_unknown"),
                "{reasons:?}"
            );
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// Only of a SYN, and only where a director stands before the service.
#[test]
fn nothing_else_is_answered() {
    on_bench(|bench| {
        bench.own_behind(Moves::Home);
        for flags in [ACK, SYN.with(ACK), SYN.with(TcpFlags::RST)] {
            let other = tapped(to_service(7, false, IRS, ISS, flags, b""));
            let (verdict, reasons) = bench.pass_marked(Hook::Tap, ASKED, &other);
            assert_eq!(
                (verdict, &*reasons),
                (DROP, &["note_refused".to_owned()][..])
            );
        }
        bench.own(Moves::Home);
        let syn = tapped(to_service(7, false, IRS, 0, SYN, b""));
        let (verdict, reasons) = bench.pass_marked(Hook::Tap, ASKED, &syn);
        assert_eq!(
            (verdict, &*reasons),
            (DROP, &["note_refused".to_owned()][..])
        );
    });
}
