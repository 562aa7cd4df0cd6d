//! Bytes to messages. Hostile input: nothing here panics or trusts a count.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{
    DigestEntry, DirectorWord, HandoffStep, Hello, MAX_DIGEST_ENTRIES, Message, MoveStep,
    QuestionWord, SnapshotPart, TagWord, kind, output,
};
use crate::cursor::{Reader, verify};
use crate::message::Header;
use crate::restore::{parse_fin, parse_input};
use crate::{
    Epoch, FlowId, Generation, GoodbyeReason, HandoffId, LeaveReason, MacAddr, MoveRefusal,
    NodeName, ParseError, Restore, Role, ShareClaim, ShareId, UnprotectedReason,
};

/// Reads the body that `header` announced; offsets in errors count from its start.
pub(crate) fn parse_body(header: &Header, body: &[u8]) -> Result<Message, ParseError> {
    let mut reader = Reader::new(body);
    let epoch = header.epoch;
    let message = match header.kind {
        kind::HELLO => Message::Hello(Hello::parse(&mut reader)?),
        kind::SHARE_STATE => Message::ShareState(ShareClaim {
            share: reader.share("share state: share")?,
            role: Role::parse(&mut reader)?,
            epoch,
        }),
        kind::FLOW_DEMOTE | kind::FLOW_DEMOTED | kind::TWIN_CLOSED => {
            parse_flow_message(header.kind, epoch, &mut reader)?
        }
        kind::FLOW_RESTORE | kind::FLOW_INPUT | kind::FLOW_ADMIT | kind::FLOW_ADMITTED => {
            parse_rejoin(header.kind, epoch, &mut reader)?
        }
        kind::FLOW_SNAPSHOT | kind::FLOW_SNAPSHOT_KEPT => {
            parse_snapshot(header.kind, epoch, &mut reader)?
        }
        kind::HANDOFF => Message::Handoff {
            share: reader.share("handoff: share")?,
            epoch,
            id: HandoffId::parse(&mut reader)?,
            step: HandoffStep::parse(&mut reader)?,
        },
        kind::QUESTION => Message::Question {
            flow: FlowId::parse(&mut reader)?,
            number: reader.u32("question: number")?,
            word: QuestionWord::parse(&mut reader)?,
        },
        kind::DIRECTOR => Message::Director(DirectorWord::parse(&mut reader)?),
        kind::TAGS => Message::Tags(TagWord::parse(&mut reader)?),
        kind::PLACE => Message::Place(parse_place(&mut reader)?),
        kind::CONFIG_LINES => Message::ConfigLines(super::lines::parse(&mut reader)?),
        kind::GOODBYE => Message::Goodbye {
            reason: GoodbyeReason::parse(&mut reader)?,
        },
        kind::STANDBY_READY
        | kind::STANDBY_LEFT
        | kind::DIGEST
        | kind::SERVER_LOST
        | kind::OUTPUT
        | kind::MOVE => parse_standby_message(header.kind, epoch, &mut reader)?,
        other => {
            return Err(ParseError {
                what: "message: kind",
                at: 0,
                got: u64::from(other),
            });
        }
    };
    reader.finish("message: trailing bytes")?;
    Ok(message)
}

/// Nobody is at no address, or at one of many (RFC 7042 section 2.1).
fn parse_place(reader: &mut Reader<'_>) -> Result<MacAddr, ParseError> {
    let at = reader.at();
    let mac = MacAddr(reader.array("place: mac")?);
    let is_one = !mac.is_zero() && !mac.is_multicast();
    verify(is_one, "place: mac of nobody", at, mac.0[0])?;
    Ok(mac)
}

/// Snapshots that a standby keeps. Another `kind` reads as an answer.
fn parse_snapshot(kind: u8, epoch: Epoch, reader: &mut Reader<'_>) -> Result<Message, ParseError> {
    let (share, generation) = parse_stay(reader)?;
    let flow = FlowId::parse(reader)?;
    if kind == kind::FLOW_SNAPSHOT {
        return Ok(Message::FlowSnapshot {
            share,
            epoch,
            generation,
            flow,
            part: SnapshotPart::parse(reader)?,
        });
    }
    Ok(Message::FlowSnapshotKept {
        share,
        epoch,
        generation,
        flow,
        commit: match reader.rest().is_empty() {
            true => None,
            false => Some(reader.u64("snapshot: number")?),
        },
    })
}

/// What is about a share and one generation of its standby. Another `kind` is not for
/// this function; it reads as a planned move.
fn parse_standby_message(
    kind: u8,
    epoch: Epoch,
    reader: &mut Reader<'_>,
) -> Result<Message, ParseError> {
    let (share, generation) = parse_stay(reader)?;
    Ok(match kind {
        kind::STANDBY_READY => Message::StandbyReady {
            share,
            epoch,
            generation,
        },
        kind::STANDBY_LEFT => Message::StandbyLeft {
            share,
            epoch,
            generation,
            reason: LeaveReason::parse(reader)?,
        },
        kind::DIGEST => Message::Digest {
            share,
            epoch,
            generation,
            entries: parse_entries(reader)?,
        },
        kind::SERVER_LOST => Message::ServerLost {
            share,
            epoch,
            generation,
        },
        kind::OUTPUT => Message::Output {
            share,
            epoch,
            generation,
            entries: output::parse_entries(reader)?,
        },
        _ => Message::Move {
            share,
            epoch,
            generation,
            step: MoveStep::parse(reader)?,
        },
    })
}

fn parse_flow_message(
    kind: u8,
    epoch: Epoch,
    reader: &mut Reader<'_>,
) -> Result<Message, ParseError> {
    let (share, generation) = parse_stay(reader)?;
    let flow = FlowId::parse(reader)?;
    if kind == kind::FLOW_DEMOTED {
        return Ok(Message::FlowDemoted {
            share,
            epoch,
            generation,
            flow,
        });
    }
    let reason = UnprotectedReason::parse(reader)?;
    Ok(if kind == kind::FLOW_DEMOTE {
        Message::FlowDemote {
            share,
            epoch,
            generation,
            flow,
            reason,
        }
    } else {
        Message::TwinClosed {
            share,
            epoch,
            generation,
            flow,
            reason,
        }
    })
}

/// What is said of a running flow that is to have a new twin.
fn parse_rejoin(kind: u8, epoch: Epoch, reader: &mut Reader<'_>) -> Result<Message, ParseError> {
    let (share, generation) = parse_stay(reader)?;
    if kind == kind::FLOW_RESTORE {
        return Ok(Message::FlowRestore {
            share,
            epoch,
            generation,
            restore: Box::new(Restore::parse(reader)?),
        });
    }
    let flow = FlowId::parse(reader)?;
    Ok(match kind {
        kind::FLOW_INPUT => Message::FlowInput {
            share,
            epoch,
            generation,
            flow,
            seq: reader.seq("flow input: seq")?,
            fin: parse_fin(reader)?,
            input: parse_input(reader)?,
        },
        kind::FLOW_ADMIT => Message::FlowAdmit {
            share,
            epoch,
            generation,
            flow,
        },
        _ => Message::FlowAdmitted {
            share,
            epoch,
            generation,
            flow,
        },
    })
}

impl MoveStep {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        Ok(match reader.u8("move: step")? {
            Self::PREPARE => Self::Prepare,
            Self::READY => Self::Ready {
                successor: reader.epoch("move: successor")?,
            },
            Self::REFUSED => Self::Refused {
                reason: MoveRefusal::parse(reader)?,
            },
            other => {
                return Err(ParseError {
                    what: "move: step",
                    at,
                    got: u64::from(other),
                });
            }
        })
    }
}

impl Hello {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let name = NodeName::parse(reader)?;
        let incarnation = reader.u64("hello: incarnation")?;
        let min_version = reader.u8("hello: min_version")?;
        let at = reader.at();
        let max_version = reader.u8("hello: max_version")?;
        let ordered = min_version <= max_version;
        let what = "hello: max_version below min_version";
        verify(ordered, what, at, max_version)?;
        Ok(Self {
            name,
            incarnation,
            min_version,
            max_version,
            heartbeat_key: reader.array("hello: heartbeat_key")?,
            config_digest: reader.array("hello: config_digest")?,
        })
    }
}

fn parse_stay(reader: &mut Reader<'_>) -> Result<(ShareId, Generation), ParseError> {
    Ok((
        reader.share("message: share")?,
        reader.generation("message: generation")?,
    ))
}

fn parse_entries(reader: &mut Reader<'_>) -> Result<Vec<DigestEntry>, ParseError> {
    let at = reader.at();
    let count = usize::from(reader.u16("digest: entries")?);
    // Checked before the vector is made: an honest count matches what follows.
    let matches = count * DigestEntry::LEN == reader.rest().len();
    let honest = count <= MAX_DIGEST_ENTRIES && matches;
    verify(honest, "digest: entries", at, count as u64)?;
    (0..count).map(|_| parse_entry(reader)).collect()
}

fn parse_entry(reader: &mut Reader<'_>) -> Result<DigestEntry, ParseError> {
    Ok(DigestEntry {
        flow: FlowId::parse(reader)?,
        snd_una: reader.seq("digest: snd_una")?,
        snd_nxt: reader.seq("digest: snd_nxt")?,
        rcv_nxt: reader.seq("digest: rcv_nxt")?,
        ended: parse_bool(reader, "digest: ended")?,
    })
}

fn parse_bool(reader: &mut Reader<'_>, what: &'static str) -> Result<bool, ParseError> {
    let at = reader.at();
    match reader.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(ParseError {
            what,
            at,
            got: u64::from(other),
        }),
    }
}
