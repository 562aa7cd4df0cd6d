//! How much of the connections' snapshots is on its way, what may be sent at one look, and whose turn it is when
//! there is no room for all: of those that wait the one that has waited longest.

use std::time::Duration;

use godwit_wire::FlowKey;

use super::part_count;
use crate::MonoTime;

/// Bytes of snapshots that are sent in one round; the others have their turn later.
const ROUND: usize = 4 << 20;

/// Parts that may be without an answer, of all connections, 16 MiB, and as many of those
/// that servers wait for: what a link of
/// 1 Gbit/s takes an eighth of a second for, and commits wait behind it. A peer's link
/// is closed when a thousand wait.
pub const UNDER_WAY: usize = 64;

/// How long a part is on its way over a link that takes 100 Mbit/s.
const PART_TIME: Duration = Duration::from_millis(21);

/// Whether a server waits for a snapshot to arrive. Others take no room from those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Nobody waits.
    Ordinary,
    /// A server does not go on before it is there.
    Awaited,
}

/// Parts that are without an answer.
#[derive(Debug, Default)]
pub struct UnderWay {
    ordinary: usize,
    awaited: usize,
}

impl UnderWay {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ordinary: 0,
            awaited: 0,
        }
    }

    /// Whether so many bytes may go now. What is larger than all that may be under way
    /// goes by itself.
    pub fn has_room(&self, urgency: Urgency, bytes: usize) -> bool {
        let taken = match urgency {
            Urgency::Ordinary => self.ordinary,
            Urgency::Awaited => self.awaited,
        };
        taken == 0 || taken + part_count(bytes) <= UNDER_WAY
    }

    /// So many parts have gone.
    pub const fn add(&mut self, urgency: Urgency, parts: usize) {
        let taken = self.of(urgency);
        *taken = taken.saturating_add(parts);
    }

    /// Nobody waits for the answer to these any more.
    pub const fn remove(&mut self, urgency: Urgency, parts: usize) {
        let taken = self.of(urgency);
        *taken = taken.saturating_sub(parts);
    }

    /// Parts of those that no server waits for.
    pub const fn ordinary(&self) -> usize {
        self.ordinary
    }

    /// How long all that is under way may take to get there.
    pub fn duration(&self) -> Duration {
        let parts = u32::try_from(self.ordinary + self.awaited).unwrap_or(u32::MAX);
        PART_TIME.saturating_mul(parts)
    }

    const fn of(&mut self, urgency: Urgency) -> &mut usize {
        match urgency {
            Urgency::Ordinary => &mut self.ordinary,
            Urgency::Awaited => &mut self.awaited,
        }
    }
}

/// The room at one look.
#[derive(Debug)]
pub struct Room {
    bytes: usize,
    under_way: usize,
    /// Who comes before the others, as it had no room at the last look.
    first: Option<Waiting>,
    /// Who has waited longest of those for which there was none at this one.
    left_out: Option<Waiting>,
}

/// A connection whose snapshot has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    flow: FlowKey,
    parts: usize,
    /// Until when its last one was waited for; `None` if there was none.
    last: Option<MonoTime>,
}

impl Room {
    /// So many parts are under way; one connection may have waited since the last look.
    pub const fn new(under_way: usize, first: Option<Waiting>) -> Self {
        Self {
            bytes: ROUND,
            under_way,
            first,
            left_out: None,
        }
    }

    /// Whether a connection's snapshot of that size goes now. `last`: when the one before
    /// it went, if there was one.
    pub fn take(&mut self, flow: FlowKey, bytes: usize, last: Option<MonoTime>) -> bool {
        let parts = part_count(bytes);
        let others = self.first.filter(|first| first.flow != flow);
        let kept_free = others.map_or(0, |first| first.parts);
        let taken = self.under_way + kept_free;
        let full = taken > 0 && taken + parts > UNDER_WAY;
        let is_first = others != self.first;
        let late = bytes > self.bytes && self.bytes < ROUND && !is_first;
        if full || late {
            let waiting = Waiting { flow, parts, last };
            let before = self.left_out.take();
            self.left_out = Some(match before {
                Some(before) if before.last <= last => before,
                Some(_) | None => waiting,
            });
            return false;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.under_way += parts;
        self.first = others;
        true
    }

    /// Who comes first at the next look.
    pub const fn next(&self) -> Option<Waiting> {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::PART;
    use super::*;

    fn flow(port: u16) -> FlowKey {
        let client = std::net::SocketAddr::from(([10, 9, 0, 10], port)).into();
        let service = std::net::SocketAddr::from(([10, 9, 0, 100], 80)).into();
        FlowKey { client, service }
    }

    /// However they come, and however much of the room one of them takes.
    #[test]
    fn each_has_its_turn() {
        for whole in [[64, 64, 64], [64, 1, 1], [40, 40, 1], [1, 1, 64]] {
            let mut last = BTreeMap::new();
            let (mut sent, mut first) = ([0; 3], None);
            for look in 1..=90 {
                // All that went at the last look was answered.
                let mut room = Room::new(0, first);
                for (port, parts) in (0..).zip(whole) {
                    let key = flow(port);
                    if room.take(key, parts * PART, last.get(&key).copied()) {
                        last.insert(key, MonoTime::from_nanos(look));
                        sent[usize::from(port)] += 1;
                    }
                }
                first = room.next();
            }
            assert!(sent.iter().all(|sent| *sent >= 25), "{whole:?}: {sent:?}");
        }
    }

    #[test]
    fn nobody_waits_for_one_that_has_nothing_more() {
        let mut room = Room::new(UNDER_WAY, None);
        assert!(!room.take(flow(1), PART, None));
        let mut room = Room::new(0, room.next());
        assert!(!room.take(flow(2), UNDER_WAY * PART, None));
        let mut room = Room::new(0, room.next());
        assert!(room.take(flow(2), UNDER_WAY * PART, None));
        assert_eq!(room.next(), None);
    }

    #[test]
    fn the_room_of_a_round_has_a_bound() {
        let mut room = Room::new(0, None);
        assert!(room.take(flow(1), 1, None));
        assert!(!room.take(flow(2), ROUND, None), "it waits");
        assert!(room.take(flow(3), 1, None));
        let mut room = Room::new(0, room.next());
        assert!(room.take(flow(2), 4 * ROUND, None), "it is the first");
        assert!(!room.take(flow(3), 1, None));
    }
}
