//! Frames that no honest stack sends: each has a verdict and a reason, and
//! none makes a hook read what is not there.

use crate::bench::{DROP, IRS, ISS, NEXT, from_service, on_bench, to_service, twin, with_options};
use godwit_bpf::Hook;
use godwit_lab::host::{Host, Network};
use godwit_wire::{EthernetHeader, Role, TcpFlags};

const IP: usize = EthernetHeader::LEN;
const TCP_V4: usize = IP + 20;
const TCP_V6: usize = IP + 40;

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;

/// The first `length` bytes of a frame.
fn cut(frame: &[u8], length: usize) -> Vec<u8> {
    frame[..length].to_vec()
}

/// A frame with one byte changed.
fn poke(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame
}

/// Headers that end too early, for both families. A test run takes no frame
/// that lacks its IP header: those come over a wire in `tests/tests/oddities.rs`.
#[test]
fn a_truncated_header_is_passed_on_and_counted() {
    on_bench(|bench| {
        for (v6, tcp) in [(false, TCP_V4), (true, TCP_V6)] {
            let inward = to_service(7, v6, 1, 1, ACK, b"");
            let outward = from_service(7, v6, 1, 1, ACK, b"");
            for length in tcp..tcp + 20 {
                let (inward, outward) = (cut(&inward, length), cut(&outward, length));
                bench.expect(Hook::Tap, "TCP header", &inward, NEXT, "bad_header");
                bench.expect(Hook::Gate, "TCP header", &outward, NEXT, "bad_header");
            }
            for length in IP + 1..tcp {
                let verdict = bench.verdict(Hook::Tap, &cut(&inward, length));
                assert_eq!(verdict.unwrap_or(NEXT), NEXT, "{length} bytes");
            }
        }
    });
}

/// Lengths that contradict each other.
#[test]
fn headers_that_lie_about_lengths_are_bad_headers() {
    on_bench(|bench| {
        let v4 = || to_service(7, false, 1, 1, ACK, b"data");
        let v6 = || to_service(7, true, 1, 1, ACK, b"data");
        for words in 0..5 {
            let frame = poke(v4(), TCP_V4 + 12, words << 4);
            bench.expect(Hook::Tap, "short data offset", &frame, NEXT, "bad_header");
        }
        for words in 7..16 {
            let frame = poke(v4(), TCP_V4 + 12, words << 4);
            bench.expect(Hook::Tap, "long data offset", &frame, NEXT, "bad_header");
            let frame = poke(v6(), TCP_V6 + 12, words << 4);
            bench.expect(
                Hook::Tap,
                "long data offset, v6",
                &frame,
                NEXT,
                "bad_header",
            );
        }
        let beyond = poke(v4(), IP + 2, 0x40);
        bench.expect(
            Hook::Tap,
            "total length beyond the frame",
            &beyond,
            NEXT,
            "bad_header",
        );
        let short = poke(v4(), IP + 3, 30);
        bench.expect(
            Hook::Tap,
            "total length inside the TCP header",
            &short,
            NEXT,
            "bad_header",
        );
        let shorter = poke(v4(), IP + 3, 1);
        bench.expect(
            Hook::Tap,
            "total length inside the IP header",
            &shorter,
            NEXT,
            "bad_header",
        );
        let beyond = poke(v6(), IP + 4, 0x40);
        bench.expect(
            Hook::Tap,
            "payload length beyond the frame",
            &beyond,
            NEXT,
            "bad_header",
        );
        let short = poke(v6(), IP + 5, 8);
        bench.expect(
            Hook::Tap,
            "payload length inside TCP",
            &short,
            NEXT,
            "bad_header",
        );
    });
}

/// IPv4 options and fragments, IPv6 extension headers: not understood, so left
/// alone by the owner and never let out by anybody else.
#[test]
fn what_is_not_understood_is_left_alone_and_never_spoken_by_a_shadow() {
    let cases = [
        ("IPv4 options", false, IP, 0x46, "ip_options"),
        ("IPv4 header of 16 bytes", false, IP, 0x44, "ip_options"),
        ("first fragment", false, IP + 6, 0x20, "fragment"),
        ("later fragment", false, IP + 7, 0x10, "fragment"),
        ("fragment header", true, IP + 6, 44, "fragment"),
        ("hop-by-hop options", true, IP + 6, 0, "ip_options"),
        ("routing header", true, IP + 6, 43, "ip_options"),
        ("destination options", true, IP + 6, 60, "ip_options"),
    ];
    on_bench(|bench| {
        for (what, v6, at, value, reason) in cases {
            bench.play(Role::Owner);
            let inward = poke(to_service(7, v6, 1, 1, ACK, b"data"), at, value);
            bench.expect(Hook::Tap, what, &inward, NEXT, reason);
            let outward = poke(from_service(7, v6, 1, 1, ACK, b"data"), at, value);
            bench.expect(Hook::Gate, what, &outward, NEXT, reason);
            for role in [Role::Shadow, Role::None] {
                bench.play(role);
                bench.expect(Hook::Gate, what, &outward, DROP, "address_not_owned");
                bench.expect(Hook::Guard, what, &outward, DROP, "address_not_owned");
            }
        }
        // A TCP header that can't be read is no way out either.
        bench.play(Role::Shadow);
        let broken = poke(from_service(7, false, 1, 1, ACK, b""), TCP_V4 + 12, 0);
        bench.expect(Hook::Gate, "bad header", &broken, DROP, "address_not_owned");
    });
}

/// Options with impossible lengths, in a SYN and in a segment of a flow.
#[test]
fn hostile_options_end_the_walk_and_nothing_else() {
    let nops = [1; 40];
    let cases: [(&str, &[u8]); 14] = [
        ("length 0", &[254, 0, 1, 1]),
        ("length 1", &[254, 1, 1, 1]),
        ("length 255", &[254, 255, 1, 1]),
        ("length beyond the header", &[254, 5, 0, 0]),
        ("no room for a length", &[1, 1, 1, 254]),
        ("40 NOPs", &nops),
        ("end, then rubbish", &[0, 254, 255, 0]),
        ("MSS of length 3", &[2, 3, 5, 1]),
        ("MSS cut off", &[1, 1, 2, 4]),
        ("window scale of 255", &[3, 3, 255, 1]),
        ("SACK without blocks", &[5, 2, 1, 1]),
        ("SACK of half a block", &[5, 6, 0, 0, 0, 1, 1, 1]),
        ("SACK beyond the header", &[5, 34, 0, 0, 0, 1, 0, 0]),
        ("time stamps cut off", &[1, 1, 8, 10]),
    ];
    on_bench(|bench| {
        for v6 in [false, true] {
            for (port, (what, options)) in (100..).zip(cases) {
                let syn = with_options(to_service(port, v6, IRS, 0, SYN, b""), v6, options);
                bench.expect(Hook::Tap, what, &syn, NEXT, "syn");
            }
            bench.connect(7, v6);
            for (what, options) in cases {
                let plain = to_service(7, v6, IRS.wrapping_add(1), ISS + 1, ACK, b"data");
                let segment = with_options(plain, v6, options);
                bench.expect(Hook::Tap, what, &segment, NEXT, "client_segment");
                let plain = from_service(7, v6, ISS + 1, IRS.wrapping_add(1), ACK, b"data");
                let segment = with_options(plain, v6, options);
                let (verdict, reasons) = bench.pass(Hook::Gate, &segment);
                assert_eq!(verdict, NEXT, "{what}: {reasons:?}");
                assert!(!reasons.is_empty(), "{what} is not counted");
            }
        }
    });
}

/// Ethernet fills short frames up; the padding is not the client's.
#[test]
fn padding_after_a_short_packet_is_no_payload() {
    on_bench(|bench| {
        bench.connect(7, false);
        let mut ack = to_service(7, false, IRS.wrapping_add(1), ISS + 1, ACK, b"");
        ack.resize(60, 0xaa);
        bench.expect(Hook::Tap, "a padded ACK", &ack, NEXT, "client_segment");
        // Padding taken for payload would be refused (`twin_ack_payload`).
        let standby = Host::B.mac(Network::Data);
        let mut twin_ack = twin(standby, 7, false, (ISS + 1, IRS.wrapping_add(1)), ACK, b"");
        twin_ack.resize(60, 0xaa);
        let (verdict, reasons) = bench.pass(Hook::Tap, &twin_ack);
        assert_eq!(reasons, ["twin_ack"], "verdict {verdict}");
    });
}

/// What else comes along: other protocols, other hosts, other services.
#[test]
fn frames_that_are_none_of_our_business_pass() {
    on_bench(|bench| {
        let frame = || to_service(7, false, 1, 1, ACK, b"data");
        let arp = poke(poke(frame(), 12, 0x08), 13, 0x06);
        bench.expect(Hook::Tap, "ARP", &arp, NEXT, "not_ip");
        let udp = poke(frame(), IP + 9, 17);
        bench.expect(Hook::Tap, "UDP", &udp, NEXT, "not_ours");
        let port = poke(frame(), TCP_V4 + 3, 81);
        bench.expect(Hook::Tap, "another port", &port, NEXT, "not_ours");
        let flooded = poke(frame(), 5, 0x99);
        bench.expect(Hook::Tap, "another host's", &flooded, NEXT, "other_host");
        bench.expect(Hook::Tap, "no flow", &frame(), NEXT, "no_flow");
        let tiny = bench.verdict(Hook::Tap, &frame()[..IP]);
        assert_eq!(tiny.unwrap_or(NEXT), NEXT, "a bare Ethernet header");
    });
}
