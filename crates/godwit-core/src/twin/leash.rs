//! How far each flow's owner may run ahead of its twin's application.
//!
//! After a takeover the twins catch up, and clients wait for it: so the lag of
//! a whole service is bounded. Its budget is divided over the flows that are
//! busy; an idle one has nothing to catch up with. Owner and standby count for
//! themselves, because both need the figure: a twin reports every eighth of it.
//! They must not drift apart, or an owner would wait at the end of a short leash
//! for a report that a twin with a long one owes only later. So the owner's
//! shrinks slowly and grows at once, and the standby's the other way round.

use godwit_wire::Role;

/// What all twins of a service together may have to catch up with, in bytes.
/// One flow may use its whole `leash` even if that is more.
const BUDGET: u32 = 16 << 20;

/// The shortest leash, in bytes: more than a round trip holds in a data centre.
/// With more than 256 busy flows the budget is exceeded.
pub const SHORTEST: u32 = 64 << 10;

/// The leash of each of `busy` flows if the service may have `longest`.
fn fair(longest: u32, busy: u32) -> u32 {
    let budget = BUDGET.max(longest);
    (budget / busy.max(1)).clamp(SHORTEST.min(longest), longest)
}

/// The next leash, in bytes, of a node with this role whose leash is `now`.
#[must_use]
pub fn next(role: Role, now: u32, longest: u32, busy: u32) -> u32 {
    let wanted = fair(longest, busy);
    match role {
        Role::Owner => wanted.max(now / 2),
        Role::Shadow => wanted.min(now.saturating_mul(2)),
        Role::None => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASH: u32 = 4 << 20;

    #[test]
    fn the_budget_is_divided_over_busy_flows() {
        assert_eq!(fair(LEASH, 0), LEASH);
        assert_eq!(fair(LEASH, 4), LEASH);
        assert_eq!(fair(LEASH, 8), 2 << 20);
        assert_eq!(fair(LEASH, 256), SHORTEST);
        assert_eq!(fair(LEASH, 100_000), SHORTEST);
    }

    #[test]
    fn what_is_configured_holds_for_one_flow() {
        assert_eq!(fair(1 << 30, 1), 1 << 30);
        assert_eq!(fair(1 << 30, 2), 1 << 29);
        assert_eq!(fair(SHORTEST, 1), SHORTEST);
        assert_eq!(fair(SHORTEST, 1000), SHORTEST);
    }

    /// Whatever the counts do, a twin reports before its owner's leash ends,
    /// as long as neither counts three times while the other does not.
    #[test]
    fn owner_and_standby_do_not_drift_apart() {
        let counts = [
            0, 1000, 1000, 1000, 3, 1, 90, 5000, 0, 0, 0, 0, 7, 7, 300, 2,
        ];
        let (mut owner, mut standby) = (LEASH, LEASH);
        let mut late = 0;
        for busy in counts {
            owner = next(Role::Owner, owner, LEASH, busy);
            assert!(standby / 8 < owner, "{standby} {owner}");
            standby = next(Role::Shadow, standby, LEASH, late);
            assert!(standby / 8 < owner, "{standby} {owner}");
            late = busy;
        }
    }
}
