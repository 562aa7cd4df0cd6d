//! Counts the flows that are busy, of which each has a part of its service's leash
//! ([`godwit_core::twin::leash`]).

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_bpf::{CrowdTable, FlowState, FlowTable, Order, Phase};
use godwit_core::MonoTime;
use godwit_core::twin::leash::SHORTEST;

use super::crowd::{Fill, Limits};
use super::ground::Ground;
use super::hearing::Listener;
use super::logs;
use crate::clock;
use crate::input::{Census, Inbox, Input};

/// How often flows are counted.
const ROUND: Duration = Duration::from_millis(250);

/// Counting takes at most this part of a processor's time.
const SHARE_OF_TIME: u32 = 50;

/// A client that has spoken within this is busy.
const RECENT: Duration = Duration::from_secs(1);

pub(super) fn apply_census(ground: &mut Ground, census: &Census, now: MonoTime) {
    for share in ground.shares.apply_census(census) {
        ground.write_share(share);
    }
    for (share, flow) in &census.evicted {
        ground.give(*share, *flow, Order::DropLog);
    }
    let owned: Vec<_> = ground.shares.iter().map(|(share, _)| share).collect();
    for share in owned {
        let protected = census.protected.get(&share).copied().unwrap_or(0);
        ground.node.handle_protected_count(share, protected, now);
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
        let mut listener = Listener::default();
        loop {
            let now = clock::now();
            // An unreadable table leaves things as they are.
            listener.begin();
            let counted = census(&flows, &mut limits, &mut listener, now);
            // What a scan has left out may be what is served.
            let look = counted.as_ref().and_then(|_| listener.end(now));
            if let Some(census) = counted
                && inbox.offer(Input::Census(census)).is_err()
            {
                return;
            }
            if let Some(look) = look
                && inbox.send(Input::Facts(look.into())).is_err()
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

fn census(
    flows: &FlowTable,
    limits: &mut Limits,
    listener: &mut Listener,
    now: MonoTime,
) -> Option<Census> {
    let (mut census, mut fill) = (Census::default(), Fill::default());
    let scanned = flows.for_each(|flow| {
        fill.add(&flow);
        listener.saw(&flow, now);
        if flow.phase == Phase::Protected {
            *census.protected.entry(flow.share).or_default() += 1;
        }
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
        Phase::Unprotected if flow.is_taken_over() => flow.snd_nxt,
        Phase::Confirming
        | Phase::Unprotected
        | Phase::Closed
        | Phase::Ended
        | Phase::Unknown(_) => return false,
    };
    let lag = flow.snd_una.checked_distance(twin_nxt).unwrap_or(0);
    now.since(MonoTime::from_nanos(flow.heard_ns)) < RECENT || lag >= SHORTEST / 2
}
