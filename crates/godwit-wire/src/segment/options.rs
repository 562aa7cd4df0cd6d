//! TCP options: the ones that a flow is negotiated with.

use alloc::vec::Vec;

use crate::ParseError;
use crate::cursor::Reader;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAX_SEGMENT_SIZE: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const TIME_STAMPS: u8 = 8;

/// The time stamps option (RFC 7323 §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeStamps {
    /// The sender's clock (TSval).
    pub ts_val: u32,
    /// The receiver's clock as last heard (TSecr).
    pub ts_ecr: u32,
}

/// Options of a segment; what is not set is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size, on a SYN.
    pub mss: Option<u16>,
    /// Shift of the sender's windows, on a SYN (RFC 7323 §2.2).
    pub wscale: Option<u8>,
    /// Selective acknowledgements are welcome, on a SYN (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Time stamps.
    pub time_stamps: Option<TimeStamps>,
}

impl TcpOptions {
    /// All options together, in bytes.
    pub(super) const MAX_LEN: usize = 4 + 4 + 4 + 12;

    /// Reads the options of a header. A later one replaces an earlier of its kind.
    ///
    /// # Errors
    /// If one of them is longer than what there is, or shorter than its header.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut options = Self::default();
        let mut reader = Reader::new(bytes);
        while !reader.rest().is_empty() {
            let at = reader.at();
            match reader.u8("tcp option: kind")? {
                END => break,
                NO_OPERATION => {}
                kind => {
                    let len = reader.u8("tcp option: length")?;
                    let body = usize::from(len).checked_sub(2).ok_or_else(|| ParseError {
                        what: "tcp option: length",
                        at: at + 1,
                        got: u64::from(len),
                    })?;
                    options.take(kind, reader.bytes(body, "tcp option: body")?);
                }
            }
        }
        Ok(options)
    }

    /// One of another length than it must have is skipped, as Linux does.
    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (MAX_SEGMENT_SIZE, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            (WINDOW_SCALE, &[shift]) => self.wscale = Some(shift),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIME_STAMPS, &[a, b, c, d, e, f, g, h]) => {
                self.time_stamps = Some(TimeStamps {
                    ts_val: u32::from_be_bytes([a, b, c, d]),
                    ts_ecr: u32::from_be_bytes([e, f, g, h]),
                });
            }
            _ => {}
        }
    }

    /// The options in the order of Linux, each aligned to 4 bytes.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::MAX_LEN);
        if let Some(mss) = self.mss {
            out.extend_from_slice(&[MAX_SEGMENT_SIZE, 4]);
            out.extend_from_slice(&mss.to_be_bytes());
        }
        match (self.sack_permitted, self.time_stamps) {
            (true, Some(_)) => out.extend_from_slice(&[SACK_PERMITTED, 2]),
            (true, None) => {
                out.extend_from_slice(&[NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]);
            }
            (false, Some(_)) => out.extend_from_slice(&[NO_OPERATION, NO_OPERATION]),
            (false, None) => {}
        }
        if let Some(stamps) = self.time_stamps {
            out.extend_from_slice(&[TIME_STAMPS, 10]);
            out.extend_from_slice(&stamps.ts_val.to_be_bytes());
            out.extend_from_slice(&stamps.ts_ecr.to_be_bytes());
        }
        if let Some(shift) = self.wscale {
            out.extend_from_slice(&[NO_OPERATION, WINDOW_SCALE, 3, shift]);
        }
        out
    }
}
