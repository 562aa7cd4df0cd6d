//! How many handshakes may be under way, and whose.
//!
//! Whoever connects and says nothing takes a place for two seconds. Places that all share
//! would be taken by strangers, and no peer would get through: so each address of a peer has
//! places of its own, of which the oldest gives way to a new one (it may be of an earlier
//! life of the peer's agent), and all other addresses share a few. A peer of an earlier
//! version may come from another address of its machine; it has what strangers have.
//!
//! Nobody waits for a place: what waited would be accepted when its peer has given up.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::locks::lock;

/// Handshakes at a time from each address of a peer.
const OF_A_PEER: usize = 4;

/// Handshakes at a time from all other addresses together.
const OF_STRANGERS: usize = 8;

/// Why a connection to the control port came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlinked {
    /// From the address of no peer, of which too many were there.
    Crowded,
    /// A later one from the same peer's address took its place.
    PushedOut,
    /// It did not finish its handshake: silence, no certificate of the authority, noise.
    Handshake,
    /// Its certificate is that of no node that dials this one.
    Stranger,
    /// Its certificate is revoked; those count, too, that this node has dialled, and links
    /// that have ended because of it.
    Revoked,
}

impl Unlinked {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 5] = [
        Self::Crowded,
        Self::PushedOut,
        Self::Handshake,
        Self::Stranger,
        Self::Revoked,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Crowded => "crowded",
            Self::PushedOut => "pushed_out",
            Self::Handshake => "handshake",
            Self::Stranger => "stranger",
            Self::Revoked => "revoked",
        }
    }
}

/// Counts by reason.
#[derive(Debug, Default)]
pub struct UnlinkedCounters([AtomicU64; Unlinked::ALL.len()]);

impl UnlinkedCounters {
    pub(super) fn count(&self, reason: Unlinked) {
        let mut counts = Unlinked::ALL.iter().zip(&self.0);
        if let Some((_, count)) = counts.find(|(other, _)| **other == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each reason, and how often it came up.
    pub fn read(&self) -> impl Iterator<Item = (Unlinked, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Unlinked::ALL.into_iter().zip(counts)
    }
}

/// The places for handshakes.
#[derive(Debug)]
pub(super) struct Doors {
    peers: Vec<IpAddr>,
    under_way: Arc<Mutex<VecDeque<UnderWay>>>,
    next: AtomicU64,
}

/// One handshake.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    /// The peer's address that it comes from; `None`: a stranger.
    from: Option<IpAddr>,
    /// When this is dropped it ends.
    _place: oneshot::Sender<()>,
}

/// The right to a handshake, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    number: u64,
    under_way: Arc<Mutex<VecDeque<UnderWay>>>,
    given_away: oneshot::Receiver<()>,
    /// Whether it comes from the address of a peer.
    pub(super) is_known: bool,
}

impl Doors {
    pub(super) fn new(peers: impl Iterator<Item = IpAddr>) -> Self {
        Self {
            peers: peers.map(|address| address.to_canonical()).collect(),
            under_way: Arc::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Who comes from that address may begin; the oldest of a peer's address gives way.
    pub(super) fn enter(&self, from: IpAddr) -> Result<Entry, Unlinked> {
        let from = Some(from.to_canonical()).filter(|from| self.peers.contains(from));
        let mut under_way = lock(&self.under_way);
        let same = |other: &UnderWay| other.from == from;
        let count = under_way.iter().filter(|other| same(other)).count();
        match from {
            None if count >= OF_STRANGERS => return Err(Unlinked::Crowded),
            Some(_) if count >= OF_A_PEER => {
                let oldest = under_way.iter().position(same);
                oldest.and_then(|at| under_way.remove(at));
            }
            None | Some(_) => {}
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (place, given_away) = oneshot::channel();
        under_way.push_back(UnderWay {
            number,
            from,
            _place: place,
        });
        Ok(Entry {
            number,
            under_way: self.under_way.clone(),
            given_away,
            is_known: from.is_some(),
        })
    }
}

impl Entry {
    /// Until its place is given to a later one.
    pub(super) async fn given_away(&mut self) {
        // Nothing is ever sent: its other end has gone.
        let _ = (&mut self.given_away).await;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.under_way).retain(|other| other.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn is_in(entry: &mut Entry) -> bool {
        matches!(
            entry.given_away.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        )
    }

    #[test]
    fn strangers_share_a_few_places_and_take_none_of_a_peer() {
        for (peer, mapped) in [("10.9.0.1", "::ffff:10.9.0.1"), ("fd00::1", "fd00::1")] {
            let doors = Doors::new([ip(peer), ip("10.9.0.2")].into_iter());
            let strangers = (0..100).map(|last| doors.enter(ip(&format!("10.8.0.{last}"))));
            let (mut inside, turned_away): (Vec<_>, Vec<_>) = strangers.partition(Result::is_ok);
            assert_eq!((inside.len(), turned_away.len()), (OF_STRANGERS, 92));
            assert!(
                turned_away
                    .iter()
                    .all(|it| matches!(it, Err(Unlinked::Crowded)))
            );
            let known = doors.enter(ip(mapped)).expect("it has its own");
            assert!(known.is_known);
            inside.pop();
            assert!(doors.enter(ip("10.8.0.200")).is_ok(), "one has gone");
        }
    }

    #[test]
    fn the_oldest_of_a_peer_s_address_gives_way() {
        let doors = Doors::new([ip("10.9.0.1"), ip("10.9.0.2")].into_iter());
        let mut other = doors.enter(ip("10.9.0.2")).expect("it may");
        let enter = |_| doors.enter(ip("10.9.0.1")).expect("it may");
        let mut entries: Vec<_> = (0..=OF_A_PEER).map(enter).collect();
        assert!(!is_in(&mut entries[0]), "the oldest");
        assert!(entries[1..].iter_mut().all(is_in) && is_in(&mut other));
        drop(entries);
        assert_eq!(lock(&doors.under_way).len(), 1);
    }
}
