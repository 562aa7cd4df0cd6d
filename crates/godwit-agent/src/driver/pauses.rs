//! Servers that stand still on this node or on another one: what heartbeats say of that.
//!
//! While all processes stand still that listen for a share (fact `server_stopped`), each
//! heartbeat has a claim of [`ShareId::pause_of`] that share, with the role `none`. Directors
//! give such a server no new connections, and other servers hand it no requests. What it has
//! stays with it.

use std::collections::{BTreeMap, BTreeSet};

use godwit_core::{Beat, PeerId};
use godwit_wire::{Epoch, Heartbeat, Role, ShareClaim, ShareId};

use crate::config::Config;

/// What the other servers of this node's services say.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// The names of the services, by what is said.
    known: BTreeMap<ShareId, String>,
    /// By whom it is said.
    said: BTreeMap<PeerId, BTreeSet<ShareId>>,
}

impl Pauses {
    pub(super) fn new(config: &Config) -> Self {
        let own: BTreeSet<_> = config.own_shares().map(|(_, it)| &it.name).collect();
        let homes = config.homes().filter(|(_, it, _)| own.contains(&it.name));
        let known = homes.map(|(share, it, _)| (share.pause_of(), it.name.to_string()));
        Self {
            known: known.collect(),
            said: BTreeMap::new(),
        }
    }

    pub(super) fn note_beat(&mut self, peer: PeerId, beat: &Beat) {
        let said = beat.shares.iter().map(|claim| claim.share);
        let said = said.filter(|share| self.known.contains_key(share));
        // One that has more to say than fits says it in turn.
        if beat.shares.len() < Heartbeat::MAX_SHARES {
            self.said.insert(peer, said.collect());
        } else {
            self.said.entry(peer).or_default().extend(said);
        }
    }

    /// The services whose servers stand still on a peer, each once.
    pub(super) fn of(&self, peer: PeerId) -> BTreeSet<&str> {
        let said = self.said.get(&peer).into_iter().flatten();
        let known = said.filter_map(|share| self.known.get(share));
        known.map(String::as_str).collect()
    }
}

/// Whether a heartbeat says so of a share.
pub(crate) fn is_paused(beat: &[ShareClaim], share: ShareId) -> bool {
    let pause = share.pause_of();
    beat.iter().any(|claim| claim.share == pause)
}

/// What a heartbeat says of a share whose server stands still here.
pub(super) const fn claim(share: ShareId) -> ShareClaim {
    ShareClaim {
        share: share.pause_of(),
        role: Role::None,
        epoch: Epoch::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    const B: PeerId = PeerId(0);

    fn beat(shares: Vec<ShareClaim>) -> Beat {
        Beat {
            incarnation: 1,
            sequence: 1,
            sent: None,
            shares,
        }
    }

    #[test]
    fn what_a_peer_says_holds_until_its_next_heartbeat() {
        let config = Pair::new().a;
        let (share, service) = config.own_shares().next().expect("it has one");
        let owned = ShareClaim {
            share,
            role: Role::Owner,
            epoch: Epoch::new(1, 1),
        };
        let mut pauses = Pauses::new(&config);
        pauses.note_beat(B, &beat(vec![owned]));
        assert!(pauses.of(B).is_empty());
        let stranger = claim(ShareId(77));
        pauses.note_beat(B, &beat(vec![owned, claim(share), stranger]));
        assert_eq!(pauses.of(B), BTreeSet::from([service.name.as_str()]));
        assert!(pauses.of(PeerId(1)).is_empty());
        pauses.note_beat(B, &beat(vec![owned; Heartbeat::MAX_SHARES]));
        assert!(!pauses.of(B).is_empty(), "the rest is in another one");
        pauses.note_beat(B, &beat(vec![owned]));
        assert!(pauses.of(B).is_empty());
    }
}
