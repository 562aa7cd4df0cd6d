//! Epochs that only one node can claim.

use godwit_wire::Epoch;

/// A node's own sequence of epochs for one share.
///
/// Counters are dealt out in turn, as ballot numbers are in Paxos: with two
/// members the primary claims 1, 3, 5 and the backup 2, 4, 6. So two nodes with
/// one configuration never claim the same epoch, even while they cannot hear
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ballot {
    incarnation: u32,
    rank: u32,
    members: u32,
}

impl Ballot {
    /// For the node at `rank` (from 0, the primary) among `members` nodes.
    ///
    /// `incarnation` is the start of the agent in seconds since 1970.
    pub const fn new(incarnation: u32, rank: u32, members: u32) -> Self {
        debug_assert!(rank < members, "a member has a rank");
        Self {
            incarnation,
            rank,
            members,
        }
    }

    /// The least epoch of this node that is above `seen` and not of an earlier start.
    pub fn above(&self, seen: Epoch) -> Epoch {
        let least = seen.0.saturating_add(1);
        let base = least.max(Epoch::new(self.incarnation, 1).0);
        // A carry into the upper half may break the turn once; two rounds find it.
        let mine = (base..=u64::MAX)
            .take(2 * self.members.max(1) as usize)
            .find(|epoch| self.is_own(Epoch(*epoch)));
        Epoch(mine.unwrap_or(base))
    }

    /// Whether an epoch is one that this node may claim, of whatever start.
    pub fn is_own(&self, epoch: Epoch) -> bool {
        let members = u64::from(self.members.max(1));
        // Counters start at 1, so rank 0 has those that leave a rest of 1.
        let wanted = (u64::from(self.rank) + 1) % members;
        epoch.counter() != 0 && u64::from(epoch.counter()) % members == wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ballot = Ballot::new(100, 0, 2);
    const B: Ballot = Ballot::new(100, 1, 2);

    #[test]
    fn the_first_epoch_of_a_start_counts_from_one() {
        assert_eq!(A.above(Epoch::NONE), Epoch::new(100, 1));
        assert_eq!(B.above(Epoch::NONE), Epoch::new(100, 2));
        assert_eq!(Ballot::new(5, 0, 1).above(Epoch::NONE), Epoch::new(5, 1));
    }

    #[test]
    fn a_claim_is_above_every_epoch_seen() {
        assert_eq!(A.above(Epoch::new(100, 2)), Epoch::new(100, 3));
        assert_eq!(A.above(Epoch::new(100, 3)), Epoch::new(100, 5));
        assert_eq!(B.above(Epoch::new(100, 3)), Epoch::new(100, 4));
        assert_eq!(A.above(Epoch::new(200, 4)), Epoch::new(200, 5));
        assert_eq!(A.above(Epoch::new(7, 9)), Epoch::new(100, 1));
    }

    #[test]
    fn two_nodes_never_claim_the_same_epoch() {
        for members in 1..5 {
            let ballots: Vec<_> = (0..members)
                .map(|rank| Ballot::new(9, rank, members))
                .collect();
            for seen in [
                0,
                1,
                7,
                Epoch::new(9, u32::MAX - 2).0,
                Epoch::new(9, u32::MAX).0,
            ] {
                let mut claims: Vec<_> = ballots.iter().map(|own| own.above(Epoch(seen))).collect();
                assert!(claims.iter().all(|claim| claim.0 > seen));
                for (ballot, claim) in ballots.iter().zip(&claims) {
                    let owners = ballots.iter().filter(|it| it.is_own(*claim)).count();
                    assert!(ballot.is_own(*claim) && owners == 1, "{claim}");
                }
                claims.sort();
                claims.dedup();
                assert_eq!(
                    claims.len(),
                    ballots.len(),
                    "members {members}, seen {seen}"
                );
            }
        }
    }
}
