//! What the data paths are told, and what must hold whenever one is.

use super::*;

impl World {
    /// What must hold for every action, whatever the test does.
    pub(super) fn observe(&mut self, side: usize, action: &Action) {
        let before = self.sides[side].entry;
        match action {
            Action::Share(_, action) => self.observe_share(side, action),
            Action::Move(_, MoveAction::HandOver) => {
                assert_eq!(before.role, Role::Shadow, "silent first");
            }
            Action::Move(_, MoveAction::Resume | MoveAction::ResetUnprotected) => {
                assert!(self.speaks(side), "only an owner with a lease speaks");
            }
            Action::Lease(LeaseAction::KeepVotes { votes }) => {
                self.sides[side].kept = self.keeps.then(|| votes.clone());
            }
            Action::Move(
                _,
                MoveAction::CheckFlows { .. } | MoveAction::Ended { .. } | MoveAction::Ask { .. },
            )
            | Action::Flow(..)
            | Action::Twin(..)
            | Action::Rejoin(..)
            | Action::Snapshot(..)
            | Action::Handoff(..)
            | Action::Lease(LeaseAction::Send { .. })
            | Action::Peer(..) => {}
        }
    }

    fn observe_share(&mut self, side: usize, action: &ShareAction) {
        let before = self.sides[side].entry;
        match action {
            ShareAction::Set {
                role,
                epoch,
                generation,
                expiry,
                ..
            } => {
                let entry = Entry {
                    role: *role,
                    epoch: *epoch,
                    generation: *generation,
                    expiry: *expiry,
                };
                self.write(side, before, entry);
            }
            ShareAction::SetExpiry { epoch, expiry } => {
                assert_eq!((before.role, before.epoch), (Role::Owner, *epoch));
                self.sides[side].entry.expiry = Some(*expiry);
            }
            ShareAction::EndFlows { .. } => {
                assert_eq!(before.role, Role::None, "sockets end silently");
            }
            ShareAction::Announce | ShareAction::Revive { .. } => {
                assert!(self.speaks(side), "only an owner with a lease speaks");
            }
            ShareAction::ReleaseGate { generation } => assert_ne!(before.generation, *generation),
            ShareAction::Reopen => {
                assert!(before.generation.is_none(), "the standby is out first");
            }
            ShareAction::Silence => {}
        }
    }

    fn write(&mut self, side: usize, before: Entry, entry: Entry) {
        self.sides[side].entry = entry;
        let latest = &mut self.sides[side].latest;
        *latest = (*latest).max(entry.generation);
        if entry.role != Role::Owner {
            return;
        }
        let same = before.role == Role::Owner && before.epoch == entry.epoch;
        if same && before.generation != entry.generation {
            self.judged.stale.insert((before.epoch, before.generation));
        }
        if before.role == Role::Shadow {
            self.takeovers += 1;
            let stay = (before.epoch, before.generation);
            assert!(!self.judged.stale.contains(&stay), "{side} lacks bytes");
            // One that was to own after us never did: we go on where we were.
            let mine = self.judged.claims.get(&self.judged.last_owner) == Some(&side);
            let kept = mine && !self.judged.claims.contains_key(&before.epoch);
            assert!(
                kept || before.epoch == self.judged.last_owner || self.voices > 1,
                "another owned in between"
            );
        }
        if !same {
            let claimant = *self.judged.claims.entry(entry.epoch).or_insert(side);
            assert_eq!(claimant, side, "two owners under {}", entry.epoch);
            self.judged.last_owner = entry.epoch;
        }
    }

    pub(super) fn speaks(&self, side: usize) -> bool {
        let entry = self.sides[side].entry;
        let in_force = entry.expiry.is_none_or(|expiry| self.now(side) < expiry);
        entry.role == Role::Owner && in_force
    }
}
