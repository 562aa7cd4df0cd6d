//! A stranger with keys that are real, and prove nothing here: agents refuse what he says with them.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_wire::{
    Epoch, GoodbyeReason, Heartbeat, Hello, LeaseDatagram, LeaseMessage, MAX_VERSION, MIN_VERSION,
    Message, NodeName, PeerMessage, ShareId,
};
use ring::hmac;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

use super::attack::Scene;
use super::server::CONTROL;
use crate::cluster::binary;
use crate::host::Host;
use crate::lab::Lab;

/// How long one connection may take, and how long he waits for its refusal.
const PATIENCE: Duration = Duration::from_secs(1);
const REFUSED: Duration = Duration::from_millis(50);

/// Connections that say nothing more once the keys are shown; the oldest gives way.
const SILENT: usize = 16;

/// What the data path's heartbeats and leases of his would be signed with.
const SECRET: [u8; 32] = [0x5a; 32];

/// Certificates, and whose name each has.
#[derive(Debug, Default)]
pub(super) struct Keys {
    all: Vec<(NodeName, Arc<ClientConfig>)>,
    /// Lines for `[tls]` of all nodes.
    pub(super) lines: String,
}

impl Keys {
    /// Makes them, and the list of revoked ones that agents start with.
    ///
    /// | certificate | of |
    /// |---|---|
    /// | a, of another authority | a node of another cluster with the same name |
    /// | a, revoked | a node whose key was stolen |
    /// | x | a node of the same authority that is in nobody's file |
    /// | w | a member of another role: a witness, who dials nobody |
    pub(super) fn make(lab: &Lab) -> Result<Self> {
        let folder = lab.folder();
        let [authority, other] = ["pki", "other-pki"].map(|name| folder.join(name));
        for at in [&authority, &other] {
            pki(&["init", "--dir"], at, &[])?;
        }
        let mut all = Vec::new();
        let stolen = ("stolen", &authority, "a");
        let kinds = [
            stolen,
            ("foreign", &other, "a"),
            ("unnamed", &authority, "x"),
            ("witness", &authority, "w"),
        ];
        for (kind, issuer, name) in kinds {
            let out = folder.join(kind);
            let path = out.to_str().context("the lab's folder is no UTF-8")?;
            pki(
                &["issue", "--dir"],
                issuer,
                &["--name", name, "--out", path],
            )?;
            let config = config(&authority.join("ca.pem"), &out)?;
            all.push((NodeName::new(name)?, Arc::new(config)));
        }
        pki(&["revoke", "--dir"], &authority, &["a"])?;
        let lines = format!("crl = \"{}\"\n", authority.join("crl.pem").display());
        Ok(Self { all, lines })
    }

    /// Shows each of them to each agent, again and again, and says what a peer could.
    pub(super) fn show(&self, scene: &Scene<'_>, lasts: Duration) -> Result<u64> {
        let work = || -> Result<u64> {
            let (end, mut count, mut silent) = (Instant::now() + lasts, 0, Vec::new());
            let socket = UdpSocket::bind("0.0.0.0:0").context("a socket")?;
            while Instant::now() < end {
                for host in [scene.owner, scene.standby] {
                    let at = SocketAddr::from((host.control_v4(), CONTROL));
                    for (name, config) in &self.all {
                        // It is refused, which may be told in any way.
                        silent.extend(say(at, host, (*name, config)).ok());
                        for datagram in datagrams(*name)? {
                            let _ = socket.send_to(&datagram, at);
                            count += 1;
                        }
                        count += 1;
                    }
                }
                silent.drain(..silent.len().saturating_sub(SILENT));
                thread::sleep(Duration::from_millis(2));
            }
            Ok(count)
        };
        let witness = scene.lab.node(Host::Witness);
        witness.enter(work).context("the witness's machine")?
    }
}

fn pki(command: &[&str], authority: &Path, more: &[&str]) -> Result<()> {
    let mut pki = Command::new(binary()?);
    pki.arg("pki").args(command).arg(authority).args(more);
    let output = pki.output().context("starting `godwit pki`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`godwit pki {command:?}`: {said}");
    Ok(())
}

/// Believes the cluster's authority, as its agents' certificates are real.
fn config(authority: &Path, folder: &Path) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let chain = CertificateDer::pem_file_iter(folder.join("node.pem"))?;
    let chain = chain.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(folder.join("node.key"))?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    Ok(config)
}

/// One connection: all that a peer could say to have the other side believe that it leaves, or
/// that its standby has left. Whoever refuses it has ended it by then, or it stays silent.
fn say(
    at: SocketAddr,
    host: Host,
    (name, config): (NodeName, &Arc<ClientConfig>),
) -> Result<TcpStream> {
    let mut socket = TcpStream::connect_timeout(&at, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let server = ServerName::try_from(host.name())?;
    let mut tls = ClientConnection::new(Arc::clone(config), server)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(&words(name)?)?;
    stream.flush()?;
    stream.sock.set_read_timeout(Some(REFUSED))?;
    match stream.read(&mut [0; 1000]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(socket),
        ended => Err(anyhow::anyhow!("{ended:?}")),
    }
}

/// A greeting, and then what only a server with a part in the service may say.
fn words(name: NodeName) -> Result<Vec<u8>> {
    let hello = Message::Peer(PeerMessage::Hello(Hello {
        name,
        incarnation: u64::MAX,
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        heartbeat_key: SECRET,
        config_digest: [0; 32],
    }));
    let goodbye = GoodbyeReason::ALL
        .iter()
        .map(|&reason| Message::Peer(PeerMessage::Goodbye { reason }));
    let mut bytes = Vec::new();
    for message in std::iter::once(hello).chain(goodbye) {
        message.emit(&mut bytes)?;
    }
    Ok(bytes)
}

/// A heartbeat and a message about leases, signed with a key that nobody has been told.
fn datagrams(sender: NodeName) -> Result<[Vec<u8>; 2]> {
    let heartbeat = Heartbeat {
        sender,
        incarnation: u64::MAX,
        sequence: u64::MAX,
        sent_ns: u64::MAX,
        shares: Vec::new(),
    };
    let message = LeaseMessage::Prepare {
        share: ShareId(0),
        epoch: Epoch(u64::MAX / 2),
        void: Epoch(0),
    };
    let lease = LeaseDatagram {
        sender,
        incarnation: u64::MAX,
        receiver: u64::MAX,
        sequence: u64::MAX,
        voters: 0,
        messages: vec![message],
    };
    let mut both = [Vec::new(), Vec::new()];
    heartbeat.emit_unsigned(&mut both[0])?;
    lease.emit_unsigned(&mut both[1])?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, &SECRET);
    for datagram in &mut both {
        let signed = Heartbeat::signed_part(datagram).context("it has a tag")?;
        let tag = hmac::sign(&key, signed);
        let place = Heartbeat::tag_mut(datagram).context("it has a tag")?;
        place.copy_from_slice(&tag.as_ref()[..Heartbeat::TAG_LEN]);
    }
    Ok(both)
}
