//! Sockets taken out of this kernel and put back, in a namespace of their own.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use godwit_wire::{TcpSnapshot, TcpState};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use super::queue::Queue;
use super::sys::Count;
use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// An IPv4, an IPv6, and an IPv4 connection to a server of both families.
const KINDS: [(&str, &str); 3] = [
    ("127.0.0.1:0", "127.0.0.1"),
    ("[::1]:0", "::1"),
    ("[::]:0", "127.0.0.1"),
];

/// Runs `body` where nobody else has sockets.
fn alone(body: impl FnOnce() + Send + 'static) {
    if !geteuid().is_root() {
        eprintln!("skipped: TCP_REPAIR needs root");
        return;
    }
    let worker = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may");
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.expect("iproute2 is installed").success());
        body();
    });
    worker.join().expect("the test holds");
}

/// A connection: the server's side and the client's.
fn connection((bind, reach): (&str, &str)) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(bind).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let address = SocketAddr::new(reach.parse().expect("a literal"), port);
    let client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("it is open");
    let (server, _) = listener.accept().expect("it connected");
    (server, client)
}

/// What the data path would read.
fn hidden(paused: &PausedSocket) -> Hidden {
    let fd = std::os::fd::AsFd::as_fd(paused);
    let fin = u32::from(paused.state().has_peer_fin());
    let rcv_nxt = Queue::Recv.end(fd).expect("it is paused").0;
    let waiting = Count::InQueue.get(fd).expect("it is a socket");
    let write_seq = Queue::Send.end(fd).expect("it is paused").0;
    Hidden {
        ahead_ns: 0,
        copied_seq: rcv_nxt.wrapping_sub(waiting).wrapping_sub(fin),
        rcv_nxt,
        snd_nxt: write_seq,
        snd_una: write_seq,
        snd_cwnd: 10,
        snd_ssthresh: u32::MAX >> 1,
        srtt_us: 0,
        is_urgent: false,
    }
}

/// Out of the kernel, through bytes, and in again.
fn moved(server: TcpStream) -> (TcpSnapshot, RestoredSocket) {
    let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
    let snapshot = paused.snapshot(&hidden(&paused)).expect("it is exact");
    let mut bytes = Vec::new();
    snapshot.emit(&mut bytes);
    paused.discard().expect("it is in repair mode");
    let snapshot = TcpSnapshot::parse(&bytes).expect("as written");
    let restored = RestoredSocket::restore(&snapshot).expect("nobody else has it");
    (snapshot, restored)
}

fn released(restored: RestoredSocket) -> TcpStream {
    let socket = restored.release(Release::Probe).expect("it may speak");
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

/// ESTABLISHED, with a request that the application has not read.
#[test]
fn an_established_socket_with_unread_bytes() {
    alone(|| {
        for kind in KINDS {
            let (mut server, mut client) = connection(kind);
            client.write_all(b"first").expect("it is open");
            expect(&mut server, b"first");
            client.write_all(b"unread").expect("it is open");
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.queues.recv, b"unread");
            let mut server = released(restored);
            expect(&mut server, b"unread");
            for question in [&b"more"[..], b"and more"] {
                client.write_all(question).expect("it is open");
                expect(&mut server, question);
                server.write_all(question).expect("it is open");
                expect(&mut client, question);
            }
        }
    });
}

/// ESTABLISHED behind a zero window: most of the send queue was never sent.
#[test]
fn an_established_socket_with_unsent_bytes() {
    alone(|| {
        for kind in KINDS {
            let (mut server, mut client) = connection(kind);
            let all = pattern(20_000_000);
            server.set_nonblocking(true).expect("it is open");
            let mut written = 0;
            // What fits into both buffers; the client reads nothing yet.
            while let Ok(more) = server.write(&all[written..]) {
                written += more;
            }
            server.set_nonblocking(false).expect("it is open");
            let (snapshot, restored) = moved(server);
            assert!(snapshot.queues.unsent > 0, "{snapshot}");
            let mut server = released(restored);
            let rest = all[written..].to_vec();
            let writer = thread::spawn(move || server.write_all(&rest).map(|()| server));
            expect(&mut client, &all);
            drop(writer.join().expect("no panic").expect("it is open"));
        }
    });
}

/// FIN-WAIT-2: our FIN is acknowledged, the client goes on.
#[test]
fn a_socket_that_has_ended_its_stream() {
    alone(|| {
        for kind in KINDS {
            let (server, mut client) = connection(kind);
            server.shutdown(Shutdown::Write).expect("it is open");
            expect_end(&mut client);
            wait_state(&server, TcpState::FinWait2);
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.state, TcpState::FinWait2);
            let mut server = released(restored);
            client.write_all(b"late").expect("half open");
            expect(&mut server, b"late");
            drop(client);
            expect_end(&mut server);
        }
    });
}

/// CLOSE-WAIT: the client's FIN is known again once its copy is put in.
#[test]
fn a_socket_whose_client_has_ended_its_stream() {
    alone(|| {
        for kind in KINDS {
            let (server, mut client) = connection(kind);
            client.write_all(b"all").expect("it is open");
            client.shutdown(Shutdown::Write).expect("it is open");
            wait_state(&server, TcpState::CloseWait);
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.state, TcpState::CloseWait);
            assert!(restored.peer_fin().is_some());
            let mut server = released(restored);
            expect(&mut server, b"all");
            server.write_all(b"answer").expect("half open");
            expect(&mut client, b"answer");
        }
    });
}

/// Forgotten while it is paused, a socket goes on.
#[test]
fn a_paused_socket_that_is_dropped_resumes() {
    alone(|| {
        let (server, mut client) = connection(KINDS[0]);
        let copy = server.try_clone().expect("a descriptor more");
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        drop(paused);
        let mut server = copy;
        server.write_all(b"still here").expect("it resumed");
        expect(&mut client, b"still here");
    });
}

/// Abort after the restore: the target says nothing, the source goes on.
#[test]
fn an_abandoned_target_is_silent() {
    alone(|| {
        let (server, mut client) = connection(KINDS[0]);
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let snapshot = paused.snapshot(&hidden(&paused)).expect("it is exact");
        thread::spawn(move || {
            // As good as another machine.
            unshare(CloneFlags::CLONE_NEWNET).expect("root may");
            let up = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status();
            assert!(up.expect("iproute2 is installed").success());
            let restored = RestoredSocket::restore(&snapshot).expect("nobody has it here");
            restored.abandon();
        })
        .join()
        .expect("it can be restored");
        let mut server = TcpStream::from(paused.resume().expect("it was paused"));
        server.write_all(b"after all").expect("it resumed");
        expect(&mut client, b"after all");
    });
}

/// The same connection twice in one kernel: refused, the first one lives on.
#[test]
fn a_connection_that_is_here_already_is_refused() {
    alone(|| {
        let (server, _client) = connection(KINDS[1]);
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let snapshot = paused.snapshot(&hidden(&paused)).expect("it is exact");
        let error = RestoredSocket::restore(&snapshot).expect_err("it is paused here");
        assert!(matches!(error, RestoreError::Exists), "{error:?}");
    });
}

/// A byte with the urgent flag (RFC 6093): TCP_REPAIR would lose it.
#[test]
fn urgent_data_are_refused() {
    alone(|| {
        let (server, client) = connection(KINDS[0]);
        let flags = nix::sys::socket::MsgFlags::MSG_OOB;
        let raw = std::os::fd::AsRawFd::as_raw_fd(&client);
        nix::sys::socket::send(raw, b"abcU", flags).expect("it is open");
        let (socket, error) = PausedSocket::pause(OwnedFd::from(server)).expect_err("urgent");
        assert!(matches!(error, PauseError::Urgent), "{error:?}");
        expect(&mut TcpStream::from(socket), b"abc");
    });
}

/// Bytes that the kernel counts and does not show make no snapshot.
#[test]
fn a_queue_that_hides_bytes_is_refused() {
    alone(|| {
        let (server, mut client) = connection(KINDS[0]);
        client.write_all(b"four").expect("it is open");
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let mut hidden = hidden(&paused);
        hidden.copied_seq = hidden.copied_seq.wrapping_sub(2);
        let error = paused.snapshot(&hidden).expect_err("two are missing");
        let said = error.to_string();
        assert_eq!(said, "the receive queue shows 4 bytes, the kernel counts 6");
    });
}

/// A listener is none that can be moved.
#[test]
fn a_socket_without_a_connection_is_refused() {
    alone(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (_, error) = PausedSocket::pause(OwnedFd::from(listener)).expect_err("it listens");
        assert!(matches!(error, PauseError::State(10)), "{error:?}");
    });
}

fn expect_end(stream: &mut TcpStream) {
    let mut one = [0];
    assert_eq!(stream.read(&mut one).expect("an end"), 0);
}

fn wait_state(stream: &TcpStream, wanted: TcpState) {
    for _ in 0..1000 {
        let mut state = [0];
        let fd = std::os::fd::AsFd::as_fd(stream);
        sys::TCP_INFO.get_bytes(fd, &mut state).expect("it is open");
        if TcpState::from_number(state[0]) == Some(wanted) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it never is {wanted}");
}
