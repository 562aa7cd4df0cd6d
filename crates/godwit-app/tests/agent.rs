//! A server in this process, an agent in this process, and clients: connections
//! are taken, put back and given, while the server is in the middle of things.
//!
//! The agent is the one of `godwit agent` without the rest: nothing here needs
//! privileges. Connections are not moved between kernels, they come back as they
//! are: what is tested is who has them, and that not a byte is lost.

use std::env;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::apps::{AppSocket, Apps, Taken};
use godwit_agent::input::Inbox;
use godwit_app::{Accepted, Error, Listener, Options, Progress, export_state, export_state_at};
use godwit_wire::app::{Carried, SnapshotKind};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal, SeqNumber};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

const DEADLINE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_millis(300);

/// The agent of all tests, and the services' addresses.
struct Site {
    apps: Apps,
    free: Mutex<Vec<TcpListener>>,
    _folder: tempfile::TempDir,
}

static SITE: LazyLock<Site> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    // SAFETY: the library reads it later than this, and nothing else does.
    unsafe { env::set_var("GODWIT_APP_SOCKET", &path) };
    let bind = |at| TcpListener::bind(at).expect("a free port");
    let listeners: Vec<_> = (0..20)
        .flat_map(|_| ["127.0.0.1:0", "[::1]:0"].map(bind))
        .collect();
    let services = listeners.iter().map(address).collect();
    let socket = AppSocket::bind(&path, None).expect("the folder is ours");
    Site {
        apps: Apps::start(socket, services, Inbox::new().0).expect("a thread"),
        free: Mutex::new(listeners),
        _folder: folder,
    }
});

/// Tests that wait for threads to be blocked get in each other's way.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("it is bound")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A service of one of the two families that the agent knows.
fn service(v6: bool, options: Options) -> Listener {
    let site = &*SITE;
    let mut free = site.free.lock().expect("no panic under it");
    let found = free
        .iter()
        .position(|listener| address(listener).is_ipv6() == v6);
    let listener = free.remove(found.expect("enough for all tests"));
    drop(free);
    let endpoint = Endpoint::from(address(&listener));
    let listener = Listener::new(listener, options).expect("it listens");
    until("the agent hears of it", || site.apps.accepts(endpoint));
    listener
}

/// A client and the server's end.
fn connection(listener: &Listener) -> (TcpStream, TcpStream, FlowKey) {
    let client = TcpStream::connect(address(listener.as_tcp())).expect("it listens");
    let accepted = listener.accept().expect("somebody connects");
    assert!(accepted.migrated.is_none(), "it is a client");
    let flow = FlowKey {
        client: client.local_addr().expect("it is bound").into(),
        service: client.peer_addr().expect("it is connected").into(),
    };
    client.set_read_timeout(Some(DEADLINE)).expect("a limit");
    (client, accepted.stream, flow)
}

fn take(flow: FlowKey) -> Taken {
    let taken = SITE.apps.take(flow, PATIENCE);
    taken.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// What a server reads from the client's next bytes.
fn ping(client: &mut TcpStream, server: &mut TcpStream, text: &str) {
    client.write_all(text.as_bytes()).expect("it is open");
    let mut heard = vec![0; text.len()];
    server.read_exact(&mut heard).expect("it is open");
    assert_eq!(heard, text.as_bytes());
}

#[test]
fn a_connection_is_taken_with_its_last_snapshot_and_put_back() {
    for v6 in [false, true] {
        let listener = service(v6, Options::default());
        let (mut client, mut server, flow) = connection(&listener);
        ping(&mut client, &mut server, "hello");
        server.write_all(b"answer").expect("it is open");
        export_state(&server, b"state 1").expect("it is ours");
        server.write_all(b"more").expect("it is open");
        export_state(&server, b"state 2").expect("it is ours");

        let taken = take(flow);
        let snapshot = taken.snapshot.expect("it was exported");
        assert_eq!(snapshot.carried.bytes, b"state 2");
        // As the sequence numbers of a stopped socket would be, wrapped around.
        let (copied, written) = (SeqNumber(3), SeqNumber(7));
        let at = snapshot.at(taken.socket.as_fd(), copied, written);
        assert_eq!(
            at,
            Ok((copied, written)),
            "nothing was read or written since"
        );
        client.write_all(b"while it is away").expect("it is open");
        SITE.apps.put_back(flow);
        let mut heard = [0; 16];
        server.read_exact(&mut heard).expect("it is back");
        assert_eq!(&heard, b"while it is away");
        let behind = SITE.apps.take(flow, Duration::ZERO).map(drop);
        assert_eq!(behind, Err(HandoffRefusal::SnapshotBehind));
    }
}

#[test]
fn positions_follow_what_the_server_does_after_its_snapshot() {
    let listener = service(false, Options::default());
    let (mut client, mut server, flow) = connection(&listener);
    export_state(&server, b"s").expect("it is ours");
    let taken = take(flow);
    SITE.apps.put_back(flow);
    ping(&mut client, &mut server, "12345");
    server.write_all(b"123").expect("it is open");
    let snapshot = taken.snapshot.expect("it was exported");
    let at = snapshot.at(taken.socket.as_fd(), SeqNumber(2), SeqNumber(100));
    assert_eq!(at, Ok((SeqNumber(2) - 5, SeqNumber(97))));
}

/// Nothing was read and nothing written: that is where a server begins.
#[test]
fn a_fresh_connection_has_an_empty_snapshot() {
    let listener = service(false, Options::default());
    let (mut client, mut server, flow) = connection(&listener);
    client.write_all(b"request").expect("it is open");
    let taken = take(flow);
    let snapshot = taken.snapshot.expect("the beginning");
    assert!(snapshot.carried.bytes.is_empty());
    SITE.apps.put_back(flow);
    server.read_exact(&mut [0; 7]).expect("it is back");
    let behind = SITE.apps.take(flow, Duration::ZERO).map(drop);
    assert_eq!(behind, Err(HandoffRefusal::SnapshotBehind));
}

#[test]
fn a_server_without_state_is_moved_as_it_stands() {
    let listener = service(false, Options { stateless: true });
    let (mut client, mut server, flow) = connection(&listener);
    ping(&mut client, &mut server, "hello");
    assert_eq!(take(flow).snapshot, None);
    SITE.apps.put_back(flow);
    ping(&mut client, &mut server, "again");
}

/// The server is in the middle of its work, and takes note of it a little later.
#[test]
fn a_take_waits_for_the_next_export() {
    let listener = service(false, Options::default());
    let (mut client, mut server, flow) = connection(&listener);
    ping(&mut client, &mut server, "hello");
    let taken = thread::scope(|scope| {
        let patience = Duration::from_secs(10);
        let taken = scope.spawn(move || SITE.apps.take(flow, patience));
        thread::sleep(Duration::from_millis(50));
        assert!(!taken.is_finished(), "there is no snapshot");
        export_state(&server, b"now").expect("it is ours");
        taken.join().expect("no panic")
    });
    let snapshot = taken.expect("it was exported").snapshot;
    assert_eq!(snapshot.expect("it was exported").carried.bytes, b"now");
    SITE.apps.put_back(flow);
    ping(&mut client, &mut server, "again");
}

/// The socket is handed to a listener as if another server had had it. A server
/// that sleeps in epoll on its listener wakes up, in accept too.
#[test]
fn a_server_accepts_what_another_one_had() {
    let _alone = alone();
    for (v6, blocking) in [(false, false), (true, false), (false, true), (true, true)] {
        let listener = service(v6, Options::default());
        let (mut client, server, flow) = connection(&listener);
        export_state(&server, b"the state").expect("it is ours");
        let taken = take(flow);
        let carried = taken.snapshot.expect("it was exported").carried;
        let accept = || {
            if !blocking {
                let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("descriptors");
                let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
                let tcp = listener.as_tcp();
                epoll.add(tcp, event).expect("a listener");
                tcp.set_nonblocking(true).expect("a listener");
                let limit = EpollTimeout::try_from(DEADLINE).expect("a limit");
                let woken = epoll
                    .wait(&mut [EpollEvent::empty()], limit)
                    .expect("it waits");
                assert_eq!(woken, 1, "it sleeps on");
            }
            listener.accept().expect("it comes")
        };
        let Accepted {
            mut stream,
            migrated,
        } = thread::scope(|scope| {
            let accepting = scope.spawn(accept);
            thread::sleep(Duration::from_millis(20));
            let given = SITE.apps.give(flow, taken.socket, Some(carried));
            assert_eq!(given, Ok(()));
            accepting.join().expect("no panic")
        });
        assert_eq!(migrated.as_deref(), Some(&b"the state"[..]));
        ping(&mut client, &mut stream, "hello");
        // Counted from here on, whatever the other server has read and written.
        let (read, written) = (5, 0);
        let progress = Progress { read, written };
        export_state_at(&stream, b"new state", progress).expect("it is right");
        // The knock at the door is no client.
        listener.as_tcp().set_nonblocking(true).expect("a listener");
        let error = listener.accept().map(drop).expect_err("nobody else");
        let nobody = matches!(&error, Error::System(e) if e.kind() == io::ErrorKind::WouldBlock);
        assert!(nobody, "{error}");
    }
}

/// Threads that wait in accept(2) are woken up one by one, though they are not
/// knocked for one by one: none waits until it is knocked again (500 ms).
#[test]
fn whoever_waits_at_the_door_gets_one() {
    let _alone = alone();
    let listener = service(false, Options { stateless: true });
    let connections: Vec<_> = (0..4).map(|_| connection(&listener)).collect();
    let sockets = connections.iter().map(|(_, _, flow)| {
        let taken = take(*flow);
        SITE.apps.put_back(*flow);
        (*flow, taken.socket)
    });
    let sockets: Vec<_> = sockets.collect();
    thread::scope(|scope| {
        let accept = || listener.accept().expect("it comes");
        let accepting: Vec<_> = (0..4).map(|_| scope.spawn(accept)).collect();
        thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        for (flow, socket) in sockets {
            assert_eq!(SITE.apps.give(flow, socket, None), Ok(()));
        }
        for accepting in accepting {
            let accepted = accepting.join().expect("no panic");
            assert!(accepted.migrated.is_some());
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(400), "{took:?}");
    });
}

/// Whatever it says, its connection moves with a snapshot of where it stands, or not.
#[test]
fn a_server_may_count_itself() {
    for v6 in [false, true] {
        let listener = service(v6, Options::default());
        let (mut client, mut server, flow) = connection(&listener);
        ping(&mut client, &mut server, "hello");
        let is_taken_with = |state: &[u8]| {
            let taken = take(flow);
            let snapshot = taken.snapshot.expect("it was exported");
            assert_eq!(snapshot.carried.bytes, state);
            let ends = (SeqNumber(3), SeqNumber(7));
            let at = snapshot.at(taken.socket.as_fd(), ends.0, ends.1);
            assert_eq!(at, Ok(ends), "it stands there");
            SITE.apps.put_back(flow);
        };
        let read = 5;
        for written in 1..=1000 {
            server.write_all(b"!").expect("it is open");
            let progress = Progress { read, written };
            export_state_at(&server, &written.to_be_bytes(), progress).expect("it is right");
        }
        is_taken_with(&1000_u64.to_be_bytes());

        // Long enough that the kernel is asked.
        thread::sleep(Duration::from_millis(2));
        server.write_all(b"!").expect("it is open");
        let written = 1002;
        let wrong = export_state_at(&server, b"wrong", Progress { read, written });
        assert!(matches!(wrong, Err(Error::Misplaced)), "{wrong:?}");
        is_taken_with(b"wrong");
        server.write_all(b"!").expect("it is open");
        let again = export_state_at(&server, b"not believed", Progress { read, written });
        again.expect("the kernel is asked");
        is_taken_with(b"not believed");
    }
}

#[test]
fn large_and_empty_snapshots_arrive() {
    let listener = service(false, Options::default());
    let (_client, server, flow) = connection(&listener);
    for length in [16_usize << 20, 0] {
        let bytes: Vec<_> = (0..length).map(byte_at).collect();
        export_state(&server, &bytes).expect("it fits");
        let taken = take(flow);
        let snapshot = taken.snapshot.expect("it was exported");
        assert!(snapshot.carried.bytes == bytes, "as it was exported");
        let copy = taken.socket.try_clone().expect("descriptors are left");
        SITE.apps.put_back(flow);
        let given = SITE.apps.give(flow, copy, Some(snapshot.carried));
        assert_eq!(given, Ok(()));
        let accepted = listener.accept().expect("it was given");
        assert!(accepted.migrated == Some(bytes), "as it was exported");
    }
    let error = export_state(&server, &vec![0; (16 << 20) + 1]).expect_err("too large");
    assert!(matches!(error, Error::TooLarge), "{error}");
}

/// Threads that are in a call on the connection when it is taken, and such as begin
/// one while it is away, go on when it is back, with every byte.
#[test]
fn blocked_calls_survive_a_take() {
    let _alone = alone();
    let listener = service(false, Options { stateless: true });
    let (mut client, server, flow) = connection(&listener);
    for begins_while_away in [false, true] {
        thread::scope(|scope| {
            let read = || {
                let mut heard = [0; 5];
                (&server).read_exact(&mut heard).expect("it is open");
                heard
            };
            let mut reader = (!begins_while_away).then(|| scope.spawn(read));
            thread::sleep(Duration::from_millis(30));
            let _taken = take(flow);
            if begins_while_away {
                reader = Some(scope.spawn(read));
                thread::sleep(Duration::from_millis(30));
            }
            let reader = reader.expect("it was started");
            assert!(!reader.is_finished(), "there is nothing to read");
            SITE.apps.put_back(flow);
            client.write_all(b"hello").expect("it is open");
            assert_eq!(&reader.join().expect("no panic"), b"hello");
        });
    }
}

/// The byte at a place of a stream.
fn byte_at(at: usize) -> u8 {
    (at / 7).to_le_bytes()[0]
}

/// A blocked writer's bytes arrive once each and in order, whenever the
/// connection is taken.
#[test]
fn a_busy_writer_does_not_notice() {
    let _alone = alone();
    let listener = service(false, Options { stateless: true });
    let (mut client, server, flow) = connection(&listener);
    const TOTAL: usize = 48 << 20;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 0_usize;
            while next < TOTAL {
                let chunk: Vec<_> = (next..next + 4096).map(byte_at).collect();
                (&server).write_all(&chunk).expect("it is open");
                next += chunk.len();
            }
        });
        scope.spawn(|| {
            for _ in 0..40 {
                drop(take(flow));
                thread::sleep(Duration::from_millis(2));
                SITE.apps.put_back(flow);
                thread::sleep(Duration::from_millis(3));
            }
        });
        let mut heard = vec![0; TOTAL];
        client.read_exact(&mut heard).expect("it is open");
        let wrong = heard
            .iter()
            .enumerate()
            .find(|(at, byte)| **byte != byte_at(*at));
        assert_eq!(wrong, None);
    });
}

/// A server with epoll finds nothing while its connection is away, and is told of
/// everything again when it is back, edge-triggered too.
#[test]
fn epoll_tells_everything_again() {
    let _alone = alone();
    let listener = service(false, Options { stateless: true });
    let (mut client, mut server, flow) = connection(&listener);
    server.set_nonblocking(true).expect("a socket");
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("descriptors are left");
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
    epoll
        .add(&server, EpollEvent::new(flags, 7))
        .expect("a socket");
    let wait = |limit: Duration| {
        let mut events = [EpollEvent::empty(); 4];
        let limit = EpollTimeout::try_from(limit).expect("a limit");
        let count = epoll.wait(&mut events, limit).expect("it waits");
        let seen = events[..count]
            .iter()
            .fold(EpollFlags::empty(), |all, event| {
                assert_eq!(event.data(), 7);
                all | event.events()
            });
        seen.bits()
    };
    assert_eq!(wait(DEADLINE), EpollFlags::EPOLLOUT.bits());
    client.write_all(b"unread").expect("it is open");
    let both = (EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT).bits();
    assert_eq!(wait(DEADLINE), both);
    let _taken = take(flow);
    let blocked = |result: io::Result<usize>| {
        result.expect_err("it is away").kind() == io::ErrorKind::WouldBlock
    };
    assert!(blocked(server.read(&mut [0; 9])), "the edge is gone");
    assert!(blocked(server.write(b"lost?")), "nothing is taken");
    assert_eq!(wait(Duration::from_millis(20)), 0);
    SITE.apps.put_back(flow);
    assert_eq!(wait(DEADLINE), both);
    let mut heard = [0; 9];
    assert_eq!(server.read(&mut heard).expect("it is back"), 6);
    server.write_all(b"answer").expect("it is back");
    let mut answer = [0; 6];
    client.read_exact(&mut answer).expect("it is open");
    assert_eq!(&answer, b"answer");
}

/// poll(2) that began while the connection was away says EINTR, as it may at any
/// time, and finds the connection after that.
#[test]
fn poll_is_interrupted() {
    let _alone = alone();
    let listener = service(false, Options { stateless: true });
    let (mut client, server, flow) = connection(&listener);
    let _taken = take(flow);
    thread::scope(|scope| {
        let poller = scope.spawn(|| {
            loop {
                let mut fds = [PollFd::new(server.as_fd(), PollFlags::POLLIN)];
                match poll(&mut fds, PollTimeout::from(20_000_u16)) {
                    Ok(ready) => return ready,
                    Err(errno) => assert_eq!(errno, nix::errno::Errno::EINTR),
                }
            }
        });
        thread::sleep(Duration::from_millis(30));
        SITE.apps.put_back(flow);
        let back = Instant::now();
        client.write_all(b"!").expect("it is open");
        assert_eq!(poller.join().expect("no panic"), 1);
        // At its own limit it looks again, whatever happened until then.
        assert!(back.elapsed() < DEADLINE / 2, "it slept on");
    });
}

/// connect(2) to AF_UNSPEC, as an agent ends a connection that has moved; in repair
/// mode the client would not hear of it.
fn disconnect(socket: &OwnedFd) {
    let nowhere = libc::sockaddr {
        sa_family: 0,
        sa_data: [0; 14],
    };
    // SAFETY: the address outlives the call, and 16 is its size.
    let err = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, 16) };
    assert_eq!(err, 0, "{}", io::Error::last_os_error());
}

/// The old server: whatever it is doing with the connection ends with an error, the
/// library says why, and the connection is away for good.
#[test]
fn a_server_is_told_that_its_connection_is_another_s() {
    let _alone = alone();
    let listener = service(false, Options::default());
    let (_client, server, flow) = connection(&listener);
    export_state(&server, b"s").expect("it is ours");
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("descriptors are left");
    let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 7);
    epoll.add(&server, event).expect("a socket");
    thread::scope(|scope| {
        let read = || (&server).read(&mut [0]);
        let before = scope.spawn(read);
        thread::sleep(Duration::from_millis(30));
        let taken = take(flow);
        let meanwhile = scope.spawn(read);
        thread::sleep(Duration::from_millis(30));
        assert!(!before.is_finished() && !meanwhile.is_finished());
        disconnect(&taken.socket);
        SITE.apps.emigrated(flow);
        for reader in [before, meanwhile] {
            let error = reader.join().expect("no panic").expect_err("it is over");
            assert_ne!(error.kind(), io::ErrorKind::WouldBlock);
        }
    });
    let mut events = [EpollEvent::empty(); 4];
    let limit = EpollTimeout::try_from(DEADLINE).expect("a limit");
    assert_eq!(epoll.wait(&mut events, limit).expect("it waits"), 1);
    assert!(events[0].events().contains(EpollFlags::EPOLLHUP));
    let emigrated = |outcome: Result<(), Error>| matches!(outcome, Err(Error::Emigrated));
    assert!(emigrated(export_state(&server, b"s")));
    assert!(emigrated(godwit_app::join_session(&server, b"s")));
    (&server).write(b"!").expect_err("it is over");
    let gone = SITE.apps.take(flow, Duration::ZERO).map(drop);
    assert_eq!(gone, Err(HandoffRefusal::NoServer));
    godwit_app::close(server).expect("it is open");
}

/// A server may close a connection that is away: nothing of it stays.
#[test]
fn what_is_closed_while_it_is_away_is_closed() {
    for through_library in [false, true] {
        let listener = service(false, Options::default());
        let (mut client, server, flow) = connection(&listener);
        let taken = take(flow);
        match through_library {
            true => godwit_app::close(server).expect("it is open"),
            false => drop(server),
        }
        SITE.apps.put_back(flow);
        drop(taken);
        assert_eq!(client.read(&mut [0]).expect("a FIN"), 0);
        until("its slot is free", || {
            SITE.apps.take(flow, Duration::ZERO).err() == Some(HandoffRefusal::NoServer)
        });
    }
}

#[test]
fn sessions_stay_together() {
    let listener = service(false, Options::default());
    let (_client, server, flow) = connection(&listener);
    let (_other_client, other, _) = connection(&listener);
    godwit_app::join_session(&server, b"basket 7").expect("it is ours");
    drop(take(flow));
    SITE.apps.put_back(flow);
    godwit_app::join_session(&other, b"basket 7").expect("it is ours");
    let taken = SITE.apps.take(flow, PATIENCE).map(drop);
    assert_eq!(taken, Err(HandoffRefusal::InSession));
    let error = godwit_app::join_session(&server, &[7; 33]).expect_err("too long");
    assert!(matches!(error, Error::TooLarge), "{error}");
}

#[test]
fn what_nobody_has_is_not_taken_and_not_given() {
    let listener = service(false, Options::default());
    let (_client, server, flow) = connection(&listener);
    let nobody = FlowKey {
        client: "127.0.0.1:1".parse().expect("a literal"),
        ..flow
    };
    let taken = SITE.apps.take(nobody, PATIENCE).map(drop);
    assert_eq!(taken, Err(HandoffRefusal::NoServer));
    let elsewhere = FlowKey {
        service: "127.0.0.1:1".parse().expect("a literal"),
        ..flow
    };
    let socket = server
        .as_fd()
        .try_clone_to_owned()
        .expect("descriptors are left");
    let carried = Carried {
        kind: SnapshotKind::Regenerable,
        bytes: b"s".to_vec(),
    };
    let given = SITE.apps.give(elsewhere, socket, Some(carried));
    assert_eq!(given, Err(HandoffRefusal::NoServer));
    SITE.apps.put_back(nobody);
    SITE.apps.emigrated(nobody);
}

#[test]
fn what_is_no_connection_of_ours_is_refused() {
    let listener = service(false, Options::default());
    let (pipe, _other) = io::pipe().expect("descriptors are left");
    export_state(&pipe, b"s").expect_err("a pipe");
    export_state(listener.as_tcp(), b"s").expect_err("a listener");
    let error = godwit_app::raw::export_state(-1, b"s").expect_err("no descriptor");
    assert!(matches!(error, Error::System(_)), "{error}");
    godwit_app::join_session(&pipe, b"s").expect_err("a pipe");
    let none = godwit_app::raw::listen(pipe.as_raw_fd(), Options::default());
    none.expect_err("a pipe");
    let (client, _server, _) = connection(&listener);
    let none = godwit_app::raw::listen(client.as_raw_fd(), Options::default());
    none.expect_err("a connection");
}
