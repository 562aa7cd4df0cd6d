//! A process that speaks the library's protocol and lies. Its own connections may
//! suffer; the agent and everybody else go on.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::apps::{AppSocket, AppSocketError, Apps};
use godwit_agent::input::Inbox;
use godwit_sock::{receive_with, send_with, socket_cookie};
use godwit_wire::app::region::{CONNECTION_AT, Connection, Header, SlotState, slot_at};
use godwit_wire::app::{AppMessage, AppRefusal, MAX_MESSAGE, SnapshotKind, SnapshotPlace};
use godwit_wire::{Endpoint, FlowKey, HandoffRefusal};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::{Group, getegid};

const DEADLINE: Duration = Duration::from_secs(20);
const SLOTS: u32 = 4;
const REGION: u64 = 1 << 20;

struct Site {
    apps: Apps,
    path: PathBuf,
    listener: TcpListener,
    _folder: tempfile::TempDir,
}

fn site() -> Site {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let socket = AppSocket::bind(&path, None).expect("the folder is ours");
    let services = vec![listener.local_addr().expect("it is bound")];
    Site {
        apps: Apps::start(socket, services, Inbox::new().0).expect("a thread"),
        path,
        listener,
        _folder: folder,
    }
}

/// A process, or what says so.
struct Liar {
    socket: OwnedFd,
    region: File,
}

impl Liar {
    fn connect(site: &Site) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None);
        let socket = socket.expect("descriptors are left");
        let address = UnixAddr::new(&site.path).expect("a short path");
        connect(socket.as_raw_fd(), &address).expect("the agent is there");
        Self {
            socket,
            region: region(SealFlag::F_SEAL_SHRINK),
        }
    }

    fn introduced(site: &Site) -> Self {
        let liar = Self::connect(site);
        liar.say(&hello(SLOTS, REGION), &[liar.region.as_fd()]);
        assert_eq!(liar.hear(), Some((AppMessage::Welcome { version: 1 }, 0)));
        liar
    }

    fn say(&self, message: &AppMessage, beside: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        send_with(self.socket.as_fd(), &bytes, beside).expect("there is room");
    }

    /// The next message and how many descriptors came with it; `None` at the end.
    fn hear(&self) -> Option<(AppMessage, usize)> {
        let end = Instant::now() + DEADLINE;
        let mut buffer = [0; MAX_MESSAGE];
        loop {
            match receive_with(self.socket.as_fd(), &mut buffer) {
                Ok((0, _)) => return None,
                Ok((length, descriptors)) => {
                    let message = AppMessage::parse(&buffer[..length]).expect("an agent");
                    return Some((message, descriptors.len()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(Instant::now() < end, "the agent says nothing");
                    thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return None,
            }
        }
    }

    fn listens(&self, site: &Site) {
        self.say(&AppMessage::Listen { number: 1 }, &[site.listener.as_fd()]);
        let listening = AppMessage::Listening {
            number: 1,
            refusal: None,
        };
        assert_eq!(self.hear(), Some((listening, 0)));
    }

    /// Says that it has a connection.
    fn enter(&self, slot: u32, connection: &Connection) {
        let mut bytes = Vec::new();
        connection.emit(&mut bytes);
        let at = slot_at(slot) + CONNECTION_AT as u64;
        self.region.write_all_at(&bytes, at).expect("it is ours");
    }

    /// Answers the next request to take something.
    fn answer(
        &self,
        outcome: Result<Option<SnapshotPlace>, HandoffRefusal>,
        beside: &[BorrowedFd<'_>],
    ) {
        let Some((AppMessage::Take { subject, .. }, 0)) = self.hear() else {
            panic!("the agent asks for something else");
        };
        let request = subject.request;
        self.say(&AppMessage::Taken { request, outcome }, beside);
    }

    fn is_told_to_put_back(&self) {
        let Some((AppMessage::PutBack { subject }, 0)) = self.hear() else {
            panic!("the agent asks for something else");
        };
        let request = subject.request;
        let refusal = None;
        self.say(&AppMessage::Done { request, refusal }, &[]);
    }
}

fn hello(slots: u32, region: u64) -> AppMessage {
    AppMessage::Hello {
        min: 1,
        max: 1,
        slots,
        region,
    }
}

fn region(seals: SealFlag) -> File {
    let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
    let file = File::from(memfd_create(c"liar", flags).expect("a memfd"));
    file.set_len(REGION).expect("there is memory");
    let mut header = Vec::new();
    Header {
        slots: SLOTS,
        used: 2,
    }
    .emit(&mut header);
    file.write_all_at(&header, 0).expect("it is ours");
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("it is ours");
    file
}

/// A connection of the service, and what a process would enter about it.
fn connection(site: &Site) -> (TcpStream, TcpStream, Connection) {
    let address = site.listener.local_addr().expect("it is bound");
    let client = TcpStream::connect(address).expect("it listens");
    let (server, from) = site.listener.accept().expect("somebody connects");
    let entered = Connection {
        state: SlotState::Live,
        stateless: false,
        key: FlowKey {
            client: from.into(),
            service: address.into(),
        },
        cookie: socket_cookie(server.as_fd()).expect("a socket"),
        session: Vec::new(),
        kept: Vec::new(),
    };
    (client, server, entered)
}

const fn place(offset: u64, length: u32) -> SnapshotPlace {
    SnapshotPlace {
        offset,
        length,
        kind: SnapshotKind::Regenerable,
        read: 0,
        written: 0,
    }
}

#[test]
fn strangers_are_refused_by_name() {
    let site = site();
    let sealed = region(SealFlag::F_SEAL_SHRINK);
    let open = region(SealFlag::F_SEAL_GROW);
    let (pipe, _other) = io::pipe().expect("descriptors are left");
    let other_version = AppMessage::Hello {
        min: 2,
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
