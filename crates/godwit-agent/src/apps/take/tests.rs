//! A process that answers as it likes.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use godwit_sock::{receive_with, send_with, socket_cookie};
use godwit_wire::app::region::{Header, SlotState, slot_at};
use godwit_wire::app::{MAX_MESSAGE, MAX_VERSION, MIN_VERSION, Subject};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tempfile::TempDir;

use super::*;
use crate::apps::AppSocket;
use crate::input::{Inbox, Inputs};
use crate::testing::PATIENCE;
use crate::wake::{self, Orders, Work};

const SLOTS: u32 = 4;

/// A process with stateless connections, each with its client's end.
struct Process {
    link: OwnedFd,
    connections: Vec<(TcpStream, TcpStream)>,
    /// What the agent sees of them.
    region: File,
    path: PathBuf,
    _inputs: Inputs,
    _dir: TempDir,
}

impl Process {
    fn start(count: u32) -> (Apps, Self) {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("app.sock");
        let socket = AppSocket::bind(&path, None).expect("a short path");
        let (inbox, inputs) = Inbox::new();
        let apps = Apps::start(socket, Vec::new(), inbox).expect("a thread");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connections = (0..count).map(|_| {
            let at = listener.local_addr().expect("it is bound");
            let client = TcpStream::connect(at).expect("it listens");
            let (server, _) = listener.accept().expect("one has come");
            (server, client)
        });
        let process = Self {
            link: link(&path),
            connections: connections.collect(),
            region: region(),
            path,
            _inputs: inputs,
            _dir: dir,
        };
        process.introduce();
        (apps, process)
    }

    /// Says who it is, and shows its connections.
    fn introduce(&self) {
        let mut bytes = Vec::new();
        let (slots, used) = (SLOTS, SLOTS);
        Header { slots, used }.emit(&mut bytes);
        let file = &self.region;
        file.write_all_at(&bytes, 0).expect("there is room");
        for (slot, (server, _)) in (0..).zip(&self.connections) {
            let connection = Connection {
                state: SlotState::Live,
                stateless: true,
                key: self.flow(slot),
                cookie: socket_cookie(server.as_fd()).expect("it is one"),
                session: Vec::new(),
                kept: Vec::new(),
            };
            let mut bytes = 2u64.to_ne_bytes().to_vec();
            connection.emit(&mut bytes);
            file.write_all_at(&bytes, slot_at(slot))
                .expect("there is room");
        }
        let hello = AppMessage::Hello {
            min: MIN_VERSION,
            max: MAX_VERSION,
            slots: SLOTS,
            region: slot_at(SLOTS),
        };
        self.say(&hello, &[file.as_fd()]);
        assert!(matches!(self.hear(), AppMessage::Welcome { .. }));
    }

    fn server(&self, slot: u32) -> &TcpStream {
        &self.connections[usize::try_from(slot).expect("small")].0
    }

    fn flow(&self, slot: u32) -> FlowKey {
        let server = self.server(slot);
        FlowKey {
            client: server.peer_addr().expect("it is open").into(),
            service: server.local_addr().expect("it is open").into(),
        }
    }

    fn say(&self, message: &AppMessage, beside: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        send_with(self.link.as_fd(), &bytes, beside).expect("it listens");
    }

    fn hear(&self) -> AppMessage {
        let mut ready = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(PATIENCE).expect("seconds");
        assert_eq!(poll(&mut ready, limit), Ok(1), "nothing is said");
        let mut buffer = [0; MAX_MESSAGE];
        let (length, _) = receive_with(self.link.as_fd(), &mut buffer).expect("it is said");
        AppMessage::parse(&buffer[..length]).expect("a message")
    }

    fn is_told_nothing(&self) -> bool {
        let mut ready = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::from(100_u8)) == Ok(0)
    }

    /// What it is asked for.
    fn hear_take(&self) -> Subject {
        let asked = self.hear();
        let AppMessage::Take { subject, .. } = asked else {
            panic!("{asked:?}");
        };
        subject
    }

    /// The slot of what it may go on with.
    fn hear_put_back(&self) -> u32 {
        let said = self.hear();
        let AppMessage::PutBack { subject } = said else {
            panic!("{said:?}");
        };
        subject.slot
    }

    /// A connection is in another slot from now on.
    fn move_slot(&self, from: u32, to: u32) {
        let at = usize::try_from(slot_at(1) - slot_at(0)).expect("small");
        let (mut slot, none) = (vec![0; at], vec![0; at]);
        let there = "it is there";
        self.region
            .read_exact_at(&mut slot, slot_at(from))
            .expect(there);
        self.region.write_all_at(&slot, slot_at(to)).expect(there);
        self.region.write_all_at(&none, slot_at(from)).expect(there);
    }

    fn refuse(&self, subject: Subject) {
        let refused = AppMessage::Taken {
            request: subject.request,
            outcome: Err(HandoffRefusal::NoServer),
        };
        self.say(&refused, &[]);
    }

    fn hand_out(&self, subject: Subject) {
        let taken = AppMessage::Taken {
            request: subject.request,
            outcome: Ok(None),
        };
        self.say(&taken, &[self.server(subject.slot).as_fd()]);
    }
}

/// Room for all slots.
fn region() -> File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"godwit", flags).expect("a memfd"));
    file.set_len(slot_at(SLOTS)).expect("it grows");
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("it is sealed");
    file
}

fn link(path: &std::path::Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let link = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let at = UnixAddr::new(path).expect("a short path");
    connect(link.as_raw_fd(), &at).expect("somebody listens");
    link
}

/// A bell, and who hears it.
fn bell() -> (Orders<()>, Work<()>) {
    wake::queue().expect("a descriptor")
}

fn is_rung(who: &Work<()>) -> bool {
    who.sleep(Some(PATIENCE), &[]);
    who.was_rung()
}

/// Each was asked for when the one before had come: a millisecond for each of a
/// thousand.
#[test]
fn a_process_is_asked_for_several_at_a_time() {
    let (apps, process) = Process::start(2);
    let (_rope, who) = bell();
    let ask = |slot| apps.ask_for(process.flow(slot), Duration::ZERO, Some(who.wake()));
    let (mut first, mut second) = (ask(0), ask(1));
    let subjects = [process.hear_take(), process.hear_take()];
    assert_eq!(subjects.map(|subject| subject.slot), [0, 1]);
    assert!(apps.taken(&mut first).is_none());
    // The other way round: nothing says which is ready first.
    process.hand_out(subjects[1]);
    assert!(is_rung(&who));
    assert!(apps.taken(&mut first).is_none());
    let taken = apps.taken(&mut second).expect("it has come");
    assert!(taken.expect("it is handed out").snapshot.is_none());
    process.hand_out(subjects[0]);
    assert!(is_rung(&who));
    assert!(apps.taken(&mut first).expect("it has come").is_ok());
}

/// It would have stayed with nobody.
#[test]
fn what_comes_when_nobody_waits_any_more_is_put_back() {
    let (apps, process) = Process::start(1);
    let take = apps.ask_for(process.flow(0), Duration::ZERO, None);
    let subject = process.hear_take();
    drop(take);
    process.hand_out(subject);
    let said = process.hear();
    let AppMessage::PutBack { subject: back } = said else {
        panic!("{said:?}");
    };
    assert_eq!((back.slot, back.cookie), (subject.slot, subject.cookie));
}

/// It was asked once more, and what followed from its first answer undid the second.
#[test]
fn a_process_that_is_silent_is_not_asked_twice() {
    let (apps, process) = Process::start(1);
    let taken = apps.take(process.flow(0), Duration::ZERO);
    assert_eq!(taken.err(), Some(HandoffRefusal::NoServer));
    process.hand_out(process.hear_take());
    let said = process.hear();
    assert!(matches!(said, AppMessage::PutBack { .. }), "{said:?}");
}

/// Whoever moved it waited for the process, and everybody else for that.
#[test]
fn who_gives_up_does_not_wait() {
    let (apps, process) = Process::start(2);
    let (_rope, who) = bell();
    let ask = |slot| apps.ask_for(process.flow(slot), Duration::ZERO, Some(who.wake()));
    let (silent, quick) = (ask(0), ask(1));
    let subjects = [process.hear_take(), process.hear_take()];
    process.hand_out(subjects[1]);
    assert!(is_rung(&who));
    let begun = Instant::now();
    for take in [silent, quick] {
        apps.give_up(take);
    }
    assert!(begun.elapsed() < ANSWER / 4, "{:?}", begun.elapsed());
    // What had been handed out, and then what was handed out too late.
    assert_eq!(process.hear_put_back(), 1);
    process.hand_out(subjects[0]);
    assert_eq!(process.hear_put_back(), 0);
}

/// It would have stood still for ever: nobody said it again.
#[test]
fn a_process_that_hears_nothing_is_told_later() {
    let (apps, process) = Process::start(2);
    let late = apps.ask_for(process.flow(0), Duration::ZERO, None);
    let subject = process.hear_take();
    let taken = apps.ask_for(process.flow(1), Duration::ZERO, None);
    process.hand_out(process.hear_take());
    apps.wait_until_taken(taken).expect("it is handed out");
    let begun = Instant::now();
    let mut asked = 0;
    loop {
        let mut take = apps.ask_for(process.flow(1), Duration::ZERO, None);
        let outcome = apps.taken(&mut take);
        if let Some(outcome) = outcome {
            assert_eq!(outcome.err(), Some(HandoffRefusal::NoCapacity));
            break;
        }
        asked += 1;
    }
    apps.give_up(late);
    process.hand_out(subject);
    apps.put_back(process.flow(1));
    assert!(apps.office.clients()[0].has_unsaid(), "there is no room");
    assert!(begun.elapsed() < ANSWER, "nobody has waited");
    for _ in 0..asked {
        process.hear_take();
    }
    let mut back = [process.hear_put_back(), process.hear_put_back()];
    back.sort_unstable();
    assert_eq!(back, [0, 1]);
}

/// Nobody waits for an answer that will not come.
#[test]
fn a_process_that_ends_refuses_at_once() {
    let (apps, mut process) = Process::start(1);
    let mut take = apps.ask_for(process.flow(0), Duration::ZERO, None);
    process.hear_take();
    let begun = Instant::now();
    process.link = link(&process.path);
    let refused = loop {
        if let Some(outcome) = apps.taken(&mut take) {
            break outcome;
        }
    };
    assert_eq!(refused.err(), Some(HandoffRefusal::NoServer));
    assert!(begun.elapsed() < ANSWER / 2, "{:?}", begun.elapsed());
}

/// Where it was when all were looked at last it is not any more: another process has it.
#[test]
fn whoever_has_it_now_is_found() {
    let (apps, process) = Process::start(2);
    let flow = process.flow(0);
    assert_eq!(apps.stage(flow), Some(SlotState::Live));
    // The likely one says that it has left.
    let mut take = apps.ask_for(flow, Duration::ZERO, None);
    let first = process.hear_take();
    process.move_slot(0, 3);
    process.refuse(first);
    while process.is_told_nothing() {
        assert!(apps.taken(&mut take).is_none(), "it is looked for");
    }
    let second = process.hear_take();
    assert_eq!((first.slot, second.slot), (0, 3));
    let taken = AppMessage::Taken {
        request: second.request,
        outcome: Ok(None),
    };
    process.say(&taken, &[process.server(0).as_fd()]);
    let outcome = loop {
        if let Some(outcome) = apps.taken(&mut take) {
            break outcome;
        }
    };
    assert!(outcome.expect("it is handed out").snapshot.is_none());
}

/// It is asked for anew before its process has answered the question that was given up: what
/// followed from that answer would take it away again.
#[test]
fn what_is_asked_for_again_is_not_put_back() {
    let (apps, process) = Process::start(1);
    for is_refused in [false, true] {
        let ask = || apps.ask_for(process.flow(0), Duration::ZERO, None);
        let first = ask();
        apps.give_up(first);
        let second = ask();
        let subjects = [process.hear_take(), process.hear_take()];
        process.hand_out(subjects[0]);
        if is_refused {
            process.refuse(subjects[1]);
        } else {
            process.hand_out(subjects[1]);
        }
        let taken = apps.wait_until_taken(second);
        assert_eq!(taken.is_err(), is_refused);
        if taken.is_ok() {
            apps.put_back(process.flow(0));
        }
        // Once, and when it is over.
        assert_eq!(process.hear_put_back(), 0);
        assert!(process.is_told_nothing());
    }
}

/// A committed connection would have ended for want of room in a socket.
#[test]
fn an_offer_waits_for_room() {
    let (apps, process) = Process::start(2);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("it is bound");
    let client = apps.office.clients().remove(0);
    let shown = godwit_sock::Listener::of(listener.as_fd()).expect("it is one");
    assert!(client.add(7, shown));
    let mut asked = 0;
    while client.say(&AppMessage::Unlisten { number: 1 }, &[]).is_ok() {
        asked += 1;
    }
    let mut flow = process.flow(0);
    flow.service = at.into();
    let socket = process.server(0).try_clone().expect("it is open");
    let mut offer = apps.offer(flow, socket.into(), None).expect("no snapshot");
    assert!(apps.taken_up(&mut offer).is_none(), "it waits");
    for _ in 0..asked {
        process.hear();
    }
    assert!(apps.taken_up(&mut offer).is_none(), "it is asked");
    let given = process.hear();
    let AppMessage::Give { request, .. } = given else {
        panic!("{given:?}");
    };
    process.say(
        &AppMessage::Done {
            request,
            refusal: None,
        },
        &[],
    );
    assert_eq!(apps.wait_for(offer), Ok(()));
}

/// It would have filled the agent's memory.
#[test]
fn a_process_that_hears_nothing_for_ever_is_let_go() {
    let (apps, process) = Process::start(1);
    let client = apps.office.clients().remove(0);
    let message = AppMessage::Committed {
        request: 1,
        refusal: None,
    };
    let mut said = 0;
    while client.say_surely(&message).is_ok() {
        said += 1;
        assert!(said < 100_000, "without an end");
    }
    let begun = Instant::now();
    while !apps.office.clients().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "its thread does not see that");
    }
    drop(process);
}
