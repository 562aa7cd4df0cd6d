//! Time stamps of the service over a takeover (RFC 7323 section 5.4), where they
//! wrap: a client never sees one that goes back, and the twin hears its own.

use godwit_bpf::{Hook, Order};
use godwit_lab::host::{Host, Network};
use godwit_wire::{
    EthernetHeader, Generation, Role, Segment, SeqNumber, TcpFlags, TcpOptions, TimeStamps,
};

use crate::bench::{Bench, DROP, GENERATION, IRS, ISS, MSS, NEXT, WND, ends, on_bench};

const ACK: TcpFlags = TcpFlags::ACK;

/// The client's clock; it stands still.
const CLIENT: u32 = 77;

/// A test of a few frames ends within this time, in milliseconds.
const PATIENCE: u32 = 60_000;

/// A segment with time stamps. Before the takeover all that comes, comes from
/// the owner, [`Host::B`] here.
struct Frame {
    port: u16,
    v6: bool,
    from_client: bool,
    flags: TcpFlags,
    numbers: (u32, u32),
    stamps: (u32, u32),
    payload: &'static [u8],
}

impl Frame {
    fn bytes(&self, [to, from]: [Host; 2]) -> Vec<u8> {
        let (client, service) = ends(self.port, self.v6);
        let (source, destination) = if self.from_client {
            (client, service)
        } else {
            (service, client)
        };
        let syn = self.flags.contains(TcpFlags::SYN);
        let segment = Segment {
            source,
            destination,
            seq: SeqNumber(self.numbers.0),
            ack: SeqNumber(self.numbers.1),
            flags: self.flags,
            wnd: WND,
            options: TcpOptions {
                mss: syn.then_some(MSS),
                time_stamps: Some(TimeStamps {
                    ts_val: self.stamps.0,
                    ts_ecr: self.stamps.1,
                }),
                ..TcpOptions::default()
            },
            payload: self.payload,
        };
        let packet = segment.to_packet().expect("it is short");
        let mac = |host: Host| host.mac(Network::Data);
        EthernetHeader::frame_ip(mac(to), mac(from), &packet)
    }
}

/// A shadow sees a handshake of which the SYN-ACK says `owner`, and becomes the
/// owner. There is no socket: the test speaks for the twin's kernel.
fn take_over(bench: &Bench, (port, v6): (u16, bool), owner: u32) {
    bench.play(Role::Shadow);
    let next = IRS.wrapping_add(1);
    let segments = [
        (
            "SYN",
            true,
            TcpFlags::SYN,
            (IRS, 0),
            (CLIENT, 0),
            "tapped_syn",
        ),
        (
            "SYN-ACK",
            false,
            TcpFlags::SYN.with(ACK),
            (ISS, next),
            (owner, CLIENT),
            "tapped_syn_ack",
        ),
        (
            "third ACK",
            true,
            ACK,
            (next, ISS + 1),
            (CLIENT, owner),
            "no_listener",
        ),
    ];
    for (what, from_client, flags, numbers, stamps, reason) in segments {
        let frame = Frame {
            port,
            v6,
            from_client,
            flags,
            numbers,
            stamps,
            payload: b"",
        };
        let frame = frame.bytes([Host::A, Host::B]);
        bench.expect(Hook::Tap, what, &frame, DROP, reason);
    }
    bench.play(Role::Owner);
}

/// Puts a segment through a hook that lets it go on; its time stamps then.
fn stamps_after(bench: &Bench, hook: Hook, frame: &[u8]) -> TimeStamps {
    let trial = bench.put(hook, 0, frame);
    assert_eq!(trial.verdict, NEXT);
    let packet = &trial.frame[EthernetHeader::LEN..];
    let segment = Segment::parse(packet).expect("it is a segment");
    segment.options.time_stamps.expect("it has time stamps")
}

/// The owner said `owner` last, and the twin's clock says `twin`: what the
/// client sees of the twin's first data, and the twin of the client's echo.
fn moved(bench: &Bench, flow: (u16, bool), owner: u32, twin: u32) -> u32 {
    take_over(bench, flow, owner);
    let frame = |from_client, numbers, stamps, payload| Frame {
        port: flow.0,
        v6: flow.1,
        from_client,
        flags: ACK,
        numbers,
        stamps,
        payload,
    };
    let next = IRS.wrapping_add(1);
    let data = frame(false, (ISS + 1, next), (twin, CLIENT), b"data");
    let data = data.bytes([Host::Client, Host::A]);
    let seen = stamps_after(bench, Hook::Gate, &data);
    assert_eq!(seen.ts_ecr, CLIENT);
    let echo = frame(true, (next, ISS + 5), (CLIENT, seen.ts_val), b"");
    let echo = echo.bytes([Host::A, Host::Client]);
    let heard = stamps_after(bench, Hook::Tap, &echo);
    assert_eq!(heard.ts_ecr, twin, "the twin's own clock comes back");
    seen.ts_val
}

/// Where signed and unsigned comparison of time stamps change their minds.
const TURNS: [u32; 2] = [1 << 31, 0];

#[test]
fn a_twin_whose_clock_is_behind_goes_on_from_the_owners() {
    on_bench(|bench| {
        let mut port = 0;
        for turn in TURNS {
            // Before the turn, at it, and behind it; the twin up to 10 s late.
            for (owner, late) in [
                (turn.wrapping_sub(10_000), 10),
                (turn.wrapping_sub(1), 10),
                (turn.wrapping_sub(1), 10_000),
                (turn, 1),
                (turn.wrapping_add(5), 10),
                (turn.wrapping_add(5), 10_000),
            ] {
                for v6 in [false, true] {
                    port += 1;
                    let twin = owner.wrapping_sub(late);
                    let seen = moved(bench, (port, v6), owner, twin);
                    let ahead = seen.wrapping_sub(owner);
                    assert!(
                        (2..PATIENCE).contains(&ahead),
                        "after {owner} the client sees {seen}, of a twin at {twin}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_twin_whose_clock_is_ahead_keeps_its_own() {
    on_bench(|bench| {
        let mut port = 0;
        for turn in TURNS {
            for owner in [
                turn.wrapping_sub(200_000),
                turn.wrapping_sub(1),
                turn,
                turn.wrapping_add(5),
            ] {
                for v6 in [false, true] {
                    port += 1;
                    let twin = owner.wrapping_add(2 * PATIENCE);
                    let seen = moved(bench, (port, v6), owner, twin);
                    assert_eq!(seen, twin, "the owner's last was {owner}");
                }
            }
        }
    });
}

/// A twin that was made of a running flow has its clock put ahead, and may become the
/// owner, speak and die before its client's echo shows that.
#[test]
fn an_owner_allows_for_what_its_new_twin_may_have_said() {
    on_bench(|bench| {
        let stay = Generation(GENERATION.0 + 1);
        let next = IRS.wrapping_add(1);
        for v6 in [false, true] {
            let frame = |from_client, flags, numbers, stamps, payload| Frame {
                port: 7,
                v6,
                from_client,
                flags,
                numbers,
                stamps,
                payload,
            };
            let (here, client) = (Host::A, Host::Client);
            bench.play(Role::Owner);
            let syn = frame(true, TcpFlags::SYN, (IRS, 0), (CLIENT, 0), b"");
            stamps_after(bench, Hook::Tap, &syn.bytes([here, client]));
            let both = TcpFlags::SYN.with(ACK);
            let answer = frame(false, both, (ISS, next), (1000, CLIENT), b"");
            stamps_after(bench, Hook::Gate, &answer.bytes([client, here]));
            let third = frame(true, ACK, (next, ISS + 1), (CLIENT, 1000), b"");
            stamps_after(bench, Hook::Tap, &third.bytes([here, client]));
            bench.lose_standby();
            bench.gain_standby(stay);
            bench
                .order(Order::Rejoin(stay, SeqNumber(ISS + 1)))
                .expect("it has no twin");
            let twins = frame(false, ACK, (ISS + 1, next), (1000, CLIENT), b"");
            let twins = twins.bytes([here, Host::B]);
            bench.expect(Hook::Tap, "the twin's ACK", &twins, DROP, "twin_ack");
            bench.order(Order::Protect).expect("it has all");
            // There and back.
            bench.stand_by(stay.0);
            let own = frame(false, ACK, (ISS + 1, next), (1000, CLIENT), b"");
            bench.pass(Hook::Gate, &own.bytes([Host::B, here]));
            bench.gain_standby(stay);
            let data = frame(false, ACK, (ISS + 1, next), (1000, CLIENT), b"data");
            let seen = stamps_after(bench, Hook::Gate, &data.bytes([client, here]));
            assert!((1500..PATIENCE).contains(&seen.ts_val), "{seen:?}");
            bench.order(Order::Forget).expect("it is there");
        }
    });
}
