//! Live connections between two kernels, with a client that knows nothing of it:
//! both directions busy, byte for byte.

mod network;
mod talk;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use godwit_bpf::KernelView;
use godwit_sock::only_repeats;
use godwit_sock::repair::{PausedSocket, Release, RestoredSocket};
use godwit_wire::TcpSnapshot;
use nix::sys::socket::{setsockopt, sockopt};

use network::{Arrival, Net, SERVICE_V4, SERVICE_V6, SILENT, Server};
use talk::{DOWN, Talk, UP};

/// Moves per connection; `GODWIT_HOPS` says otherwise.
const HOPS: usize = 30;
/// Bytes that a buffer holds; what is left in it at the end has to come through
/// whatever congestion control thinks of the moves.
const BUFFER: usize = 128 << 10;
/// How long a server keeps the connection: at least, and that many times more.
const STAY: Duration = Duration::from_millis(1);

#[test]
fn a_busy_ipv4_connection_moves() {
    busy(SERVICE_V4, "0.0.0.0:80", "cubic", Some(BUFFER));
    busy(SERVICE_V4, "0.0.0.0:80", "bbr", Some(BUFFER));
}

#[test]
fn a_busy_ipv6_connection_moves() {
    busy(SERVICE_V6, "[::]:80", "cubic", Some(BUFFER));
    busy(SERVICE_V6, "[::]:80", "bbr", Some(BUFFER));
}

/// IPv4, to a socket of IPv6; with as much in its queues as the kernel allows.
#[test]
fn a_busy_mapped_connection_moves() {
    busy(SERVICE_V4, "[::]:80", "cubic", None);
}

fn busy(service: &'static str, bind: &str, algorithm: &str, buffer: Option<usize>) {
    let Some(lab) = network::lab() else { return };
    let net = Net::new(&lab, service);
    let view = KernelView::open().expect("root may load programs");
    let hops = std::env::var("GODWIT_HOPS").map_or(HOPS, |it| it.parse().expect("a number"));

    let listen = || TcpListener::bind(bind).expect("the port is free");
    let listener = net.servers[0].node.enter(listen).expect("it is there");
    let to = SocketAddr::new(service.parse().expect("a literal"), 80);
    let connect = || TcpStream::connect(to).expect("it listens");
    let client = net.client.enter(connect).expect("it is there");
    let (socket, _) = listener.accept().expect("it came");
    for socket in [&socket, &client] {
        setsockopt(socket, sockopt::TcpCongestion, &algorithm.into()).expect("the kernel has it");
        if let Some(bytes) = buffer {
            setsockopt(socket, sockopt::SndBuf, &bytes).expect("it is open");
            setsockopt(socket, sockopt::RcvBuf, &bytes).expect("it is open");
        }
    }
    drop(listener);

    let client = std::thread::spawn(move || Talk::new(client, UP, DOWN).until_end());
    let mut server = Talk::new(socket, DOWN, UP);
    let mut times = Times::default();
    for hop in 0..hops {
        let stay = STAY * (1 + u32::try_from(hop * 5 % 7).expect("small"));
        server.exchange_for(stay, || drain(&net.servers[hop % 2]));
        let (from, to) = (hop % 2, 1 - hop % 2);
        server.replace(|socket| move_one(&net, &view, (from, to), socket, &mut times));
    }
    server.stop_writing();
    let (received, sent) = server.until_end();
    let (received_there, sent_there) = client.join().expect("the client's stream is exact");
    assert_eq!((received, sent), (sent_there, received_there));
    eprintln!("{service} {algorithm}: {hops} moves, {received} and {sent} bytes; {times}");
}

/// The whole of a move, as an agent does it.
fn move_one(
    net: &Net<'_>,
    view: &KernelView,
    (from, to): (usize, usize),
    socket: TcpStream,
    times: &mut Times,
) -> TcpStream {
    let (source, target) = (&net.servers[from], &net.servers[to]);
    target.on_arrival(Arrival::Hold);
    source.on_arrival(Arrival::Forward);
    net.lead_to(to);

    let start = Instant::now();
    let paused = PausedSocket::pause(OwnedFd::from(socket)).expect("it can be moved");
    // From here on no acknowledgement leaves that the snapshot does not know.
    setsockopt(&paused, sockopt::Mark, &SILENT).expect("root may");
    let snapshot = paused.snapshot(|fd| view.hidden(fd)).expect("it is exact");
    let mut bytes = Vec::new();
    snapshot.emit(&mut bytes);
    let dumped = Instant::now();

    let snapshot = TcpSnapshot::parse(&bytes).expect("as written");
    let restore = || RestoredSocket::restore(&snapshot, 0).expect("it is not here yet");
    let restored = target.node.enter(restore).expect("it is there");
    view.carry(restored.as_fd(), &snapshot)
        .expect("it is in repair mode");
    let dropped = put_back(target, &snapshot);
    let socket = restored
        .release(Release::Probe, |fin| target.hold.put_back(fin))
        .expect("it may speak");
    times.note(start, dumped, bytes.len(), dropped);

    target.on_arrival(Arrival::Pass);
    drain(target);
    paused.discard().expect("nobody needs it any more");
    TcpStream::from(socket)
}

/// What has waited for the connection; how much of it said nothing.
fn put_back(target: &Server<'_>, snapshot: &TcpSnapshot) -> usize {
    let mut dropped = 0;
    while let Some(packet) = target.hold.take().expect("the device is there") {
        if only_repeats(&packet, snapshot) {
            dropped += 1;
        } else {
            target.hold.put_back(&packet).expect("it is a packet");
        }
    }
    dropped
}

/// What was on its way to the tun when nothing was to be held any more.
fn drain(server: &Server<'_>) {
    while let Some(packet) = server.hold.take().expect("the device is there") {
        server.hold.put_back(&packet).expect("it is a packet");
    }
}

/// How long the connections stood still. For people: nothing is asserted.
#[derive(Default)]
struct Times {
    dump_us: Vec<u128>,
    freeze_us: Vec<u128>,
    bytes: Vec<usize>,
    dropped: usize,
}

impl Times {
    fn note(&mut self, start: Instant, dumped: Instant, bytes: usize, dropped: usize) {
        self.dump_us.push((dumped - start).as_micros());
        self.freeze_us.push(start.elapsed().as_micros());
        self.bytes.push(bytes);
        self.dropped += dropped;
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn middle<T: Copy + Ord>(all: &[T]) -> Option<(T, T)> {
            let mut sorted = all.to_vec();
            sorted.sort_unstable();
            Some((*sorted.get(sorted.len() / 2)?, *sorted.last()?))
        }
        let (Some(dump), Some(freeze)) = (middle(&self.dump_us), middle(&self.freeze_us)) else {
            return f.write_str("none");
        };
        let bytes = middle(&self.bytes).unwrap_or_default();
        write!(
            f,
            "median and most: dump {dump:?} us, pause to release {freeze:?} us, \
             snapshot {bytes:?} bytes; {} held ACKs dropped",
            self.dropped
        )
    }
}
