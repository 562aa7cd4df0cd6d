//! One message of each kind against `golden.txt`, and what is none.
//!
//! A test that fails on that file means that a library and an agent of two
//! releases would misunderstand each other. Do not edit it; make a new version.

use std::fmt::Write as _;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::region::{Connection, Header, MAX_KEPT, SlotState};
use super::*;
use crate::{FlowKey, HandoffRefusal, strategies};

const GOLDEN: &str = include_str!("golden.txt");

fn place() -> SnapshotPlace {
    SnapshotPlace {
        offset: 0x0102_0304_0506,
        length: 1024,
        kind: SnapshotKind::Regenerable,
        read: 0x11,
        written: 0x1_0000_0000,
    }
}

fn subject() -> Subject {
    Subject {
        request: 9,
        slot: 5,
        cookie: 0x0102,
    }
}

fn one_of_each() -> Vec<(&'static str, AppMessage)> {
    let mut all = of_processes();
    all.extend(of_connections());
    all
}

fn of_processes() -> Vec<(&'static str, AppMessage)> {
    let number = 7;
    vec![
        (
            "hello",
            AppMessage::Hello {
                min: 1,
                max: 1,
                slots: 16,
                region: 1 << 20,
            },
        ),
        ("welcome", AppMessage::Welcome { version: 1 }),
        (
            "refused",
            AppMessage::Refused {
                reason: AppRefusal::Version,
            },
        ),
        ("listen", AppMessage::Listen { number }),
        (
            "listening",
            AppMessage::Listening {
                number,
                refusal: Some(AppRefusal::NoService),
            },
        ),
        ("unlisten", AppMessage::Unlisten { number }),
    ]
}

fn of_connections() -> Vec<(&'static str, AppMessage)> {
    let (request, number, subject) = (9, 7, subject());
    vec![
        (
            "take",
            AppMessage::Take {
                subject,
                patience_ms: 100,
            },
        ),
        (
            "taken",
            AppMessage::Taken {
                request,
                outcome: Ok(Some(place())),
            },
        ),
        (
            "not_taken",
            AppMessage::Taken {
                request,
                outcome: Err(HandoffRefusal::SnapshotBehind),
            },
        ),
        ("put_back", AppMessage::PutBack { subject }),
        ("emigrated", AppMessage::Emigrated { subject }),
        (
            "give",
            AppMessage::Give {
                request,
                number,
                snapshot: Some((SnapshotKind::Regenerable, 1024)),
            },
        ),
        (
            "done",
            AppMessage::Done {
                request,
                refusal: None,
            },
        ),
        (
            "commit",
            AppMessage::Commit {
                subject,
                place: SnapshotPlace {
                    kind: SnapshotKind::Commit,
                    ..place()
                },
            },
        ),
        (
            "committed",
            AppMessage::Committed {
                request,
                refusal: Some(CommitRefusal::Late),
            },
        ),
        ("mend", AppMessage::Mend),
        ("show", AppMessage::Show { cookie: 0x0102 }),
    ]
}

fn connection() -> Connection {
    Connection {
        state: SlotState::Live,
        stateless: false,
        key: FlowKey {
            client: "10.9.0.10:40000".parse().unwrap(),
            service: "[2001:db8:9::100]:80".parse().unwrap(),
        },
        cookie: 0x0102,
        session: b"basket".to_vec(),
        kept: vec![place()],
    }
}

fn bytes_of(message: &AppMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    bytes
}

fn slot_of(connection: &Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    connection.emit(&mut bytes);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn version_1_is_as_it_was() {
    let mut lines: Vec<_> = one_of_each()
        .iter()
        .map(|(name, message)| (name.to_string(), bytes_of(message)))
        .collect();
    let mut header = Vec::new();
    Header { slots: 16, used: 3 }.emit(&mut header);
    lines.push(("region".to_string(), header));
    lines.push(("slot".to_string(), slot_of(&connection())));
    let text = lines.iter().fold(String::new(), |mut text, (name, bytes)| {
        writeln!(text, "{name} {}", hex(bytes)).unwrap();
        text
    });
    assert_eq!(text, GOLDEN);
}

#[test]
fn messages_are_read_as_they_were_written() {
    for (name, message) in one_of_each() {
        let bytes = bytes_of(&message);
        assert!(bytes.len() <= MAX_MESSAGE, "{name}");
        assert_eq!(AppMessage::parse(&bytes), Ok(message), "{name}");
    }
}

#[test]
fn cut_and_overlong_messages_are_refused() {
    for (name, message) in one_of_each() {
        let mut bytes = bytes_of(&message);
        for end in 0..bytes.len() {
            assert!(AppMessage::parse(&bytes[..end]).is_err(), "{name} {end}");
        }
        bytes.push(0);
        assert!(AppMessage::parse(&bytes).is_err(), "{name}");
    }
}

#[test]
fn impossible_values_are_named() {
    let done = bytes_of(&AppMessage::Done {
        request: 1,
        refusal: None,
    });
    let with = |at: usize, byte| {
        let mut bytes = done.clone();
        bytes[at] = byte;
        AppMessage::parse(&bytes).unwrap_err().what
    };
    assert_eq!(with(0, b'X'), "app: magic");
    assert_eq!(with(2, 0), "app: version");
    assert_eq!(with(2, 3), "app: version");
    assert_eq!(with(3, 16), "app: kind", "of the next version");
    assert_eq!(with(3, 17), "app: kind");
    assert_eq!(with(3, 0), "app: kind");
    assert_eq!(with(8, 2), "app: presence");
    let mut give = bytes_of(&AppMessage::Give {
        request: 1,
        number: 1,
        snapshot: Some((SnapshotKind::Regenerable, MAX_SNAPSHOT)),
    });
    *give.last_mut().unwrap() += 1;
    let error = AppMessage::parse(&give).unwrap_err();
    assert_eq!(error.what, "app: snapshot length");
}

#[test]
fn slots_are_read_as_they_were_written() {
    let mut full = connection();
    full.session = vec![7; MAX_SESSION];
    full.kept = vec![place(); MAX_KEPT];
    for connection in [connection(), full] {
        let mut bytes = slot_of(&connection);
        assert!(bytes.len() <= Connection::MAX_LEN);
        for end in 0..bytes.len() {
            assert!(Connection::parse(&bytes[..end]).is_err(), "{end}");
        }
        bytes.resize(region::SLOT_LEN - region::CONNECTION_AT, 0);
        assert_eq!(Connection::parse(&bytes), Ok(Some(connection)));
    }
    assert_eq!(Connection::parse(&[0; 504]), Ok(None));
}

#[test]
fn a_header_that_promises_too_much_is_refused() {
    let parse = |slots, used| {
        let mut bytes = Vec::new();
        Header { slots, used }.emit(&mut bytes);
        Header::parse(bytes.first_chunk().unwrap())
    };
    assert_eq!(
        parse(16, 16),
        Ok(Header {
            slots: 16,
            used: 16
        })
    );
    assert!(parse(16, 17).is_err());
    assert!(parse(region::MAX_SLOTS + 1, 0).is_err());
}

proptest! {
    #[test]
    fn any_message_survives(message in strategies::app_message()) {
        let bytes = bytes_of(&message);
        prop_assert!(bytes.len() <= MAX_MESSAGE);
        prop_assert_eq!(AppMessage::parse(&bytes), Ok(message));
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = AppMessage::parse(&bytes);
        let _ = Connection::parse(&bytes);
    }
}
