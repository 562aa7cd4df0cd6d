//! Which of a connection's snapshots are kept.
//!
//! A server may go on from an older one, if the client has not acknowledged more
//! than was written by then: so the newest of those that the client's
//! acknowledgements have reached is kept, and what is older than that is not. Of
//! those after it the newest is kept, and others in between, thinned where they are
//! closest to each other: at most [`MAX_KEPT`], or [`LARGE_KEPT`] when they are large.
//!
//! To copy a large one takes an agent longer than a busy server takes to export the
//! next, and its client to acknowledge. So of large ones the oldest stays for a time.
//!
//! From a commit a server never goes back, so nothing older is kept; and of what comes
//! later each one says that the oldest is as far as anybody may go.

use std::time::{Duration, Instant};

use godwit_wire::app::region::{MAX_KEPT, are_large};
use godwit_wire::app::{SnapshotKind, SnapshotPlace};

/// Snapshots that are kept when they are large.
pub(crate) const LARGE_KEPT: usize = 3;

/// For so many bytes the oldest snapshot stays for a microsecond. With those that are kept
/// and a new one, of 16 MiB each, that is a fifth of a second, in which an agent comes by
/// and copies it.
const BYTES_PER_MICROSECOND: u64 = 320;

/// Where a snapshot is that could not be kept; no region is so large.
const NOWHERE: u64 = u64::MAX;

/// The snapshots of a connection, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    places: Vec<SnapshotPlace>,
    /// Since when the oldest is that.
    since: Option<Instant>,
    /// One that is being read by somebody else.
    pinned: Option<SnapshotPlace>,
}

impl Kept {
    /// The latest snapshot.
    pub(crate) fn newest(&self) -> Option<SnapshotPlace> {
        self.places.last().copied()
    }

    /// All, oldest first.
    pub(crate) fn places(&self) -> &[SnapshotPlace] {
        &self.places
    }

    /// Adds the latest snapshot; the client has acknowledged so many bytes of
    /// output. What is returned is not needed any more.
    pub(crate) fn push(
        &mut self,
        latest: SnapshotPlace,
        acknowledged: u64,
        now: Instant,
    ) -> Vec<SnapshotPlace> {
        let mut latest = latest;
        if self.is_committed() {
            latest.kind = SnapshotKind::Commit;
        }
        let same = |old: &SnapshotPlace| (old.read, old.written) == (latest.read, latest.written);
        let mut dropped = Vec::new();
        if self.newest().as_ref().is_some_and(same) {
            dropped.extend(self.places.pop());
        }
        if self.places.is_empty() {
            self.since = Some(now);
        }
        self.places.push(latest);
        let reached = |place: &SnapshotPlace| place.written <= acknowledged;
        let older = self.places.iter().rposition(reached).unwrap_or(0);
        if older > 0 && !self.stays(now) {
            dropped.extend(self.places.drain(..older));
            self.since = Some(now);
        }
        while self.places.len() > self.limit() {
            dropped.push(self.places.remove(self.most_crowded()));
        }
        if let Some(pinned) = self.pinned {
            // It is let go when it is unpinned.
            dropped.retain(|place| *place != pinned);
        }
        dropped
    }

    /// As [`Self::push`], in place of the latest that was so a moment ago: so close to each
    /// other they are worth no more than one. The oldest stays.
    pub(crate) fn supersede(
        &mut self,
        latest: SnapshotPlace,
        acknowledged: u64,
        now: Instant,
    ) -> Vec<SnapshotPlace> {
        let former = (self.places.len() > 1).then(|| self.places.pop()).flatten();
        let mut dropped = self.push(latest, acknowledged, now);
        dropped.extend(former.filter(|it| self.pinned != Some(*it)));
        dropped
    }

    /// Adds a snapshot from which nobody goes back; all others are returned.
    pub(crate) fn commit(&mut self, latest: SnapshotPlace) -> Vec<SnapshotPlace> {
        let mut dropped = std::mem::replace(&mut self.places, vec![latest]);
        self.since = None;
        if let Some(pinned) = self.pinned {
            dropped.retain(|place| *place != pinned);
        }
        dropped
    }

    /// Takes away what is said to be of a later place than that; it is returned.
    pub(crate) fn retract(&mut self, (read, written): (u64, u64)) -> Vec<SnapshotPlace> {
        let (was_committed, pinned) = (self.is_committed(), self.pinned);
        let later = |place: &SnapshotPlace| place.read > read || place.written > written;
        let mut dropped: Vec<_> = self.places.extract_if(.., |place| later(place)).collect();
        if self.places.is_empty() && was_committed {
            self.places.push(lost((read, written)));
        }
        dropped.retain(|place| Some(*place) != pinned);
        dropped
    }

    /// Whether somebody may still be copying the oldest, though there are later ones
    /// that the client's acknowledgements have reached.
    fn stays(&self, now: Instant) -> bool {
        let lengths = self.places.iter().map(|place| u64::from(place.length));
        let time = Duration::from_micros(lengths.sum::<u64>() / BYTES_PER_MICROSECOND);
        let is_new = |since: Instant| now.saturating_duration_since(since) < time;
        are_large(&self.places) && self.since.is_some_and(is_new)
    }

    /// Whether the server must not go back behind the oldest one.
    fn is_committed(&self) -> bool {
        let newest = self.places.last();
        newest.is_some_and(|place| place.kind == SnapshotKind::Commit)
    }

    /// Keeps the latest as it is, whatever comes.
    pub(crate) fn pin(&mut self) {
        self.pinned = self.newest();
    }

    /// What was pinned, if it is not among the kept ones any more.
    pub(crate) fn unpin(&mut self) -> Option<SnapshotPlace> {
        let pinned = self.pinned.take()?;
        (!self.places.contains(&pinned)).then_some(pinned)
    }

    /// Forgets all of them.
    pub(crate) fn take(&mut self) -> Vec<SnapshotPlace> {
        let mut all = std::mem::take(&mut self.places);
        all.extend(self.pinned.take().filter(|pinned| !all.contains(pinned)));
        all
    }

    fn limit(&self) -> usize {
        if are_large(&self.places) {
            LARGE_KEPT
        } else {
            MAX_KEPT
        }
    }

    /// The one whose neighbours are closest to each other; not the first, which the
    /// acknowledgements have reached, and not the last.
    fn most_crowded(&self) -> usize {
        let spans = self.places.windows(3).enumerate().filter_map(|(at, near)| {
            let [before, _, after] = near else {
                return None;
            };
            Some((after.written.saturating_sub(before.written), at + 1))
        });
        spans.min().map_or(0, |(_, at)| at)
    }
}

/// Stands for a commit that could not be kept: nobody goes back behind it, nor on from
/// there, and a later snapshot takes its place.
pub(crate) const fn lost((read, written): (u64, u64)) -> SnapshotPlace {
    SnapshotPlace {
        offset: NOWHERE,
        length: 1,
        kind: SnapshotKind::Commit,
        read,
        written,
    }
}

/// Whether a snapshot has a block of its own in the region.
pub(crate) const fn has_block(place: &SnapshotPlace) -> bool {
    place.length > 0 && place.offset != NOWHERE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(written: u64, length: u32) -> SnapshotPlace {
        SnapshotPlace {
            offset: written,
            length,
            kind: SnapshotKind::Regenerable,
            read: 0,
            written,
        }
    }

    fn written(kept: &Kept) -> Vec<u64> {
        kept.places().iter().map(|place| place.written).collect()
    }

    /// However the acknowledgements come: one that they have reached is there as
    /// soon as there was any, and the newest.
    #[test]
    fn one_that_the_client_has_acknowledged_is_always_kept() {
        let (mut kept, mut given, mut dropped) = (Kept::default(), 0, 0);
        let mut acknowledged = 0;
        for step in 1..10_000_u64 {
            let written = step * 1000;
            let behind = (step * 7919) % 64 * 1000;
            acknowledged = acknowledged.max(written.saturating_sub(behind + 64_000));
            dropped += kept
                .push(snapshot(written, 100), acknowledged, Instant::now())
                .len();
            given += 1;
            assert_eq!(kept.newest().map(|place| place.written), Some(written));
            let floor = kept.places()[0].written;
            assert!(floor <= acknowledged.max(1000), "{floor} {acknowledged}");
            assert!(kept.places().len() <= MAX_KEPT);
            assert_eq!(kept.places().len() + dropped, given);
        }
    }

    #[test]
    fn those_between_are_spread() {
        let mut kept = Kept::default();
        for written in 0..=64 {
            kept.push(snapshot(written * 1000, 100), 0, Instant::now());
        }
        let spans: Vec<_> = written(&kept).windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(spans.len(), MAX_KEPT - 1);
        assert!(spans.iter().all(|span| *span <= 16_000), "{spans:?}");
    }

    #[test]
    fn large_ones_are_few() {
        let mut kept = Kept::default();
        for written in 0..20 {
            kept.push(snapshot(written, 1 << 20), 0, Instant::now());
        }
        assert_eq!(written(&kept), [0, 2, 19]);
    }

    /// However fast its server exports and its client acknowledges: what an agent has
    /// begun to copy is there when it has done so.
    #[test]
    fn a_large_one_stays_until_it_can_have_been_copied() {
        const EVERY: Duration = Duration::from_millis(5);
        let (mut kept, begun) = (Kept::default(), Instant::now());
        let (mut oldest, mut since) = (0, Duration::ZERO);
        for step in 0..1000_u32 {
            let (at, written) = (EVERY * step, u64::from(step) * 1000);
            kept.push(snapshot(written, 16 << 20), written, begun + at);
            assert!(kept.places().len() <= LARGE_KEPT);
            let first = kept.places()[0].written;
            if first != oldest {
                let stayed = at - since;
                let right = Duration::from_millis(150)..Duration::from_millis(250);
                assert!(right.contains(&stayed), "{stayed:?}");
                (oldest, since) = (first, at);
            }
            // Nor does it stay much longer.
            assert!(at - since < Duration::from_millis(250), "{at:?}");
        }
        // Of small ones the latest is all that is needed.
        let mut kept = Kept::default();
        for written in 0..100 {
            kept.push(snapshot(written, 100), written, begun);
        }
        assert_eq!(written(&kept), [99]);
    }

    #[test]
    fn one_at_the_same_place_takes_the_other_s() {
        let mut kept = Kept::default();
        kept.push(snapshot(5, 1), 0, Instant::now());
        let again = SnapshotPlace {
            offset: 99,
            ..snapshot(5, 2)
        };
        assert_eq!(kept.push(again, 0, Instant::now()), [snapshot(5, 1)]);
        assert_eq!(kept.places(), [again]);
    }

    #[test]
    fn what_was_said_wrongly_is_taken_back() {
        let mut kept = Kept::default();
        for written in [0, 1000, 2000, 3000] {
            kept.push(snapshot(written, 100), 0, Instant::now());
        }
        let dropped = kept.retract((0, 1000));
        assert_eq!((written(&kept), dropped.len()), (vec![0, 1000], 2));
        let commit = SnapshotPlace {
            kind: SnapshotKind::Commit,
            ..snapshot(5000, 100)
        };
        kept.commit(commit);
        assert_eq!(kept.retract((0, 4000)), [commit]);
        let stands: Vec<_> = kept
            .places()
            .iter()
            .map(|it| (it.kind, it.length))
            .collect();
        assert_eq!(
            stands,
            [(SnapshotKind::Commit, 1)],
            "nobody goes back behind it"
        );
        assert!(!has_block(&kept.places()[0]));
    }

    #[test]
    fn of_those_of_a_moment_the_latest_is_kept() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        kept.push(snapshot(0, 100), 0, now);
        kept.supersede(snapshot(1000, 100), 0, now);
        assert_eq!(written(&kept), [0, 1000], "the oldest stays");
        assert_eq!(kept.supersede(snapshot(2000, 100), 0, now).len(), 1);
        kept.pin();
        assert!(kept.supersede(snapshot(3000, 100), 0, now).is_empty());
        assert_eq!(written(&kept), [0, 3000]);
        assert_eq!(kept.unpin(), Some(snapshot(2000, 100)));
    }

    /// Neither is what was there before used again, nor forgotten that it was said.
    #[test]
    fn nothing_is_older_than_a_commit() {
        let mut kept = Kept::default();
        for written in [0, 1000, 2000] {
            kept.push(snapshot(written, 100), 0, Instant::now());
        }
        let kind = SnapshotKind::Commit;
        let commit = SnapshotPlace {
            kind,
            ..snapshot(3000, 100)
        };
        assert_eq!(kept.commit(commit).len(), 3);
        assert_eq!(kept.places(), [commit]);
        kept.push(snapshot(4000, 100), 0, Instant::now());
        assert_eq!(written(&kept), [3000, 4000]);
        kept.push(snapshot(5000, 100), 4500, Instant::now());
        assert_eq!(written(&kept), [4000, 5000]);
        assert!(kept.places().iter().all(|place| place.kind == kind));
        kept.pin();
        let pinned = kept.newest();
        let dropped = kept.commit(SnapshotPlace {
            kind,
            ..snapshot(6000, 100)
        });
        assert_eq!((written(&kept), dropped.len()), (vec![6000], 1));
        assert_eq!(kept.unpin(), pinned);
    }

    #[test]
    fn nobody_goes_back_behind_a_commit_that_is_lost() {
        let mut kept = Kept::default();
        kept.push(snapshot(0, 100), 0, Instant::now());
        assert_eq!(kept.commit(lost((0, 1000))).len(), 1);
        assert!(kept.places().iter().all(|place| !has_block(place)));
        // What comes later is as good as one that was not.
        let dropped = kept.push(snapshot(2000, 100), 2000, Instant::now());
        assert_eq!((written(&kept), dropped.len()), (vec![2000], 1));
        assert_eq!(kept.places()[0].kind, SnapshotKind::Commit);
        assert!(has_block(&kept.places()[0]));
    }

    #[test]
    fn a_pinned_one_is_dropped_when_it_is_unpinned() {
        let mut kept = Kept::default();
        kept.push(snapshot(5, 1), 0, Instant::now());
        kept.pin();
        assert!(kept.push(snapshot(9, 1), 9, Instant::now()).is_empty());
        assert_eq!(written(&kept), [9]);
        assert_eq!(kept.unpin(), Some(snapshot(5, 1)));
        assert_eq!(kept.unpin(), None);
        kept.pin();
        assert_eq!(kept.unpin(), None, "it is still kept");
        assert_eq!(kept.take().len(), 1);
    }
}
