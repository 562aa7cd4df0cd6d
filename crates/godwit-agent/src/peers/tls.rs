//! Mutual TLS between agents: TLS 1.3, one authority, names checked both ways.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use godwit_wire::NodeName;
use rustls::client::{Resumption, verify_server_name};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, InconsistentKeys, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::key;
use super::revocation::{Lists, Revocations};
use super::validity::Validity;
use crate::config::TlsPaths;
use crate::custody::{self, Changeable};
use crate::files;

/// Certificates that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is missing or holds no PEM of the right kind.
    #[error("[tls]: {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: pem::Error,
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
    /// The authority's file holds no certificate.
    #[error("[tls]: {}: no certificate in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
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
    /// Certificate and key don't fit each other, or the library.
    #[error("[tls]: {} with its key", path.display())]
    Identity {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
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

/// This node's identity; clones share it, and see a renewed one.
#[derive(Clone)]
pub struct Identity {
    current: Arc<Mutex<Ends>>,
    revocations: Arc<Revocations>,
}

/// Both ends of links that are made from now on.
#[derive(Clone)]
struct Ends {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
    authorities: Arc<[CertificateDer<'static>]>,
    chain: Arc<[CertificateDer<'static>]>,
    /// Who may sign lists: the authorities, and those between them and this node.
    signers: Arc<[TrustAnchor<'static>]>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads the files and checks that the certificate is `name`'s.
    ///
    /// # Errors
    /// If a file can't be used.
    pub fn load(paths: &TlsPaths, name: NodeName) -> Result<Self, TlsError> {
        let ends = Ends::load(paths, name, Judge::Name)?;
        let lists = match &paths.crl {
            Some(path) => Lists::load(path, &ends.signers)
                .map_err(|error| ends.other_authority(paths).unwrap_or(error))?,
            None => Lists::default(),
        };
        Ok(Self {
            current: Arc::new(Mutex::new(ends)),
            revocations: Arc::new(Revocations::new(lists)),
        })
    }

    /// Reads the files again. New links use them if peers would take them now, so one of
    /// the authorities must be an old one; running links go on.
    ///
    /// # Errors
    /// If they can't be used; the identity before is kept.
    pub(crate) fn renew(&self, paths: &TlsPaths, name: NodeName) -> Result<(), TlsError> {
        let ends = Ends::load(paths, name, Judge::All)?;
        if let Some(serial) = self.revocations.find(&ends.chain) {
            let path = paths.cert.clone();
            return Err(TlsError::Revoked { path, serial });
        }
        let mut current = self.lock();
        let is_known = |it| current.authorities.contains(it);
        if !ends.authorities.iter().any(is_known) {
            let path = paths.ca.clone();
            return Err(TlsError::AnotherAuthority { path });
        }
        *current = ends;
        Ok(())
    }

    /// Reads the list of revoked certificates again. Links of peers that are on it end.
    ///
    /// # Errors
    /// If it can't be used, or is older; the one before stays in force.
    pub(crate) fn renew_lists(&self, path: &Path) -> Result<(), TlsError> {
        custody::judge(path)?;
        let signers = self.lock().signers.clone();
        let lists = Lists::load(path, &signers)?;
        self.revocations.replace(lists, path, &signers)
    }

    /// The number of this node's certificate, if that is revoked.
    pub(crate) fn own_revoked(&self) -> Option<String> {
        let chain = self.lock().chain.clone();
        self.revocations.find(&chain)
    }

    /// Peers that got no link because of a list, and the numbers of their certificates.
    pub(crate) fn refused_peers(&self) -> BTreeMap<NodeName, BTreeSet<String>> {
        self.revocations.refused()
    }

    /// Whether the list should have been followed by another one.
    pub(crate) fn is_list_overdue(&self, now: i64) -> bool {
        self.revocations.is_overdue(now)
    }

    pub(super) fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    pub(super) fn connector(&self) -> TlsConnector {
        self.lock().connector.clone()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.lock().acceptor.clone()
    }

    /// Held for as long as a clone takes.
    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a certificate must satisfy to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    /// The node's name: an agent starts, and its peers refuse what has expired.
    Name,
    /// All that peers will look at.
    All,
}

impl Ends {
    fn load(paths: &TlsPaths, name: NodeName, judge: Judge) -> Result<Self, TlsError> {
        let authorities = read_certificates(&paths.ca)?;
        custody::judge(&paths.ca)?;
        let roots = Arc::new(roots_of(&paths.ca, &authorities)?);
        let chain = read_certificates(&paths.cert)?;
        let between = chain.get(1..).unwrap_or_default();
        let signers = [&roots.roots, &roots_of(&paths.cert, between)?.roots];
        let signers = signers.map(|it| it.iter().cloned()).into_iter().flatten();
        let signers = signers.collect();
        let key = key::read(&paths.key)?;
        custody::judge(&paths.key)?;
        if judge == Judge::All {
            custody::judge(&paths.cert)?;
        }
        let ours = chain
            .first()
            .is_some_and(|cert| is_certificate_of(cert, name));
        if !ours {
            return Err(TlsError::NotOurs {
                path: paths.cert.clone(),
                name,
            });
        }
        let identity = |source| TlsError::Identity {
            path: paths.cert.clone(),
            source,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|source| TlsError::Authority {
                path: paths.ca.clone(),
                source,
            })?;
        if let (Judge::All, Some((own, others))) = (judge, chain.split_first()) {
            verifier
                .verify_client_cert(own, others, UnixTime::now())
                .map_err(identity)?;
        }
        let own = CertifiedKey::new(chain.clone(), key);
        match own.keys_match() {
            // Where the library can't tell, peers will.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(error) => return Err(identity(error)),
        }
        let own = Arc::new(SingleCertAndKey::from(own));
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(identity)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(own.clone());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(identity)?
            .with_root_certificates(roots)
            .with_client_cert_resolver(own);
        // A link is made once and lives long: every handshake is a full one.
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        Ok(Self {
            connector: Arc::new(client).into(),
            acceptor: Arc::new(server).into(),
            authorities: authorities.into(),
            chain: chain.into(),
            signers,
        })
    }
}

impl Ends {
    /// Says so if the authorities are none of this node's certificate: then a list that none of
    /// them has signed may well be the right one.
    fn other_authority(&self, paths: &TlsPaths) -> Option<TlsError> {
        let (own, others) = self.chain.split_first()?;
        let roots = roots_of(&paths.ca, &self.authorities).ok()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
        // As it was made: whether it has expired is another question.
        let begin = u64::try_from(Validity::of(own)?.not_before).ok()?;
        let begin = UnixTime::since_unix_epoch(Duration::from_secs(begin));
        let judged = verifier
            .build()
            .ok()?
            .verify_client_cert(own, others, begin);
        let is_other = matches!(
            judged,
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature
            ))
        );
        is_other.then(|| TlsError::OtherAuthority {
            path: paths.ca.clone(),
            cert: paths.cert.clone(),
        })
    }
}

/// Whether a certificate, already found valid, carries a node's name.
pub(super) fn is_certificate_of(cert: &CertificateDer<'_>, name: NodeName) -> bool {
    let (Ok(parsed), Some(server)) = (ParsedCertificate::try_from(cert), server_name(name)) else {
        return false;
    };
    verify_server_name(&parsed, &server).is_ok()
}

/// A node's name as TLS wants it; `None` for one that the configuration refuses.
pub(super) fn server_name(name: NodeName) -> Option<ServerName<'static>> {
    ServerName::try_from(name.to_string()).ok()
}

fn roots_of(path: &Path, all: &[CertificateDer<'static>]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for cert in all {
        let source = |source| TlsError::Identity {
            path: path.to_owned(),
            source,
        };
        roots.add(cert.clone()).map_err(source)?;
    }
    Ok(roots)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read_pem(path)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match certs.map_err(in_file(path))? {
        certs if certs.is_empty() => Err(TlsError::Empty {
            path: path.to_owned(),
        }),
        certs => Ok(certs),
    }
}

pub(super) fn read_pem(path: &Path) -> Result<Vec<u8>, TlsError> {
    files::read(path).map_err(|source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

pub(super) fn in_file(path: &Path) -> impl Fn(pem::Error) -> TlsError {
    move |reason| TlsError::File {
        path: path.to_owned(),
        reason,
    }
}
