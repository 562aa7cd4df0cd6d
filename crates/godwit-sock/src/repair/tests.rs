//! Sockets taken out of this kernel and put back, in a namespace of their own.

use std::io::ErrorKind::NetworkUnreachable;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::KernelView;
use godwit_wire::{TcpSnapshot, TcpState};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use super::*;
use crate::HoldTun;

mod output;
mod refusals;
mod settings;
mod states;

const PATIENCE: Duration = Duration::from_secs(10);

/// An IPv4, an IPv6, and an IPv4 connection to a server of both families.
const KINDS: [(&str, &str); 3] = [
    ("10.99.0.1:0", "10.99.0.1"),
    ("[fd99::1]:0", "fd99::1"),
    ("[::]:0", "10.99.0.1"),
];

/// Runs `body` where nobody else has sockets.
fn alone(body: impl FnOnce() + Send + 'static) {
    if !geteuid().is_root() {
        eprintln!("skipped: TCP_REPAIR needs root");
        return;
    }
    let worker = thread::spawn(|| {
        leave();
        body();
    });
    worker.join().expect("the test holds");
}

/// Goes to a network namespace of its own, as good as another machine.
fn leave() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root may");
    for command in [
        "link set lo up",
        "addr add 10.99.0.1/32 dev lo",
        "addr add fd99::1/128 dev lo nodad",
    ] {
        let done = Command::new("ip").args(command.split(' ')).status();
        assert!(done.expect("iproute2 is installed").success(), "{command}");
    }
    // Client and server share an address, and a FIN comes through a tun.
    std::fs::write("/proc/sys/net/ipv4/conf/all/accept_local", "1").expect("root may");
}

/// A connection: the server's side and the client's.
fn connection((bind, reach): (&str, &str)) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(bind).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let address = SocketAddr::new(reach.parse().expect("a literal"), port);
    let end = Instant::now() + PATIENCE;
    let client = loop {
        match TcpStream::connect(address) {
            // The kernel makes the ways to new addresses in its own time.
            Err(error) if error.kind() == NetworkUnreachable && Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            client => break client.expect("it listens"),
        }
    };
    client.set_read_timeout(Some(PATIENCE)).expect("it is open");
    let (server, _) = listener.accept().expect("it connected");
    (server, client)
}

fn view() -> &'static KernelView {
    static VIEW: OnceLock<KernelView> = OnceLock::new();
    VIEW.get_or_init(|| KernelView::open().expect("root may load programs"))
}

fn snapshot(paused: &PausedSocket) -> TcpSnapshot {
    paused
        .snapshot(|fd| view().hidden(fd))
        .expect("it is exact")
}

/// Out of the kernel, and through bytes.
fn stopped(socket: TcpStream) -> TcpSnapshot {
    let paused = PausedSocket::pause(OwnedFd::from(socket)).expect("it can be moved");
    let snapshot = snapshot(&paused);
    let mut bytes = Vec::new();
    snapshot.emit(&mut bytes);
    paused.discard().expect("it is in repair mode");
    TcpSnapshot::parse(&bytes).expect("as written")
}

/// Out of the kernel, through bytes, and in again.
fn moved(server: TcpStream) -> (TcpSnapshot, RestoredSocket) {
    let snapshot = stopped(server);
    let restored = RestoredSocket::restore(&snapshot, 0).expect("nobody else has it");
    (snapshot, restored)
}

/// With the client's FIN put in, if there was one.
fn released(restored: RestoredSocket) -> TcpStream {
    let tun = HoldTun::open("hold").expect("root may");
    let socket = restored
        .release(Release::Probe, |fin| tun.put_back(fin))
        .expect("it may speak");
    let server = TcpStream::from(socket);
    server.set_read_timeout(Some(PATIENCE)).expect("it is open");
    server
}

fn expect(stream: &mut TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    stream.read_exact(&mut got).expect("it comes");
    assert!(got == wanted, "other bytes came");
}

/// Bytes that differ wherever they stand.
fn pattern(length: usize) -> Vec<u8> {
    let word = |at: usize| u32::try_from(at).expect("short").to_le_bytes();
    (0..length).map(|at| word(at / 4)[at % 4]).collect()
}

/// Writes from the start of `all` what fits into both buffers of a connection
/// whose other side does not read; how much.
fn write_much(stream: &mut TcpStream, all: &[u8]) -> usize {
    stream.set_nonblocking(true).expect("it is open");
    let mut written = 0;
    while let Ok(more @ 1..) = stream.write(&all[written..]) {
        written += more;
    }
    stream.set_nonblocking(false).expect("it is open");
    // Nothing keeps segments away here: one that comes while there is no socket
    // is answered with RST.
    wait_quiet(stream);
    written
}

fn expect_end(stream: &mut TcpStream) {
    let mut one = [0];
    assert_eq!(stream.read(&mut one).expect("an end"), 0);
}

/// Waits until all that was sent is acknowledged.
fn wait_quiet(stream: &TcpStream) {
    for _ in 0..1000 {
        let copy = OwnedFd::from(stream.try_clone().expect("a descriptor more"));
        let paused = PausedSocket::pause(copy).expect("it can be moved");
        let hidden = view().hidden(paused.as_fd()).expect("it is paused");
        if hidden.snd_una == hidden.snd_nxt {
            return;
        }
        drop(paused);
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it never is quiet");
}

fn wait_state(stream: &TcpStream, wanted: TcpState) {
    wait_number(stream, wanted as u8);
}

/// Waits for the end of a connection that leaves no TIME-WAIT.
fn wait_closed(stream: &TcpStream) {
    const TCP_CLOSE: u8 = 7;
    wait_number(stream, TCP_CLOSE);
}

fn wait_number(stream: &TcpStream, wanted: u8) {
    for _ in 0..PATIENCE.as_millis() {
        if state(stream) == wanted {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("its state is {}, never {wanted}", state(stream));
}

/// include/net/tcp_states.h
fn state(stream: &TcpStream) -> u8 {
    let mut state = [0];
    let filled = sys::TCP_INFO.get_bytes(stream.as_fd(), &mut state);
    filled.expect("it is open");
    state[0]
}
