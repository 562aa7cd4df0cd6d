//! Certificates that end before their time, and the list that says so (RFC 5280 section 5).

use std::path::{Path, PathBuf};

use godwit_wire::NodeName;
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};

use crate::authority::{Authority, certificate};
use crate::error::PkiError;
use crate::parsed::{Parsed, ParsedList};
use crate::record::{Entry, Record, Serial};
use crate::times::{self, DAY};
use crate::{MOST_DAYS, files};

/// Which certificates.
#[derive(Debug, Clone)]
pub enum Which {
    /// All that a node has had until now.
    Name(NodeName),
    /// The one in a file, also if it is in no record.
    Certificate(PathBuf),
    /// The one of the record with that number.
    Serial(Serial),
}

/// Revokes certificates: notes it in the record, and writes the list `crl.pem` beside the
/// authority. What was revoked before stays so, by the record or by the list that is there, and
/// the list is written anew.
///
/// # Errors
/// If the authority has issued no such certificate, if the record is older than the list, or a
/// file can't be read or written.
pub fn revoke(folder: &Path, which: &Which) -> Result<Vec<Entry>, PkiError> {
    let authority = Authority::open(folder)?;
    let mut record = authority.record()?;
    let now = times::now();
    take_over(&authority, &mut record)?;
    if let Which::Certificate(path) = which {
        take_in(&authority, &mut record, path)?;
    }
    let wanted = wanted(which)?;
    let mut revoked = Vec::new();
    for entry in record.entries.iter_mut().filter(|it| wanted.fits(it)) {
        entry.revoked.get_or_insert(now);
        revoked.push(entry.clone());
    }
    if revoked.is_empty() {
        return Err(PkiError::Unknown {
            record: record.path,
            which: wanted.to_string(),
        });
    }
    write_list(&authority, &mut record)?;
    Ok(revoked)
}

/// Has in the record what the list that is there has revoked: the record may have been lost.
/// An older copy of it would not know certificates by their names, so that is refused.
fn take_over(authority: &Authority, record: &mut Record) -> Result<(), PkiError> {
    let Some(text) = authority.list()? else {
        return Ok(());
    };
    let path = authority.list_path();
    let list = ParsedList::read(&text).filter(|it| it.issuer == authority.own.subject);
    let list = list.ok_or_else(|| PkiError::Content {
        path: path.clone(),
        wanted: "this authority's list of revoked certificates, or none at all,",
    })?;
    let (there, known) = (list.number, record.list.unwrap_or(list.number));
    if there > known {
        return Err(PkiError::OldRecord {
            record: record.path.clone(),
            list: path,
            known,
            there,
        });
    }
    record.list = Some(known);
    for (serial, since) in list.revoked {
        if let Some(entry) = record.find(&serial) {
            entry.revoked.get_or_insert(since);
            continue;
        }
        record.entries.push(Entry {
            serial,
            name: None,
            issued: None,
            // No certificate outlives its authority.
            ends: authority.own.not_after,
            revoked: Some(since),
        });
    }
    Ok(())
}

/// What entries of the record are looked for by.
#[derive(Debug)]
enum Wanted {
    Name(NodeName),
    Serial(Serial),
}

impl Wanted {
    fn fits(&self, entry: &Entry) -> bool {
        match self {
            Self::Name(name) => entry.name == Some(*name),
            Self::Serial(serial) => entry.serial == *serial,
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(f, "\"{name}\""),
            Self::Serial(serial) => write!(f, "number {serial}"),
        }
    }
}

fn wanted(which: &Which) -> Result<Wanted, PkiError> {
    Ok(match which {
        Which::Name(name) => Wanted::Name(*name),
        Which::Serial(serial) => Wanted::Serial(serial.clone()),
        Which::Certificate(path) => Wanted::Serial(Parsed::read(&files::read(path)?, path)?.serial),
    })
}

/// Has a certificate of before there was a record in it.
fn take_in(authority: &Authority, record: &mut Record, path: &Path) -> Result<(), PkiError> {
    let found = Parsed::read(&files::read(path)?, path)?;
    if found.issuer != authority.own.subject {
        return Err(PkiError::NotIssuedHere {
            path: path.to_owned(),
            authority: authority.certificate(),
        });
    }
    if found.public_key == authority.own.public_key {
        return Err(PkiError::OwnCertificate {
            path: path.to_owned(),
        });
    }
    if record.find(&found.serial).is_none() {
        let name = found.names.iter().find_map(|it| NodeName::new(it).ok());
        record.entries.push(Entry {
            serial: found.serial,
            name,
            issued: None,
            ends: found.not_after,
            revoked: None,
        });
    }
    Ok(())
}

/// Writes record and list, with a number above that of the list before: the time, so that it
/// grows even if both were lost. What is in the record comes onto the next list, if this one
/// can't be written.
pub(crate) fn write_list(authority: &Authority, record: &mut Record) -> Result<(), PkiError> {
    let now = times::now();
    let number = record.list.map_or(0, |number| number.saturating_add(1));
    let number = number.max(u64::try_from(now).unwrap_or(0));
    record.list = Some(number);
    record.write()?;
    let revoked = record.entries.iter().filter_map(|entry| {
        Some(RevokedCertParams {
            serial_number: SerialNumber::from_slice(entry.serial.bytes()),
            revocation_time: times::date(entry.revoked?),
            reason_code: None,
            invalidity_date: None,
        })
    });
    let params = CertificateRevocationListParams {
        this_update: times::date(now),
        next_update: times::date(now + i64::from(MOST_DAYS) * DAY),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let text = params
        .signed_by(&authority.issuer)
        .and_then(|list| list.pem())
        .map_err(certificate("signing the list of revoked certificates"))?;
    files::write_beside(&authority.list_path(), &text, 0o644)
}
