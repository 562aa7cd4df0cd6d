//! Frames in the service's name that are not, or can't be, the twin's
//! acknowledgement: refused with a reason.

use crate::bench::{DROP, IRS, ISS, NEXT, REDIRECT, WND, from_service, on_bench, to_service, twin};
use crate::moves::shadow;
use godwit_bpf::{Hook, Order, Phase};
use godwit_lab::host::{Host, Network};
use godwit_wire::{Role, TcpFlags};

const ACK: TcpFlags = TcpFlags::ACK;
/// What the client sends in the fixtures.
const DATA: [u8; 100] = [7; 100];

/// Only the peer's MAC, no payload, no other flags, not beyond what the client
/// has sent; then the true one is let through.
#[test]
fn only_a_plausible_ack_of_the_peer_counts() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            bench.connect(7, v6);
            let (next, sent) = (IRS.wrapping_add(1), IRS.wrapping_add(101));
            let data = to_service(7, v6, next, ISS + 1, ACK, &DATA);
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            // Our kernel has it, the twin does not yet: nothing is said.
            let early = from_service(7, v6, ISS + 1, sent, ACK, b"");
            bench.expect(Hook::Gate, "the owner's ACK", &early, REDIRECT, "held");

            let refused = |what: &str, frame: &[u8], reason: &str| {
                bench.expect(Hook::Tap, what, frame, DROP, reason);
            };
            let other = Host::Attacker.mac(Network::Data);
            let numbers = (ISS + 1, sent);
            refused(
                "another MAC",
                &twin(other, 7, v6, numbers, ACK, b""),
                "spoofed",
            );
            let payload = twin(standby, 7, v6, numbers, ACK, b"x");
            refused("payload", &payload, "twin_ack_payload");
            for flag in [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST] {
                let frame = twin(standby, 7, v6, numbers, ACK.with(flag), b"");
                refused("flags", &frame, "twin_ack_flags");
            }
            let none = twin(standby, 7, v6, numbers, TcpFlags::PSH, b"");
            refused("no ACK", &none, "twin_ack_flags");
            // The window of the SYN-ACK, and one for a FIN.
            let last = IRS
                .wrapping_add(1)
                .wrapping_add(u32::from(WND))
                .wrapping_add(1);
            let beyond = twin(standby, 7, v6, (ISS + 1, last.wrapping_add(1)), ACK, b"");
            refused("beyond the window", &beyond, "twin_ack_beyond");
            let stale = twin(standby, 7, v6, (ISS + 1, IRS), ACK, b"");
            refused("below the start", &stale, "twin_ack_stale");
            let stranger = twin(standby, 8, v6, numbers, ACK, b"");
            refused("a flow that is not there", &stranger, "twin_ack_no_flow");

            let true_one = twin(standby, 7, v6, numbers, ACK, b"");
            bench.expect(
                Hook::Tap,
                "the twin's",
                &true_one,
                REDIRECT,
                "twin_ack_forwarded",
            );
        }
    });
}

/// A shadow believes only its owner, a node without a role nobody.
#[test]
fn a_shadow_takes_segments_from_its_owner_only() {
    on_bench(|bench| {
        let syn = to_service(7, false, IRS, 0, TcpFlags::SYN, b"");
        bench.play(Role::Shadow);
        bench.expect(Hook::Tap, "the client itself", &syn, DROP, "not_from_owner");
        bench.play(Role::None);
        bench.expect(Hook::Tap, "no role", &syn, REDIRECT, "forwarded");
        // What the peer hands on must not go round in circles.
        let a = Host::A.mac(Network::Data);
        let handed_on = [&a.0[..], &Host::B.mac(Network::Data).0, &syn[12..]].concat();
        bench.expect(Hook::Tap, "handed on", &handed_on, DROP, "not_owner");
        let own = from_service(7, false, ISS, IRS, ACK, b"data");
        bench.expect(Hook::Gate, "no role", &own, DROP, "not_owner");
        bench.expect(Hook::Guard, "no role", &own, DROP, "wrong_interface");
        bench.play(Role::Shadow);
        bench.expect(Hook::Gate, "a shadow", &own, DROP, "suppressed_no_flow");
        bench.expect(Hook::Guard, "a shadow", &own, DROP, "wrong_interface");
    });
}

/// Where the network itself copies, a copy need not have passed the owner: anybody's
/// is taken, but for an acknowledgement that no owner can have been given.
#[test]
fn a_copy_is_believed_as_far_as_an_owner_could_be() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let next = IRS.wrapping_add(1);
            let copied = |ack, data| {
                let mut frame = to_service(7, v6, next, ack, ACK, data);
                frame[..6].copy_from_slice(&Host::B.mac(Network::Data).0);
                frame[6..12].copy_from_slice(&Host::Attacker.mac(Network::Data).0);
                frame
            };
            let absurd = copied((ISS + 1).wrapping_add(1 << 30), &DATA[..]);
            bench.expect(Hook::Tap, "beyond all", &absurd, DROP, "tapped_beyond");
            let (verdict, reasons) = bench.pass(Hook::Tap, &copied(ISS + 1, &DATA[..]));
            assert_eq!(verdict, NEXT, "{reasons:?}");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// A bare ACK with the standby's address that says how far the twin is: it is let no
/// further than its client has acknowledged, and that no further than we have sent. One that is
/// believed beyond that would lift the leash for the rest of the connection.
#[test]
fn a_twin_is_not_ahead_of_its_owner() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            bench.connect(7, v6);
            let (next, first) = (IRS.wrapping_add(1), ISS + 1);
            let sent = from_service(7, v6, first, next, ACK, &DATA);
            bench.expect(Hook::Gate, "data", &sent, NEXT, "spoken");
            let ahead = |seq: u32| twin(standby, 7, v6, (seq, next), ACK, b"");
            for seq in [first + 102, first + (1 << 30), first + (1 << 31) - 1] {
                let forged = ahead(seq);
                bench.expect(Hook::Tap, "forged", &forged, DROP, "twin_ack_ahead");
            }
            // As often as one likes.
            for _ in 0..10 {
                bench.expect(
                    Hook::Tap,
                    "at its FIN",
                    &ahead(first + 101),
                    DROP,
                    "twin_ack",
                );
                let more = ahead(first + 102);
                bench.expect(Hook::Tap, "one more", &more, DROP, "twin_ack_ahead");
            }
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// With the owner's address: what it has, before it hands the share over, and that the
/// connection is over. Neither is believed further than an owner could be.
#[test]
fn a_shadow_believes_an_owner_as_far_as_one_could_be() {
    on_bench(|bench| {
        let owner = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let (next, first) = (IRS.wrapping_add(1), ISS + 1);
            let word = |seq: u32, ack: u32| twin(owner, 7, v6, (seq, ack), ACK, b"");
            let absurd = "owner_word_absurd";
            let far = first + (1 << 30);
            bench.expect(Hook::Tap, "sent", &word(far, next), DROP, absurd);
            let beyond = next.wrapping_add(1 << 20);
            bench.expect(Hook::Tap, "received", &word(first, beyond), DROP, absurd);
            bench.expect(
                Hook::Tap,
                "a true one",
                &word(first, next),
                DROP,
                "owner_word",
            );
            let reset = |seq: u32| twin(owner, 7, v6, (seq, next), TcpFlags::RST, b"");
            for seq in [first - 1, far, first.wrapping_sub(1 << 30)] {
                bench.expect(Hook::Tap, "a reset", &reset(seq), DROP, absurd);
            }
            assert_eq!(bench.flow().phase, Phase::Twin, "it lives");
            bench.expect(Hook::Tap, "its own", &reset(first), NEXT, "twin_reset");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}
