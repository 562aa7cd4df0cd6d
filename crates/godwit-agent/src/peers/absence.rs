//! Why there is no link to a peer, as `status` says it: the last reason, by name.
//!
//! A peer that refuses a certificate is told apart from one that is not there. What comes from
//! the address of a peer and proves nothing is held to be its: who is let in depends on
//! none of this, and no reason is noted while there is a link.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::io;
use std::net::IpAddr;

use godwit_core::PeerId;
use rustls::{AlertDescription, CertificateError, Error};

use super::link::LinkError;
use super::{Shared, lock};

/// The event that a side has refused the certificate of the other one.
const REFUSED: &str = "link_refused";

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
            Self::OwnExpired
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
    detail: Option<String>,
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

/// What is remembered of one peer.
#[derive(Debug, Default)]
pub(super) struct Absences {
    last: Option<Absence>,
    /// Refusals that were told since the last link.
    told: BTreeSet<NoLink>,
}

impl Absence {
    /// `None` if that says nothing of the peer.
    pub(super) fn of(error: &LinkError) -> Option<Self> {
        Some(match error {
            LinkError::Unreachable(source) => Self {
                reason: NoLink::Unreachable,
                detail: Some(source.to_string()),
            },
            LinkError::Io(source) => match of_tls(source) {
                Some(error) => Self::of_handshake(error),
                None => NoLink::Closed.into(),
            },
            LinkError::Timeout => NoLink::NoAnswer.into(),
            LinkError::Closed => NoLink::Closed.into(),
            LinkError::Stranger | LinkError::WrongName { .. } => NoLink::PeerOtherName.into(),
            LinkError::Revoked { .. } => NoLink::PeerRevoked.into(),
            LinkError::OwnRevoked { .. } => NoLink::OwnRevoked.into(),
            LinkError::NoHello { .. } | LinkError::Parse(_) => NoLink::Nonsense.into(),
            LinkError::Dropped
            | LinkError::PushedOut
            | LinkError::Emit(_)
            | LinkError::Driver(_) => return None,
        })
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "rustls may add variants, and has many that say no more to people"
    )]
    fn of_handshake(error: &Error) -> Self {
        let (reason, detail) = match error {
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateExpired => (NoLink::OwnExpired, None),
                AlertDescription::UnknownCA => (NoLink::OwnUnknownAuthority, None),
                AlertDescription::CertificateRevoked => (NoLink::OwnRevoked, None),
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::NoCertificate
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError => {
                    (NoLink::OwnRefused, Some(format!("{alert:?}")))
                }
                _ => (NoLink::Nonsense, Some(format!("{alert:?}"))),
            },
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    (NoLink::PeerExpired, None)
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    (NoLink::PeerNotYetValid, None)
                }
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    (NoLink::PeerUnknownAuthority, None)
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => (NoLink::PeerOtherName, None),
                other => (NoLink::PeerRefused, Some(other.to_string())),
            },
            Error::NoCertificatesPresented => {
                (NoLink::PeerRefused, Some("it has shown none".to_owned()))
            }
            _ => (NoLink::Nonsense, None),
        };
        Self { reason, detail }
    }
}

/// What TLS says, if it is TLS that ended the connection.
pub(super) fn of_tls(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

impl Shared {
    /// Notes why there is no link to a peer.
    pub(super) fn note_absence(&self, peer: PeerId, error: &LinkError) {
        let (Some(slot), Some(absence)) = (self.slot(peer), Absence::of(error)) else {
            return;
        };
        let mut absences = lock(&slot.absences);
        let reason = absence.reason;
        if reason.is_refusal() && absences.told.insert(reason) {
            let (name, found) = (slot.peer.name.to_string(), absence.to_string());
            let fields = [
                ("peer", name.as_str()),
                ("reason", reason.as_str()),
                ("found", &found),
            ];
            self.events.publish_own(REFUSED, true, fields);
        }
        absences.last = Some(absence);
    }

    /// The same of what comes from an address: the one peer that dials from there.
    pub(super) fn note_absence_at(&self, from: IpAddr, error: &LinkError) {
        let is_refusal = Absence::of(error).is_some_and(|it| it.reason.is_refusal());
        let peers = (0..).map(PeerId).zip(&self.slots);
        let mut there = peers.filter(|(_, slot)| {
            let address = slot.peer.control.ip().to_canonical();
            address == from.to_canonical() && !self.dials(slot.peer.name)
        });
        if let (true, Some((peer, slot)), None) = (is_refusal, there.next(), there.next())
            && lock(&slot.outbox).is_none()
        {
            self.note_absence(peer, error);
        }
    }

    /// There is a link now.
    pub(super) fn forget_absence(&self, peer: PeerId) {
        if let Some(slot) = self.slot(peer) {
            *lock(&slot.absences) = Absences::default();
        }
    }

    /// Why there is no link to a peer, as far as that is known.
    pub(super) fn absence(&self, peer: PeerId) -> Option<Absence> {
        let slot = self.slot(peer)?;
        let last = lock(&slot.absences).last.clone();
        let nothing = if self.dials(slot.peer.name) {
            NoLink::Starting
        } else {
            NoLink::NotDialled
        };
        Some(last.unwrap_or_else(|| nothing.into()))
    }
}
