//! Lease datagrams on their way out: written by the driver itself, beside the
//! heartbeats, as a decision must not wait for a tick. What this node votes for is
//! kept before.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use godwit_core::PeerId;
use godwit_wire::LeaseDatagram;

use super::{HeartbeatKeys, Ways};
use crate::facts::Seen;
use crate::votes::{VoteBook, is_missed};

/// The way to the voters, of one thread.
#[derive(Debug)]
pub struct LeaseSender {
    ways: Ways,
    keys: Arc<HeartbeatKeys>,
    book: VoteBook,
}

impl LeaseSender {
    pub(super) const fn new(ways: Ways, keys: Arc<HeartbeatKeys>, book: VoteBook) -> Self {
        Self { ways, keys, book }
    }

    /// Keeps what this node has voted for, before anybody hears of it.
    pub fn keep(&mut self, votes: &str) {
        self.book.keep(votes);
    }

    /// What was found around this node may be that the file of votes is gone.
    pub(crate) fn note(&mut self, seen: &Seen) {
        let Seen::Look(look) = seen else { return };
        if is_missed(look) {
            self.book.renew();
        }
    }

    /// Signs and sends a datagram; what is lost is said again by its author.
    ///
    /// # Errors
    /// If there is no such peer, or the kernel takes no datagram to it now.
    pub fn send(&self, peer: PeerId, datagram: &LeaseDatagram) -> io::Result<()> {
        let way = self.ways.get(usize::from(peer.0));
        let way = way.ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = Vec::with_capacity(LeaseDatagram::MAX_LEN);
        self.for_peer(peer, datagram)
            .emit_unsigned(&mut bytes)
            .map_err(io::Error::other)?;
        way.send(&mut bytes)
    }

    /// As a peer calls the shares.
    fn for_peer<'a>(&self, peer: PeerId, datagram: &'a LeaseDatagram) -> Cow<'a, LeaseDatagram> {
        let Some(places) = self.keys.places_of(peer) else {
            return Cow::Borrowed(datagram);
        };
        let mut datagram = datagram.clone();
        for message in &mut datagram.messages {
            let share = message.share_mut();
            *share = places.place_of(*share);
        }
        Cow::Owned(datagram)
    }
}
