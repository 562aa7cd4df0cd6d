//! What the owner tells the client, and what it tells the standby.

use godwit_bpf::{Hook, Order};
use godwit_lab::host::{Host, Network};
use godwit_wire::TcpFlags;

use crate::bench::{
    Bench, IRS, ISS, MSS, NEXT, REDIRECT, from_service, on_bench, to_service, twin, with_options,
};

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 100] = [7; 100];

/// RFC 2018 section 3: two NOPs and one block.
fn sack(start: u32, end: u32) -> Vec<u8> {
    let mut option = vec![1, 1, 5, 10];
    option.extend(start.to_be_bytes());
    option.extend(end.to_be_bytes());
    option
}

/// A block that the twin lacks is not told; once the twin has it, it is.
#[test]
fn only_blocks_that_the_twin_holds_are_told() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            bench.connect(7, v6);
            let next = IRS.wrapping_add(1);
            let (start, end) = (next.wrapping_add(100), next.wrapping_add(200));
            let second = to_service(7, v6, start, ISS + 1, ACK, &DATA);
            bench.expect(Hook::Tap, "out of order", &second, NEXT, "client_segment");
            let block = sack(start, end);
            let own = from_service(7, v6, ISS + 1, next, ACK, b"");
            let own = with_options(own, v6, &block);
            bench.expect(Hook::Gate, "its SACK", &own, REDIRECT, "held");
            let with_data = from_service(7, v6, ISS + 1, next, ACK, &DATA);
            let with_data = with_options(with_data, v6, &block);
            bench.expect(
                Hook::Gate,
                "a SACK on data",
                &with_data,
                NEXT,
                "sack_blanked",
            );
            let twins = twin(standby, 7, v6, (ISS + 1, next), ACK, b"");
            let twins = with_options(twins, v6, &block);
            bench.expect(
                Hook::Tap,
                "the twin's SACK",
                &twins,
                REDIRECT,
                "twin_ack_forwarded",
            );
            bench.expect(Hook::Gate, "its SACK again", &own, NEXT, "spoken");
        }
    });
}

/// Of plain ACKs enough, of everything else all (docs/design.md, "Tap").
#[test]
fn the_mirror_spares_acks_that_are_no_news() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.connect(7, v6);
            let next = IRS.wrapping_add(1);
            let sent = from_service(7, v6, ISS + 1 + 300_000, next, ACK, &DATA);
            bench.expect(Hook::Gate, "300 KB", &sent, NEXT, "spoken");
            let ack = |bytes: u32| to_service(7, v6, next, ISS + 1 + bytes, ACK, b"");
            // One that comes 10 ms after the last is mirrored whatever it says.
            let spared = (1..20).any(|n| told(bench, &ack(n * 100)) == "mirror_spared");
            assert!(spared, "100 bytes more are no news");
            for (what, frame) in [
                ("64 KiB more", ack(100_000)),
                ("all that was sent", ack(300_100)),
                (
                    "a keep-alive",
                    to_service(7, v6, next.wrapping_sub(1), ISS + 300_101, ACK, b""),
                ),
                ("data", to_service(7, v6, next, ISS + 300_101, ACK, &DATA)),
            ] {
                assert_eq!(told(bench, &frame), "mirrored", "{what}");
            }
        }
    });
}

/// Whether a client's segment was mirrored or spared.
fn told(bench: &Bench, frame: &[u8]) -> String {
    let (_, reasons) = bench.pass(Hook::Tap, frame);
    let told = reasons
        .into_iter()
        .find(|reason| reason.starts_with("mirror"));
    told.unwrap_or_default()
}

/// The window of a SYN-ACK is no larger than that of a twin made after it: or the
/// right edge would retreat at a takeover.
#[test]
fn a_syn_ack_offers_no_more_than_a_twin() {
    on_bench(|bench| {
        for v6 in [false, true] {
            let syn = to_service(7, v6, IRS, 0, TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
            let at = 14 + if v6 { 40 } else { 20 } + 14;
            let both = TcpFlags::SYN.with(ACK);
            let mut syn_ack = from_service(7, v6, ISS, IRS.wrapping_add(1), both, b"");
            // 45 times 1448, as Linux has it with time stamps.
            syn_ack[at..at + 2].copy_from_slice(&65_160_u16.to_be_bytes());
            let told = bench.put(Hook::Gate, 0, &syn_ack).frame;
            let window = u16::from_be_bytes([told[at], told[at + 1]]);
            assert_eq!(window, 44 * MSS, "IPv6: {v6}");
        }
    });
}

/// A client that has closed its half only listens: nothing would bring its FIN to a
/// twin that has missed it, once it was told that it has arrived.
#[test]
fn a_fin_is_told_when_the_twin_has_it() {
    on_bench(|bench| {
        let (standby, fin) = (Host::B.mac(Network::Data), TcpFlags::FIN.with(ACK));
        let (next, end) = (IRS.wrapping_add(1), IRS.wrapping_add(101));
        let all = end.wrapping_add(1);
        for v6 in [false, true] {
            bench.connect(7, v6);
            let told = || bench.flow().told_ack.0;
            let last = to_service(7, v6, next, ISS + 1, fin, &DATA);
            bench.expect(Hook::Tap, "its last data", &last, NEXT, "client_segment");
            let own = from_service(7, v6, ISS + 1, all, ACK, b"");
            bench.expect(Hook::Gate, "our ACK", &own, REDIRECT, "held");
            let twins = |ack| twin(standby, 7, v6, (ISS + 1, ack), ACK, b"");
            let forwarded = "twin_ack_forwarded";
            bench.expect(Hook::Tap, "the data", &twins(end), REDIRECT, forwarded);
            assert_eq!(told(), end);
            let answer = from_service(7, v6, ISS + 1, all, fin, &DATA);
            bench.expect(Hook::Gate, "the answer", &answer, NEXT, "gated");
            assert_eq!(told(), end, "nor with what is said meanwhile");
            let heard = to_service(7, v6, end, ISS + 102, fin, b"");
            bench.expect(Hook::Tap, "its FIN again", &heard, NEXT, "mirrored");
            bench.expect(Hook::Tap, "the FIN", &twins(all), REDIRECT, forwarded);
            assert_eq!(told(), all);
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}

/// The ECN field of a frame's IP header.
fn ecn_field(frame: &[u8], v6: bool) -> u8 {
    if v6 {
        frame[15] >> 4 & 3
    } else {
        frame[15] & 3
    }
}

/// A twin does ECN with itself; its acknowledgement does not tell that to a
/// client that has not agreed to it, and does to one that has.
#[test]
fn the_twins_ecn_is_not_the_clients() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        let ecn = TcpFlags::ECE.with(TcpFlags::CWR);
        let cases = [
            (7, false, false),
            (7, true, false),
            (8, false, true),
            (8, true, true),
        ];
        for (port, v6, agreed) in cases {
            if agreed {
                bench.connect_with(port, v6, [ecn, TcpFlags::ECE]);
            } else {
                bench.connect(port, v6);
            }
            let (next, sent) = (IRS.wrapping_add(1), IRS.wrapping_add(101));
            let data = to_service(port, v6, next, ISS + 1, ACK, &DATA);
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            let early = from_service(port, v6, ISS + 1, sent, ACK, b"");
            bench.expect(Hook::Gate, "the owner's ACK", &early, REDIRECT, "held");
            let echo = ACK.with(TcpFlags::ECE);
            let twins = twin(standby, port, v6, (ISS + 1, sent), echo, b"");
            let twins = capable(twins, v6);
            assert_eq!(ecn_field(&twins, v6), 2);
            let told = bench.put(Hook::Tap, 0, &twins);
            assert_eq!(told.verdict, REDIRECT);
            let flags = told.frame[14 + if v6 { 40 } else { 20 } + 13];
            let echoed = flags & TcpFlags::ECE.0 != 0;
            assert_eq!(echoed, agreed, "IPv6: {v6}");
            assert_eq!(ecn_field(&told.frame, v6) != 0, agreed, "IPv6: {v6}");
        }
    });
}

/// Makes a frame's packet ECN-capable, with its checksum.
fn capable(mut frame: Vec<u8>, v6: bool) -> Vec<u8> {
    if v6 {
        frame[15] |= 2 << 4;
        return frame;
    }
    frame[15] |= 2;
    // RFC 1624: two more in a word of the header is two less in the sum.
    let sum = u16::from_be_bytes([frame[24], frame[25]]);
    let (sum, borrow) = sum.overflowing_sub(2);
    frame[24..26].copy_from_slice(&(sum - u16::from(borrow)).to_be_bytes());
    frame
}
