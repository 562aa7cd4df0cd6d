//! The authority's program: connections, and what becomes of them.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig, ServerConnection, Stream};

use super::AUTHORITY;
use super::doors::Doors;
use super::grant::{NotGranted, Request, grant};
use super::said::Said;
use super::wire::{LIMIT, Refused, Timed, read_request, write_answer};
use crate::authority::{Authority, certificate};
use crate::error::{PkiError, with_causes};
use crate::key::Key;
use crate::times::{self, DAY};

/// How long this program shows one certificate.
const SHOWN: Duration = Duration::from_secs(3600);

/// How long that would be valid.
const VALID: i64 = 2 * DAY;

/// How long nothing is accepted when the system has no room.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Gives nodes that ask another certificate; see [`run`](Self::run).
#[derive(Debug)]
pub struct Renewals {
    folder: PathBuf,
    days: u16,
    listener: TcpListener,
    doors: Arc<Doors>,
    said: Said,
    shown: Mutex<Option<Shown>>,
}

/// What this program shows, and whom it believes.
#[derive(Debug, Clone)]
struct Shown {
    since: Instant,
    config: Arc<ServerConfig>,
}

impl Renewals {
    /// Listens. Certificates will be valid for `days`, or as long as the authority.
    ///
    /// # Errors
    /// If there is no authority in `folder` that can sign, or the address can't be used.
    pub fn bind(folder: &Path, address: SocketAddr, days: u16) -> Result<Self, PkiError> {
        if !(1..=crate::MOST_DAYS).contains(&days) {
            return Err(PkiError::Days { days });
        }
        let listen = |source| PkiError::Listen { address, source };
        let this = Self {
            folder: folder.to_owned(),
            days,
            listener: TcpListener::bind(address).map_err(listen)?,
            doors: Arc::default(),
            said: Said::default(),
            shown: Mutex::default(),
        };
        this.config()?;
        Ok(this)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves whoever connects; never returns. What became of a connection is a line on
    /// standard error, of which there are few.
    pub fn run(self: &Arc<Self>) -> ! {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => self.admit(stream, from.ip()),
                Err(_) => thread::sleep(NO_ROOM),
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream, from: IpAddr) {
        let pass = match self.doors.enter(from) {
            Ok(pass) => pass,
            Err(reason) => return self.say(from, Err((reason, ""))),
        };
        let this = self.clone();
        let began = thread::Builder::new().spawn(move || {
            this.serve(&stream, from);
            drop(pass);
        });
        if began.is_err() {
            self.say(from, Err((Refused::Full, "")));
        }
    }

    fn serve(&self, stream: &TcpStream, from: IpAddr) {
        let end = Instant::now() + LIMIT;
        match self.converse(&mut Timed::new(stream, end)) {
            Ok(said) => self.say(from, Ok(&said)),
            Err(refused) => {
                let who = refused.name.map(|name| format!(" ({name})"));
                let why = refused
                    .error
                    .map(|error| format!(": {}", with_causes(&error)));
                let more = [who, why].map(Option::unwrap_or_default).concat();
                self.say(from, Err((refused.reason, &more)));
            }
        }
    }

    fn say(&self, from: IpAddr, became: Result<&str, (Refused, &str)>) {
        if let Some(line) = self.said.line(from, became, Instant::now()) {
            // Nobody may read it.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// All of one connection. Says what was done.
    fn converse(&self, socket: &mut Timed<'_>) -> Result<String, NotGranted> {
        let because = |reason| NotGranted {
            reason,
            name: None,
            error: None,
        };
        let config = self.config().map_err(|error| NotGranted {
            error: Some(error),
            ..because(Refused::Authority)
        })?;
        let mut tls = ServerConnection::new(config).map_err(|_| because(Refused::Handshake))?;
        while tls.is_handshaking() {
            if let Err(error) = tls.complete_io(socket) {
                // What was wrong, for the other side.
                let _ = tls.write_tls(socket);
                let is_slow = Refused::of(&error) == Refused::Slow;
                let reason = if is_slow {
                    Refused::Slow
                } else {
                    Refused::Handshake
                };
                return Err(because(reason));
            }
        }
        let chain = tls.peer_certificates().and_then(|it| it.first());
        let shown = chain.ok_or_else(|| because(Refused::Handshake))?.to_vec();
        let request = read_request(&mut Stream::new(&mut tls, socket));
        let granted = request.map_err(because).and_then(|request| {
            let request = Request {
                shown: &shown,
                request: &request,
            };
            grant(&self.folder, self.days, &request, times::now())
        });
        let (answer, said) = match granted {
            Ok((name, Some(entry), granted)) => {
                let ends = times::show(entry.ends);
                (
                    Ok(granted),
                    Ok(format!(
                        "renewed {name}, number {}, to {ends}",
                        entry.serial
                    )),
                )
            }
            Ok((name, None, granted)) => (Ok(granted), Ok(format!("gave {name} the list"))),
            Err(refused) => (Err(refused.reason), Err(refused)),
        };
        // Who has gone has what it asked for in the record.
        let _ = write_answer(&mut Stream::new(&mut tls, socket), &answer);
        tls.send_close_notify();
        let _ = tls.complete_io(socket);
        said
    }

    /// Made anew each hour, so that an authority that was replaced is followed.
    fn config(&self) -> Result<Arc<ServerConfig>, PkiError> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(it) = &*shown
            && it.since.elapsed() < SHOWN
        {
            return Ok(it.config.clone());
        }
        let config = Arc::new(configure(&self.folder)?);
        let since = Instant::now();
        *shown = Some(Shown {
            since,
            config: config.clone(),
        });
        Ok(config)
    }
}

/// TLS with a key that nothing but this process has.
fn configure(folder: &Path) -> Result<ServerConfig, PkiError> {
    let authority = Authority::open(folder)?;
    let now = times::now();
    let key = Key::generate()?;
    let mut params = CertificateParams::new([AUTHORITY.to_owned()])
        .map_err(certificate("naming the authority's program"))?;
    params
        .distinguished_name
        .push(DnType::CommonName, AUTHORITY);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Nobody is a node, or asks, with it.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = times::date(now - DAY);
    params.not_after = times::date(now + VALID);
    let own = params
        .signed_by(&key, &authority.issuer)
        .map_err(certificate("signing what the authority's program shows"))?;
    let tls = |what| move |source| PkiError::Tls { what, source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = roots(&authority.pem, &authority.certificate())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|_| PkiError::Content {
            path: authority.certificate(),
            wanted: "an authority in PEM",
        })?;
    let der = PrivatePkcs8KeyDer::from(key.der());
    let signer = rustls::crypto::ring::sign::any_ecdsa_type(&der.into())
        .map_err(tls("reading a key that was just made"))?;
    let certified = CertifiedKey::new(vec![own.der().clone()], signer);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(tls("choosing TLS 1.3"))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    // Who asks again in hours makes a whole handshake.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Authorities of a file, to check chains with.
pub(super) fn roots(pem: &str, path: &Path) -> Result<Arc<RootCertStore>, PkiError> {
    let wrong = || PkiError::Content {
        path: path.to_owned(),
        wanted: "certificates of authorities in PEM",
    };
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let added = der.map_err(|_| wrong()).map(|it| roots.add(it));
        added?.map_err(|_| wrong())?;
    }
    if roots.is_empty() {
        return Err(wrong());
    }
    Ok(Arc::new(roots))
}
