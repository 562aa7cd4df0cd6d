//! What one segment from outside causes inside a node comes to an end: our kernel answers
//! what we say to it in the client's name, and we answer that.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, Order};
use godwit_lab::Lab;
use godwit_lab::host::{Host, Network};
use godwit_sock::FrameSender;
use godwit_wire::{EthernetHeader, Role, Segment, SeqNumber, TcpFlags, TcpOptions};

use crate::bench::{
    Bench, IRS, ISS, MSS, NEXT, ends, flow_id, from_service, mirrored, on_bench, on_bench_of,
};
use crate::life::{everywhere, ip, other_machine, take_service_addresses, wait_for};
use crate::moves::shadow;

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 100] = [7; 100];

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

/// Windows count units of 128 bytes: more than one reply.
const SHIFT: u8 = 7;

/// How far behind the hole the segment is.
const HOLE: u32 = 20_000;

/// `GW_ROUNDS_MOST`, and the time after which there are as many again.
const ROUNDS: u64 = 4;
const WHILE: Duration = Duration::from_nanos(1 << 26);

/// Far more than a round for each segment, far less than a loop makes.
const MANY: u64 = 1000;

/// A twin with a real socket, at the machine of a bench.
struct Twin<'a> {
    bench: &'a Bench,
    owner: FrameSender,
    server: TcpStream,
    port: u16,
    v6: bool,
}

impl<'a> Twin<'a> {
    fn born(bench: &'a Bench, lab: &Lab, port: u16, v6: bool) -> Self {
        let listener = TcpListener::bind(everywhere(v6)).expect("the port is free");
        let owner = other_machine(lab);
        let both = TcpFlags::SYN.with(ACK);
        for frame in [
            from_client(port, v6, (IRS, 0), TcpFlags::SYN, b""),
            from_owner(port, v6, (ISS, CLIENT), both),
            from_client(port, v6, (CLIENT, SERVICE), ACK, b""),
        ] {
            owner.send(&frame).expect("it goes");
        }
        wait_for(bench, port, v6, |flow| flow.twin_seen);
        let (server, _) = listener.accept().expect("it was made");
        let patience = Some(Duration::from_secs(5));
        server.set_read_timeout(patience).expect("it is open");
        Self {
            bench,
            owner,
            server,
            port,
            v6,
        }
    }

    /// The owner mirrors what the client says there, having that many bytes of ours.
    fn hear(&self, at: u32, has: u32, payload: &[u8]) {
        let numbers = (CLIENT.wrapping_add(at), SERVICE + has);
        let flags = ACK.with(TcpFlags::PSH);
        let frame = from_client(self.port, self.v6, numbers, flags, payload);
        self.owner.send(&frame).expect("it goes");
        self.watch();
    }

    /// The server reads a request and writes as much.
    fn answer(&mut self) {
        let mut request = DATA;
        self.server.read_exact(&mut request).expect("it has come");
        self.server.write_all(&DATA).expect("there is room");
        self.watch();
    }

    /// A loop has no clock: what it makes in a moment is a multiple of all that was said. It
    /// is ended before the machine is lost.
    fn watch(&self) {
        let before = self.unsent();
        let end = Instant::now() + Duration::from_millis(50);
        while Instant::now() < end {
            if self.unsent() - before > MANY {
                ip(&["link", "set", Network::Data.interface(), "down"]);
                panic!("a loop: {:?}", self.bench.counts());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn unsent(&self) -> u64 {
        let counts = self.bench.counts().into_iter();
        let unsent = counts.filter(|(name, _)| name == "unsent");
        unsent.map(|(_, count)| count).sum()
    }

    fn end(self) {
        let id = flow_id(self.port, self.v6);
        self.bench
            .order_for(id, Order::Forget)
            .expect("it is there");
    }
}

fn from_client(
    port: u16,
    v6: bool,
    numbers: (u32, u32),
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let (source, destination) = ends(port, v6);
    frame(Segment {
        source,
        destination,
        payload,
        ..bare(numbers, flags)
    })
}

fn from_owner(port: u16, v6: bool, numbers: (u32, u32), flags: TcpFlags) -> Vec<u8> {
    let (destination, source) = ends(port, v6);
    frame(Segment {
        source,
        destination,
        ..bare(numbers, flags)
    })
}

fn bare((seq, ack): (u32, u32), flags: TcpFlags) -> Segment<'static> {
    let (source, destination) = ends(0, false);
    let opens = flags.contains(TcpFlags::SYN);
    Segment {
        source,
        destination,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags,
        wnd: 500,
        options: TcpOptions {
            mss: opens.then_some(MSS),
            wscale: opens.then_some(SHIFT),
            sack_permitted: opens,
            ..TcpOptions::default()
        },
        payload: b"",
    }
}

fn frame(segment: Segment<'_>) -> Vec<u8> {
    let packet = segment.to_packet().expect("it is short");
    let [to, from] = [Host::A, Host::B].map(|host| host.mac(Network::Data));
    EthernetHeader::frame_ip(to, from, &packet)
}

/// A client that has a hole in what it says, and is slow to acknowledge. TCP takes a window
/// from where most was said (SND.WL1), so to a twin that has a segment behind the hole the
/// shut window from before it was no news: it tried once more at each answer.
#[test]
fn a_client_with_a_hole_makes_no_rounds() {
    on_bench_of(|bench, lab, _| {
        bench.play(Role::Shadow);
        take_service_addresses();
        for (port, v6) in [(7, false), (8, true)] {
            let mut twin = Twin::born(bench, lab, port, v6);
            for n in 0..5_u32 {
                let (said, has) = (n * 100, n * 100);
                twin.hear(said, has, &DATA);
                twin.answer();
                twin.hear(said + 100 + HOLE, has, b"behind a hole");
            }
            assert!(twin.unsent() > 0, "it was tried");
            // It goes on as soon as it may.
            twin.hear(500, 500, b"");
            wait_for(bench, port, v6, |flow| flow.snd_nxt.0 == SERVICE + 500);
            twin.end();
        }
    });
}

/// Whatever has a twin try again at once, it is answered a few times for each segment of the
/// client, and a few times in a while without one.
#[test]
fn a_twin_is_told_nothing_new_a_few_times() {
    on_bench(|bench| {
        for v6 in [false, true] {
            shadow(bench, 7, v6);
            let beyond = from_service(7, v6, SERVICE, CLIENT, ACK, &DATA);
            let probe = from_service(7, v6, SERVICE - 1, CLIENT, ACK, b"");
            for (frame, reason) in [(&beyond, "unsent"), (&probe, "probe_answered")] {
                let said = mirrored(7, v6, (CLIENT, SERVICE), ACK, b"");
                bench.expect(Hook::Tap, "the client", &said, NEXT, "tapped_segment");
                let begun = Instant::now();
                let told = answered(bench, frame, reason, 1000);
                let whiles = begun.elapsed().as_nanos() / WHILE.as_nanos();
                assert!(told >= ROUNDS, "{reason}: {told}");
                assert!(u128::from(told) <= u128::from(ROUNDS) * (whiles + 2));
                bench.expect(Hook::Tap, "the client", &said, NEXT, "tapped_segment");
                assert_eq!(answered(bench, frame, reason, 1), 1, "{reason}");
                answered(bench, frame, reason, 100);
                thread::sleep(WHILE);
                assert_eq!(answered(bench, frame, reason, 1), 1, "{reason}");
            }
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// How often a segment of our kernel is answered for that reason.
fn answered(bench: &Bench, frame: &[u8], reason: &str, times: u64) -> u64 {
    let count = |name: &str| {
        let counts = bench.counts().into_iter();
        let found = counts.filter(|(it, _)| it == name);
        found.map(|(_, count)| count).sum::<u64>()
    };
    let before = [reason, "rounds_spent"].map(count);
    for _ in 0..times {
        bench.put(Hook::Gate, 0, frame);
    }
    let after = [reason, "rounds_spent"].map(count);
    let [told, spent] = [after[0] - before[0], after[1] - before[1]];
    assert_eq!(told + spent, times, "{reason}");
    told
}
