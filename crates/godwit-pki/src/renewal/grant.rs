//! Who is given a certificate: the holder of one that is good, for its own name and a new key.

use std::path::Path;

use godwit_wire::NodeName;
use rcgen::{
    CertificateSigningRequestParams, PKCS_ECDSA_P256_SHA256, PublicKey, PublicKeyData as _, SanType,
};

use super::wire::{Granted, Refused};
use crate::PkiError;
use crate::authority::Authority;
use crate::issue::{Life, sign};
use crate::parsed::Parsed;
use crate::record::{Entry, Record};
use crate::times::DAY;

/// Certificates that a node may be given in a day.
const A_DAY: usize = 6;

/// How far the begin of a certificate is before its making, for clocks that are behind.
const EARLY: i64 = DAY;

/// What a node has asked for, once TLS has believed its certificate.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// The certificate that it has shown.
    pub(super) shown: &'a [u8],
    /// Its request, PKCS #10 in DER; empty: the list only.
    pub(super) request: &'a [u8],
}

/// Why it gets nothing, and whose certificate it was.
#[derive(Debug)]
pub(super) struct NotGranted {
    pub(super) reason: Refused,
    pub(super) name: Option<NodeName>,
    /// What is wrong with the authority, for its operator.
    pub(super) error: Option<PkiError>,
}

impl NotGranted {
    fn because(reason: Refused, name: NodeName) -> Self {
        Self {
            reason,
            name: Some(name),
            error: None,
        }
    }

    /// The authority can't do it.
    fn can_t(name: NodeName) -> impl Fn(PkiError) -> Self {
        move |error| Self {
            error: Some(error),
            ..Self::because(Refused::Authority, name)
        }
    }
}

/// Decides, and does it: nobody else changes the authority's files meanwhile.
pub(super) fn grant(
    folder: &Path,
    days: u16,
    request: &Request<'_>,
    now: i64,
) -> Result<(NodeName, Option<Entry>, Granted), NotGranted> {
    let unnamed = NotGranted {
        reason: Refused::OtherName,
        name: None,
        error: None,
    };
    let shown = Parsed::of_der(request.shown);
    let Some((shown, name)) = shown.and_then(|it| it.node().map(|name| (it, name))) else {
        return Err(unnamed);
    };
    // Costs computing, and no file.
    let key = match request.request {
        [] => None,
        der => Some(new_key(der, &shown, name).map_err(|it| NotGranted::because(it, name))?),
    };
    let can_t = NotGranted::can_t(name);
    let authority = Authority::open(folder).map_err(&can_t)?;
    let mut record = authority.record().map_err(&can_t)?;
    judge(&mut record, &shown, name).map_err(|it| NotGranted::because(it, name))?;
    let mut entry = None;
    let mut certificate = String::new();
    if let Some(key) = key {
        if given_lately(&record, name, now) >= A_DAY {
            return Err(NotGranted::because(Refused::TooOften, name));
        }
        let (ends, _) = authority.end_of(Life::AtMost(days), now).map_err(&can_t)?;
        certificate = sign(&authority, name, &key, (Some(now - EARLY), ends)).map_err(&can_t)?;
        let made = Parsed::read(&certificate, folder).map_err(&can_t)?;
        let made = Entry {
            serial: made.serial,
            name: Some(name),
            issued: Some(now),
            ends,
            revoked: None,
        };
        // Before anybody has it: what is in no record can't be revoked by name.
        record.entries.push(made.clone());
        record.write().map_err(&can_t)?;
        entry = Some(made);
    }
    let list = authority.list().map_err(&can_t)?.unwrap_or_default();
    Ok((name, entry, Granted { certificate, list }))
}

/// The key of a request that is as it must be.
fn new_key(der: &[u8], shown: &Parsed, name: NodeName) -> Result<PublicKey, Refused> {
    let parsed = CertificateSigningRequestParams::from_der(&der.into());
    let parsed = parsed.map_err(|_| Refused::Malformed)?;
    let is_for_it = match &parsed.params.subject_alt_names[..] {
        [SanType::DnsName(asked)] => asked.as_str() == name.as_str(),
        [] | [_, ..] => false,
    };
    let key = parsed.public_key;
    if !is_for_it {
        Err(Refused::OtherName)
    } else if key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
        Err(Refused::KeyKind)
    } else if key.subject_public_key_info() == shown.public_key {
        Err(Refused::SameKey)
    } else {
        Ok(key)
    }
}

/// Whether the record has what was shown, and it is good.
fn judge(record: &mut Record, shown: &Parsed, name: NodeName) -> Result<(), Refused> {
    match record.find(&shown.serial) {
        None => Err(Refused::Unknown),
        Some(entry) if entry.revoked.is_some() => Err(Refused::Revoked),
        Some(entry) if entry.name != Some(name) => Err(Refused::Unknown),
        Some(_) => Ok(()),
    }
}

/// By the record, so that a restart of this program forgets nothing.
fn given_lately(record: &Record, name: NodeName, now: i64) -> usize {
    let of_it = record.entries.iter().filter(|it| it.name == Some(name));
    of_it
        .filter(|it| it.issued.is_some_and(|it| it > now - DAY))
        .count()
}
