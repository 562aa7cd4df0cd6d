//! Sums of what a service says: alike for alike output, however it is cut.

use std::io::Write as _;

use godwit_bpf::{Hook, OutputSum, Verification};
use godwit_lab::host::{Host, Network};
use godwit_wire::{EthernetHeader, MacAddr, Role, TcpFlags};

use crate::bench::{Bench, IRS, ISS, SHARE, from_service, on_bench, to_service, twin};

const ACK: TcpFlags = TcpFlags::ACK;
const BLOCK: usize = 1 << 16;
const NEXT: u32 = IRS.wrapping_add(1);

/// Everything is compared, but for the values of `masks`.
fn verify_all(bench: &Bench, masks: &[&str]) {
    let how = Verification {
        part: u32::MAX,
        masks: masks.iter().map(|&mask| mask.to_owned()).collect(),
    };
    let set = bench.datapath.twins.outputs.verify(SHARE, &how);
    set.expect("the map can be written");
}

/// Has the owner's kernel say `output` to the client at `port`, in pieces of
/// these lengths over and over; every third piece is sent twice.
fn say(bench: &Bench, port: u16, output: &[u8], lengths: &[usize]) -> Vec<OutputSum> {
    bench.connect(port, false);
    say_pieces(bench, port, output, lengths)
}

fn say_pieces(bench: &Bench, port: u16, output: &[u8], lengths: &[usize]) -> Vec<OutputSum> {
    let (mut at, mut lengths) = (0, lengths.iter().cycle().enumerate());
    while at < output.len() {
        let (index, &length) = lengths.next().expect("it repeats");
        let piece = &output[at..output.len().min(at + length)];
        let seq = ISS + 1 + u32::try_from(at).expect("short");
        let frame = from_service(port, false, seq, NEXT, ACK, piece);
        for _ in 0..=usize::from(index % 3 == 0) {
            bench.pass(Hook::Gate, &frame);
        }
        at += piece.len();
    }
    sums(bench, port)
}

fn sums(bench: &Bench, port: u16) -> Vec<OutputSum> {
    let mut found = Vec::new();
    let scanned = bench.datapath.twins.outputs.for_each(|output| {
        if output.key.client.port == port {
            found.extend(output.sums());
        }
    });
    scanned.expect("the map can be read");
    found.sort_unstable_by_key(|sum| sum.upto);
    found.dedup();
    found
}

fn bytes(length: usize) -> Vec<u8> {
    // Every byte value at every alignment, newlines too.
    (0..length)
        .map(|at| u8::try_from((at * 7 + at / 251) % 256).expect("below 256"))
        .collect()
}

#[test]
fn segments_can_be_cut_in_any_way() {
    on_bench(|bench| {
        verify_all(bench, &["Date"]);
        let output = bytes(BLOCK + 3001);
        let first = say(bench, 1, &output, &[2600]);
        let ends: Vec<_> = first.iter().map(|sum| sum.upto as usize).collect();
        assert_eq!(ends, [BLOCK, output.len()]);
        for (port, lengths) in [(2, &[1448][..]), (3, &[1, 2599, 7, 8, 9, 1000, 249, 2600])] {
            assert_eq!(say(bench, port, &output, lengths), first, "{lengths:?}");
        }
        let short = say(bench, 4, &output[..21], &[5]);
        assert_eq!(short, say(bench, 5, &output[..21], &[1]));
    });
}

/// A byte anywhere, two that change places, one that is missing or too many.
#[test]
fn other_bytes_have_another_sum() {
    on_bench(|bench| {
        verify_all(bench, &["Date"]);
        let output = bytes(5000);
        let right = say(bench, 1, &output, &[2500]);
        let mut port = 2;
        for at in [0, 7, 8, 247, 248, 2499, 2500, 4999] {
            let mut other = output.clone();
            other[at] ^= 0x80;
            assert_ne!(say(bench, port, &other, &[2500]), right, "byte {at}");
            let mut swapped = output.clone();
            swapped.swap(at, 1000);
            assert_ne!(say(bench, port + 1, &swapped, &[2500]), right, "byte {at}");
            port += 2;
        }
        let zeros = say(bench, 100, &[0; 64], &[64]);
        let more = say(bench, 101, &[0; 65], &[65]);
        assert_ne!(zeros[0].sum, more[0].sum, "a zero counts");
    });
}

/// Values of masked headers do not count, whatever cuts them; all else does.
#[test]
fn the_date_of_a_reply_does_not_count() {
    on_bench(|bench| {
        verify_all(bench, &["Date", "X-Served-By"]);
        let reply = |date: &str, by: &str, etag: &str| {
            let body = String::from_utf8(vec![b'x'; 300]).expect("ASCII");
            format!(
                "HTTP/1.1 200 OK\r\nServer: nginx\r\ndate: {date}\r\nX-Served-By: {by}\r\n\
                 ETag: {etag}\r\n\r\n{body}"
            )
        };
        let now = "Sat, 21 Nov 2026 22:38:23 GMT";
        let later = "Sun, 22 Nov 2026 00:50:01 GMT";
        let first = say(bench, 1, reply(now, "a", "1").as_bytes(), &[1000]);
        for (port, length) in [(2, 1), (3, 13), (4, 29), (5, 1000)] {
            let other = say(bench, port, reply(later, "b", "1").as_bytes(), &[length]);
            assert_eq!(other, first, "pieces of {length}");
        }
        let etag = say(bench, 6, reply(now, "a", "2").as_bytes(), &[1000]);
        assert_ne!(etag, first, "nobody has masked that");
        verify_all(bench, &[]);
        let dates = [now, later].map(|date| reply(date, "a", "1"));
        let plain = say(bench, 7, dates[0].as_bytes(), &[1000]);
        assert_ne!(say(bench, 8, dates[1].as_bytes(), &[1000]), plain);
    });
}

/// Nothing is summed up of a block of which a part was not seen.
#[test]
fn a_block_with_a_hole_has_no_sum() {
    on_bench(|bench| {
        verify_all(bench, &[]);
        bench.connect(1, false);
        let [first, third] = [0, 200].map(|at| {
            let seq = ISS + 1 + at;
            from_service(1, false, seq, NEXT, ACK, &[b'a'; 100])
        });
        bench.pass(Hook::Gate, &first);
        let before = sums(bench, 1);
        assert_eq!(before.len(), 1);
        bench.pass(Hook::Gate, &third);
        assert_eq!(sums(bench, 1), before, "up to the hole");
    });
}

/// A part of all blocks is chosen, the same on both sides, and nothing of the
/// others is looked at.
#[test]
fn a_share_is_chosen() {
    on_bench(|bench| {
        let how = Verification {
            part: u32::MAX / 4,
            masks: Vec::new(),
        };
        let set = |how| bench.datapath.twins.outputs.verify(SHARE, how);
        set(&how).expect("the map can be written");
        let chosen = |port| !say(bench, port, b"something", &[9]).is_empty();
        let count = (1..=200).filter(|port| chosen(*port)).count();
        assert!((25..=80).contains(&count), "{count} of 200");
        set(&Verification::default()).expect("the map can be written");
        assert!((201..=300).all(|port| !chosen(port)));
    });
}

/// A silent twin that says the same arrives at the same sums; what it has not
/// been let say is not in them, but is known to be there.
#[test]
fn a_twin_has_the_sums_of_its_owner() {
    on_bench(|bench| {
        verify_all(bench, &["Date"]);
        let output = bytes(3000);
        let owners = say(bench, 1, &output, &[2600]);
        bench.play(Role::Shadow);
        mirror_handshake(bench, 2);
        let tapped = |ack: u32| mirrored(to_service(2, false, NEXT, ack, ACK, b""));
        bench.pass(Hook::Tap, &tapped(ISS + 1 + 3000));
        let twins = say_pieces(bench, 2, &output, &[300]);
        assert_eq!(twins, owners);
        let more = from_service(2, false, ISS + 3001, NEXT, ACK, b"more");
        bench.pass(Hook::Gate, &more);
        assert_eq!(sums(bench, 2), owners);
        let mut end = None;
        let scanned = bench.flows().for_each(|flow| {
            if flow.id.key.client.port == 2 {
                end = Some((flow.snd_nxt.0, flow.shown_end.0));
            }
        });
        scanned.expect("the map can be read");
        assert_eq!(end, Some((ISS + 3001, ISS + 3005)));
    });
}

/// Prints what a byte costs (`--ignored --nocapture`): frames of 3000 bytes go
/// through the owner's gate with nothing and with everything summed up.
#[test]
#[ignore = "a measurement"]
fn what_it_costs() {
    const FRAMES: u32 = 20_000;
    on_bench(|bench| {
        let text: Vec<u8> = b"A line of text, as it is in a page.\r\n"
            .iter()
            .copied()
            .cycle()
            .take(3000)
            .collect();
        let mut port = 1;
        for (what, payload) in [("binary", bytes(3000)), ("text", text)] {
            for (part, masks) in [(0, vec![]), (u32::MAX, vec![]), (u32::MAX, vec!["Date"])] {
                let how = Verification {
                    part,
                    masks: masks.iter().map(|&mask| mask.to_owned()).collect(),
                };
                let set = bench.datapath.twins.outputs.verify(SHARE, &how);
                set.expect("the map can be written");
                bench.connect(port, false);
                let frames: Vec<_> = (0..FRAMES)
                    .map(|index| {
                        let seq = ISS + 1 + index * 3000;
                        from_service(port, false, seq, NEXT, ACK, &payload)
                    })
                    .collect();
                let start = std::time::Instant::now();
                for frame in &frames {
                    bench.verdict(Hook::Gate, frame);
                }
                let ns = start.elapsed().as_nanos() / u128::from(FRAMES);
                let line = format!("{what}, part {part}, masks {masks:?}: {ns} ns a frame\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
                port += 1;
            }
        }
    });
}

/// As the owner's mirror sends a client's segment.
fn mirrored(mut frame: Vec<u8>) -> Vec<u8> {
    let MacAddr(peer) = Host::B.mac(Network::Data);
    frame[6..EthernetHeader::LEN - 2].copy_from_slice(&peer);
    frame
}

fn mirror_handshake(bench: &Bench, port: u16) {
    let syn = to_service(port, false, IRS, 0, TcpFlags::SYN, &[]);
    let both = TcpFlags::SYN.with(ACK);
    let peer = Host::B.mac(Network::Data);
    let third = to_service(port, false, NEXT, ISS + 1, ACK, &[]);
    bench.pass(Hook::Tap, &mirrored(syn));
    bench.pass(Hook::Tap, &twin(peer, port, false, (ISS, NEXT), both, b""));
    bench.pass(Hook::Tap, &mirrored(third));
}
