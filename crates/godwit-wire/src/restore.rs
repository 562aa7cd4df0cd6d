//! A running flow as its owner hands it to a standby that comes later: the flow
//! record, where its log begins, and what the client has said since.
//!
//! ```text
//!  74 record | 4 base | 4 base_ack | 4 snd_edge | 4 ts_val | 4 owner_ts | 4 rtt_us
//!  2 syn_ack_mss | 6 client MAC | 1 fin | 4 length of the input | input
//! ```

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::{EmitError, FlowId, FlowRecord, MacAddr, ParseError, SeqNumber};

/// The longest input that one message carries, in bytes.
pub const MAX_INPUT_LEN: usize = 512 << 10;

/// What a standby needs to make a twin of a running flow.
#[derive(Clone, PartialEq, Eq)]
pub struct Restore {
    /// Where the flow stands now.
    pub record: FlowRecord,
    /// Sequence number of the first byte of the input.
    pub base: SeqNumber,
    /// What the client expected when it sent that byte.
    pub base_ack: SeqNumber,
    /// Right edge of the window that the client offers.
    pub snd_edge: SeqNumber,
    /// Latest TSval of the client.
    pub ts_val: u32,
    /// What the owner's time stamp clock says, as the client sees it.
    pub owner_ts: u32,
    /// Round-trip time of the handshake, in microseconds.
    pub rtt_us: u32,
    /// MSS that the service announced, in bytes.
    pub syn_ack_mss: u16,
    /// Next hop towards the client.
    pub client_mac: MacAddr,
    /// Whether the client has ended its side behind the input.
    pub fin: bool,
    /// What the client has said from `base` on.
    pub input: Vec<u8>,
}

impl Restore {
    /// The flow.
    pub const fn flow(&self) -> FlowId {
        self.record.id
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let start = reader.at();
        let record = FlowRecord::parse(reader.bytes(FlowRecord::LEN, "restore: record")?);
        let record = record.map_err(|error| ParseError {
            at: error.at + start,
            ..error
        })?;
        Ok(Self {
            record,
            base: reader.seq("restore: base")?,
            base_ack: reader.seq("restore: base_ack")?,
            snd_edge: reader.seq("restore: snd_edge")?,
            ts_val: reader.u32("restore: ts_val")?,
            owner_ts: reader.u32("restore: owner_ts")?,
            rtt_us: reader.u32("restore: rtt_us")?,
            syn_ack_mss: reader.u16("restore: syn_ack_mss")?,
            client_mac: MacAddr(reader.array("restore: client_mac")?),
            fin: parse_fin(reader)?,
            input: parse_input(reader)?,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        self.record.emit(out);
        for seq in [self.base, self.base_ack, self.snd_edge] {
            out.extend_from_slice(&seq.0.to_be_bytes());
        }
        for number in [self.ts_val, self.owner_ts, self.rtt_us] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.syn_ack_mss.to_be_bytes());
        out.extend_from_slice(&self.client_mac.0);
        out.push(u8::from(self.fin));
        emit_input(out, &self.input)
    }
}

/// The input is a client's: it is not printed.
impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restore")
            .field("record", &self.record)
            .field("base", &self.base)
            .field("base_ack", &self.base_ack)
            .field("fin", &self.fin)
            .field("input", &self.input.len())
            .finish_non_exhaustive()
    }
}

pub(crate) fn parse_fin(reader: &mut Reader<'_>) -> Result<bool, ParseError> {
    let at = reader.at();
    let fin = reader.u8("input: fin")?;
    verify(fin <= 1, "input: fin", at, fin)?;
    Ok(fin == 1)
}

/// The input is the rest of a message, and its length says so.
pub(crate) fn parse_input(reader: &mut Reader<'_>) -> Result<Vec<u8>, ParseError> {
    let at = reader.at();
    let length = reader.u32("input: length")?;
    let rest = reader.rest().len();
    let honest = rest <= MAX_INPUT_LEN && usize::try_from(length) == Ok(rest);
    verify(honest, "input: length", at, length)?;
    Ok(reader.bytes(rest, "input")?.to_vec())
}

pub(crate) fn emit_input(out: &mut Vec<u8>, input: &[u8]) -> Result<(), EmitError> {
    let length = u32::try_from(input.len())
        .ok()
        .filter(|_| input.len() <= MAX_INPUT_LEN)
        .ok_or(EmitError {
            what: "input: length",
            max: MAX_INPUT_LEN,
            got: input.len(),
        })?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(input);
    Ok(())
}
