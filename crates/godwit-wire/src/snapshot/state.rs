//! The states of a connection that can be moved.

use core::fmt;

use crate::ParseError;
use crate::cursor::Reader;

/// A state of RFC 9293 section 3.3.2; the numbers are Linux's
/// (`include/net/tcp_states.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TcpState {
    /// Both ways open.
    Established = 1,
    /// Our FIN is queued or sent, and not acknowledged.
    FinWait1 = 4,
    /// Our FIN is acknowledged.
    FinWait2 = 5,
    /// The client's FIN is received.
    CloseWait = 8,
    /// The client's FIN is received, ours not acknowledged.
    LastAck = 9,
    /// As [`LastAck`](Self::LastAck); ours was first.
    Closing = 11,
}

impl TcpState {
    /// Every one of them.
    pub const ALL: [Self; 6] = [
        Self::Established,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::LastAck,
        Self::Closing,
    ];

    /// The state with the kernel's number, if it can be moved.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }

    /// Whether our side has ended its stream.
    #[must_use]
    pub const fn has_own_fin(self) -> bool {
        match self {
            Self::FinWait1 | Self::FinWait2 | Self::LastAck | Self::Closing => true,
            Self::Established | Self::CloseWait => false,
        }
    }

    /// Whether the client has ended its stream.
    #[must_use]
    pub const fn has_peer_fin(self) -> bool {
        match self {
            Self::CloseWait | Self::LastAck | Self::Closing => true,
            Self::Established | Self::FinWait1 | Self::FinWait2 => false,
        }
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        const WHAT: &str = "socket: state";
        let at = reader.at();
        let got = reader.u8(WHAT)?;
        Self::from_number(got).ok_or_else(|| ParseError {
            what: WHAT,
            at,
            got: got.into(),
        })
    }
}

impl fmt::Display for TcpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::LastAck => "LAST-ACK",
            Self::Closing => "CLOSING",
        })
    }
}
