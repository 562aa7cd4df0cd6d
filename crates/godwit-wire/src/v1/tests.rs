//! Version 1 is frozen: one message of each kind against `golden.txt`.
//!
//! The file has one line per kind: its name, then the bytes in hexadecimal. A
//! test that fails here means that agents of two releases would misunderstand
//! each other. Do not edit the file; make a new version.

use std::fmt::Write as _;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use super::*;
use crate::{Decoder, FlowKey, Role};

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

const fn planned_move(share: ShareId, epoch: Epoch, generation: Generation) -> Message {
    Message::Move {
        share,
        epoch,
        generation,
        step: MoveStep::Ready {
            successor: Epoch::new(0x6553_1000, 4),
        },
    }
}

fn one_of_each() -> Vec<Message> {
    let (share, epoch, generation) = (ShareId(5), Epoch::new(0x6553_1000, 3), Generation(7));
    vec![
        Message::Hello(Hello {
            name: NodeName::new("a").unwrap(),
            incarnation: 0x6553_1000_8000_0000,
            min_version: 1,
            max_version: 1,
            heartbeat_key: [0x11; 32],
            config_digest: [0x22; 32],
        }),
        Message::ShareState(ShareClaim {
            share,
            role: Role::Shadow,
            epoch,
        }),
        Message::StandbyReady {
            share,
            epoch,
            generation,
        },
        Message::StandbyLeft {
            share,
            epoch,
            generation,
            reason: LeaveReason::DemoteUnconfirmed,
        },
        Message::FlowDemote {
            share,
            epoch,
            generation,
            flow: flow(),
            reason: UnprotectedReason::Lagging,
        },
        Message::FlowDemoted {
            share,
            epoch,
            generation,
            flow: flow(),
        },
        Message::TwinClosed {
            share,
            epoch,
            generation,
            flow: flow(),
            reason: UnprotectedReason::TwinClosed,
        },
        Message::Digest {
            share,
            epoch,
            generation,
            entries: vec![DigestEntry {
                flow: flow(),
                snd_una: SeqNumber(0x10),
                snd_nxt: SeqNumber(0x20),
                rcv_nxt: SeqNumber(0x30),
                ended: true,
            }],
        },
        Message::Goodbye {
            reason: GoodbyeReason::Detach,
        },
        Message::ServerLost {
            share,
            epoch,
            generation,
        },
        output(share, epoch, generation),
        planned_move(share, epoch, generation),
    ]
}

fn output(share: ShareId, epoch: Epoch, generation: Generation) -> Message {
    Message::Output {
        share,
        epoch,
        generation,
        entries: vec![
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
        ],
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
    assert_eq!(kinds, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(kind::KNOWN, 1..=12);
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
