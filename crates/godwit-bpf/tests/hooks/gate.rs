//! What the owner tells the client, and what it tells the standby.

use godwit_bpf::Hook;
use godwit_lab::host::{Host, Network};
use godwit_wire::TcpFlags;

use crate::bench::{
    Bench, IRS, ISS, NEXT, REDIRECT, from_service, on_bench, to_service, twin, with_options,
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

/// Of plain ACKs enough, of everything else all (DESIGN section 3, "Tap").
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
