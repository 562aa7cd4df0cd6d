//! Certificates of nodes.

use std::path::Path;
use std::time::SystemTime;

use godwit_wire::NodeName;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose, PublicKeyData};

use crate::authority::{Authority, certificate};
use crate::error::PkiError;
use crate::key::Key;
use crate::parsed::Parsed;
use crate::record::{Entry, Record};
use crate::times::{self, DAY};
use crate::{CA_CERT, CRL, MOST_DAYS, NODE_CERT, NODE_KEY, USUAL_DAYS, files};

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// Whose certificate.
    pub name: NodeName,
    /// The folder for the node's files.
    pub out: &'a Path,
    /// How long it is valid.
    pub life: Life,
    /// If the certificate that is there is valid for so many days, it stays.
    pub unless_valid_for: Option<u16>,
}

/// How long a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// [`USUAL_DAYS`], or as long as the authority.
    Usual,
    /// So many days, from 1 to [`MOST_DAYS`].
    Days(u16),
    /// So many days, or as long as the authority.
    AtMost(u16),
    /// To that second, whatever it is: for tests.
    Until(SystemTime),
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Issued {
    /// There is a new certificate.
    Made {
        /// How it stands in the record.
        entry: Entry,
        /// Whole days that it is valid for.
        days: i64,
        /// Whether it ends with its authority, sooner than usual.
        is_cut: bool,
    },
    /// The one that is there stays.
    Kept {
        /// Whole days that it is valid for.
        days: i64,
    },
}

/// Makes a node's certificate: `node.pem`, `node.key` (mode 0600) and copies of `ca.pem`
/// and `crl.pem` in `order.out`, signed by the authority in `folder`. Replaces what this node
/// has there.
///
/// # Errors
/// If there is no authority in `folder`, if `order.out` has the certificate of another node, if the certificate would outlive it, or if a file
/// can't be read or written.
pub fn issue(folder: &Path, order: &Order<'_>) -> Result<Issued, PkiError> {
    let authority = Authority::open(folder)?;
    let mut record = authority.record()?;
    let now = times::now();
    must_be_its_own(order)?;
    if let Some(wanted) = order.unless_valid_for
        && let Some(days) = present(&authority, &mut record, order, now)
        && days >= i64::from(wanted)
    {
        copy_list(&authority, order.out)?;
        return Ok(Issued::Kept { days });
    }
    let (ends, is_cut) = authority.end_of(order.life, now)?;
    let key = Key::generate()?;
    let pem = sign(&authority, order.name, &key, (None, ends))?;
    let node_cert = order.out.join(NODE_CERT);
    let made = Parsed::read(&pem, &node_cert)?;
    let entry = Entry {
        serial: made.serial,
        name: Some(order.name),
        issued: Some(now),
        ends,
        revoked: None,
    };
    // Before it exists: what is in no record can't be revoked by name.
    record.entries.push(entry.clone());
    record.write()?;
    files::create_folder(order.out, 0o755)?;
    files::write(&order.out.join(NODE_KEY), &key.pem(), 0o600)?;
    files::write(&node_cert, &pem, 0o644)?;
    files::write(&order.out.join(CA_CERT), &authority.pem, 0o644)?;
    copy_list(&authority, order.out)?;
    let days = (ends - now).div_euclid(DAY);
    Ok(Issued::Made {
        entry,
        days,
        is_cut,
    })
}

impl Authority {
    /// The last second of a new certificate, and whether it is the authority's.
    pub(crate) fn end_of(&self, life: Life, now: i64) -> Result<(i64, bool), PkiError> {
        let left = (self.own.not_after - now).div_euclid(DAY);
        let (days, may_be_cut) = match life {
            Life::Until(end) => return Ok((times::of(end), false)),
            Life::Usual => (USUAL_DAYS, true),
            Life::Days(days) | Life::AtMost(days) if !(1..=MOST_DAYS).contains(&days) => {
                return Err(PkiError::Days { days });
            }
            Life::Days(days) => (days, false),
            Life::AtMost(days) => (days, true),
        };
        let path = self.certificate();
        let end = now + i64::from(days) * DAY;
        if now > self.own.not_after {
            Err(PkiError::AuthorityEnded { path })
        } else if end <= self.own.not_after {
            Ok((end, false))
        } else if may_be_cut {
            Ok((self.own.not_after, true))
        } else {
            Err(PkiError::BeyondAuthority { path, left })
        }
    }
}

/// A certificate for a node's key. Without a begin it is valid at once, also where a clock is
/// far behind: its begin stays that of rcgen.
pub(crate) fn sign(
    authority: &Authority,
    name: NodeName,
    key: &impl PublicKeyData,
    (begins, ends): (Option<i64>, i64),
) -> Result<String, PkiError> {
    let mut params = CertificateParams::new([name.to_string()])
        .map_err(certificate("putting the node's name into a certificate"))?;
    params
        .distinguished_name
        .push(DnType::CommonName, name.to_string());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    if let Some(begins) = begins {
        params.not_before = times::date(begins);
    }
    params.not_after = times::date(ends);
    let signed = params.signed_by(key, &authority.issuer);
    let signed = signed.map_err(certificate("signing the node's certificate"))?;
    Ok(signed.pem())
}

/// Two nodes in one folder would have one of them without its key.
fn must_be_its_own(order: &Order<'_>) -> Result<(), PkiError> {
    let path = order.out.join(NODE_CERT);
    let found = files::read(&path).ok();
    let found = found.and_then(|text| Parsed::read(&text, &path).ok());
    match found {
        Some(found) if !found.is_of(order.name) => Err(PkiError::OtherNode {
            path: order.out.to_owned(),
            name: found.names.join(", "),
        }),
        Some(_) | None => Ok(()),
    }
}

/// The days that are left of the certificate that is there, if it can be used. No node starts
/// with a key that others can read.
fn present(authority: &Authority, record: &mut Record, order: &Order<'_>, now: i64) -> Option<i64> {
    let text = |name: &str| files::read(&order.out.join(name)).ok();
    let found = Parsed::read(&text(NODE_CERT)?, order.out).ok()?;
    let key = Key::read(&order.out.join(NODE_KEY), "reading the node's key").ok()?;
    let is_exposed = files::exposed(&order.out.join(NODE_KEY)).ok()?.is_some();
    let is_usable = !is_exposed
        && found.is_of(order.name)
        && found.issuer == authority.own.subject
        && found.public_key == key.subject_public_key_info()
        && text(CA_CERT)? == authority.pem
        && record
            .find(&found.serial)
            .is_none_or(|entry| entry.revoked.is_none());
    is_usable.then_some((found.not_after - now).div_euclid(DAY))
}

/// A node begins with the list of today.
fn copy_list(authority: &Authority, out: &Path) -> Result<(), PkiError> {
    let path = out.join(CRL);
    match authority.list()? {
        Some(list) if files::read(&path).ok().as_ref() != Some(&list) => {
            files::write(&path, &list, 0o644)
        }
        Some(_) | None => Ok(()),
    }
}
