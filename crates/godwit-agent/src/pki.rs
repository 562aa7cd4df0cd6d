//! Certificates for tests and small clusters.
//!
//! One authority, made by [`init`], signs one certificate per node. A node is
//! known by the DNS name in its certificate, which is its name in the
//! configuration. Nothing expires and nothing is revoked: a cluster that needs
//! that brings certificates of its own, with `serverAuth` and `clientAuth`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use godwit_wire::NodeName;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::files;

/// The authority's certificate, in the folder of [`init`] and of every node.
pub const CA_CERT: &str = "ca.pem";
/// The authority's key, in the folder of [`init`] only.
pub const CA_KEY: &str = "ca.key";
/// A node's certificate.
pub const NODE_CERT: &str = "node.pem";
/// A node's key.
pub const NODE_KEY: &str = "node.key";

/// Certificates that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// There is an authority already; a second one would lock out its nodes.
    #[error("{} exists; remove it to start anew", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file can't be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A key or certificate can't be made, or what was read is none.
    #[error("{what}")]
    Certificate {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: rcgen::Error,
    },
}

/// Makes an authority in a folder: `ca.pem` and `ca.key` (mode 0600).
///
/// # Errors
/// If there is one already, or a file can't be written.
pub fn init(dir: &Path) -> Result<(), PkiError> {
    let (cert_path, key_path) = (dir.join(CA_CERT), dir.join(CA_KEY));
    if let Some(path) = [&cert_path, &key_path]
        .into_iter()
        .find(|path| path.exists())
    {
        return Err(PkiError::Exists { path: path.clone() });
    }
    let key = new_key()?;
    let key_pem = key.serialize_pem();
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "Godwit test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issuer = CertifiedIssuer::self_signed(params, key)
        .map_err(certificate("making the authority's certificate"))?;
    create_dir(dir)?;
    write(&key_path, &key_pem, 0o600)?;
    write(&cert_path, &issuer.pem(), 0o644)
}

/// Makes a node's certificate: `node.pem`, `node.key` (mode 0600) and a copy of
/// `ca.pem` in `out`, signed by the authority in `ca_dir`.
///
/// Replaces what is in `out`: a node's certificate may be renewed. It is valid for so
/// many days from now, or for ever; negative days are over already, for tests.
///
/// # Errors
/// If there is no authority in `ca_dir`, or a file can't be written.
pub fn issue(ca_dir: &Path, name: NodeName, out: &Path, days: Option<i64>) -> Result<(), PkiError> {
    let ca_pem = read(&ca_dir.join(CA_CERT))?;
    let ca_key = KeyPair::from_pem(&read(&ca_dir.join(CA_KEY))?)
        .map_err(certificate("reading the authority's key"))?;
    let issuer = Issuer::from_ca_cert_pem(&ca_pem, ca_key)
        .map_err(certificate("reading the authority's certificate"))?;

    let key = new_key()?;
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
    if let Some(days) = days {
        params.not_after = SystemTime::now().into();
        params.not_after += Duration::from_secs(days.max(0).unsigned_abs() * DAY);
        params.not_after -= Duration::from_secs(days.min(0).unsigned_abs() * DAY);
    }
    let cert = params
        .signed_by(&key, &issuer)
        .map_err(certificate("signing the node's certificate"))?;

    create_dir(out)?;
    write(&out.join(NODE_KEY), &key.serialize_pem(), 0o600)?;
    write(&out.join(NODE_CERT), &cert.pem(), 0o644)?;
    write(&out.join(CA_CERT), &ca_pem, 0o644)
}

/// Seconds of a day.
const DAY: u64 = 86_400;

fn new_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate().map_err(certificate("making a key"))
}

fn certificate(what: &'static str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError::Certificate { what, source }
}

fn file(path: &Path) -> impl Fn(io::Error) -> PkiError {
    move |source| PkiError::File {
        path: path.to_owned(),
        source,
    }
}

fn create_dir(dir: &Path) -> Result<(), PkiError> {
    fs::create_dir_all(dir).map_err(file(dir))
}

fn read(path: &Path) -> Result<String, PkiError> {
    files::read_text(path).map_err(file(path))
}

/// Writes beside the target and renames: a reader never sees half a key.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let temporary = path.with_extension("new");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(file(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("written").permissions().mode() & 0o777
    }

    #[test]
    fn keys_are_readable_by_their_owner_only() {
        let dir = tempfile::tempdir().expect("temporary folder");
        init(dir.path()).expect("authority");
        let out = dir.path().join("a");
        issue(dir.path(), NodeName::new("a").expect("name"), &out, None).expect("node");
        assert_eq!(mode(&dir.path().join(CA_KEY)), 0o600);
        assert_eq!(mode(&out.join(NODE_KEY)), 0o600);
        assert_eq!(
            read(&out.join(CA_CERT)).ok(),
            read(&dir.path().join(CA_CERT)).ok()
        );
    }

    #[test]
    fn a_second_authority_does_not_replace_the_first() {
        let dir = tempfile::tempdir().expect("temporary folder");
        init(dir.path()).expect("authority");
        assert!(matches!(init(dir.path()), Err(PkiError::Exists { .. })));
    }

    #[test]
    fn without_an_authority_the_missing_file_is_named() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let name = NodeName::new("a").expect("name");
        let error = issue(dir.path(), name, dir.path(), None).expect_err("no authority");
        assert!(error.to_string().ends_with("ca.pem"), "{error}");
    }
}
