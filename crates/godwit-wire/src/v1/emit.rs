//! Messages to bytes.

use alloc::vec::Vec;

use super::{
    DigestEntry, HandoffStep, Hello, MAX_DIGEST_ENTRIES, Message, MoveStep, VERSION, output,
};
use crate::message::{Header, MAGIC};
use crate::restore::emit_input;
use crate::{EmitError, FlowId, Generation, HandoffId, MAX_INPUT_LEN, ShareId};

impl Message {
    /// Appends the message with its header.
    ///
    /// # Errors
    /// If a digest has too many entries or an input is too long; `out` is as
    /// before then.
    pub fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.push(self.kind());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.epoch().0.to_be_bytes());
        if let Err(error) = self.emit_body(out) {
            out.truncate(start);
            return Err(error);
        }
        let len = body_len(out.len() - start - Header::LEN);
        if let Some(field) = out
            .get_mut(start..)
            .and_then(|message| message.get_mut(Header::LEN_AT))
        {
            field.copy_from_slice(&len.to_be_bytes());
        }
        Ok(())
    }

    fn emit_body(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        match self {
            Self::Hello(hello) => hello.emit(out),
            Self::Director(word) => word.emit(out)?,
            Self::Tags(word) => word.emit(out),
            Self::Place(mac) => out.extend_from_slice(&mac.0),
            Self::ConfigLines(lines) => super::lines::emit(out, lines)?,
            Self::ShareState(claim) => {
                emit_share(out, claim.share);
                out.push(claim.role.number());
            }
            Self::StandbyReady {
                share, generation, ..
            }
            | Self::ServerLost {
                share, generation, ..
            } => emit_stay(out, *share, *generation),
            Self::StandbyLeft {
                share,
                generation,
                reason,
                ..
            } => {
                emit_stay(out, *share, *generation);
                out.push(reason.number());
            }
            Self::FlowDemote { .. }
            | Self::FlowDemoted { .. }
            | Self::TwinClosed { .. }
            | Self::Question { .. }
            | Self::FlowAdmit { .. }
            | Self::FlowAdmitted { .. }
            | Self::FlowSnapshotKept { .. } => self.emit_flow_message(out),
            Self::Digest {
                share,
                generation,
                entries,
                ..
            } => {
                emit_stay(out, *share, *generation);
                emit_entries(out, entries)?;
            }
            Self::Output {
                share,
                generation,
                entries,
                ..
            } => {
                emit_stay(out, *share, *generation);
                output::emit_entries(out, entries)?;
            }
            Self::FlowRestore { .. } | Self::FlowInput { .. } | Self::FlowSnapshot { .. } => {
                self.emit_running(out)?
            }
            Self::Goodbye { reason } => out.push(reason.number()),
            Self::Handoff {
                share, id, step, ..
            } => emit_handoff(out, *share, (id, step))?,
            Self::Move {
                share,
                generation,
                step,
                ..
            } => {
                emit_stay(out, *share, *generation);
                step.emit(out);
            }
        }
        Ok(())
    }

    /// What is about one flow; other messages have nothing to say here.
    fn emit_flow_message(&self, out: &mut Vec<u8>) {
        match self {
            Self::Question { flow, number, word } => {
                flow.emit(out);
                out.extend_from_slice(&number.to_be_bytes());
                out.push(word.number());
            }
            Self::FlowDemote {
                share,
                generation,
                flow,
                reason,
                ..
            }
            | Self::TwinClosed {
                share,
                generation,
                flow,
                reason,
                ..
            } => {
                emit_flow(out, (*share, *generation), flow);
                out.push(reason.number());
            }
            Self::FlowDemoted {
                share,
                generation,
                flow,
                ..
            }
            | Self::FlowAdmit {
                share,
                generation,
                flow,
                ..
            }
            | Self::FlowAdmitted {
                share,
                generation,
                flow,
                ..
            } => emit_flow(out, (*share, *generation), flow),
            Self::FlowSnapshotKept {
                share,
                generation,
                flow,
                commit,
                ..
            } => {
                emit_flow(out, (*share, *generation), flow);
                out.extend(commit.iter().flat_map(|number| number.to_be_bytes()));
            }
            Self::Hello(_)
            | Self::Director(_)
            | Self::ConfigLines(_)
            | Self::ShareState(_)
            | Self::StandbyReady { .. }
            | Self::StandbyLeft { .. }
            | Self::ServerLost { .. }
            | Self::Digest { .. }
            | Self::Output { .. }
            | Self::Goodbye { .. }
            | Self::Move { .. }
            | Self::FlowRestore { .. }
            | Self::FlowInput { .. }
            | Self::FlowSnapshot { .. }
            | Self::Tags(_)
            | Self::Place(_)
            | Self::Handoff { .. } => {}
        }
    }

    /// What is said of a running flow that is to have a new twin, and of what its
    /// server knows of it.
    fn emit_running(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        match self {
            Self::FlowRestore {
                share,
                generation,
                restore,
                ..
            } => {
                emit_stay(out, *share, *generation);
                restore.emit(out)
            }
            Self::FlowInput {
                share,
                generation,
                flow,
                seq,
                fin,
                input,
                ..
            } => {
                emit_stay(out, *share, *generation);
                flow.emit(out);
                out.extend_from_slice(&seq.0.to_be_bytes());
                out.push(u8::from(*fin));
                emit_input(out, input)
            }
            Self::FlowSnapshot {
                share,
                generation,
                flow,
                part,
                ..
            } => {
                emit_stay(out, *share, *generation);
                flow.emit(out);
                part.emit(out)
            }
            // `emit_body` has those.
            Self::Hello(_)
            | Self::Director(_)
            | Self::ConfigLines(_)
            | Self::ShareState(_)
            | Self::StandbyReady { .. }
            | Self::StandbyLeft { .. }
            | Self::FlowDemote { .. }
            | Self::FlowDemoted { .. }
            | Self::FlowAdmit { .. }
            | Self::FlowAdmitted { .. }
            | Self::TwinClosed { .. }
            | Self::Digest { .. }
            | Self::Goodbye { .. }
            | Self::Output { .. }
            | Self::Move { .. }
            | Self::ServerLost { .. }
            | Self::FlowSnapshotKept { .. }
            | Self::Question { .. }
            | Self::Tags(_)
            | Self::Place(_)
            | Self::Handoff { .. } => Ok(()),
        }
    }
}

impl MoveStep {
    fn emit(self, out: &mut Vec<u8>) {
        match self {
            Self::Prepare => out.push(Self::PREPARE),
            Self::Ready { successor } => {
                out.push(Self::READY);
                out.extend_from_slice(&successor.0.to_be_bytes());
            }
            Self::Refused { reason } => {
                out.push(Self::REFUSED);
                out.push(reason.number());
            }
        }
    }
}

impl Hello {
    fn emit(&self, out: &mut Vec<u8>) {
        self.name.emit(out);
        out.extend_from_slice(&self.incarnation.to_be_bytes());
        out.push(self.min_version);
        out.push(self.max_version);
        out.extend_from_slice(&self.heartbeat_key);
        out.extend_from_slice(&self.config_digest);
    }
}

fn emit_handoff(
    out: &mut Vec<u8>,
    share: ShareId,
    (id, step): (&HandoffId, &HandoffStep),
) -> Result<(), EmitError> {
    emit_share(out, share);
    id.emit(out);
    step.emit(out)
}

fn emit_share(out: &mut Vec<u8>, share: ShareId) {
    out.extend_from_slice(&share.0.to_be_bytes());
}

fn emit_flow(out: &mut Vec<u8>, (share, generation): (ShareId, Generation), flow: &FlowId) {
    emit_stay(out, share, generation);
    flow.emit(out);
}

fn emit_stay(out: &mut Vec<u8>, share: ShareId, generation: Generation) {
    emit_share(out, share);
    out.extend_from_slice(&generation.0.to_be_bytes());
}

fn emit_entries(out: &mut Vec<u8>, entries: &[DigestEntry]) -> Result<(), EmitError> {
    let count = u16::try_from(entries.len())
        .ok()
        .filter(|count| usize::from(*count) <= MAX_DIGEST_ENTRIES)
        .ok_or(EmitError {
            what: "digest: entries",
            max: MAX_DIGEST_ENTRIES,
            got: entries.len(),
        })?;
    out.extend_from_slice(&count.to_be_bytes());
    for entry in entries {
        entry.flow.emit(out);
        for number in [entry.snd_una, entry.snd_nxt, entry.rcv_nxt] {
            out.extend_from_slice(&number.0.to_be_bytes());
        }
        out.push(u8::from(entry.ended));
    }
    Ok(())
}

/// The longest body is an input, far below 2^32.
fn body_len(len: usize) -> u32 {
    const LONGEST: usize = MAX_INPUT_LEN + 256;
    const _: () = assert!(LONGEST <= crate::message::MAX_BODY_LEN);
    const _: () = assert!(4 + 4 + 2 + MAX_DIGEST_ENTRIES * DigestEntry::LEN <= LONGEST);
    debug_assert!(len <= LONGEST, "a body is bounded by its kind");
    u32::try_from(len).unwrap_or(u32::MAX)
}
