//! Control links: one mutually authenticated TLS stream per pair of agents.
//!
//! The agent whose name sorts first dials, the other one listens. A link whose
//! certificate is that of a peer is announced to the driver ([`Link::Up`]); the
//! core answers with its `Hello`. The peer's first message must be a `Hello`
//! with the name of its certificate: it carries the key of its heartbeats,
//! which is kept here. A second link of a peer replaces the first: a peer that
//! was started anew does not wait for our old link to time out.
//!
//! Outgoing hellos get the heartbeat key for that peer on their way: the core
//! need not know that each peer has its own.
//!
//! Whoever queues messages sends them ([`PeerSender::flush`]) before it waits for anything,
//! without waiting itself (`outbox`).
//!
//! | task | lives | cancelled by | when its queue is full |
//! |---|---|---|---|
//! | `dial` per later-named peer | as long as the agent | the runtime's end | has none |
//! | `listen` | as long as the agent | the runtime's end | so many handshakes at once for each peer's address, and so many for all others: see `doors` |
//! | follower of lists | as long as the agent | the runtime's end | has none: it sees the latest list |
//! | reader of a link | as long as the link | its writer's end, a newer link | the driver's queue: it waits, TCP slows the peer down |
//! | writer of a link: what those who speak could not send | as long as the link | its reader's end, a newer link | `QUEUE` messages: the link is closed, see below |
//!
//! The driver never waits for a peer. A peer that does not read is worse than
//! one without a link, because a lost message is not noticed: so when the
//! queue is full its link is closed, and the fresh one starts with
//! `Hello`, `ShareState` and `StandbyReady`, as any other.

mod absence;
mod der;
mod dial;
mod doors;
mod fault;
mod key;
mod link;
mod listen;
mod no_link;
mod outbox;
mod revocation;
#[cfg(test)]
mod tests;
mod tls;
mod validity;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use godwit_core::{Link, PeerId};
use godwit_wire::{Hello, Message, NodeName, PeerMessage};
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;

use crate::config::{Config, PeerConfig};
use crate::events::EventLog;
use crate::heartbeat::HeartbeatKeys;
use crate::input::{DriverGone, Inbox, Input};
use crate::locks::lock;

use absence::Absences;
use link::LinkError;
use outbox::{NotQueued, Outbox, QUEUE};

pub use doors::{Unlinked, UnlinkedCounters};
pub use fault::TlsError;
pub(crate) use key::judge as judge_key;
pub use no_link::{Absence, NoLink};
pub use tls::Identity;
pub(crate) use validity::Validity;

/// Why a message was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no such peer.
    #[error("no such peer")]
    NoPeer,
    /// There is no link; what it would have said comes with the next one.
    #[error("no link to the peer")]
    NoLink,
    /// The peer does not read; its link has been closed.
    #[error("the peer does not read fast enough; its link was closed")]
    Full,
}

/// Sends messages to peers; cheap to clone, never waits.
#[derive(Debug, Clone)]
pub struct PeerSender {
    shared: Arc<Shared>,
}

/// What all tasks of this module know.
#[derive(Debug)]
struct Shared {
    own_name: NodeName,
    /// What we dial from: our control address, with any port.
    own_address: SocketAddr,
    unlinked: Arc<UnlinkedCounters>,
    slots: Vec<Slot>,
    identity: Identity,
    keys: Arc<HeartbeatKeys>,
    inbox: Inbox,
    events: EventLog,
    closing: AtomicBool,
    /// Links that are announced and not yet retired.
    links: AtomicUsize,
}

/// The place for the one link to a peer.
#[derive(Debug)]
struct Slot {
    peer: PeerConfig,
    /// Locked by the driver too, so never while anything waits for the driver.
    outbox: Mutex<Option<Arc<Outbox>>>,
    /// Locked by this module's tasks only.
    turn: Mutex<Turn>,
    /// The certificates of the link that the key of its heartbeats came by.
    believed: Mutex<Vec<CertificateDer<'static>>>,
    /// Why there is no link.
    absences: Mutex<Absences>,
}

/// Which link of a peer is the current one.
#[derive(Debug, Default)]
struct Turn {
    /// Counts the links, so that an old one knows that it is old.
    serial: u64,
    /// Whether the driver believes that there is a link.
    is_up: bool,
}

/// A link's claim to its slot.
#[derive(Debug, Clone, Copy)]
struct Ticket {
    peer: PeerId,
    serial: u64,
}

impl PeerSender {
    /// Queues a message for a peer; [`flush`](Self::flush) sends it.
    ///
    /// # Errors
    /// If it can't be sent. The driver goes on: a link that comes up later
    /// starts with everything that the peer needs to know.
    pub fn send(&self, peer: PeerId, mut message: Message) -> Result<(), SendError> {
        let slot = self.shared.slot(peer).ok_or(SendError::NoPeer)?;
        if let (Message::Peer(PeerMessage::Hello(hello)), Some(key)) =
            (&mut message, self.shared.keys.ours(peer))
        {
            hello.heartbeat_key = *key;
        }
        if let Some(places) = self.shared.keys.places_of(peer) {
            places.speak(&mut message);
        }
        let mut outbox = lock(&slot.outbox);
        let pushed = outbox.as_ref().map(|outbox| outbox.push(message));
        match pushed {
            Some(Ok(())) => Ok(()),
            None | Some(Err(NotQueued::Closed)) => Err(SendError::NoLink),
            Some(Err(NotQueued::Full)) => {
                tracing::warn!(peer = %slot.peer.name, "peer does not read; closing its link");
                // The writer ends when its queue does, and the reader with it.
                if let Some(outbox) = outbox.take() {
                    outbox.close();
                }
                Err(SendError::Full)
            }
        }
    }

    /// Sends what is queued, as far as peers take it; the rest follows by itself.
    pub fn flush(&self) {
        for slot in &self.shared.slots {
            let outbox = lock(&slot.outbox).clone();
            if let Some(outbox) = outbox {
                outbox.flush();
            }
        }
    }

    /// Whether there is a link to a peer.
    pub fn is_linked(&self, peer: PeerId) -> bool {
        self.shared
            .slot(peer)
            .is_some_and(|slot| lock(&slot.outbox).is_some())
    }

    /// Why there is no link to a peer, where there is none.
    pub fn absence(&self, peer: PeerId) -> Option<Absence> {
        self.shared.absence(peer)
    }

    /// Counts of those that came to the control port for nothing.
    pub fn unlinked(&self) -> Arc<UnlinkedCounters> {
        self.shared.unlinked.clone()
    }

    /// Whether there is a link to every peer.
    pub fn is_linked_to_all(&self) -> bool {
        let mut slots = self.shared.slots.iter();
        slots.all(|slot| lock(&slot.outbox).is_some())
    }

    /// How many messages may be queued for a peer that could as well be left out: half
    /// of the queue is for others.
    pub fn room(&self, peer: PeerId) -> usize {
        let slot = self.shared.slot(peer);
        let outbox = slot.and_then(|slot| lock(&slot.outbox).clone());
        let room = outbox.map_or(0, |outbox| outbox.room());
        room.saturating_sub(QUEUE / 2)
    }

    /// Closes every link once its queue is empty, and makes no new one.
    pub(crate) fn close(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        for slot in &self.shared.slots {
            if let Some(outbox) = lock(&slot.outbox).take() {
                outbox.close();
            }
        }
    }

    /// Whether some link still has something to say.
    pub(crate) fn has_links(&self) -> bool {
        self.shared.links.load(Ordering::Relaxed) > 0
    }
}

/// What links are made with, and where they lead.
#[derive(Debug)]
pub struct Means {
    /// This node's certificate and key.
    pub identity: Identity,
    /// Takes the keys of heartbeats.
    pub keys: Arc<HeartbeatKeys>,
    /// Takes messages.
    pub inbox: Inbox,
    /// Takes what peers refuse.
    pub events: EventLog,
}

/// Starts dialling, and accepting what comes to a listener at the control address that does
/// not block. Call within the runtime of the edge thread.
///
/// # Errors
/// If the runtime has no room for it.
pub fn start(
    config: &Config,
    means: Means,
    listener: std::net::TcpListener,
) -> io::Result<PeerSender> {
    let listener = TcpListener::from_std(listener)?;
    let slots = config.others().map(|peer| Slot {
        peer: peer.clone(),
        outbox: Mutex::default(),
        turn: Mutex::default(),
        believed: Mutex::default(),
        absences: Mutex::default(),
    });
    let mut own_address = config.own_peer().control;
    own_address.set_port(0);
    let shared = Arc::new(Shared {
        own_name: config.node.name,
        own_address,
        unlinked: Arc::default(),
        slots: slots.collect(),
        identity: means.identity,
        keys: means.keys,
        inbox: means.inbox,
        events: means.events,
        closing: AtomicBool::new(false),
        links: AtomicUsize::new(0),
    });
    for (peer, slot) in (0..).map(PeerId).zip(&shared.slots) {
        if shared.dials(slot.peer.name) {
            tokio::spawn(dial::run(shared.clone(), peer));
        }
    }
    tokio::spawn(shared.clone().follow_lists());
    tokio::spawn(listen::run(shared.clone(), listener));
    Ok(PeerSender { shared })
}

impl Shared {
    fn slot(&self, peer: PeerId) -> Option<&Slot> {
        self.slots.get(usize::from(peer.0))
    }

    /// Whether a peer may have a link with these certificates, and this node with its own.
    fn admit(&self, peer: PeerId, chain: &[CertificateDer<'_>]) -> Result<(), LinkError> {
        if let Some(serial) = self.identity.own_revoked() {
            return Err(LinkError::OwnRevoked { serial });
        }
        match self.identity.revocations().find(chain) {
            Some(serial) => Err(self.refuse(peer, serial)),
            None => Ok(()),
        }
    }

    /// Somebody has dialled whose certificate is that of no node that dials this one: of `named`,
    /// which this node dials, or of none of its file. Who shows a revoked one may be anywhere.
    fn turn_away(&self, named: Option<PeerId>, chain: &[CertificateDer<'_>]) -> LinkError {
        match (self.identity.revocations().find(chain), named) {
            (Some(serial), Some(peer)) => self.refuse(peer, serial),
            (Some(serial), None) => {
                self.unlinked.count(Unlinked::Revoked);
                LinkError::Revoked { serial }
            }
            (None, _) => LinkError::Stranger,
        }
    }

    /// A peer has no link, or loses it.
    fn refuse(&self, peer: PeerId, serial: String) -> LinkError {
        self.unlinked.count(Unlinked::Revoked);
        if let Some(slot) = self.slot(peer) {
            let name = slot.peer.name;
            // It dials several times a second: said once.
            if self.identity.revocations().refuse(name, &serial) {
                tracing::warn!(peer = %name, serial, "the peer's certificate is revoked: no link");
            }
        }
        LinkError::Revoked { serial }
    }

    /// A peer has said hello on a link with these certificates: what it signs counts from
    /// now on, until they are revoked.
    fn believe(
        &self,
        peer: PeerId,
        chain: &[CertificateDer<'static>],
        hello: &Hello,
    ) -> Result<(), LinkError> {
        let slot = self.slot(peer).ok_or(DriverGone)?;
        *lock(&slot.believed) = chain.to_vec();
        // The list may have changed since the link began.
        self.admit(peer, chain)?;
        self.keys.learn(peer, hello);
        self.identity.revocations().forgive(slot.peer.name);
        self.forget_absence(peer);
        Ok(())
    }

    /// Has datagrams of peers not count any more whose certificates are revoked, also while
    /// they have no link.
    async fn follow_lists(self: Arc<Self>) {
        let mut changes = self.identity.revocations().changes();
        while changes.changed().await.is_ok() {
            for (peer, slot) in (0..).map(PeerId).zip(&self.slots) {
                if self
                    .identity
                    .revocations()
                    .find(&lock(&slot.believed))
                    .is_some()
                {
                    self.keys.shut(peer);
                }
            }
        }
    }

    /// Whether we dial a peer rather than wait for it.
    fn dials(&self, peer: NodeName) -> bool {
        self.own_name < peer
    }

    /// Makes a link the current one and tells the driver, in this order: the
    /// old one is down, the new one is up.
    fn register(&self, peer: PeerId, outbox: &Arc<Outbox>) -> Result<Ticket, DriverGone> {
        let slot = self.slot(peer).ok_or(DriverGone)?;
        if self.closing.load(Ordering::Relaxed) {
            return Err(DriverGone);
        }
        let mut turn = lock(&slot.turn);
        turn.serial += 1;
        if turn.is_up {
            self.inbox.send(Input::Link {
                peer,
                link: Link::Down,
            })?;
        }
        // Before the driver hears of the link: it answers at once.
        let former = lock(&slot.outbox).replace(Arc::clone(outbox));
        if let Some(former) = former {
            former.close();
        }
        turn.is_up = true;
        self.links.fetch_add(1, Ordering::Relaxed);
        self.inbox.send(Input::Link {
            peer,
            link: Link::Up,
        })?;
        Ok(Ticket {
            peer,
            serial: turn.serial,
        })
    }

    /// Hands messages to the driver unless the link has been replaced.
    fn deliver(&self, ticket: Ticket, messages: Vec<Message>) -> Result<(), DriverGone> {
        let peer = ticket.peer;
        let slot = self.slot(peer).ok_or(DriverGone)?;
        if lock(&slot.turn).serial != ticket.serial {
            return Ok(());
        }
        let places = self.keys.places_of(peer);
        let input = |mut message| {
            if let Some(places) = places {
                places.understand(&mut message);
            }
            Input::Message { peer, message }
        };
        self.inbox
            .send_all(messages.into_iter().map(input).collect())
    }

    /// Tells the driver that a link is down, unless it has been replaced.
    fn retire(&self, ticket: Ticket) -> Result<(), DriverGone> {
        let peer = ticket.peer;
        let slot = self.slot(peer).ok_or(DriverGone)?;
        self.links.fetch_sub(1, Ordering::Relaxed);
        let mut turn = lock(&slot.turn);
        if turn.serial != ticket.serial {
            return Ok(());
        }
        *lock(&slot.outbox) = None;
        turn.is_up = false;
        self.inbox.send(Input::Link {
            peer,
            link: Link::Down,
        })
    }
}
