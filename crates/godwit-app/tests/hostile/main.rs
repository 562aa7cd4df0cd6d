//! A process that speaks the library's protocol and lies. Its own connections may
//! suffer; the agent and everybody else go on.

mod claims;
mod liar;
mod limits;

use std::fs::{self, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use godwit_agent::apps::{AppSocket, AppSocketError};
use godwit_sock::send_with;
use godwit_wire::app::region::{Connection, slot_at};
use godwit_wire::app::{AppMessage, AppRefusal};
use godwit_wire::{Endpoint, HandoffRefusal};
use nix::fcntl::SealFlag;
use nix::unistd::{Group, getegid};

use liar::{Liar, REGION, SLOTS, connection, hello, place, region, site};

#[test]
fn strangers_are_refused_by_name() {
    let site = site();
    let sealed = region(SealFlag::F_SEAL_SHRINK);
    let open = region(SealFlag::F_SEAL_GROW);
    let (pipe, _other) = io::pipe().expect("descriptors are left");
    let other_version = AppMessage::Hello {
        min: 3,
        max: 9,
        slots: SLOTS,
        region: REGION,
    };
    let cases: [(AppMessage, Option<BorrowedFd<'_>>, AppRefusal); 7] = [
        (other_version, Some(sealed.as_fd()), AppRefusal::Version),
        (hello(SLOTS, REGION), Some(open.as_fd()), AppRefusal::Region),
        (hello(SLOTS, REGION), Some(pipe.as_fd()), AppRefusal::Region),
        (hello(SLOTS, REGION), None, AppRefusal::Region),
        (
            hello(SLOTS, REGION + 1),
            Some(sealed.as_fd()),
            AppRefusal::Region,
        ),
        (
            hello(SLOTS + 1, REGION),
            Some(sealed.as_fd()),
            AppRefusal::Region,
        ),
        (
            AppMessage::Listen { number: 1 },
            None,
            AppRefusal::OutOfTurn,
        ),
    ];
    for (message, beside, reason) in cases {
        let liar = Liar::connect(&site);
        liar.say(&message, beside.as_slice());
        assert_eq!(liar.hear(), Some((AppMessage::Refused { reason }, 0)));
        assert_eq!(liar.hear(), None);
    }
}

#[test]
fn garbage_ends_one_process_only() {
    let site = site();
    let good = Liar::introduced(&site);
    for garbage in [&b"GET / HTTP/1.1"[..], &[0; 300], b"GA\x01\xff"] {
        let liar = Liar::introduced(&site);
        send_with(liar.socket.as_fd(), garbage, &[]).expect("there is room");
        assert_eq!(liar.hear(), None);
    }
    good.listens(&site);
}

/// Only a listener that is shown counts, and only at a service's address.
#[test]
fn a_listener_has_to_be_shown() {
    let site = site();
    let liar = Liar::introduced(&site);
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (_client, server, _) = connection(&site);
    let cases = [
        (None, AppRefusal::NoListener),
        (Some(server.as_fd()), AppRefusal::NoListener),
        (Some(liar.region.as_fd()), AppRefusal::NoListener),
        (Some(elsewhere.as_fd()), AppRefusal::NoService),
    ];
    for (beside, reason) in cases {
        liar.say(&AppMessage::Listen { number: 1 }, beside.as_slice());
        let refused = AppMessage::Listening {
            number: 1,
            refusal: Some(reason),
        };
        assert_eq!(liar.hear(), Some((refused, 0)));
    }
    let service = Endpoint::from(site.listener.local_addr().expect("it is bound"));
    assert!(!site.apps.accepts(service));
    liar.listens(&site);
    assert!(site.apps.accepts(service));
}

/// Another's connection is not had by saying so.
#[test]
fn what_is_handed_out_must_be_what_was_asked_for() {
    let site = site();
    let liar = Liar::introduced(&site);
    let (_client, server, entered) = connection(&site);
    let (_other_client, other, other_entered) = connection(&site);
    liar.enter(0, &entered);
    let wrong_cookie = Connection {
        cookie: other_entered.cookie,
        ..entered.clone()
    };
    let cases: [(&Connection, Option<BorrowedFd<'_>>); 4] = [
        (&entered, Some(other.as_fd())),
        (&entered, Some(site.listener.as_fd())),
        (&entered, None),
        (&wrong_cookie, Some(server.as_fd())),
    ];
    for (said, shown) in cases {
        liar.enter(0, said);
        thread::scope(|scope| {
            let taken = scope.spawn(|| site.apps.take(entered.key, Duration::ZERO).map(drop));
            liar.answer(Ok(None), shown.as_slice());
            liar.is_told_to_put_back();
            let taken = taken.join().expect("no panic");
            assert_eq!(taken, Err(HandoffRefusal::NotMovable));
        });
    }
}

#[test]
fn snapshots_outside_the_region_are_refused() {
    let site = site();
    let liar = Liar::introduced(&site);
    let (_client, server, entered) = connection(&site);
    liar.enter(0, &entered);
    for place in [place(REGION - 9, 10), place(u64::MAX, 10), place(REGION, 1)] {
        thread::scope(|scope| {
            let taken = scope.spawn(|| site.apps.take(entered.key, Duration::ZERO).map(drop));
            liar.answer(Ok(Some(place)), &[server.as_fd()]);
            liar.is_told_to_put_back();
            let taken = taken.join().expect("no panic");
            assert_eq!(taken, Err(HandoffRefusal::Corrupt));
        });
    }
}

/// A slot that is always being written, and one with impossible contents, hide
/// nothing but what is in them.
#[test]
fn nonsense_in_a_slot_hides_that_slot_only() {
    let site = site();
    let liar = Liar::introduced(&site);
    let (_client, server, entered) = connection(&site);
    liar.enter(1, &entered);
    for nonsense in [[0xff; 512], [1; 512]] {
        liar.region
            .write_all_at(&nonsense, slot_at(0))
            .expect("it is ours");
        thread::scope(|scope| {
            let taken = scope.spawn(|| site.apps.take(entered.key, Duration::ZERO));
            liar.answer(Ok(None), &[server.as_fd()]);
            let taken = taken.join().expect("no panic").expect("it is there");
            assert_eq!(taken.snapshot, None);
        });
    }
    liar.region
        .write_all_at(&[0xff; 16], 0)
        .expect("it is ours");
    let taken = site.apps.take(entered.key, Duration::ZERO).map(drop);
    assert_eq!(taken, Err(HandoffRefusal::NoServer));
}

/// A process that answers too late gets back what it hands out; one that goes away
/// in the middle lets nobody wait.
#[test]
fn the_slow_and_the_dead_hold_nobody_up() {
    let site = site();
    let liar = Liar::introduced(&site);
    liar.listens(&site);
    let (_client, server, entered) = connection(&site);
    liar.enter(0, &entered);
    let taken = site.apps.take(entered.key, Duration::ZERO).map(drop);
    assert_eq!(taken, Err(HandoffRefusal::NoServer));
    liar.answer(Ok(None), &[server.as_fd()]);
    liar.is_told_to_put_back();
    thread::scope(|scope| {
        let patience = Duration::from_secs(100);
        let taken = scope.spawn(move || site.apps.take(entered.key, patience).map(drop));
        assert!(liar.hear().is_some(), "it is asked");
        drop(liar);
        let taken = taken.join().expect("no panic");
        assert_eq!(taken, Err(HandoffRefusal::NoServer));
    });
}

#[test]
fn a_group_that_does_not_exist_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    let error = AppSocket::bind(&path, Some("no-such-group")).expect_err("no such group");
    assert!(matches!(&error, AppSocketError::NoGroup(name) if name == "no-such-group"));
}

/// Who else runs programs on the machine can't even say hello.
#[test]
fn the_socket_is_for_its_owner_and_group() {
    let bits = |path: &Path| {
        let file = fs::metadata(path).expect("it is there");
        (file.permissions().mode() & 0o777, file.gid())
    };
    let group = Group::from_gid(getegid()).ok().flatten();
    let group = group.expect("this account has a group");
    let gid = group.gid.as_raw();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    let _socket = AppSocket::bind(&path, Some(&group.name)).expect("it is ours");
    assert_eq!(bits(&path), (0o660, gid));
    assert_eq!(bits(folder.path()), (0o750, gid));
    let folder = tempfile::tempdir().expect("a folder");
    let shut = Permissions::from_mode(0o700);
    fs::set_permissions(folder.path(), shut).expect("it is ours");
    let path = folder.path().join("app.sock");
    let _socket = AppSocket::bind(&path, None).expect("it is ours");
    assert_eq!(bits(&path).0, 0o660);
    assert_eq!(bits(folder.path()).0, 0o700, "its folder stays shut");
}
