//! Messages to bytes.

use alloc::vec::Vec;

use super::{DigestEntry, MAX_DIGEST_ENTRIES, Message, Scope, VERSION};
use crate::message::{Header, MAGIC};
use crate::{EmitError, MAX_INPUT_LEN, ShareId};

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
            Self::Peer(message) => message.emit(out),
            Self::Network(message) => {
                message.emit(out);
                Ok(())
            }
            Self::Claim(claim) => {
                emit_share(out, claim.share);
                out.push(claim.role.number());
                Ok(())
            }
            Self::Standby(scope, message) => {
                scope.emit(out);
                message.emit(out);
                Ok(())
            }
            Self::Move(scope, step) => {
                scope.emit(out);
                step.emit(out);
                Ok(())
            }
            Self::Flow(scope, message) => {
                scope.emit(out);
                message.emit(out);
                Ok(())
            }
            Self::Twin(scope, message) => {
                scope.emit(out);
                message.emit(out)
            }
            Self::Rejoin(scope, message) => {
                scope.emit(out);
                message.emit(out)
            }
            Self::Snapshot(scope, message) => {
                scope.emit(out);
                message.emit(out)
            }
            Self::Handoff(message) => message.emit(out),
            Self::Question(message) => {
                message.emit(out);
                Ok(())
            }
            Self::Director(word) => word.emit(out),
        }
    }
}

impl Scope {
    /// The epoch is in the header.
    fn emit(self, out: &mut Vec<u8>) {
        emit_share(out, self.share);
        out.extend_from_slice(&self.generation.0.to_be_bytes());
    }
}

fn emit_share(out: &mut Vec<u8>, share: ShareId) {
    out.extend_from_slice(&share.0.to_be_bytes());
}

/// The longest body is an input, far below 2^32.
fn body_len(len: usize) -> u32 {
    const LONGEST: usize = MAX_INPUT_LEN + 256;
    const _: () = assert!(LONGEST <= crate::message::MAX_BODY_LEN);
    const _: () = assert!(4 + 4 + 2 + MAX_DIGEST_ENTRIES * DigestEntry::LEN <= LONGEST);
    debug_assert!(len <= LONGEST, "a body is bounded by its kind");
    u32::try_from(len).unwrap_or(u32::MAX)
}
