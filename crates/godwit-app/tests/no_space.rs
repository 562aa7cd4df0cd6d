//! Snapshots for which there is no room: what was kept before stays, the connection
//! stays where it is, and is movable again as soon as there is room. A program of its
//! own, because the room is the whole process's.

use std::env;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::apps::{AppSocket, Apps};
use godwit_agent::input::Inbox;
use godwit_app::{Error, Listener, Options, export_state};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal};

const DEADLINE: Duration = Duration::from_secs(20);

/// The largest that there is; 64 of them fill the room.
const LARGE: usize = 16 << 20;
const MOST: usize = 80;

#[test]
fn a_snapshot_without_room_keeps_its_connection_where_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    // SAFETY: the library reads it later than this, and nothing else does.
    unsafe { env::set_var("GODWIT_APP_SOCKET", &path) };
    let bound = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let service = bound.local_addr().expect("it is bound");
    let socket = AppSocket::bind(&path, None).expect("the folder is ours");
    let apps = Apps::start(socket, vec![service], Inbox::new().0).expect("a thread");
    let listener = Listener::new(bound, Options::default()).expect("it listens");
    until("the agent hears of it", || {
        apps.accepts(Endpoint::from(service))
    });
    let connect = || {
        let client = TcpStream::connect(service).expect("it listens");
        (client, listener.accept().expect("a client").stream)
    };

    let (mut client, mut server) = connect();
    let flow = FlowKey {
        client: client.local_addr().expect("it is bound").into(),
        service: service.into(),
    };
    client.write_all(b"request").expect("it is open");
    server.read_exact(&mut [0; 7]).expect("it is open");
    export_state(&server, b"before").expect("there is room");

    let large = vec![1; LARGE];
    let mut others = Vec::new();
    let refused = (0..MOST).find_map(|_| {
        let other = connect();
        let refused = export_state(&other.1, &large).err();
        others.push(other);
        refused
    });
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
    assert!(others.len() > 60, "{} snapshots fit", others.len());

    // As it stands at its last snapshot it may go; from there on it may not.
    let taken = apps
        .take(flow, Duration::ZERO)
        .expect("nothing has changed");
    let snapshot = taken.snapshot.expect("it was exported");
    assert_eq!(snapshot.carried.bytes, b"before");
    apps.put_back(flow);
    client.write_all(b"more").expect("it is open");
    server.read_exact(&mut [0; 4]).expect("it is open");
    let error = export_state(&server, &large).expect_err("there is no room");
    assert!(matches!(error, Error::NoSpace), "{error}");
    let behind = apps.take(flow, Duration::ZERO).map(drop);
    assert_eq!(behind, Err(HandoffRefusal::SnapshotBehind));
    server.write_all(b"on it goes").expect("it is open");
    client.read_exact(&mut [0; 10]).expect("it is open");

    // Who has ended leaves room.
    others.truncate(others.len() - 2);
    until("there is room", || {
        !matches!(export_state(&server, &large), Err(Error::NoSpace))
    });
    let taken = apps.take(flow, Duration::ZERO).expect("it was exported");
    let snapshot = taken.snapshot.expect("it was exported");
    assert!(snapshot.carried.bytes == large, "as it was exported");
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
