//! Mutual TLS between agents: TLS 1.3, one authority, names checked both ways.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use godwit_wire::NodeName;
use rustls::client::{Resumption, verify_server_name};
use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, InconsistentKeys, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::fault::{TlsError, in_file, of_certificate, of_pair};
use super::key;
use super::revocation::{Lists, Revocations};
use super::validity::Validity;
use crate::config::TlsPaths;
use crate::custody;
use crate::files;

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
    /// What peers judge this node by, if their files are as these.
    verifier: Arc<dyn ClientCertVerifier>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads the files and checks that they fit together and are `name`'s. With that a
    /// node starts; whether peers take it is for [`judge`](Self::judge).
    ///
    /// # Errors
    /// If a file can't be used.
    pub fn load(paths: &TlsPaths, name: NodeName) -> Result<Self, TlsError> {
        let ends = Ends::load(paths, name)?;
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

    /// The same for files that are to take the place of others: what peers would refuse is
    /// refused here.
    ///
    /// # Errors
    /// If a file can't be used, or peers would not take it now.
    pub fn load_welcome(paths: &TlsPaths, name: NodeName) -> Result<Self, TlsError> {
        let identity = Self::load(paths, name)?;
        identity.judge(paths).map(|()| identity)
    }

    /// Whether peers take a link with this certificate now: it is valid, of an authority in
    /// use, and not revoked. These are the files that it came from.
    ///
    /// # Errors
    /// If they would not, and why.
    pub fn judge(&self, paths: &TlsPaths) -> Result<(), TlsError> {
        self.judge_chain(paths)?;
        match self.own_revoked() {
            Some(serial) => Err(TlsError::Revoked {
                path: paths.cert.clone(),
                serial,
            }),
            None => Ok(()),
        }
    }

    /// The same, whatever the list says.
    pub(crate) fn judge_chain(&self, paths: &TlsPaths) -> Result<(), TlsError> {
        let ends = self.lock().clone();
        ends.judge(paths)
    }

    /// Reads the files again. New links use them if peers would take them now, so one of
    /// the authorities must be an old one; running links go on.
    ///
    /// # Errors
    /// If they can't be used; the identity before is kept.
    pub(crate) fn renew(&self, paths: &TlsPaths, name: NodeName) -> Result<(), TlsError> {
        let ends = Ends::load(paths, name)?;
        custody::judge(&paths.cert)?;
        ends.judge(paths)?;
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

impl Ends {
    fn load(paths: &TlsPaths, name: NodeName) -> Result<Self, TlsError> {
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
        let ours = chain
            .first()
            .is_some_and(|cert| is_certificate_of(cert, name));
        if !ours {
            return Err(TlsError::NotOurs {
                path: paths.cert.clone(),
                name,
            });
        }
        let identity = of_pair(&paths.cert, &paths.key);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|source| TlsError::Authority {
                path: paths.ca.clone(),
                source,
            })?;
        let own = paired(chain.clone(), key).map_err(&identity)?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(&identity)?
            .with_client_cert_verifier(verifier.clone())
            .with_cert_resolver(own.clone());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(&identity)?
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
            verifier,
        })
    }

    /// As peers do that have the same authorities.
    fn judge(&self, paths: &TlsPaths) -> Result<(), TlsError> {
        let Some((own, others)) = self.chain.split_first() else {
            // `load` has seen one.
            return Ok(());
        };
        self.verifier
            .verify_client_cert(own, others, UnixTime::now())
            .map(drop)
            .map_err(of_certificate(&paths.cert, &paths.ca))
    }

    /// Says so if the authorities are none of this node's certificate: then a list that none of
    /// them has signed may well be the right one.
    fn other_authority(&self, paths: &TlsPaths) -> Option<TlsError> {
        let (own, others) = self.chain.split_first()?;
        // As it was made: whether it has expired is another question.
        let begin = u64::try_from(Validity::of(own)?.not_before).ok()?;
        let begin = UnixTime::since_unix_epoch(Duration::from_secs(begin));
        let judged = self.verifier.verify_client_cert(own, others, begin);
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

/// A certificate with its key, as both ends of a link show it.
fn paired(
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
) -> Result<Arc<SingleCertAndKey>, rustls::Error> {
    let own = CertifiedKey::new(chain, key);
    match own.keys_match() {
        // Where the library can't tell, peers will.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            Ok(Arc::new(own.into()))
        }
        Err(error) => Err(error),
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
        roots
            .add(cert.clone())
            .map_err(of_certificate(path, path))?;
    }
    Ok(roots)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    const WANTED: &str = "certificate";
    let pem = read_pem(path)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match certs.map_err(in_file(path, WANTED))? {
        certs if certs.is_empty() => Err(in_file(path, WANTED)(Error::NoItemsFound)),
        certs => Ok(certs),
    }
}

pub(super) fn read_pem(path: &Path) -> Result<Vec<u8>, TlsError> {
    files::read(path).map_err(|source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    })
}
