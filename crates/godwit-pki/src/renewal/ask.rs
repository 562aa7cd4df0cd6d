//! A node asks for another certificate.

use std::io::{self, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rcgen::{CertificateParams, PublicKeyData as _};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Stream};

use super::AUTHORITY;
use super::adopt::{Folder, Present, with_list};
use super::serve::roots;
use super::wire::{Granted, LIMIT, Timed, read_answer, write_request};
use crate::authority::certificate;
use crate::error::PkiError;
use crate::key::Key;
use crate::parsed::Parsed;
use crate::record::Serial;
use crate::times::{self, DAY};
use crate::{CA_CERT, NODE_CERT};

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Renewal<'a> {
    /// Where [`Renewals`](crate::Renewals) listens: host and port.
    pub from: &'a str,
    /// The node's folder.
    pub folder: &'a Path,
    /// A certificate that is valid for so many days stays; `None`: for half of its life.
    pub unless_valid_for: Option<u16>,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// There is a new certificate, and a key of its own.
    Made {
        /// Its number.
        serial: Serial,
        /// Whole days that it is valid for.
        days: i64,
    },
    /// The one that is there stays; the list is of today.
    Kept {
        /// Whole days that it is valid for.
        days: i64,
    },
}

/// Renews a node's certificate if it is time to: with a new key, which is made here. The list
/// of revoked certificates is taken in any case.
///
/// # Errors
/// If the authority is not reached or refuses, if what it gives is not good, or if a file can't
/// be read or written. What is there stays then.
pub fn renew(wanted: &Renewal<'_>) -> Result<Renewed, PkiError> {
    let folder = Folder::open(wanted.folder)?;
    let present = folder.read()?;
    let now = times::now();
    if now > present.cert.not_after {
        let path = folder.at(NODE_CERT);
        return Err(PkiError::Ended { path });
    }
    let days = (present.cert.not_after - now).div_euclid(DAY);
    let key = if is_time(&present.cert, wanted.unless_valid_for, now) {
        Some(Key::generate()?)
    } else {
        None
    };
    let request = key.as_ref().map(|key| request(&present, key));
    let request = request.transpose()?.unwrap_or_default();
    let granted = ask(wanted, &present, &request, &folder)?;
    let wrong = |what| PkiError::Answer {
        from: wanted.from.to_owned(),
        what,
    };
    let made = match &key {
        Some(key) => Some(check(&granted, &present, key).map_err(wrong)?),
        None => None,
    };
    let list = with_list(
        present.list.as_deref(),
        &granted.list,
        &present.cert.issuer,
        &present.authorities,
    );
    // First what ends others' certificates.
    if let Some(list) = list.map_err(wrong)? {
        folder.replace_list(&list)?;
    }
    let (Some(key), Some(made)) = (key, made) else {
        return Ok(Renewed::Kept { days });
    };
    folder.replace(&key, &granted.certificate)?;
    let days = (made.not_after - now).div_euclid(DAY);
    let serial = made.serial;
    Ok(Renewed::Made { serial, days })
}

/// Whether a certificate has too little left. One that was made by hand begins long ago, so it
/// is replaced at once by one with a short life.
fn is_time(cert: &Parsed, unless_valid_for: Option<u16>, now: i64) -> bool {
    let left = cert.not_after - now;
    match unless_valid_for {
        Some(days) => left.div_euclid(DAY) < i64::from(days),
        None => left < (cert.not_after - cert.not_before) / 2,
    }
}

/// For the name that the node has, and a key that nobody else has.
fn request(present: &Present, key: &Key) -> Result<Vec<u8>, PkiError> {
    let named = CertificateParams::new([present.name.to_string()])
        .and_then(|params| params.serialize_request(key))
        .map_err(certificate("asking for a certificate"))?;
    Ok(named.der().to_vec())
}

fn ask(
    wanted: &Renewal<'_>,
    present: &Present,
    request: &[u8],
    folder: &Folder,
) -> Result<Granted, PkiError> {
    let asking = |source| PkiError::Asking {
        from: wanted.from.to_owned(),
        source,
    };
    let tls = |source| PkiError::Tls {
        what: "speaking TLS with the node's certificate",
        source,
    };
    let config = Arc::new(configure(present, folder)?);
    let name = ServerName::try_from(AUTHORITY);
    let name = name.map_err(|_| asking(io::ErrorKind::InvalidInput.into()))?;
    let mut tls = ClientConnection::new(config, name).map_err(tls)?;
    let end = Instant::now() + LIMIT;
    let stream = connect(wanted.from).map_err(asking)?;
    let mut socket = Timed::new(&stream, end);
    let mut stream = Stream::new(&mut tls, &mut socket);
    // Who does not want it says so, and may do so before it has read it all.
    let sent = write_request(&mut stream, request);
    let answer = read_answer(&mut stream).map_err(|error| sent.err().unwrap_or(error));
    let answer = answer.map_err(asking)?;
    tls.send_close_notify();
    let _ = tls.complete_io(&mut socket);
    let _ = socket.flush();
    answer.map_err(|reason| PkiError::Refused {
        from: wanted.from.to_owned(),
        reason,
    })
}

/// The first address that answers.
fn connect(from: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for address in from.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn configure(present: &Present, folder: &Folder) -> Result<ClientConfig, PkiError> {
    let tls = |source| PkiError::Tls {
        what: "speaking TLS with the node's certificate",
        source,
    };
    let path = folder.at(NODE_CERT);
    let wrong = |_| PkiError::Content {
        path: path.clone(),
        wanted: "certificates in PEM",
    };
    let chain = CertificateDer::pem_slice_iter(present.cert_pem.as_bytes());
    let chain = chain.collect::<Result<_, _>>().map_err(wrong)?;
    let der = PrivatePkcs8KeyDer::from(present.key.der());
    let signer = rustls::crypto::ring::sign::any_supported_type(&der.into()).map_err(tls)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(tls)?
        .with_root_certificates(roots(&present.authorities, &folder.at(CA_CERT))?)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(
            chain, signer,
        ))));
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Whether peers will take the certificate: its chain, its name, and that it is of this key.
fn check(granted: &Granted, present: &Present, key: &Key) -> Result<Parsed, &'static str> {
    const NONE: &str = "its certificate is none";
    let path = Path::new(NODE_CERT);
    let made = Parsed::read(&granted.certificate, path).map_err(|_| NONE)?;
    if made.node() != Some(present.name) {
        return Err("its certificate has another name");
    }
    if made.public_key != key.subject_public_key_info() {
        return Err("its certificate is for another key");
    }
    let der = CertificateDer::from_pem_slice(granted.certificate.as_bytes()).map_err(|_| NONE)?;
    let authorities = roots(&present.authorities, path).map_err(|_| NONE)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider).build();
    let verifier = verifier.map_err(|_| NONE)?;
    let verified = verifier.verify_client_cert(&der, &[], UnixTime::now());
    verified.map_err(|_| "its certificate is not valid by ca.pem and the clock of this node")?;
    Ok(made)
}
