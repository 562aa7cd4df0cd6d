//! The two ways a format can fail: bytes that are not it, values too large for it.

/// Bytes that are not what they should be.
///
/// Says which field, where and what stood there, so that a capture can be
/// compared with the table in `docs/protocol.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}: got {got}")]
pub struct ParseError {
    /// The expectation that failed, for example `heartbeat: magic`.
    pub what: &'static str,
    /// Offset of the field from the start of the buffer, in bytes.
    pub at: usize,
    /// The value found; for a buffer that is too short, the bytes it had left.
    pub got: u64,
}

/// A value that its format has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {got} is more than {max}")]
pub struct EmitError {
    /// The field, for example `heartbeat: shares`.
    pub what: &'static str,
    /// The most that the format allows.
    pub max: usize,
    /// What was asked for.
    pub got: usize,
}
