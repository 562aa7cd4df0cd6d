//! `gw_log`: what clients have said to flows since their logs began.

use godwit_wire::{FlowId, SeqNumber};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::{gw_log_mode as Mode, gw_log_state as State};

/// Chunks of all logs together (`GW_LOG_CHUNKS` in gw_log.h).
pub const LOG_CHUNKS: u32 = 131_072;

/// Bytes of one of them.
pub const LOG_CHUNK: u32 = 400;

const CHUNK: usize = size_of::<types::gw_log_chunk>();
const _: () = assert!(CHUNK == LOG_CHUNK as usize);

/// Where the log of a flow begins (`enum gw_log_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogMode {
    /// No log is kept.
    #[default]
    Off,
    /// With the connection.
    Connection,
    /// With the latest request.
    Request,
    /// Anywhere: the latest of what was said is kept.
    Latest,
}

impl LogMode {
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Off => Mode::GW_LOG_MODE_OFF.0,
            Self::Connection => Mode::GW_LOG_MODE_CONNECTION.0,
            Self::Request => Mode::GW_LOG_MODE_REQUEST.0,
            Self::Latest => Mode::GW_LOG_MODE_LATEST.0,
        }
    }

    /// A number of a later version keeps no log.
    pub(crate) const fn from_number(number: u32) -> Self {
        match Mode(number) {
            Mode::GW_LOG_MODE_CONNECTION => Self::Connection,
            Mode::GW_LOG_MODE_REQUEST => Self::Request,
            Mode::GW_LOG_MODE_LATEST => Self::Latest,
            _ => Self::Off,
        }
    }
}

/// What became of a log (`enum gw_log_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// It was never begun.
    None,
    /// It is whole as far as it reaches.
    Kept,
    /// There was more input than its cap allows, or a gap that is longer.
    Over,
    /// There was no memory for it, or a segment could not be read.
    Failed,
    /// The client has sent urgent data.
    Urgent,
    /// It begins where a request may begin; the service's next output tells.
    Begun,
}

/// The log of one flow, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowLog {
    /// What became of it.
    pub state: LogState,
    /// Sequence number of its first byte.
    pub base: SeqNumber,
    /// What the client expected there.
    pub base_ack: SeqNumber,
    /// It has all before this.
    pub end: SeqNumber,
    /// What the service has said since it began, in bytes.
    pub answered: u64,
    /// End of what may be in a chunk.
    top: SeqNumber,
    /// Where chunks are counted from: [`FlowState::birth`](crate::FlowState::birth).
    birth: SeqNumber,
}

impl FlowLog {
    /// Whether what was read of this log from `from` on is in `later`, too: that is
    /// the same log, as it is now, and not one that was begun anew and ends earlier.
    pub fn goes_on_as(&self, later: &Self, from: SeqNumber) -> bool {
        later.state == self.state && later.base.le(from) && later.end.ge(self.end)
    }

    /// Whether something is in it.
    pub fn is_begun(&self) -> bool {
        self.state == LogState::Kept && self.base != self.end
    }

    /// How many chunks it has at most.
    pub fn chunks(&self) -> u32 {
        match self.top.checked_distance(self.base) {
            None | Some(0) => 0,
            // The first and the last are not whole.
            Some(bytes) => bytes / LOG_CHUNK + 2,
        }
    }

    pub(super) fn new(raw: &types::gw_flow) -> Self {
        Self {
            state: match State(u32::from(raw.log.state)) {
                State::GW_LOG_KEPT => LogState::Kept,
                State::GW_LOG_OVER => LogState::Over,
                State::GW_LOG_FAILED => LogState::Failed,
                State::GW_LOG_URGENT => LogState::Urgent,
                State::GW_LOG_BEGUN => LogState::Begun,
                _ => LogState::None,
            },
            base: SeqNumber(raw.log.base),
            base_ack: SeqNumber(raw.log.base_ack),
            end: SeqNumber(raw.log.end),
            answered: raw.bytes_out.saturating_sub(raw.log.bytes_out),
            top: SeqNumber(raw.log.top),
            birth: SeqNumber(raw.birth),
        }
    }
}

/// Typed access to `gw_log`.
#[derive(Debug)]
pub struct LogTable(TypedMap<types::gw_log_key, types::gw_log_chunk>);

impl LogTable {
    pub(crate) fn new(handle: MapHandle) -> Self {
        Self(TypedMap::new(handle, "gw_log"))
    }

    /// The bytes of a flow's log from `from` on. `None` if some are gone: the
    /// log was given up, begun anew or slid on since `log` was read.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn read(
        &self,
        flow: FlowId,
        log: FlowLog,
        from: SeqNumber,
    ) -> Result<Option<Vec<u8>>, MapError> {
        if from.lt(log.base) {
            return Ok(None);
        }
        let mut left = log.end.checked_distance(from).unwrap_or(0);
        // Sequence numbers come round, and with them chunks: the last one is short.
        let mut at = from.0.wrapping_sub(log.birth.0);
        let mut bytes = Vec::new();
        while left > 0 {
            let Some(chunk) = self.chunk(flow, at / chunk_len())? else {
                return Ok(None);
            };
            let inside = at % chunk_len();
            let len = (chunk_len() - inside)
                .min(left)
                .min((u32::MAX - at).saturating_add(1));
            let part = inside as usize..(inside + len) as usize;
            bytes.extend_from_slice(chunk.bytes.get(part).unwrap_or_default());
            at = at.wrapping_add(len);
            left -= len;
        }
        Ok(Some(bytes))
    }

    fn chunk(&self, flow: FlowId, chunk: u32) -> Result<Option<types::gw_log_chunk>, MapError> {
        self.0.lookup(&types::gw_log_key {
            flow: flow.key.into(),
            irs: flow.irs.0,
            chunk,
        })
    }

    /// How many chunks there are, of all flows.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn chunks(&self) -> Result<usize, MapError> {
        Ok(self.0.keys()?.len())
    }
}

fn chunk_len() -> u32 {
    u32::try_from(CHUNK).expect("below 1 KiB")
}
