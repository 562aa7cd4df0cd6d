//! Why there is no link to a peer, by name.

use std::fmt::{self, Display};

/// Why a link never began, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoLink {
    /// The peer is to dial, and has not.
    NotDialled,
    /// This node dials, and has not yet.
    Starting,
    /// Nothing listens there, or there is no way.
    Unreachable,
    /// It does not say what it should in time.
    NoAnswer,
    /// It ended the connection and did not say why.
    Closed,
    /// It speaks something else.
    Nonsense,
    /// It ended the connection before its first word, more than once.
    TurnedAway,
    /// The peer refuses the certificate of this node: it has ended, or not begun.
    OwnExpired,
    /// The peer refuses it: no authority of its has made it.
    OwnUnknownAuthority,
    /// The peer refuses it for another reason.
    OwnRefused,
    /// The certificate of this node is revoked.
    OwnRevoked,
    /// The certificate of the peer has ended.
    PeerExpired,
    /// It has not begun.
    PeerNotYetValid,
    /// No authority of this node's has made it.
    PeerUnknownAuthority,
    /// It is another node's.
    PeerOtherName,
    /// It can't be used for another reason.
    PeerRefused,
    /// It is revoked.
    PeerRevoked,
}

impl NoLink {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotDialled => "not_dialled",
            Self::Starting => "starting",
            Self::Unreachable => "unreachable",
            Self::NoAnswer => "no_answer",
            Self::Closed => "closed",
            Self::Nonsense => "nonsense",
            Self::TurnedAway => "turned_away",
            Self::OwnExpired => "own_expired",
            Self::OwnUnknownAuthority => "own_unknown_authority",
            Self::OwnRefused => "own_refused",
            Self::OwnRevoked => "own_revoked",
            Self::PeerExpired => "peer_expired",
            Self::PeerNotYetValid => "peer_not_yet_valid",
            Self::PeerUnknownAuthority => "peer_unknown_authority",
            Self::PeerOtherName => "peer_other_name",
            Self::PeerRefused => "peer_refused",
            Self::PeerRevoked => "peer_revoked",
        }
    }

    /// Whether one side refuses the certificate of the other.
    pub const fn is_refusal(self) -> bool {
        match self {
            Self::NotDialled
            | Self::Starting
            | Self::Unreachable
            | Self::NoAnswer
            | Self::Closed
            | Self::Nonsense => false,
            Self::TurnedAway
            | Self::OwnExpired
            | Self::OwnUnknownAuthority
            | Self::OwnRefused
            | Self::OwnRevoked
            | Self::PeerExpired
            | Self::PeerNotYetValid
            | Self::PeerUnknownAuthority
            | Self::PeerOtherName
            | Self::PeerRefused
            | Self::PeerRevoked => true,
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::NotDialled => "it is to dial this node, and has not",
            Self::Starting => "it has not been dialled yet",
            Self::Unreachable => "its control address can't be reached",
            Self::NoAnswer => "it does not answer",
            Self::Closed => "it has closed the connection; its status may say why",
            Self::Nonsense => "it does not speak as a peer",
            Self::TurnedAway => {
                "it closes each connection before its first word, as who holds our certificate \
                 for revoked does; its status says why"
            }
            Self::OwnExpired => {
                "the peer refuses our certificate: it has expired or is not valid yet, by the \
                 peer's clock"
            }
            Self::OwnUnknownAuthority => {
                "the peer refuses our certificate: no authority in its ca file has made it"
            }
            Self::OwnRefused => "the peer refuses our certificate",
            Self::OwnRevoked => "our certificate is revoked",
            Self::PeerExpired => "its certificate has expired",
            Self::PeerNotYetValid => "its certificate is not valid yet, by the clock of this node",
            Self::PeerUnknownAuthority => {
                "its certificate is of no authority in the ca file of this node"
            }
            Self::PeerOtherName => "its certificate is that of another node",
            Self::PeerRefused => "its certificate can't be used",
            Self::PeerRevoked => "its certificate is revoked",
        }
    }
}

/// A reason, and what there is to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// The reason.
    pub reason: NoLink,
    /// What the kernel or TLS says.
    pub(super) detail: Option<String>,
}

impl Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.sentence())?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl From<NoLink> for Absence {
    fn from(reason: NoLink) -> Self {
        Self {
            reason,
            detail: None,
        }
    }
}
