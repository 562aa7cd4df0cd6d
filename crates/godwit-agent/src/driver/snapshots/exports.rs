//! Snapshots that servers have exported, from the owner to its standby
//! ([`godwit_core::snapshot::exports`]); a server that must not go back behind one waits for
//! it (`commits.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::FlowState;
use godwit_core::MonoTime;
use godwit_core::snapshot::exports::{Sent, behind, latest};
use godwit_core::snapshot::parcel::{Parcel, parts};
use godwit_wire::app::{SnapshotKind, SnapshotPlace};
use godwit_wire::{FlowId, FlowKey, Generation, Role, ShareId, SnapshotPart};

use super::Snapshots;
use super::commits::{is_committed, standing};
use crate::apps::{self, Committed};
use crate::clock;
use crate::driver::ground::Ground;
use crate::driver::keeper::origin;
use crate::driver::replay::Replays;
use crate::driver::twins::poke_twin;

/// Shortest time between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// A look may take at most this part of the driver's time.
const SHARE_OF_TIME: u32 = 20;

/// What becomes of a connection's snapshots at one look.
enum Choice {
    /// This one is sent.
    Send(FlowState, SnapshotPlace),
    /// This one is sent, and has to arrive.
    Commit(FlowState, SnapshotPlace),
    /// The standby lacks what its server must not go back behind.
    Lacking(ShareId, FlowState),
    /// A new twin has what it needs.
    Whole,
    Nothing,
}

impl Snapshots {
    /// Sends what is new.
    pub(super) fn send_snapshots(&mut self, ground: &mut Ground, now: MonoTime) {
        if owns_kept_share(ground) {
            self.send_new_snapshots(ground, now);
        }
        let took = clock::now().since(now);
        let rest = INTERVAL.max(took * SHARE_OF_TIME);
        self.exports.set_due(now.saturating_add(rest));
    }

    fn send_new_snapshots(&mut self, ground: &mut Ground, now: MonoTime) {
        let (mut chosen, mut whole) = (BTreeMap::new(), Vec::new());
        let mut lacking = BTreeMap::new();
        let shares = &ground.shares;
        let is_current = |share: ShareId, generation: Generation| {
            let share = shares.get(share);
            share.is_some_and(|share| share.entry.generation == generation)
        };
        self.exports.count(is_current, now);
        let mut room = self.exports.begin_look();
        let exported = ground.apps.exported(|key, kept| {
            let (flow, place, commits) = match self.choose(ground, (key, kept), now) {
                Choice::Send(flow, place) => (flow, place, false),
                Choice::Commit(flow, place) => (flow, place, true),
                Choice::Lacking(share, flow) => {
                    lacking.insert(key, (share, flow));
                    return None;
                }
                Choice::Whole => {
                    whole.push(key);
                    return None;
                }
                Choice::Nothing => return None,
            };
            let length = usize::try_from(place.length).unwrap_or(usize::MAX);
            let last = self.exports.sent(key).map(Sent::until);
            if chosen.contains_key(&key) || !room.take(key, length, last) {
                return None;
            }
            chosen.insert(key, (flow, commits));
            Some(place)
        });
        self.exports.end_look(&room);
        for (key, exported) in exported {
            match chosen.get(&key) {
                Some((flow, false)) => {
                    let commit = exported.place.kind == SnapshotKind::Commit;
                    let parcel = Parcel {
                        commit: commit.then(|| self.exports.next_number()),
                        exported,
                        output: Vec::new(),
                    };
                    self.send_snapshot(ground, (flow, parcel), now);
                }
                Some((_, true)) => {
                    let output = Vec::new();
                    let commit = apps::Commit {
                        flow: key,
                        asker: None,
                        state: Ok(Committed {
                            exported,
                            output,
                            weight: None,
                        }),
                    };
                    self.begin_commit(ground, commit, now);
                }
                None => {}
            }
        }
        for (share, flow) in lacking.into_values() {
            self.want_commit(ground, (share, &flow), now);
        }
        self.let_whole_pass(ground, &whole, now);
    }

    /// What of a connection the standby should get now.
    fn choose(
        &self,
        ground: &Ground,
        (key, kept): (FlowKey, &[SnapshotPlace]),
        now: MonoTime,
    ) -> Choice {
        self.find_choice(ground, (key, kept), now)
            .unwrap_or(Choice::Nothing)
    }

    fn find_choice(
        &self,
        ground: &Ground,
        (key, kept): (FlowKey, &[SnapshotPlace]),
        now: MonoTime,
    ) -> Option<Choice> {
        let share = self.exports.share_of(key)?;
        let entry = &ground.shares.get(share)?.entry;
        if self.commits.is_under_way(key) {
            return None;
        }
        let whole = self.commits.is_whole(key);
        let Some(latest_of_all) = kept.last() else {
            return whole.then_some(Choice::Whole);
        };
        let sent = self.exports.sent(key);
        let is_old = |sent: &Sent, place: &SnapshotPlace| {
            sent.generation == entry.generation && sent.is_at(place)
        };
        let committed = is_committed(kept);
        // The flow itself is looked up only if there may be something.
        let nothing_new = sent.is_some_and(|sent| is_old(sent, latest_of_all));
        let is_safe = sent.is_some_and(|sent| {
            let irs = sent.irs;
            let held = self.commits.is_held(FlowId { key, irs }, entry.generation);
            !committed || held
        });
        if nothing_new && is_safe && !whole {
            return None;
        }
        let flow = ground.datapath.flows.get(key).ok().flatten()?;
        if flow.generation != entry.generation
            || entry.role != Role::Owner
            || !standing(&flow).has_twin()
        {
            return None;
        }
        let held = self.commits.is_held(flow.id, entry.generation);
        if whole && (held || !committed) {
            return Some(Choice::Whole);
        }
        let acknowledged = (flow.birth_ack, flow.snd_una);
        if committed && !held {
            return Some(match latest(acknowledged, kept, |_| true) {
                Some(place) => Choice::Commit(flow, place),
                None => Choice::Lacking(share, flow),
            });
        }
        let sent =
            sent.filter(|sent| sent.irs == flow.id.irs && sent.generation == entry.generation);
        if sent.is_some_and(|sent| sent.is_awaited(now)) {
            return None;
        }
        let is_new = |place: &SnapshotPlace| sent.is_none_or(|sent| sent.is_before(place));
        let place = latest(acknowledged, kept, is_new)?;
        Some(Choice::Send(flow, place))
    }

    /// The standby has it from here on.
    pub(in crate::driver) fn send_snapshot(
        &mut self,
        ground: &mut Ground,
        (flow, parcel): (&FlowState, Parcel),
        now: MonoTime,
    ) {
        self.exports
            .note_sent(flow.id, flow.generation, &parcel, now);
        send_parcel(ground, flow, parcel, now);
    }

    /// The standby has the last snapshot of a flow, or that commit.
    pub(super) fn note_kept(&mut self, ground: &mut Ground, flow: FlowId, commit: Option<u64>) {
        match commit {
            None => self.exports.note_kept(flow),
            Some(number) => self.note_commit_held(ground, (flow, number), clock::now()),
        }
    }

    /// As a standby: a part of a snapshot has come. A commit is answered when the twin
    /// stands there.
    pub(super) fn keep_snapshot(
        &mut self,
        (ground, replays): (&mut Ground, &mut Replays),
        share: ShareId,
        flow: FlowId,
        part: SnapshotPart,
    ) {
        let Some(parcel) = self.exports.add(flow, part) else {
            return;
        };
        let commits = parcel.commit.is_some();
        if let Some(parcel) = self.bear((ground, replays), flow, parcel)
            && let Some(state) = ground.flow(flow).filter(|state| state.twin)
        {
            // What is written in the server's place must go nowhere.
            poke_twin(
                ground,
                share,
                flow,
                behind(state.iss + 1, parcel.acknowledged()),
            );
            if let Some(keeper) = &self.keeper {
                keeper.keep(flow, parcel);
            }
        }
        if !commits {
            ground
                .node
                .handle_snapshot_kept(share, flow, None, clock::now());
        }
    }
}

fn owns_kept_share(ground: &Ground) -> bool {
    let mut shares = ground.shares.iter();
    shares.any(|(_, share)| {
        let entry = &share.entry;
        share.kept && entry.role == Role::Owner && !entry.generation.is_none()
    })
}

/// To the standby, in parts.
pub(super) fn send_parcel(
    ground: &mut Ground,
    flow: &FlowState,
    mut parcel: Parcel,
    now: MonoTime,
) {
    let place = &mut parcel.exported.place;
    let (read, written) = origin(flow);
    place.read += u64::from(read);
    place.written += u64::from(written);
    for part in parts(parcel) {
        ground.node.handle_snapshot(flow.share, flow.id, &part, now);
    }
}
