//! How much is kept of what each client says to a service with eager snapshots.
//!
//! All logs of a node share one map. Others give theirs back when a client has said more
//! than `reprotect_cap`; those of such a service keep the latest for good. So they have half
//! of the map: when they need more, each is cut shorter at its client's next word, down to
//! what a request and its answer need; when they need less, longer again.

use godwit_bpf::{FlowState, LOG_CHUNKS, LogMode, ShareEntry};

/// Chunks that these logs may have.
const ROOM: u32 = LOG_CHUNKS / 2;

/// Beyond this they do not grow.
const ENOUGH: u32 = ROOM / 4 * 3;

/// The shortest log, in bytes.
const SHORTEST: u32 = 4 << 10;

/// Chunks of a flow's log.
pub(super) fn chunks(flow: &FlowState) -> u32 {
    flow.log.chunks()
}

/// Whether it keeps the latest of what its clients have said.
pub(super) fn is_latest(entry: &ShareEntry) -> bool {
    entry.log_mode == LogMode::Latest
}

/// The longest log of a flow from here on, if all have so many chunks, and `longest` is
/// what one may have that is alone.
pub(super) fn next(now: u32, longest: u32, used: u32) -> u32 {
    if used > ROOM {
        let share = u64::from(now) * u64::from(ROOM) / u64::from(used);
        // It is less than `now`.
        let share = u32::try_from(share).unwrap_or(now);
        share.max(SHORTEST.min(longest))
    } else if used < ENOUGH {
        now.saturating_add(now / 4).min(longest)
    } else {
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u32 = 64 << 10;

    /// A number of clients who have said more than fits.
    fn settled(flows: u32) -> u32 {
        let mut cap = LONGEST;
        for _ in 0..50 {
            cap = next(cap, LONGEST, flows * (cap / 400 + 2));
        }
        cap
    }

    #[test]
    fn many_logs_are_shorter() {
        assert_eq!(settled(100), LONGEST);
        for flows in [500, 1000, 3000] {
            let cap = settled(flows);
            let used = flows * (cap / 400 + 2);
            assert!(used <= ROOM && used > ENOUGH / 2, "{flows}: {cap}, {used}");
        }
        assert_eq!(settled(100_000), SHORTEST);
    }

    #[test]
    fn they_grow_again() {
        let mut cap = SHORTEST;
        for _ in 0..20 {
            cap = next(cap, LONGEST, 0);
        }
        assert_eq!(cap, LONGEST);
        assert_eq!(next(1024, 1024, LOG_CHUNKS), 1024, "as it is configured");
    }
}
