//! Whose a connection is: what a process says of it in its memory proves nothing.

use std::fs::{Permissions, set_permissions};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::process::Command;
use std::thread;
use std::time::Duration;

use godwit_sock::socket_cookie;
use godwit_wire::app::region::Connection;
use godwit_wire::app::{AppMessage, SnapshotPlace};
use godwit_wire::{FlowKey, HandoffRefusal};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use nix::unistd::geteuid;

use crate::liar::{Liar, Site, connection, place, site, site_at};

/// Of an account that owns nothing here.
const OTHER: libc::uid_t = 54_321;

/// Where snapshots of these tests are.
const OFFSET: u64 = 1 << 16;

/// A process enters a connection, with a snapshot by which one knows whose it is.
fn shows(liar: &Liar, slot: u32, connection: &Connection, snapshot: &[u8; 4]) {
    let at = OFFSET + u64::from(slot) * 8;
    liar.region.write_all_at(snapshot, at).expect("it is ours");
    let entered = Connection {
        kept: vec![place(at, 4)],
        ..connection.clone()
    };
    liar.enter(slot, &entered);
}

/// What the agent would send to a standby.
fn exported(site: &Site, flow: FlowKey) -> Option<Vec<u8>> {
    let last = |kept: &[SnapshotPlace]| kept.last().copied();
    let of_all = site
        .apps
        .exported(|key, kept| last(kept).filter(|_| key == flow));
    let of_all: Vec<_> = of_all.into_iter().map(|(_, exported)| exported).collect();
    let one = site.apps.exported_of(flow, last);
    assert_eq!(one.clone().into_iter().collect::<Vec<_>>(), of_all);
    let places = site.apps.places();
    assert_eq!(places.contains_key(&flow), one.is_some());
    one.map(|exported| exported.carried.bytes)
}

/// Runs it as another account; root's tests only.
fn as_other(site: &Site, work: impl FnOnce() + Send) {
    let folder = site.path.parent().expect("it is in one");
    set_permissions(folder, Permissions::from_mode(0o755)).expect("it is ours");
    set_permissions(&site.path, Permissions::from_mode(0o666)).expect("it is ours");
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

fn cannot_be_others() -> bool {
    !geteuid().is_root()
}

/// The numbers of a victim's connection are in /proc/net/tcp, its cookie in sock_diag, for
/// all to read.
#[test]
fn nobody_exports_for_another() {
    if cannot_be_others() {
        return;
    }
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let site = site_at(address);
        let (_client, _server, entered) = connection(&site);
        let good = Liar::introduced(&site);
        as_other(&site, || {
            let liar = Liar::introduced(&site);
            shows(&liar, 0, &entered, b"evil");
            assert_eq!(exported(&site, entered.key), None);
            // Its own is believed.
            let (_client, _server, own) = connection(&site);
            shows(&liar, 1, &own, b"mine");
            assert_eq!(exported(&site, own.key).as_deref(), Some(&b"mine"[..]));
            // Whoever speaks first.
            shows(&good, 0, &entered, b"good");
            assert_eq!(exported(&site, entered.key).as_deref(), Some(&b"good"[..]));
        });
    }
}

/// A cookie of one's own does not make another's connection one's own.
#[test]
fn a_cookie_of_another_socket_proves_nothing() {
    let site = site();
    let (_client, _server, entered) = connection(&site);
    let (_other_client, _other, other) = connection(&site);
    let liar = Liar::introduced(&site);
    let claimed = Connection {
        cookie: other.cookie,
        ..entered.clone()
    };
    shows(&liar, 0, &claimed, b"evil");
    assert_eq!(exported(&site, entered.key), None);
    shows(&liar, 0, &entered, b"good");
    assert_eq!(exported(&site, entered.key).as_deref(), Some(&b"good"[..]));
}

/// Of one account, so that both could be right; one of them may have inherited it, and the
/// other closes it soon.
#[test]
fn of_two_who_claim_a_connection_neither_is_believed() {
    let site = site();
    let (_client, _server, entered) = connection(&site);
    let (one, other) = (Liar::introduced(&site), Liar::introduced(&site));
    shows(&one, 0, &entered, b"one!");
    assert_eq!(exported(&site, entered.key).as_deref(), Some(&b"one!"[..]));
    shows(&other, 1, &entered, b"two!");
    assert_eq!(exported(&site, entered.key), None);
    assert_eq!(exported(&site, entered.key), None);
    one.leaves(0);
    assert_eq!(exported(&site, entered.key).as_deref(), Some(&b"two!"[..]));
    // One that has gone claims nothing.
    shows(&one, 0, &entered, b"one!");
    assert_eq!(exported(&site, entered.key), None);
    drop(other);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(exported(&site, entered.key).as_deref(), Some(&b"one!"[..]));
}

/// A session of another account is not joined by its name, nor held up.
#[test]
fn sessions_are_of_one_account() {
    if cannot_be_others() {
        return;
    }
    let site = site();
    let (_client, server, entered) = connection(&site);
    let session = b"basket".to_vec();
    let entered = Connection { session, ..entered };
    let good = Liar::introduced(&site);
    good.enter(0, &entered);
    as_other(&site, || {
        let liar = Liar::introduced(&site);
        let (_client, _server, own) = connection(&site);
        let session = entered.session.clone();
        liar.enter(0, &Connection { session, ..own });
        assert_eq!(site.apps.sessions(), Vec::<Vec<FlowKey>>::new());
        thread::scope(|scope| {
            let taken = scope.spawn(|| site.apps.take(entered.key, Duration::ZERO).map(drop));
            good.answer(Ok(None), &[server.as_fd()]);
            assert_eq!(taken.join().expect("no panic"), Ok(()));
        });
    });
}

/// An agent makes sockets that are root's, and a process may get one from another: it has
/// to show them. One that shows something else is not believed either.
#[test]
fn what_belongs_to_another_account_is_to_be_shown() {
    if cannot_be_others() {
        return;
    }
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let site = site_at(address);
        let (_client, server, entered) = connection(&site);
        let (_other_client, other, _) = connection(&site);
        as_other(&site, || {
            let process = Liar::introduced(&site);
            shows(&process, 0, &entered, b"mine");
            let cookie = entered.cookie;
            for fd in [None, Some(other.as_fd()), Some(process.region.as_fd())] {
                process.say(&AppMessage::Show { cookie }, fd.as_slice());
                process.listens(&site);
                assert_eq!(exported(&site, entered.key), None);
            }
            process.say(&AppMessage::Show { cookie }, &[server.as_fd()]);
            process.listens(&site);
            assert_eq!(exported(&site, entered.key).as_deref(), Some(&b"mine"[..]));
        });
    }
}

/// As after a move: nobody has to show it as long as this agent lives.
#[test]
fn what_an_agent_gives_is_whose_it_was_given_to() {
    if cannot_be_others() {
        return;
    }
    let site = site();
    let (_client, server, entered) = connection(&site);
    as_other(&site, || {
        let process = Liar::introduced(&site);
        process.listens(&site);
        thread::scope(|scope| {
            let socket = server.try_clone().expect("descriptors are left");
            let given = scope.spawn(|| site.apps.give(entered.key, socket.into(), None));
            let Some((AppMessage::Give { request, .. }, 1)) = process.hear() else {
                panic!("the agent says something else");
            };
            let refusal = None;
            process.say(&AppMessage::Done { request, refusal }, &[]);
            assert_eq!(given.join().expect("no panic"), Ok(()));
        });
        shows(&process, 0, &entered, b"mine");
        assert_eq!(exported(&site, entered.key).as_deref(), Some(&b"mine"[..]));
    });
}

/// Where one may do all, anything can have a victim's addresses.
#[test]
fn a_socket_of_another_namespace_is_not_it() {
    if cannot_be_others() {
        return;
    }
    let site = site();
    let (_client, server, entered) = connection(&site);
    let forged = thread::scope(|scope| {
        let forge = || forge(entered.key);
        scope.spawn(forge).join().expect("no panic")
    });
    let claimed = Connection {
        cookie: socket_cookie(forged.as_fd()).expect("a socket"),
        ..entered.clone()
    };
    let liar = Liar::introduced(&site);
    shows(&liar, 0, &claimed, b"evil");
    assert_eq!(exported(&site, entered.key), None);
    let take = || site.apps.take(entered.key, Duration::ZERO);
    thread::scope(|scope| {
        let taken = scope.spawn(|| take().map(drop));
        liar.answer(Ok(None), &[forged.as_fd()]);
        liar.is_told_to_put_back();
        assert_eq!(
            taken.join().expect("no panic"),
            Err(HandoffRefusal::NotMovable)
        );
    });
    // It holds up nobody who has it.
    let good = Liar::introduced(&site);
    good.enter(0, &entered);
    thread::scope(|scope| {
        let taken = scope.spawn(take);
        good.answer(Ok(None), &[server.as_fd()]);
        let taken = taken.join().expect("no panic").expect("it is there");
        let cookie = socket_cookie(taken.socket.as_fd()).expect("a socket");
        assert_eq!(cookie, entered.cookie);
    });
}

/// The service's end of a connection with these addresses, in a network of its own.
fn forge(flow: FlowKey) -> TcpStream {
    unshare(CloneFlags::CLONE_NEWNET).expect("root may");
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    assert!(up.expect("iproute2").success());
    let service = SocketAddr::from(flow.service);
    let listener = TcpListener::bind(service).expect("all ports are free");
    let flags = SockFlag::SOCK_CLOEXEC;
    let client = socket(AddressFamily::Inet, SockType::Stream, flags, None);
    let client = client.expect("descriptors are left");
    let from = SocketAddr::from(flow.client);
    bind(client.as_raw_fd(), &SockaddrStorage::from(from)).expect("it is free");
    connect(client.as_raw_fd(), &SockaddrStorage::from(service)).expect("it listens");
    listener.accept().expect("one has come").0
}
