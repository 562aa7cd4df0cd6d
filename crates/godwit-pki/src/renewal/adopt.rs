//! A node's files: read, checked, and replaced so that an agent never has half of them.
//!
//! Key and certificate are two files, so for a moment the one does not fit the other. An agent
//! that follows them keeps what it has meanwhile. Both are on the disk under other names before
//! the first is renamed. A crash before that leaves the old pair, and a crash after it the new
//! key with the old certificate: then the next run has only to rename the new certificate.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use godwit_wire::NodeName;
use rcgen::PublicKeyData as _;
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::error::PkiError;
use crate::files::{self, Lock, Owner};
use crate::key::Key;
use crate::parsed::{Parsed, ParsedList};
use crate::{CA_CERT, CRL, NODE_CERT, NODE_KEY};

/// The new key before it is in its place.
const NEXT_KEY: &str = ".node.key.next";
/// The new certificate before it is in its place.
const NEXT_CERT: &str = ".node.pem.next";

/// The last line of a list.
const END: &str = "-----END X509 CRL-----\n";

/// A node's folder; no other `renew` changes it meanwhile.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: Lock,
}

/// What is there, and fits together.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) name: NodeName,
    pub(super) key: Key,
    pub(super) cert: Parsed,
    pub(super) cert_pem: String,
    pub(super) authorities: String,
    pub(super) list: Option<String>,
}

impl Folder {
    /// Waits for whoever changes it, and ends what a crash has left half done.
    pub(super) fn open(path: &Path) -> Result<Self, PkiError> {
        let lock = Lock::take_folder(path)?;
        let this = Self {
            path: path.to_owned(),
            _lock: lock,
        };
        this.repair()?;
        Ok(this)
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The new certificate takes its place if its key has done so; what else was begun is
    /// forgotten.
    fn repair(&self) -> Result<(), PkiError> {
        if let Some(next) = files::read_if_there(&self.at(NEXT_CERT))?
            && let Ok(next) = Parsed::read(&next, &self.at(NEXT_CERT))
            && let Ok(key) = self.key()
            && next.public_key == key.subject_public_key_info()
        {
            self.rename(NEXT_CERT, NODE_CERT)?;
        }
        self.forget(NEXT_CERT)?;
        self.forget(NEXT_KEY)?;
        self.sync()
    }

    /// Reads key, certificate, authorities and list.
    pub(super) fn read(&self) -> Result<Present, PkiError> {
        let path = self.at(NODE_CERT);
        let cert_pem = files::read(&path)?;
        let cert = Parsed::read(&cert_pem, &path)?;
        let name = cert.node().ok_or_else(|| PkiError::Content {
            path: path.clone(),
            wanted: "a certificate with one name, a node's,",
        })?;
        let key = self.key()?;
        if key.subject_public_key_info() != cert.public_key {
            let key = self.at(NODE_KEY);
            return Err(PkiError::OtherKey { key, cert: path });
        }
        Ok(Present {
            name,
            key,
            cert,
            cert_pem,
            authorities: files::read(&self.at(CA_CERT))?,
            list: files::read_if_there(&self.at(CRL))?,
        })
    }

    fn key(&self) -> Result<Key, PkiError> {
        Key::read(&self.at(NODE_KEY), "reading the node's key")
    }

    /// Puts a new pair into the place of the old one.
    pub(super) fn replace(&self, key: &Key, cert: &str) -> Result<(), PkiError> {
        let old = files::owner(&self.at(NODE_KEY));
        self.prepare(key, cert, old)?;
        self.rename(NEXT_KEY, NODE_KEY)?;
        self.rename(NEXT_CERT, NODE_CERT)?;
        self.sync()
    }

    /// Both are on the disk, and nobody uses them.
    pub(super) fn prepare(
        &self,
        key: &Key,
        cert: &str,
        owner: Option<Owner>,
    ) -> Result<(), PkiError> {
        files::write_as(&self.at(NEXT_KEY), &key.pem(), 0o600, owner)?;
        files::write_as(&self.at(NEXT_CERT), cert, 0o644, owner)?;
        self.sync()
    }

    pub(super) fn replace_list(&self, list: &str) -> Result<(), PkiError> {
        let path = self.at(CRL);
        files::write_as(&path, list, 0o644, files::owner(&self.at(NODE_CERT)))
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), PkiError> {
        let to = self.at(to);
        fs::rename(self.at(from), &to).map_err(files::in_file(&to))
    }

    fn forget(&self, name: &str) -> Result<(), PkiError> {
        let path = self.at(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(files::in_file(&path)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn sync(&self) -> Result<(), PkiError> {
        let synced = File::open(&self.path).and_then(|it| it.sync_all());
        synced.map_err(files::in_file(&self.path))
    }
}

/// The file of lists with a newer one of one authority: those of others stay. `None` if it
/// stays as it is.
///
/// # Errors
/// If the list is not signed by one of `authorities`, is not `issuer`'s, or is older.
pub(super) fn with_list(
    present: Option<&str>,
    list: &str,
    issuer: &[u8],
    authorities: &str,
) -> Result<Option<String>, &'static str> {
    let (_, pem) = parse_x509_pem(list.as_bytes()).map_err(|_| "its list is none")?;
    let (_, parsed) =
        CertificateRevocationList::from_der(&pem.contents).map_err(|_| "its list is none")?;
    if parsed.issuer().as_raw() != issuer {
        return Err("its list is another authority's");
    }
    let authorities = Pem::iter_from_buffer(authorities.as_bytes()).filter_map(Result::ok);
    let is_signed = authorities.into_iter().any(|pem| {
        X509Certificate::from_der(&pem.contents).is_ok_and(|(_, it)| {
            it.subject().as_raw() == issuer && parsed.verify_signature(it.public_key()).is_ok()
        })
    });
    if !is_signed {
        return Err("its list is not signed by an authority of ca.pem");
    }
    let present = present.unwrap_or_default();
    let (mut of_it, mut others) = (None, String::new());
    for block in present.split_inclusive(END) {
        match issuer_of(block) {
            Some(it) if it == issuer => of_it = Some(block),
            Some(_) => others.push_str(block),
            None => {}
        }
    }
    let number = |list: &str| ParsedList::read(list).map(|list| list.number);
    if of_it.and_then(number) > number(list) {
        return Err("its list is older than the one that is there");
    }
    let new = others + list;
    Ok((new != present).then_some(new))
}

fn issuer_of(list: &str) -> Option<Vec<u8>> {
    let (_, pem) = parse_x509_pem(list.as_bytes()).ok()?;
    let (_, list) = CertificateRevocationList::from_der(&pem.contents).ok()?;
    Some(list.issuer().as_raw().to_vec())
}
