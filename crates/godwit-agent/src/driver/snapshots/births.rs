//! Twins of running connections that begin at a snapshot: where the owner has them
//! begin, and on the standby, that there is none before its snapshot is there.
//!
//! A connection that has committed has only snapshots that its server may go back to. A
//! twin that is born at one of them, or where the connection began, does not count before
//! it has come to the commit (`commits.rs`).

use std::cell::Cell;
use std::collections::BTreeMap;

use godwit_bpf::FlowState;
use godwit_core::snapshot::exports::{behind, latest, since};
use godwit_core::snapshot::parcel::Parcel;
use godwit_core::snapshot::room::Urgency;
use godwit_wire::app::{SnapshotKind, SnapshotPlace};
use godwit_wire::{FlowId, Generation, Restore, ShareId};

use super::Snapshots;
use crate::driver::ground::Ground;
use crate::driver::keeper;
use crate::driver::replay::Replays;
use crate::reprotect::MAX_OUTPUT;

/// What a twin would begin at has to wait: too much is on its way to the standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::driver) struct NoRoom;

/// As a standby: twins that are to be born at snapshots that have not come.
#[derive(Debug, Default)]
pub(super) struct AwaitedTwins(BTreeMap<FlowId, Birth>);

/// A twin of a running flow.
#[derive(Debug)]
struct Birth {
    share: ShareId,
    generation: Generation,
    restore: Restore,
}

impl Birth {
    /// Whether it is to begin at that snapshot. What its client has not acknowledged is
    /// not said by a twin that begins behind it.
    fn is_at(&self, parcel: &Parcel) -> bool {
        let Restore { record, .. } = &self.restore;
        let begins = (self.restore.base, self.restore.base_ack);
        let origin = since((record.id.irs, record.iss), begins);
        parcel.output.is_empty() && keeper::is_origin(&parcel.exported.place, origin)
    }
}

impl AwaitedTwins {
    /// The connection is over.
    pub(super) fn note_end(&mut self, flow: FlowId) {
        self.0.remove(&flow);
    }

    /// The link was lost, and the snapshots on it.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

/// The latest snapshot at which a new twin can begin: the client has all that was written
/// before, all that its server had not read is in the log, and what it has said since is
/// not too much to be said again.
fn latest_in_log(flow: &FlowState, kept: &[SnapshotPlace]) -> Option<SnapshotPlace> {
    let is_in_log = |place: &SnapshotPlace| {
        let read = behind(flow.birth, place.read);
        let written = behind(flow.birth_ack, place.written);
        let near = flow.snd_nxt.checked_distance(written);
        let near = near.is_none_or(|output| u64::from(output) <= MAX_OUTPUT)
            && is_near(place, (flow.bytes_in, flow.bytes_out));
        near && read.ge(flow.log.base) && read.le(flow.log.end)
    };
    latest((flow.birth_ack, flow.snd_una), kept, is_in_log)
}

/// Whether what was heard and said since is that little indeed: sequence numbers come
/// round, and a place 4 GiB before looks like one that is here.
const fn is_near(place: &SnapshotPlace, (bytes_in, bytes_out): (u64, u64)) -> bool {
    bytes_in.saturating_sub(place.read) <= MAX_OUTPUT
        && bytes_out.saturating_sub(place.written) <= MAX_OUTPUT
}

impl Snapshots {
    /// The snapshot at which a new twin of a running flow can begin, if one is in its log.
    pub(in crate::driver) fn snapshot_in_log(
        &mut self,
        ground: &Ground,
        flow: &FlowState,
    ) -> Result<Option<Parcel>, NoRoom> {
        let refused = Cell::new(false);
        let choose = |kept: &[SnapshotPlace]| {
            let place = latest_in_log(flow, kept)?;
            let fits = self.fits(&place);
            refused.set(!fits);
            fits.then_some(place)
        };
        let Some(exported) = ground.apps.exported_of(flow.id.key, choose) else {
            return if refused.get() { Err(NoRoom) } else { Ok(None) };
        };
        let commit = exported.place.kind == SnapshotKind::Commit;
        Ok(Some(Parcel {
            commit: commit.then(|| self.exports.next_number()),
            exported,
            output: Vec::new(),
        }))
    }

    /// One that finds no room on the way to the standby goes later.
    fn fits(&self, place: &SnapshotPlace) -> bool {
        let length = usize::try_from(place.length).unwrap_or(usize::MAX);
        let under_way = self.exports.under_way();
        under_way.has_room(Urgency::Ordinary, length)
    }

    /// Whether there is one among those that are `kept`.
    pub(in crate::driver) fn has_snapshot_in_log(
        &self,
        flow: &FlowState,
        kept: &[SnapshotPlace],
    ) -> bool {
        latest_in_log(flow, kept).is_some_and(|place| self.fits(&place))
    }

    /// As a standby: a running flow is to have a twin, which begins where the
    /// connection does, or at a snapshot that follows.
    pub(in crate::driver) fn expect_twin(
        &mut self,
        (ground, replays): (&mut Ground, &mut Replays),
        share: ShareId,
        generation: Generation,
        restore: &Restore,
    ) {
        let begins = (restore.record.id.irs + 1, restore.record.iss + 1);
        self.awaited_twins.note_end(restore.flow());
        if !ground.is_kept(share) || (restore.base, restore.base_ack) == begins {
            return replays.restore_twin(ground, share, generation, restore);
        }
        let restore = restore.clone();
        let birth = Birth {
            share,
            generation,
            restore,
        };
        self.awaited_twins.0.insert(birth.restore.flow(), birth);
    }

    /// Makes the twin that begins at this snapshot; the keeper has that first. It comes
    /// right behind the word of the twin, so another one says that there will be none.
    /// Gives back what is for a twin that is there.
    pub(super) fn bear(
        &mut self,
        (ground, replays): (&mut Ground, &mut Replays),
        flow: FlowId,
        parcel: Parcel,
    ) -> Option<Parcel> {
        let birth = self.awaited_twins.0.remove(&flow);
        match (birth.filter(|birth| birth.is_at(&parcel)), &self.keeper) {
            (Some(birth), Some(keeper)) => {
                keeper.bear(flow, parcel);
                let (share, generation) = (birth.share, birth.generation);
                replays.restore_twin(ground, share, generation, &birth.restore);
                None
            }
            (Some(_) | None, _) => Some(parcel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_4_gib_behind_is_not_near() {
        let place = SnapshotPlace {
            offset: 0,
            length: 1,
            kind: SnapshotKind::Regenerable,
            read: 100,
            written: 7,
        };
        assert!(is_near(&place, (100, 7)));
        assert!(is_near(&place, (100 + MAX_OUTPUT, 7 + MAX_OUTPUT)));
        assert!(!is_near(&place, (100, 8 + MAX_OUTPUT)));
        for round in [1 << 32, 3 << 32] {
            assert!(!is_near(&place, (100, round + 7)), "output");
            assert!(!is_near(&place, (round + 100, 7)), "input");
        }
        // What is counted by the data path may lack what was in a queue.
        assert!(is_near(&place, (90, 0)));
    }
}
