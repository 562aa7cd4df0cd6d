//! What is wrong with the files of `[tls]`, in words.

use std::io;
use std::path::{Path, PathBuf};

use godwit_wire::NodeName;
use rustls::pki_types::pem;
use rustls::{CertificateError, Error, InconsistentKeys};

use crate::custody::Changeable;

/// Certificates that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file holds no PEM of the right kind.
    #[error("[tls]: {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file can't be opened.
    #[error("[tls]: {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The authority can't be used to check clients.
    #[error("[tls]: {}", path.display())]
    Authority {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::server::VerifierBuilderError,
    },
    /// A certificate and a key of two.
    #[error(
        "[tls]: the key in {} is not that of the certificate in {}", key.display(), path.display()
    )]
    KeyMismatch {
        /// The certificate's file.
        path: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// A key that TLS has no use for.
    #[error("[tls]: {}: the key in it can't be used", path.display())]
    Key {
        /// The key's file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Error,
    },
    /// Peers would refuse the certificate.
    #[error("[tls]: {}: {reason}", path.display())]
    Unwelcome {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No authority that is in use is among the renewed ones.
    #[error(
        "[tls]: {}: none of the authorities that are in use is in it, so nodes with the old \
         file would refuse this one and be refused",
        path.display()
    )]
    AnotherAuthority {
        /// The authorities' file.
        path: PathBuf,
    },
    /// The list of revoked certificates can't be believed.
    #[error("[tls]: {}: {reason}", path.display())]
    List {
        /// The list's file.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// A list that is in force is newer.
    #[error("[tls]: {}: older than the list in force, or that one is missing in it", path.display())]
    OlderList {
        /// The list's file.
        path: PathBuf,
    },
    /// The certificate is on the list.
    #[error("[tls]: {}: the certificate with number {serial} is revoked", path.display())]
    Revoked {
        /// The certificate's file.
        path: PathBuf,
        /// Its number.
        serial: String,
    },
    /// Others may have read the key.
    #[error(
        "[tls]: {0}: its group or others may read or change it (mode {mode:03o}): chmod 600 {0}",
        path.display()
    )]
    KeyExposed {
        /// The key's file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Somebody else may replace the key, or has made it.
    #[error(
        "[tls]: {0}: it belongs to user {owner}, neither root nor the user of this process: \
         chown it, and chmod 600 {0}",
        path.display()
    )]
    KeyOwner {
        /// The key's file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Somebody else may change the file, or put another one there.
    #[error("[tls]: {0}")]
    Changeable(Changeable),
    /// The authority's file is another authority's.
    #[error(
        "[tls]: {}: none of its authorities has issued {}, so no peer would be believed",
        path.display(), cert.display()
    )]
    OtherAuthority {
        /// The authorities' file.
        path: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
    },
    /// The certificate is another node's.
    #[error("[tls]: {} is not the certificate of node \"{name}\"", path.display())]
    NotOurs {
        /// The certificate's file.
        path: PathBuf,
        /// This node.
        name: NodeName,
    },
}

/// Not as a source: the sentence is all there is to say.
impl From<Changeable> for TlsError {
    fn from(fault: Changeable) -> Self {
        Self::Changeable(fault)
    }
}

impl TlsError {
    /// The file that is wrong.
    pub fn path(&self) -> &Path {
        match self {
            Self::File { path, .. }
            | Self::Unreadable { path, .. }
            | Self::Authority { path, .. }
            | Self::KeyMismatch { path, .. }
            | Self::Key { path, .. }
            | Self::Unwelcome { path, .. }
            | Self::AnotherAuthority { path }
            | Self::List { path, .. }
            | Self::OlderList { path }
            | Self::Revoked { path, .. }
            | Self::KeyExposed { path, .. }
            | Self::KeyOwner { path, .. }
            | Self::OtherAuthority { path, .. }
            | Self::NotOurs { path, .. } => path,
            Self::Changeable(fault) => fault.path(),
        }
    }

    /// Whether whoever asks may not read it, so that nothing is known.
    pub(crate) fn is_for_want_of_rights(&self) -> bool {
        let denied = io::ErrorKind::PermissionDenied;
        matches!(self, Self::Unreadable { source, .. } if source.kind() == denied)
    }
}

/// A file without what was looked for, for example `a certificate`.
pub(super) fn in_file(path: &Path, wanted: &'static str) -> impl Fn(pem::Error) -> TlsError {
    move |error| TlsError::File {
        path: path.to_owned(),
        reason: of_pem(&error, wanted),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls may add variants, and has many that say no more to people"
)]
fn of_pem(error: &pem::Error, wanted: &str) -> String {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match error {
        pem::Error::MissingSectionEnd { end_marker } => format!(
            "it is cut short: the line \"-----END {}-----\" is missing",
            lossy(end_marker)
                .trim_matches('-')
                .trim_start_matches("END ")
        ),
        pem::Error::IllegalSectionStart { line } => {
            format!(
                "its line \"{}\" is no line of PEM",
                lossy(line).escape_debug()
            )
        }
        pem::Error::Base64Decode(_) => "between its lines of PEM is no base64".into(),
        pem::Error::NoItemsFound => format!("there is no {wanted} in it (in PEM)"),
        other => format!("it is no PEM with a {wanted}: {other}"),
    }
}

/// What TLS has against the certificate in one file with the key in another.
pub(super) fn of_pair(path: &Path, key: &Path) -> impl Fn(Error) -> TlsError {
    move |source| {
        let (path, key) = (path.to_owned(), key.to_owned());
        if source == Error::InconsistentKeys(InconsistentKeys::KeyMismatch) {
            TlsError::KeyMismatch { path, key }
        } else if matches!(source, Error::InvalidCertificate(_)) {
            of_certificate(&path, &path)(source)
        } else {
            TlsError::Key { path: key, source }
        }
    }
}

/// What peers would have against the certificate in a file, where these are the authorities.
pub(super) fn of_certificate(path: &Path, authorities: &Path) -> impl Fn(Error) -> TlsError {
    move |error| TlsError::Unwelcome {
        path: path.to_owned(),
        reason: against(&error, &format!("in {}", authorities.display())),
    }
}

/// What is wrong with a certificate that authorities in some place are to have made.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls may add variants, and has many that say no more to people"
)]
fn against(error: &Error, place: &str) -> String {
    let Error::InvalidCertificate(error) = error else {
        return format!("the certificate can't be used: {error}");
    };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate has expired".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet: it begins later than the clock of this node says"
                .into()
        }
        CertificateError::UnknownIssuer => {
            format!("no authority {place} has made the certificate")
        }
        CertificateError::BadSignature => format!(
            "the certificate was not signed with the key of the authority of that name {place}"
        ),
        CertificateError::BadEncoding => "a certificate in it can't be read".into(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the certificate is that of another node".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is not for links: serverAuth and clientAuth are needed".into()
        }
        other => format!("the certificate can't be used: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::Identity;
    use crate::sentence::whole;
    use crate::testing::{Pair, node, pki};

    /// One sentence each, which names the file.
    #[test]
    fn what_is_wrong_with_a_file_is_said_in_words() {
        let pair = Pair::new();
        let tls = &pair.a.tls;
        let read = |path: &Path| fs::read(path).expect("it is there");
        let (cert, key) = (read(&tls.cert), read(&tls.key));
        let said = || {
            let error = Identity::load(tls, node("a")).expect_err("it can't be used");
            whole(&error)
        };
        let cases: [(&Path, &[u8], &str); 6] = [
            (
                &tls.cert,
                &cert[..60],
                "\"-----END CERTIFICATE-----\" is missing",
            ),
            (
                &tls.key,
                &key[..60],
                "\"-----END PRIVATE KEY-----\" is missing",
            ),
            (&tls.key, &cert, "there is no private key in it"),
            (&tls.cert, b"nothing", "there is no certificate in it"),
            (&tls.ca, b"-----BEGIN CERTIFICATE", "is no line of PEM"),
            (
                &tls.ca,
                b"-----BEGIN CERTIFICATE-----\n%%%%\n-----END CERTIFICATE-----\n",
                "no base64",
            ),
        ];
        for (path, text, expected) in cases {
            let before = read(path);
            fs::write(path, text).expect("written");
            let error = said();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(!error.contains("[67"), "bytes are no words: {error}");
            fs::write(path, before).expect("written");
        }
        let other = pair.dir().join("b").join(pki::NODE_KEY);
        fs::copy(other, &tls.key).expect("copied");
        let error = said();
        let expected = "node.key is not that of the certificate in ";
        assert!(error.contains(expected), "{error}");
    }
}
