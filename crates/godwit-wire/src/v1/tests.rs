//! Version 1 is frozen: one message of each kind against `golden.txt`.
//!
//! The file has one line per kind: its name, then the bytes in hexadecimal. A
//! test that fails here means that agents of two releases would misunderstand
//! each other. Do not edit the file; make a new version.

use std::boxed::Box;
use std::fmt::Write as _;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use super::*;
use crate::{
    Decoder, FlowEpoch, FlowId, FlowKey, FlowRecord, GoodbyeReason, HandoffId, LeaveReason,
    MAX_INPUT_LEN, MacAddr, MoveRefusal, Negotiated, NodeName, Restore, Role, SeqNumber,
    UnprotectedReason,
};

mod steps;

const GOLDEN: &str = include_str!("golden.txt");

fn flow() -> FlowId {
    FlowId {
        key: FlowKey {
            client: "10.9.0.10:40000".parse().unwrap(),
            service: "[2001:db8:9::100]:80".parse().unwrap(),
        },
        irs: SeqNumber(0x0102_0304),
    }
}

const fn planned_move(scope: Scope) -> Message {
    Message::Move(
        scope,
        MoveStep::Ready {
            successor: Epoch::new(0x6553_1000, 4),
        },
    )
}

fn scope() -> Scope {
    Scope {
        share: ShareId(5),
        epoch: Epoch::new(0x6553_1000, 3),
        generation: Generation(7),
    }
}

fn one_of_each() -> Vec<Message> {
    let mut all = older_ones();
    all.extend(about_restoring());
    all.push(handoff());
    all.extend(about_snapshots());
    all.extend(between_directors());
    all.push(Message::Peer(PeerMessage::ConfigLines(vec![
        ConfigLine::new("detect", "lease", "3s"),
    ])));
    all.extend(about_questions());
    all.extend(about_tags());
    all.push(Message::Network(NetworkMessage::Place(MacAddr([
        2, 0, 0, 0, 0, 1,
    ]))));
    all
}

fn between_directors() -> [Message; 5] {
    let name = |text| NodeName::new(text).unwrap();
    [
        DirectorWord::Begin,
        DirectorWord::Drained(vec![name("c")]),
        DirectorWord::Slots {
            service: 1,
            first: 0x0102,
            backends: vec![name("a"), name("b")],
            slots: vec![
                SlotWord {
                    base: Some(1),
                    mixed: true,
                },
                SlotWord {
                    base: None,
                    mixed: false,
                },
            ],
        },
        DirectorWord::Entries {
            backends: vec![name("a")],
            entries: [Some(0), None]
                .map(|at| EntryWord { flow: flow(), at })
                .to_vec(),
        },
        DirectorWord::End,
    ]
    .map(Message::Director)
}

/// Not one more than fits, nor a count that its message does not hold.
#[test]
fn words_between_directors_are_bounded() {
    let slot = SlotWord {
        base: None,
        mixed: true,
    };
    let slots = |count| {
        Message::Director(DirectorWord::Slots {
            service: 0,
            first: 0,
            backends: Vec::new(),
            slots: vec![slot; count],
        })
    };
    let mut out = Vec::new();
    assert!(slots(MAX_DIRECTED + 1).emit(&mut out).is_err());
    assert!(out.is_empty(), "nothing is left behind");
    slots(MAX_DIRECTED).emit(&mut out).unwrap();
    let mut decoder = Decoder::new();
    decoder.push(&out);
    assert_eq!(decoder.next_message(), Ok(Some(slots(MAX_DIRECTED))));
    // Behind header, word, service, first slot and the count of names.
    let count = 16 + 1 + 2 + 4 + 2;
    out[count + 1] ^= 1;
    let mut decoder = Decoder::new();
    decoder.push(&out);
    let what = decoder.next_message().unwrap_err().what;
    assert_eq!(what, "director: slots");
}

fn about_snapshots() -> [Message; 4] {
    let scope = scope();
    [
        Message::Snapshot(
            scope,
            SnapshotMessage::Keep {
                flow: flow(),
                part: SnapshotPart {
                    commit: None,
                    read: 0x10,
                    written: 0x1_0000_0020,
                    length: 3,
                    part: b"hi".to_vec(),
                },
            },
        ),
        Message::Snapshot(
            scope,
            SnapshotMessage::Kept {
                flow: flow(),
                commit: None,
            },
        ),
        Message::Snapshot(
            scope,
            SnapshotMessage::Keep {
                flow: flow(),
                part: SnapshotPart {
                    commit: Some(Commit {
                        number: 0x51,
                        output: 2,
                    }),
                    read: 0x10,
                    written: 0x1_0000_0020,
                    length: 3,
                    part: b"stand".to_vec(),
                },
            },
        ),
        Message::Snapshot(
            scope,
            SnapshotMessage::Kept {
                flow: flow(),
                commit: Some(0x51),
            },
        ),
    ]
}

fn handoff() -> Message {
    let Scope { share, epoch, .. } = scope();
    Message::Handoff(HandoffMessage {
        share,
        epoch,
        id: HandoffId {
            flow: flow(),
            epoch: FlowEpoch(2),
        },
        step: HandoffStep::State {
            last: true,
            part: b"!".to_vec(),
        },
    })
}

fn about_restoring() -> [Message; 4] {
    let scope = scope();
    let epoch = scope.epoch;
    [
        Message::Rejoin(scope, RejoinMessage::Restore(Box::new(restore(epoch)))),
        Message::Rejoin(
            scope,
            RejoinMessage::Input {
                flow: flow(),
                seq: SeqNumber(0x0102_0307),
                fin: true,
                input: b"!".to_vec(),
            },
        ),
        Message::Rejoin(scope, RejoinMessage::Admit { flow: flow() }),
        Message::Rejoin(scope, RejoinMessage::Admitted { flow: flow() }),
    ]
}

fn about_questions() -> [Message; 2] {
    [
        Message::Question(Question {
            flow: flow(),
            number: 0x0102,
            word: QuestionWord::Settle,
        }),
        Message::Question(Question {
            flow: flow(),
            number: 0x0103,
            word: QuestionWord::Later,
        }),
    ]
}

fn about_tags() -> [Message; 2] {
    let mut key = [0; 16];
    for (byte, value) in key.iter_mut().zip(0..) {
        *byte = 0x11 * value;
    }
    [
        Message::Network(NetworkMessage::Tags(TagWord::Key(key))),
        Message::Network(NetworkMessage::Tags(TagWord::Used)),
    ]
}

fn older_ones() -> Vec<Message> {
    let scope = scope();
    let Scope { share, epoch, .. } = scope;
    vec![
        Message::Peer(PeerMessage::Hello(Hello {
            name: NodeName::new("a").unwrap(),
            incarnation: 0x6553_1000_8000_0000,
            min_version: 1,
            max_version: 1,
            heartbeat_key: [0x11; 32],
            config_digest: [0x22; 32],
        })),
        Message::Claim(ShareClaim {
            share,
            role: Role::Shadow,
            epoch,
        }),
        Message::Standby(scope, StandbyMessage::Ready),
        Message::Standby(
            scope,
            StandbyMessage::Left {
                reason: LeaveReason::DemoteUnconfirmed,
            },
        ),
        Message::Flow(
            scope,
            FlowMessage::Demote {
                flow: flow(),
                reason: UnprotectedReason::Lagging,
            },
        ),
        Message::Flow(scope, FlowMessage::Demoted { flow: flow() }),
        Message::Flow(
            scope,
            FlowMessage::TwinClosed {
                flow: flow(),
                reason: UnprotectedReason::TwinClosed,
            },
        ),
        Message::Twin(
            scope,
            TwinMessage::Digest(vec![DigestEntry {
                flow: flow(),
                snd_una: SeqNumber(0x10),
                snd_nxt: SeqNumber(0x20),
                rcv_nxt: SeqNumber(0x30),
                ended: true,
            }]),
        ),
        Message::Peer(PeerMessage::Goodbye {
            reason: GoodbyeReason::Detach,
        }),
        Message::Standby(scope, StandbyMessage::ServerLost),
        output(scope),
        planned_move(scope),
    ]
}

fn output(scope: Scope) -> Message {
    Message::Twin(
        scope,
        TwinMessage::Output(vec![
            OutputEntry {
                flow: flow(),
                said: Said::Length {
                    rcv_nxt: SeqNumber(0x10),
                    end: SeqNumber(0x20),
                },
            },
            OutputEntry {
                flow: flow(),
                said: Said::Content {
                    upto: 0x1_0000,
                    sum: 0x30,
                },
            },
        ]),
    )
}

fn restore(epoch: Epoch) -> Restore {
    Restore {
        record: FlowRecord {
            id: flow(),
            iss: SeqNumber(0x1000),
            mss: 1460,
            snd_wscale: 7,
            rcv_wscale: 9,
            negotiated: Negotiated {
                wscale: true,
                sack: true,
                time_stamps: true,
                ecn: false,
            },
            ts_off: 0x21,
            snd_una: SeqNumber(0x2000),
            snd_nxt: SeqNumber(0x3000),
            rcv_nxt: SeqNumber(0x0102_0307),
            epoch,
        },
        base: SeqNumber(0x0102_0305),
        base_ack: SeqNumber(0x1001),
        snd_edge: SeqNumber(0x4000),
        ts_val: 0x31,
        owner_ts: 0x32,
        rtt_us: 0x33,
        syn_ack_mss: 1440,
        client_mac: MacAddr([2, 0, 0, 0, 0, 0x10]),
        fin: false,
        input: b"hi".to_vec(),
    }
}

fn render(message: &Message) -> String {
    let mut bytes = Vec::new();
    message.emit(&mut bytes).unwrap();
    let mut line = message.name().to_string();
    line.push(' ');
    for byte in bytes {
        write!(line, "{byte:02x}").unwrap();
    }
    line
}

#[test]
fn emit() {
    let lines: Vec<_> = one_of_each().iter().map(render).collect();
    let golden: Vec<_> = GOLDEN.lines().collect();
    assert_eq!(lines, golden);
}

#[test]
fn parse() {
    for (line, message) in GOLDEN.lines().zip(one_of_each()) {
        let (_, hex) = line.split_once(' ').unwrap();
        let bytes: Vec<_> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        assert_eq!(decoder.next_message(), Ok(Some(message)));
    }
}

#[test]
fn kinds_are_numbered_from_one_without_gaps() {
    let kinds: Vec<_> = one_of_each().iter().map(Message::kind).collect();
    // Some of them in several forms.
    let several = [20, 20, 20, 20, 20, 21, 22, 22, 23, 23, 24];
    let expected = (1..=19).chain(18..=19).chain(several);
    assert_eq!(kinds, expected.collect::<Vec<_>>());
    assert_eq!(kind::KNOWN, 1..=24);
}

#[test]
fn what_a_handoff_carries_is_not_printed() {
    let printed = std::format!("{:?}", handoff());
    assert!(printed.contains("state of 1 bytes"), "{printed}");
    assert!(!printed.contains("[33]"), "{printed}");
}

#[test]
fn nobody_is_at_no_mac_address_or_at_many() {
    for mac in [
        MacAddr::ZERO,
        MacAddr([1, 0, 0x5e, 0, 0, 1]),
        MacAddr([0xff; 6]),
    ] {
        let mut bytes = Vec::new();
        Message::Network(NetworkMessage::Place(mac))
            .emit(&mut bytes)
            .unwrap();
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        let error = decoder.next_message().expect_err("nobody is there");
        assert_eq!(error.what, "place: mac of nobody");
    }
}

#[test]
fn a_key_is_not_printed() {
    let printed = std::format!("{:?}", about_tags());
    assert_eq!(printed, "[Network(Tags(Key)), Network(Tags(Used))]");
}

/// Neither the bytes nor more of them than the whole has.
#[test]
fn a_snapshot_is_bounded_and_not_printed() {
    let [message, ..] = about_snapshots();
    let printed = std::format!("{message:?}");
    assert!(printed.contains("2 of 3 bytes"), "{printed}");
    assert!(!printed.contains("104"), "{printed}");
    let Message::Snapshot(scope, SnapshotMessage::Keep { mut part, .. }) = message.clone() else {
        unreachable!("it is the first");
    };
    for (length, what) in [(1, "snapshot: part"), (u32::MAX, "snapshot: length")] {
        part.length = length;
        let mut bytes = Vec::new();
        let message = Message::Snapshot(
            scope,
            SnapshotMessage::Keep {
                flow: flow(),
                part: part.clone(),
            },
        );
        message.emit(&mut bytes).unwrap();
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        assert_eq!(decoder.next_message().unwrap_err().what, what);
    }
}

#[test]
fn a_clients_input_is_bounded_and_not_printed() {
    let mut long = restore(Epoch::new(1, 1));
    assert!(!std::format!("{long:?}").contains("104"), "{long:?}");
    long.input = vec![0; MAX_INPUT_LEN + 1];
    let message = Message::Rejoin(
        Scope {
            share: ShareId(1),
            epoch: Epoch::new(1, 1),
            generation: Generation(1),
        },
        RejoinMessage::Restore(Box::new(long)),
    );
    assert!(message.emit(&mut Vec::new()).is_err());
}

#[test]
fn an_input_that_lies_about_its_length_is_refused() {
    for message in one_of_each().drain(12..14) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes).unwrap();
        let at = bytes.len() - if message.name() == "flow_input" { 5 } else { 6 };
        bytes[at] = 0x7f;
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        assert_eq!(decoder.next_message().unwrap_err().what, "input: length");
    }
}

#[test]
fn a_hello_keeps_its_key_to_itself() {
    let printed = std::format!("{:?}", one_of_each()[0]);
    assert!(!printed.contains("heartbeat_key"), "{printed}");
}

#[test]
fn a_hello_with_crossed_versions_is_refused() {
    let mut bytes = Vec::new();
    one_of_each()[0].emit(&mut bytes).unwrap();
    bytes[16 + 2 + 8] = 2;
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    let error = decoder.next_message().unwrap_err();
    assert_eq!(error.what, "hello: max_version below min_version");
    assert_eq!(error.at, 16 + 2 + 8 + 1);
}

/// Both the snapshot and the output behind it.
#[test]
fn the_output_of_a_commit_is_bounded() {
    let [.., message, _] = about_snapshots();
    let Message::Snapshot(_, SnapshotMessage::Keep { part, .. }) = message else {
        unreachable!("it is the last but one");
    };
    let commits = [
        (1, 3, "snapshot: part"),
        (crate::app::MAX_OUTPUT + 1, 3, "snapshot: output"),
    ];
    for (output, length, what) in commits {
        let scope = scope();
        let commit = Some(Commit { number: 1, output });
        let message = Message::Snapshot(
            scope,
            SnapshotMessage::Keep {
                flow: flow(),
                part: SnapshotPart {
                    commit,
                    length,
                    ..part.clone()
                },
            },
        );
        let mut bytes = Vec::new();
        message.emit(&mut bytes).unwrap();
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        assert_eq!(decoder.next_message().unwrap_err().what, what);
    }
}
