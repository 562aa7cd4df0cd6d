//! Who may say that a node is alive: a key per sender and receiver.
//!
//! Each agent draws a secret at its start and derives one key per peer from
//! it, so that no peer can pretend to another one to be us. The key travels in
//! the `Hello` of the control link, which is encrypted and authenticated. Both
//! sides derive from it, with the incarnation of the *receiver*, what is signed
//! with: a receiver that was started anew has forgotten which sequence numbers
//! it has seen, and what was said to its earlier life does not fit. (A peer
//! before version 3 signs with the key itself.) A
//! heartbeat counts if its tag fits the key, its incarnation is that of the
//! `Hello`, and its sequence number is greater than any before. Lease datagrams
//! are signed and checked in the same way.

use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use godwit_core::PeerId;
use godwit_wire::{BOUND_KEYS, Heartbeat, Hello, LeaseDatagram, NAMED_SHARES, NodeName};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use super::sieve::{Known, Sieve};
use crate::config::{Config, Places};

/// The bytes of a key, wiped when they are dropped. What `ring` makes of them is not.
pub type Secret = Zeroizing<[u8; 32]>;

/// Sets the derived keys apart from any other use of the secret.
const PURPOSE: &[u8] = b"godwit heartbeat/1 ";

/// Sets what is bound to a receiver's life apart from that.
const BOUND: &[u8] = b"godwit heartbeat/1 to ";

/// What heartbeats are signed and checked with.
pub struct HeartbeatKeys {
    /// Start of this agent.
    incarnation: u64,
    peers: Vec<PeerKeys>,
    places: Places,
    /// What the kernel is told of the peers.
    sieve: OnceLock<Arc<Sieve>>,
}

struct PeerKeys {
    name: NodeName,
    address: IpAddr,
    ours: Secret,
    signer: Signer,
    theirs: Mutex<Option<TheirKey>>,
    /// It calls shares by their places in the file.
    says_places: AtomicBool,
    /// It is not believed any more, until it has said hello again.
    is_shut: AtomicBool,
}

/// What datagrams to one peer are signed with; another key for each life of that peer.
#[derive(Debug, Clone)]
pub(crate) struct Signer(Arc<Mutex<hmac::Key>>);

#[derive(Debug)]
struct TheirKey {
    key: hmac::Key,
    incarnation: u64,
    last: LastSequences,
}

/// The latest sequence number of each kind of datagram.
#[derive(Debug, Clone, Copy, Default)]
struct LastSequences {
    heartbeat: Option<u64>,
    lease: Option<u64>,
}

/// What both kinds of datagrams begin with.
#[derive(Debug, Clone, Copy)]
struct Header {
    sender: NodeName,
    incarnation: u64,
    sequence: u64,
}

/// Why a datagram does not count as a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// It is no heartbeat at all.
    Malformed,
    /// It names a sender that is no peer.
    Stranger,
    /// The peer has not sent its key yet.
    NoKey,
    /// The tag does not fit.
    BadTag,
    /// It is of another start of the peer's agent than its key.
    OtherIncarnation,
    /// It was received before, or a later one was.
    Replayed,
}

impl Refused {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 6] = [
        Self::Malformed,
        Self::Stranger,
        Self::NoKey,
        Self::BadTag,
        Self::OtherIncarnation,
        Self::Replayed,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Stranger => "stranger",
            Self::NoKey => "no_key",
            Self::BadTag => "bad_tag",
            Self::OtherIncarnation => "other_incarnation",
            Self::Replayed => "replayed",
        }
    }
}

/// Draws the secret of this agent's life.
///
/// # Errors
/// If the kernel gives no random numbers.
pub fn draw_secret() -> Result<Secret, ring::error::Unspecified> {
    let mut secret = Secret::default();
    SystemRandom::new().fill(&mut *secret).map(|()| secret)
}

/// Keys are secrets, so they are not printed.
impl fmt::Debug for HeartbeatKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeartbeatKeys").finish_non_exhaustive()
    }
}

impl HeartbeatKeys {
    /// Derives our keys; the peers' come with their links. `incarnation`: the start of
    /// this agent.
    pub fn new(config: &Config, secret: &[u8; 32], incarnation: u64) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let peers = config.others().map(|peer| {
            let ours = derive(&secret, &[PURPOSE, peer.name.as_str().as_bytes()]);
            PeerKeys {
                name: peer.name,
                address: peer.control.ip(),
                signer: Signer::new(&ours),
                ours,
                theirs: Mutex::new(None),
                says_places: AtomicBool::new(false),
                is_shut: AtomicBool::new(false),
            }
        });
        Self {
            incarnation,
            peers: peers.collect(),
            places: Places::new(config),
            sieve: OnceLock::new(),
        }
    }

    /// Has the kernel drop what comes to `socket` and can't count, by what is known by now
    /// and with each hello.
    pub(super) fn guard(&self, socket: Arc<UdpSocket>) -> Arc<Sieve> {
        let known = |keys: &PeerKeys| {
            let theirs = keys.theirs.lock().unwrap_or_else(PoisonError::into_inner);
            Known {
                name: keys.name,
                address: keys.address,
                incarnation: theirs.as_ref().map(|theirs| theirs.incarnation),
            }
        };
        let peers = self.peers.iter().map(known).collect();
        let sieve = self
            .sieve
            .get_or_init(|| Arc::new(Sieve::new(socket, peers)));
        sieve.clone()
    }

    /// What our datagrams to a peer are signed with.
    pub(crate) fn signer(&self, peer: PeerId) -> Option<Signer> {
        self.peer(peer).map(|keys| keys.signer.clone())
    }

    /// The key that a peer is told.
    pub(crate) fn ours(&self, peer: PeerId) -> Option<Secret> {
        self.peer(peer).map(|keys| keys.ours.clone())
    }

    /// How a peer calls shares that has no numbers for names; `None`: it has them.
    pub(crate) fn places_of(&self, peer: PeerId) -> Option<&Places> {
        let says_places = self.peer(peer)?.says_places.load(Ordering::Relaxed);
        says_places.then_some(&self.places)
    }

    /// Takes a peer's key from the `Hello` of its link.
    pub(crate) fn learn(&self, peer: PeerId, hello: &Hello) {
        let Some(keys) = self.peer(peer) else {
            return;
        };
        let says_places = hello.max_version < NAMED_SHARES;
        keys.says_places.store(says_places, Ordering::Relaxed);
        let is_bound = hello.max_version >= BOUND_KEYS;
        let (sign_with, check_with) = if is_bound {
            let check_with = bind(&hello.heartbeat_key, self.incarnation);
            (bind(&keys.ours, hello.incarnation), check_with)
        } else {
            (keys.ours.clone(), Secret::new(hello.heartbeat_key))
        };
        keys.signer.replace(&sign_with);
        keys.is_shut.store(false, Ordering::Relaxed);
        let mut theirs = keys.theirs.lock().unwrap_or_else(PoisonError::into_inner);
        // The same agent over a new link: its sequence goes on.
        let last = theirs
            .as_ref()
            .filter(|known| known.incarnation == hello.incarnation)
            .map_or_else(LastSequences::default, |known| known.last);
        *theirs = Some(TheirKey {
            key: hmac::Key::new(hmac::HMAC_SHA256, &*check_with),
            incarnation: hello.incarnation,
            last,
        });
        drop(theirs);
        if let Some(sieve) = self.sieve.get() {
            sieve.learn(peer, hello.incarnation);
        }
    }

    /// A peer's certificate is revoked: nothing that it signs counts, before it has said hello
    /// with another one. What it has said stays known, so that nobody says it again.
    pub(crate) fn shut(&self, peer: PeerId) {
        if let Some(keys) = self.peer(peer) {
            keys.is_shut.store(true, Ordering::Relaxed);
        }
    }

    /// Decides whether a datagram counts, and whose heartbeat it is.
    pub(crate) fn verify(&self, datagram: &[u8]) -> Result<(PeerId, Heartbeat), Refused> {
        let mut heartbeat = Heartbeat::parse(datagram).map_err(|_| Refused::Malformed)?;
        let header = Header {
            sender: heartbeat.sender,
            incarnation: heartbeat.incarnation,
            sequence: heartbeat.sequence,
        };
        let peer = self.admit(header, datagram, |last| &mut last.heartbeat)?;
        if let Some(places) = self.places_of(peer) {
            for claim in &mut heartbeat.shares {
                claim.share = places.share_at(claim.share);
            }
        }
        Ok((peer, heartbeat))
    }

    /// The same for a lease datagram, which has a sequence of its own.
    pub(crate) fn verify_lease(&self, datagram: &[u8]) -> Result<(PeerId, LeaseDatagram), Refused> {
        let mut lease = LeaseDatagram::parse(datagram).map_err(|_| Refused::Malformed)?;
        let header = Header {
            sender: lease.sender,
            incarnation: lease.incarnation,
            sequence: lease.sequence,
        };
        let peer = self.admit(header, datagram, |last| &mut last.lease)?;
        if let Some(places) = self.places_of(peer) {
            for message in &mut lease.messages {
                let share = message.share_mut();
                *share = places.share_at(*share);
            }
        }
        Ok((peer, lease))
    }

    fn admit(
        &self,
        header: Header,
        datagram: &[u8],
        last: impl Fn(&mut LastSequences) -> &mut Option<u64>,
    ) -> Result<PeerId, Refused> {
        let (peer, keys) = (0..)
            .map(PeerId)
            .zip(&self.peers)
            .find(|(_, keys)| keys.name == header.sender)
            .ok_or(Refused::Stranger)?;
        if keys.is_shut.load(Ordering::Relaxed) {
            return Err(Refused::NoKey);
        }
        let mut theirs = keys.theirs.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = theirs.as_mut().ok_or(Refused::NoKey)?;
        // Cheap first: who does not know the incarnation makes nobody compute.
        if header.incarnation != theirs.incarnation {
            return Err(Refused::OtherIncarnation);
        }
        if !has_tag(&theirs.key, datagram) {
            return Err(Refused::BadTag);
        }
        let last = last(&mut theirs.last);
        if last.is_some_and(|last| header.sequence <= last) {
            return Err(Refused::Replayed);
        }
        *last = Some(header.sequence);
        Ok(peer)
    }

    fn peer(&self, peer: PeerId) -> Option<&PeerKeys> {
        self.peers.get(usize::from(peer.0))
    }
}

impl Signer {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        Self(Arc::new(Mutex::new(key)))
    }

    fn replace(&self, key: &[u8; 32]) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// Fills in the tag of a datagram to a peer.
    pub(crate) fn sign(&self, datagram: &mut [u8]) {
        let Some(signed) = Heartbeat::signed_part(datagram) else {
            return;
        };
        let key = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = hmac::sign(&key, signed);
        drop(key);
        if let Some(field) = Heartbeat::tag_mut(datagram) {
            field.copy_from_slice(&tag.as_ref()[..Heartbeat::TAG_LEN]);
        }
    }
}

/// A key for one life of its receiver.
fn bind(key: &[u8; 32], receiver: u64) -> Secret {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    derive(&key, &[BOUND, &receiver.to_be_bytes()])
}

fn derive(secret: &hmac::Key, parts: &[&[u8]]) -> Secret {
    let mut context = hmac::Context::with_key(secret);
    for part in parts {
        context.update(part);
    }
    let mut key = Secret::default();
    key.copy_from_slice(context.sign().as_ref());
    key
}

/// Compares the truncated tag without telling by time where it differs.
fn has_tag(key: &hmac::Key, datagram: &[u8]) -> bool {
    let (Some(signed), Some(tag)) = (Heartbeat::signed_part(datagram), Heartbeat::tag(datagram))
    else {
        return false;
    };
    let expected = hmac::sign(key, signed);
    let differing = expected.as_ref().iter().zip(tag);
    differing.fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
}
