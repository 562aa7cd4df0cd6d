//! The agent, and a process that speaks the library's protocol as it likes.

use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::apps::{AppSocket, Apps};
use godwit_agent::input::{Inbox, Inputs};
use godwit_sock::{receive_with, send_with, socket_cookie};
use godwit_wire::app::region::{CONNECTION_AT, Connection, Header, SlotState, slot_at};
use godwit_wire::app::{AppMessage, MAX_MESSAGE, SnapshotKind, SnapshotPlace};
use godwit_wire::{FlowKey, HandoffRefusal};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const SLOTS: u32 = 4;
pub(crate) const REGION: u64 = 1 << 20;

pub(crate) struct Site {
    pub(crate) apps: Apps,
    pub(crate) path: PathBuf,
    pub(crate) listener: TcpListener,
    /// What a driver would get; nobody takes it.
    _inputs: Mutex<Inputs>,
    _folder: tempfile::TempDir,
}

pub(crate) fn site() -> Site {
    site_at("127.0.0.1:0")
}

/// With a service there.
pub(crate) fn site_at(address: &str) -> Site {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.sock");
    let listener = TcpListener::bind(address).expect("a free port");
    let socket = AppSocket::bind(&path, None).expect("the folder is ours");
    let services = vec![listener.local_addr().expect("it is bound")];
    let (inbox, inputs) = Inbox::new();
    Site {
        apps: Apps::start(socket, services, inbox).expect("a thread"),
        path,
        listener,
        _inputs: Mutex::new(inputs),
        _folder: folder,
    }
}

/// A process, or what says so.
pub(crate) struct Liar {
    pub(crate) socket: OwnedFd,
    pub(crate) region: File,
}

impl Liar {
    pub(crate) fn connect(site: &Site) -> Self {
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

    pub(crate) fn introduced(site: &Site) -> Self {
        let liar = Self::connect(site);
        liar.say(&hello(SLOTS, REGION), &[liar.region.as_fd()]);
        assert_eq!(liar.hear(), Some((AppMessage::Welcome { version: 1 }, 0)));
        liar
    }

    pub(crate) fn say(&self, message: &AppMessage, beside: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        send_with(self.socket.as_fd(), &bytes, beside).expect("there is room");
    }

    /// The next message and how many descriptors came with it; `None` at the end.
    pub(crate) fn hear(&self) -> Option<(AppMessage, usize)> {
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

    /// For a fraction of a millisecond.
    pub(crate) fn keeps_the_agent_busy(&self) {
        for number in 0..30 {
            self.say(&AppMessage::Unlisten { number }, &[]);
        }
    }

    pub(crate) fn listens(&self, site: &Site) {
        self.say(&AppMessage::Listen { number: 1 }, &[site.listener.as_fd()]);
        let listening = AppMessage::Listening {
            number: 1,
            refusal: None,
        };
        assert_eq!(self.hear(), Some((listening, 0)));
    }

    /// Says that it has a connection.
    pub(crate) fn enter(&self, slot: u32, connection: &Connection) {
        let mut bytes = Vec::new();
        connection.emit(&mut bytes);
        let at = slot_at(slot) + CONNECTION_AT as u64;
        self.region.write_all_at(&bytes, at).expect("it is ours");
    }

    /// Has no connection there any more.
    pub(crate) fn leaves(&self, slot: u32) {
        let at = slot_at(slot) + CONNECTION_AT as u64;
        self.region.write_all_at(&[0], at).expect("it is ours");
    }

    /// Answers the next request to take something.
    pub(crate) fn answer(
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

    pub(crate) fn is_told_to_put_back(&self) {
        let Some((AppMessage::PutBack { subject }, 0)) = self.hear() else {
            panic!("the agent asks for something else");
        };
        let request = subject.request;
        let refusal = None;
        self.say(&AppMessage::Done { request, refusal }, &[]);
    }
}

pub(crate) fn hello(slots: u32, region: u64) -> AppMessage {
    AppMessage::Hello {
        min: 1,
        max: 1,
        slots,
        region,
    }
}

pub(crate) fn region(seals: SealFlag) -> File {
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
pub(crate) fn connection(site: &Site) -> (TcpStream, TcpStream, Connection) {
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

pub(crate) const fn place(offset: u64, length: u32) -> SnapshotPlace {
    SnapshotPlace {
        offset,
        length,
        kind: SnapshotKind::Regenerable,
        read: 0,
        written: 0,
    }
}
