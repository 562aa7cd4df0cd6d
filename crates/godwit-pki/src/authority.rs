//! An authority and its folder.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer, KeyUsagePurpose,
    PublicKeyData as _,
};

use crate::error::PkiError;
use crate::files::{self, Lock};
use crate::key::Key;
use crate::parsed::Parsed;
use crate::record::Record;
use crate::times::{self, DAY};
use crate::{CA_CERT, CA_KEY, CRL, ISSUED, MOST_DAYS, revoke};

/// Octets of its key that an authority's name has, so that no two have one name.
const NAMED: usize = 4;

/// An authority that may sign; nobody else changes its files meanwhile.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) folder: PathBuf,
    pub(crate) pem: String,
    pub(crate) own: Parsed,
    pub(crate) issuer: Issuer<'static, Key>,
    _lock: Lock,
}

/// Makes an authority in a folder, for ten years: `ca.pem`, `ca.key` (mode 0600) and
/// `crl.pem`, a list on which nobody is yet.
///
/// # Errors
/// If there is one already, or a file can't be written.
pub fn init(folder: &Path) -> Result<(), PkiError> {
    files::create_folder(folder, 0o700)?;
    files::must_be_closed(folder)?;
    let lock = Lock::take(folder)?;
    let (cert_path, key_path) = (folder.join(CA_CERT), folder.join(CA_KEY));
    // What another authority has issued and revoked is nothing of this one.
    let all = [CA_CERT, CA_KEY, CRL, ISSUED].map(|name| folder.join(name));
    if let Some(path) = all.into_iter().find(|it| it.symlink_metadata().is_ok()) {
        return Err(PkiError::Exists { path });
    }
    let key = Key::generate()?;
    let key_pem = key.pem();
    let mut params = CertificateParams::default();
    let digest = params.key_identifier(&key);
    let own: String = digest
        .iter()
        .take(NAMED)
        .map(|it| format!("{it:02x}"))
        .collect();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Godwit authority {own}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_after = times::date(times::now() + i64::from(MOST_DAYS) * DAY);
    let issuer = CertifiedIssuer::self_signed(params, key)
        .map_err(certificate("making the authority's certificate"))?;
    files::write_beside(&key_path, &key_pem, 0o600)?;
    files::write_beside(&cert_path, &issuer.pem(), 0o644)?;
    drop(lock);
    let authority = Authority::open(folder)?;
    let mut record = authority.record()?;
    revoke::write_list(&authority, &mut record)
}

impl Authority {
    /// Waits for its lock and reads it.
    pub(crate) fn open(folder: &Path) -> Result<Self, PkiError> {
        let (cert_path, key_path) = (folder.join(CA_CERT), folder.join(CA_KEY));
        // Without a folder there is no lock either: the certificate is what is missing.
        files::read(&cert_path)?;
        let lock = Lock::take(folder)?;
        let pem = files::read(&cert_path)?;
        if let Some(mode) = files::exposed(&key_path)? {
            return Err(PkiError::KeyExposed {
                path: key_path,
                mode,
            });
        }
        let key = Key::read(&key_path, "reading the authority's key")?;
        let own = Parsed::read(&pem, &cert_path)?;
        if key.subject_public_key_info() != own.public_key {
            return Err(PkiError::OtherKey {
                key: key_path,
                cert: cert_path,
            });
        }
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(|_| PkiError::Content {
            path: cert_path,
            wanted: "the certificate of an authority",
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            pem,
            own,
            issuer,
            _lock: lock,
        })
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.join(CA_CERT)
    }

    pub(crate) fn record(&self) -> Result<Record, PkiError> {
        Record::read(&self.folder.join(ISSUED))
    }

    /// The list as it was written last; an authority of an earlier version has none.
    pub(crate) fn list(&self) -> Result<Option<String>, PkiError> {
        files::read_if_there(&self.list_path())
    }

    pub(crate) fn list_path(&self) -> PathBuf {
        self.folder.join(CRL)
    }
}

pub(crate) fn certificate(what: &'static str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError::Certificate { what, source }
}
