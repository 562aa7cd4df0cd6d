//! Why there is no link to a peer, as `status` says it: the last reason, by name.
//!
//! A peer that refuses a certificate is told apart from one that is not there. What comes from
//! the address of a peer and proves nothing is held to be its: who is let in depends on
//! none of this, and no reason is noted while there is a link.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use godwit_core::PeerId;
use rustls::{AlertDescription, CertificateError, Error};

use super::Shared;
use super::link::LinkError;
use super::no_link::{Absence, NoLink};
use crate::locks::lock;

/// The event that a side has refused the certificate of the other one.
const REFUSED: &str = "link_refused";

/// What is remembered of one peer.
#[derive(Debug, Default)]
pub(super) struct Absences {
    last: Option<Absence>,
    /// Its last connection it closed before its first word.
    is_turned_away: bool,
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
            LinkError::TurnedAway => NoLink::TurnedAway.into(),
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
        let (Some(slot), Some(mut absence)) = (self.slot(peer), Absence::of(error)) else {
            return;
        };
        let mut absences = lock(&slot.absences);
        // Once it may have ended just then; twice in a row it refuses this node.
        let is_turned_away = absence.reason == NoLink::TurnedAway;
        if is_turned_away && !absences.is_turned_away {
            absence.reason = NoLink::Closed;
        }
        absences.is_turned_away = is_turned_away;
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
