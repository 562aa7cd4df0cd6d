//! How much is kept of what each client says to a service with eager snapshots.
//!
//! All logs of a node share one map. Others give theirs back when a client has said more
//! than `reprotect_cap`; those of such a service keep the latest for good. So they have half
//! of the map, and where they are many each is shorter, down to what a request and its
//! answer need. One that is longer is cut at its client's next word: those of clients who
//! have said much when there were few, and nothing since, may take more than that half.

use godwit_bpf::{FlowState, LOG_CHUNK, LOG_CHUNKS, LogMode, ShareEntry};

/// Chunks that these logs may have.
const ROOM: u32 = LOG_CHUNKS / 2;

/// The shortest log, in bytes.
const SHORTEST: u32 = 4 << 10;

/// Whether a flow has a log.
pub(super) fn has_log(flow: &FlowState) -> bool {
    flow.log.is_begun()
}

/// Whether it keeps the latest of what its clients have said.
pub(super) fn is_latest(entry: &ShareEntry) -> bool {
    entry.log_mode == LogMode::Latest
}

/// The longest log of each of so many, if one that is alone may have `longest`.
pub(super) fn fair(longest: u32, logs: u32) -> u32 {
    // The first and the last chunk are not whole.
    let whole = (ROOM / logs.max(1)).saturating_sub(2);
    let fair = whole.saturating_mul(LOG_CHUNK);
    fair.clamp(SHORTEST.min(longest), longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u32 = 64 << 10;

    #[test]
    fn many_logs_are_shorter() {
        assert_eq!(fair(LONGEST, 0), LONGEST);
        assert_eq!(fair(LONGEST, 100), LONGEST);
        for logs in [500, 1000, 3000] {
            let cap = fair(LONGEST, logs);
            let used = logs * (cap / LOG_CHUNK + 2);
            assert!(used <= ROOM && used > ROOM / 2, "{logs}: {cap}, {used}");
        }
        assert_eq!(fair(LONGEST, 100_000), SHORTEST);
        assert_eq!(fair(1024, 100_000), 1024, "as it is configured");
    }
}
