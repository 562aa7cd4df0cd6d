//! A server that runs as another account than its agent, and has connections that are not
//! that account's: an agent of before has made them, or a process has passed them on.
//! Alone in its program: the library's thread is of the account that needs it first.

use std::env;
use std::fs::{Permissions, set_permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::apps::{AppSocket, Apps};
use godwit_agent::input::Inbox;
use godwit_app::export_state;
use godwit_wire::FlowKey;
use nix::unistd::geteuid;

/// Of an account that owns nothing here.
const OTHER: libc::uid_t = 54_321;

const DEADLINE: Duration = Duration::from_secs(20);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// By each agent, the one that comes after this one, too.
#[test]
fn connections_of_another_account_are_shown_and_believed() {
    if !geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    // SAFETY: the library reads it later than this, and nothing else does.
    unsafe { env::set_var("GODWIT_APP_SOCKET", &path) };
    let start = || {
        let socket = AppSocket::bind(&path, None).expect("the folder is ours");
        set_permissions(&path, Permissions::from_mode(0o666)).expect("it is ours");
        Apps::start(socket, Vec::new(), Inbox::new().0).expect("a thread")
    };
    set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let mut apps = start();
    let connections: Vec<_> = ["127.0.0.1:0", "[::1]:0"].map(connect).into();
    let known = |apps: &Apps| {
        let known = |(flow, ..): &(FlowKey, TcpStream, TcpStream)| {
            let exported = apps.exported_of(*flow, |kept| kept.last().copied());
            exported.is_some_and(|exported| exported.carried.bytes == b"state")
        };
        connections.iter().all(known)
    };
    let export = || {
        for (_, _, server) in &connections {
            export_state(server, b"state").expect("it is ours");
        }
    };
    as_other(|| {
        until("they are shown", || {
            export();
            known(&apps)
        })
    });
    drop(apps);
    std::fs::remove_file(&path).expect("it is ours");
    apps = start();
    as_other(|| {
        until("they are shown again", || {
            export();
            known(&apps)
        })
    });
    assert_eq!(apps.refused().get("not_its_own"), Some(&0));
}

fn connect(address: &str) -> (FlowKey, TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).expect("a free port");
    let service = listener.local_addr().expect("it is bound");
    let client = TcpStream::connect(service).expect("it listens");
    let (server, from) = listener.accept().expect("one has come");
    let flow = FlowKey {
        client: from.into(),
        service: service.into(),
    };
    (flow, client, server)
}

/// In a thread of that account.
fn as_other(work: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let run = || {
            // SAFETY: it takes numbers, and is for this thread alone, which ends soon.
            let err = unsafe { libc::syscall(libc::SYS_setresuid, -1, OTHER, -1) };
            assert_eq!(err, 0, "root may");
            work();
        };
        scope.spawn(run).join().expect("no panic");
    });
}
