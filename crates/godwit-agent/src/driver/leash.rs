//! How far each flow's owner may run ahead of its twin's application.
//!
//! After a takeover the twins catch up, and clients wait for it: so the lag of
//! a whole service is bounded. Its budget is divided over the flows that are
//! busy; an idle one has nothing to catch up with. Owner and standby count for
//! themselves, because both need the figure: a twin reports every eighth of it.
//! They must not drift apart, or an owner would wait at the end of a short leash
//! for a report that a twin with a long one owes only later. So the owner's
//! shrinks slowly and grows at once, and the standby's the other way round.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_bpf::{CrowdTable, FlowState, FlowTable, Order, Phase};
use godwit_core::MonoTime;
use godwit_wire::Role;

use super::crowd::{Fill, Limits};
use super::{Driver, logs};
use crate::clock;
use crate::input::{Census, Inbox, Input};

/// What all twins of a service together may have to catch up with, in bytes.
/// One flow may use its whole `leash` even if that is more.
const BUDGET: u32 = 16 << 20;

/// The shortest leash, in bytes: more than a round trip holds in a data centre.
/// With more than 256 busy flows the budget is exceeded.
const SHORTEST: u32 = 64 << 10;

/// How often flows are counted.
const ROUND: Duration = Duration::from_millis(250);

/// Counting takes at most this part of a processor's time.
const SHARE_OF_TIME: u32 = 50;

/// A client that has spoken within this is busy.
const RECENT: Duration = Duration::from_secs(1);

/// The leash of each of `busy` flows if the service may have `longest`.
fn fair(longest: u32, busy: u32) -> u32 {
    let budget = BUDGET.max(longest);
    (budget / busy.max(1)).clamp(SHORTEST.min(longest), longest)
}

/// The next leash on the way from `now` to `wanted`.
pub(super) fn next(role: Role, now: u32, longest: u32, busy: u32) -> u32 {
    let wanted = fair(longest, busy);
    match role {
        Role::Owner => wanted.max(now / 2),
        Role::Shadow => wanted.min(now.saturating_mul(2)),
        Role::None => wanted,
    }
}

impl Driver {
    pub(super) fn apply_census(&mut self, census: &Census) {
        for share in self.shares.apply_census(census) {
            self.write_share(share);
        }
        for (share, flow) in &census.evicted {
            self.give(*share, *flow, Order::DropLog);
        }
    }
}

/// Counts until the driver is gone, off its thread: with many flows that takes
/// longer than a heartbeat.
pub(super) fn spawn_census(
    flows: Arc<FlowTable>,
    crowds: Arc<CrowdTable>,
    inbox: Inbox,
) -> io::Result<()> {
    let count = move || {
        let mut limits = Limits::new(crowds);
        loop {
            let now = clock::now();
            // An unreadable table leaves things as they are.
            if let Some(census) = census(&flows, &mut limits, now)
                && inbox.offer(Input::Census(census)).is_err()
            {
                return;
            }
            let took = clock::now().since(now);
            thread::sleep(ROUND.max(took * SHARE_OF_TIME));
        }
    };
    thread::Builder::new()
        .name("gw-census".into())
        .spawn(count)
        .map(drop)
}

fn census(flows: &FlowTable, limits: &mut Limits, now: MonoTime) -> Option<Census> {
    let (mut census, mut fill) = (Census::default(), Fill::default());
    let scanned = flows.for_each(|flow| {
        fill.add(&flow);
        if is_busy(&flow, now) {
            *census
                .busy
                .entry((flow.share, flow.generation))
                .or_default() += 1;
        }
        if logs::has_log(&flow) {
            *census.logs.entry(flow.share).or_default() += 1;
        }
    });
    match scanned.and_then(|()| limits.apply(flows, &fill)) {
        Ok(evicted) => Some(Census { evicted, ..census }),
        Err(error) => {
            tracing::warn!(error = %error, "can't count the flows");
            None
        }
    }
}

/// A client that waits at the end of the leash is silent, but busy.
fn is_busy(flow: &FlowState, now: MonoTime) -> bool {
    let twin_nxt = match flow.phase {
        Phase::Protected | Phase::Rejoining => flow.twin_snd_nxt,
        Phase::Twin => flow.snd_nxt,
        Phase::Confirming
        | Phase::Unprotected
        | Phase::Closed
        | Phase::Ended
        | Phase::Unknown(_) => return false,
    };
    let lag = flow.snd_una.checked_distance(twin_nxt).unwrap_or(0);
    now.since(MonoTime::from_nanos(flow.heard_ns)) < RECENT || lag >= SHORTEST / 2
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
