//! Where a client's connection stands, as its own program knows it.

use std::fmt;

/// What a client waits for, or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// Nothing.
    Idle,
    /// For the end of the handshake.
    Syn,
    /// It sends, or has sent and no byte of an answer has come.
    Request,
    /// For the rest of an answer.
    Response,
    /// It reads nothing, and its window is shut.
    ZeroWindow,
    /// For the other side's end, after its own.
    Fin,
}

impl Phase {
    /// All that a fault can hit.
    pub(super) const BUSY: [Self; 5] = [
        Self::Syn,
        Self::Request,
        Self::Response,
        Self::Fin,
        Self::ZeroWindow,
    ];

    pub(super) const fn from_u8(number: u8) -> Self {
        match number {
            1 => Self::Syn,
            2 => Self::Request,
            3 => Self::Response,
            4 => Self::ZeroWindow,
            5 => Self::Fin,
            _ => Self::Idle,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Syn => "SYN",
            Self::Request => "mid-request",
            Self::Response => "mid-response",
            Self::ZeroWindow => "zero window",
            Self::Fin => "FIN",
        })
    }
}
