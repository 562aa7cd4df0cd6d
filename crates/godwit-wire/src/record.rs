//! The flow record: all that another node needs to continue a flow.
//!
//! ```text
//!  1 version | 36 four-tuple | 4 irs | 4 iss | 2 mss | 1 snd_wscale | 1 rcv_wscale
//!  1 options | 4 ts_off | 4 snd_una | 4 snd_nxt | 4 rcv_nxt | 8 epoch
//! ```

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::{Epoch, FlowId, ParseError, SeqNumber};

const VERSION: u8 = 1;
/// RFC 7323 §2.3.
const MAX_WSCALE: u8 = 14;
const WSCALE: u8 = 1 << 0;
const SACK: u8 = 1 << 1;
const TIME_STAMPS: u8 = 1 << 2;
const ECN: u8 = 1 << 3;

/// What client and service agreed on in their handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Negotiated {
    /// Windows are scaled (RFC 7323 §2).
    pub wscale: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Time stamps (RFC 7323 §3).
    pub time_stamps: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// The state of one flow, seen from the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord {
    /// The flow, with the client's initial sequence number.
    pub id: FlowId,
    /// Initial send sequence number.
    pub iss: SeqNumber,
    /// Maximum segment size that the client announced, in bytes.
    pub mss: u16,
    /// Shift of the windows that the client announces, 0 to 14.
    pub snd_wscale: u8,
    /// Shift of the windows that the service announces, 0 to 14.
    pub rcv_wscale: u8,
    /// What was negotiated.
    pub negotiated: Negotiated,
    /// Added to TSval, subtracted from TSecr; survives every takeover.
    pub ts_off: u32,
    /// First byte that the client has not acknowledged.
    pub snd_una: SeqNumber,
    /// Next byte to be sent; at or after `snd_una`.
    pub snd_nxt: SeqNumber,
    /// Next byte expected from the client.
    pub rcv_nxt: SeqNumber,
    /// The owner's epoch.
    pub epoch: Epoch,
}

impl FlowRecord {
    /// Size in bytes.
    pub const LEN: usize = 1 + FlowId::LEN + 4 + 2 + 1 + 1 + 1 + 4 + 3 * 4 + 8;

    /// Reads a record, which is the whole of `bytes`.
    ///
    /// # Errors
    /// If it is of another version, cut, overlong or impossible.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8("flow record: version")?;
        verify(version == VERSION, "flow record: version", 0, version)?;
        let record = Self {
            id: FlowId::parse(&mut reader)?,
            iss: reader.seq("flow record: iss")?,
            mss: reader.u16("flow record: mss")?,
            snd_wscale: parse_wscale(&mut reader, "flow record: snd_wscale")?,
            rcv_wscale: parse_wscale(&mut reader, "flow record: rcv_wscale")?,
            negotiated: Negotiated::parse(&mut reader)?,
            ts_off: reader.u32("flow record: ts_off")?,
            snd_una: reader.seq("flow record: snd_una")?,
            snd_nxt: reader.seq("flow record: snd_nxt")?,
            rcv_nxt: reader.seq("flow record: rcv_nxt")?,
            epoch: reader.epoch("flow record: epoch")?,
        };
        reader.finish("flow record: trailing bytes")?;
        verify(
            record.snd_una.le(record.snd_nxt),
            "flow record: snd_nxt before snd_una",
            Self::LEN - 16,
            record.snd_nxt.0,
        )?;
        Ok(record)
    }

    /// Appends the record.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        self.id.emit(out);
        out.extend_from_slice(&self.iss.0.to_be_bytes());
        out.extend_from_slice(&self.mss.to_be_bytes());
        out.extend_from_slice(&[self.snd_wscale, self.rcv_wscale, self.negotiated.bits()]);
        out.extend_from_slice(&self.ts_off.to_be_bytes());
        for seq in [self.snd_una, self.snd_nxt, self.rcv_nxt] {
            out.extend_from_slice(&seq.0.to_be_bytes());
        }
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
    }
}

impl Negotiated {
    fn bits(self) -> u8 {
        [
            (self.wscale, WSCALE),
            (self.sack, SACK),
            (self.time_stamps, TIME_STAMPS),
            (self.ecn, ECN),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |bits, (_, bit)| bits | bit)
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        let bits = reader.u8("flow record: options")?;
        verify(
            bits & !(WSCALE | SACK | TIME_STAMPS | ECN) == 0,
            "flow record: options",
            at,
            bits,
        )?;
        Ok(Self {
            wscale: bits & WSCALE != 0,
            sack: bits & SACK != 0,
            time_stamps: bits & TIME_STAMPS != 0,
            ecn: bits & ECN != 0,
        })
    }
}

impl fmt::Display for FlowRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} iss {} snd_una {} snd_nxt {} rcv_nxt {} epoch {}",
            self.id, self.iss, self.snd_una, self.snd_nxt, self.rcv_nxt, self.epoch
        )
    }
}

fn parse_wscale(reader: &mut Reader<'_>, what: &'static str) -> Result<u8, ParseError> {
    let at = reader.at();
    let shift = reader.u8(what)?;
    verify(shift <= MAX_WSCALE, what, at, shift)?;
    Ok(shift)
}

#[cfg(test)]
mod tests;
