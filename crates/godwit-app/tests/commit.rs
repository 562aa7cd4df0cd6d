//! Snapshots that must never be gone back from: what the agent hears of them, and what
//! the server's call says in the end. The test is the agent's driver.

use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::apps::{AppSocket, Apps, Commit};
use godwit_agent::input::{Inbox, Input, Inputs};
use godwit_app::{Error, Listener, Options, commit_state, export_state};
use godwit_wire::app::{CommitRefusal, SnapshotKind, SnapshotPlace};
use godwit_wire::{FlowKey, HandoffRefusal};
use nix::unistd::geteuid;

const DEADLINE: Duration = Duration::from_secs(20);
/// Something that would have come has not.
const A_WHILE: Duration = Duration::from_millis(100);

/// Where the agent is. There is one for all tests of this process, at a time.
struct Site {
    path: PathBuf,
    service: SocketAddr,
    listener: Listener,
    _folder: tempfile::TempDir,
}

static SITE: LazyLock<Site> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    // SAFETY: the library reads it later than this, and nothing else does.
    unsafe { env::set_var("GODWIT_APP_SOCKET", &path) };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let service = listener.local_addr().expect("it is bound");
    let listener = Listener::new(listener, Options::default()).expect("it listens");
    Site {
        path,
        service,
        listener,
        _folder: folder,
    }
});

static ALONE: Mutex<()> = Mutex::new(());

struct Agent {
    running: Option<(Apps, Inputs)>,
    _alone: MutexGuard<'static, ()>,
}

impl Agent {
    fn start() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            running: Some(office()),
            _alone: alone,
        }
    }

    fn apps(&self) -> &Apps {
        &self.running.as_ref().expect("it runs").0
    }

    /// Another one in its place.
    fn restart(&mut self) {
        self.running = None;
        self.running = Some(office());
    }

    fn commit(&self) -> Option<Box<Commit>> {
        let (_, inputs) = self.running.as_ref().expect("it runs");
        match inputs.recv_timeout(A_WHILE) {
            Ok(Input::Commit(commit)) => Some(commit),
            Ok(other) => panic!("{other:?}"),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the agent has ended"),
        }
    }

    fn next(&self) -> Box<Commit> {
        let mut commit = None;
        until("a commit", || {
            commit = self.commit();
            commit.is_some()
        });
        commit.expect("it was waited for")
    }

    fn answer(&self, commit: &Commit, refusal: Option<CommitRefusal>) {
        let asker = commit.asker.expect("somebody waits");
        self.apps().answer_commit(asker, refusal);
    }

    /// What is kept of a connection.
    fn kept(&self, flow: FlowKey) -> Vec<SnapshotPlace> {
        let mut found = Vec::new();
        self.apps().exported(|key, kept| {
            if key == flow {
                found = kept.to_vec();
            }
            None
        });
        found
    }

    /// The newest one.
    fn latest(&self, flow: FlowKey) -> Option<Vec<u8>> {
        let pick = |key, kept: &[SnapshotPlace]| kept.last().copied().filter(|_| key == flow);
        let exported = self.apps().exported(pick);
        let (_, newest) = exported.into_iter().next()?;
        Some(newest.carried.bytes)
    }
}

fn office() -> (Apps, Inputs) {
    let site = &*SITE;
    let _ = fs::remove_file(&site.path);
    let socket = AppSocket::bind(&site.path, None).expect("the folder is ours");
    let (inbox, inputs) = Inbox::new();
    let apps = Apps::start(socket, vec![site.service], inbox).expect("a thread");
    until("the agent hears of the service", || {
        apps.accepts(site.service.into())
    });
    (apps, inputs)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn connection() -> (TcpStream, TcpStream, FlowKey) {
    let client = TcpStream::connect(SITE.service).expect("it listens");
    let accepted = SITE.listener.accept().expect("somebody connects");
    let flow = FlowKey {
        client: client.local_addr().expect("it is bound").into(),
        service: client.peer_addr().expect("it is connected").into(),
    };
    client.set_read_timeout(Some(DEADLINE)).expect("a limit");
    (client, accepted.stream, flow)
}

#[test]
fn a_server_waits_until_its_snapshot_is_safe() {
    let agent = Agent::start();
    let (mut client, mut server, flow) = connection();
    client.write_all(b"order").expect("it is open");
    server.read_exact(&mut [0; 5]).expect("it comes");
    export_state(&server, b"before").expect("it is ours");
    server.write_all(b"done").expect("it is open");
    thread::scope(|scope| {
        let waits = scope.spawn(|| commit_state(&server, b"state"));
        let commit = agent.next();
        assert_eq!(commit.flow, flow);
        let committed = commit.state.as_ref().expect("it can be read");
        let place = committed.exported.place;
        assert_eq!((place.read, place.written), (5, 4));
        assert_eq!(place.kind, SnapshotKind::Commit);
        assert_eq!(committed.exported.carried.bytes, b"state");
        assert!(b"done".ends_with(&committed.output), "{committed:?}");
        // Nothing is left of what was before.
        assert_eq!(agent.kept(flow), [place]);
        assert!(!waits.is_finished());
        agent.answer(&commit, None);
        waits.join().expect("it returns").expect("it is safe");
    });
    let mut heard = [0; 4];
    client.read_exact(&mut heard).expect("it comes");
    assert_eq!(&heard, b"done");
}

#[test]
fn a_server_hears_that_its_snapshot_is_not_safe() {
    let agent = Agent::start();
    let (_client, server, flow) = connection();
    for refusal in CommitRefusal::ALL {
        thread::scope(|scope| {
            let waits = scope.spawn(|| commit_state(&server, b"state"));
            agent.answer(&agent.next(), Some(*refusal));
            let error = waits.join().expect("it returns");
            assert!(matches!(error, Err(Error::Unprotected)), "{error:?}");
        });
    }
    // It is as far as anybody may go back all the same.
    let kinds = agent.kept(flow).into_iter().map(|place| place.kind);
    assert_eq!(kinds.collect::<Vec<_>>(), [SnapshotKind::Commit]);
    export_state(&server, b"later").expect("it is ours");
    assert_eq!(agent.kept(flow)[0].kind, SnapshotKind::Commit);
}

/// Its server has left the one before: no standby may go back there.
#[test]
fn one_that_is_too_large_is_told_to_the_agent() {
    let agent = Agent::start();
    let (_client, server, flow) = connection();
    thread::scope(|scope| {
        let state = vec![0; godwit_app::MAX_SNAPSHOT as usize + 1];
        let (server, state) = (&server, state);
        let waits = scope.spawn(move || commit_state(server, &state));
        let commit = agent.next();
        assert_eq!(commit.flow, flow);
        assert_eq!(commit.state.as_ref().err(), Some(&CommitRefusal::Mismatch));
        agent.answer(&commit, Some(CommitRefusal::Mismatch));
        let error = waits.join().expect("it returns");
        assert!(matches!(error, Err(Error::TooLarge)), "{error:?}");
    });
    // Neither one before it nor itself is anything to go on from; what comes later is.
    let kinds = |agent: &Agent| -> Vec<_> {
        let kept = agent.kept(flow).into_iter();
        kept.map(|place| place.kind).collect()
    };
    assert_eq!(kinds(&agent), [SnapshotKind::Commit]);
    assert_eq!(agent.latest(flow), None);
    export_state(&server, b"later").expect("it is ours");
    assert_eq!(kinds(&agent), [SnapshotKind::Commit]);
    assert_eq!(agent.latest(flow).as_deref(), Some(&b"later"[..]));
}

#[test]
fn a_connection_is_not_taken_while_it_commits() {
    let agent = Agent::start();
    let (_client, server, flow) = connection();
    thread::scope(|scope| {
        let waits = scope.spawn(|| commit_state(&server, b"state"));
        let commit = agent.next();
        let taken = agent.apps().take(flow, Duration::ZERO).map(drop);
        assert_eq!(taken, Err(HandoffRefusal::SnapshotBehind));
        let apps = agent.apps();
        let takes = scope.spawn(move || apps.take(flow, DEADLINE));
        thread::sleep(A_WHILE);
        assert!(!takes.is_finished());
        agent.answer(&commit, None);
        waits.join().expect("it returns").expect("it is safe");
        let taken = takes.join().expect("it returns").expect("it is free");
        let carried = taken.snapshot.expect("it has state").carried;
        assert_eq!(
            (carried.kind, &carried.bytes[..]),
            (SnapshotKind::Commit, &b"state"[..])
        );
    });
    agent.apps().put_back(flow);
}

#[test]
fn a_connection_that_is_away_commits_when_it_is_back() {
    let agent = Agent::start();
    let (_client, server, flow) = connection();
    export_state(&server, b"before").expect("it is ours");
    let taken = agent.apps().take(flow, DEADLINE).expect("it is free");
    drop(taken.socket);
    thread::scope(|scope| {
        let waits = scope.spawn(|| commit_state(&server, b"state"));
        assert!(agent.commit().is_none(), "it is away");
        agent.apps().put_back(flow);
        agent.answer(&agent.next(), None);
        waits.join().expect("it returns").expect("it is safe");
    });
}

/// Without an agent nobody waits, and the next one hears all the same how far the server
/// may go back.
#[test]
fn what_was_committed_without_an_agent_is_seen_by_the_next() {
    let mut agent = Agent::start();
    let (_client, server, flow) = connection();
    export_state(&server, b"before").expect("it is ours");
    agent.running = None;
    let error = commit_state(&server, b"state");
    assert!(matches!(error, Err(Error::Unprotected)), "{error:?}");
    agent.running = Some(office());
    until("the next agent sees it", || !agent.kept(flow).is_empty());
    let places = agent.kept(flow);
    let [place] = places[..] else {
        panic!("{places:?}");
    };
    assert_eq!(place.kind, SnapshotKind::Commit);
    assert_eq!(agent.latest(flow).as_deref(), Some(&b"state"[..]));
}

#[test]
fn an_agent_that_dies_protects_nothing() {
    let mut agent = Agent::start();
    let (_client, server, _) = connection();
    thread::scope(|scope| {
        let waits = scope.spawn(|| commit_state(&server, b"state"));
        drop(agent.next());
        agent.restart();
        let error = waits.join().expect("it returns");
        assert!(matches!(error, Err(Error::Unprotected)), "{error:?}");
    });
}

/// An agent that dies while it reads what the client has not acknowledged leaves the
/// server a socket that neither reads nor writes.
#[test]
fn what_a_dead_agent_has_stopped_goes_on() {
    if !geteuid().is_root() {
        eprintln!("skipped: TCP_REPAIR needs root");
        return;
    }
    let mut agent = Agent::start();
    let (mut client, mut server, _) = connection();
    let copy = OwnedFd::from(server.try_clone().expect("descriptors are left"));
    let paused = godwit_sock::repair::PausedSocket::pause(copy).expect("it runs");
    // Nobody says goodbye.
    std::mem::forget(paused);
    server.write_all(b"x").expect_err("it stands still");
    agent.restart();
    until("it goes on", || server.write_all(b"goes on").is_ok());
    let mut heard = [0; 7];
    client.read_exact(&mut heard).expect("it comes");
    assert_eq!(&heard, b"goes on");
}
