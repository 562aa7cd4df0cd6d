//! What one source of connections, or one share, may have of tables that all have in common.
//!
//! Any client can open connections, and have what it says kept for a twin that comes later. So
//! when a table is nearly full, who has much of it makes room for the others:
//!
//! | table | who | what becomes of it |
//! |---|---|---|
//! | flows | a source with an eighth of it: a /24, or a /64 of IPv6 | its new connections are served unprotected (`source_share`) |
//! | logs | shares with more than their part, then all; the longest silent first, small ones last | they are given back (`log_evicted`) |

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use godwit_bpf::{CROWDS, CrowdTable, FlowState, FlowTable, LOG_CHUNKS, MapError, Phase};
use godwit_wire::{Endpoint, FlowId, ShareId};

/// A source has no more of the flow table than one of so many parts.
const PARTS: u32 = 8;

/// Logs that are given back at a time: some milliseconds of the driver.
const AT_ONCE: usize = 256;

/// A log of so many chunks, six KiB, is small: most requests are shorter.
const SMALL: u32 = 16;

/// Whether it is nearly full; and when it has been, whether it still is.
const fn is_nearly_full(used: u32, room: u32, was: bool) -> bool {
    let eighths = if was { 5 } else { 6 };
    used as u64 * 8 > room as u64 * eighths
}

/// What the tables have in them.
#[derive(Debug, Default)]
pub(super) struct Fill {
    flows: u32,
    chunks: u32,
}

impl Fill {
    pub(super) fn add(&mut self, flow: &FlowState) {
        self.flows += 1;
        self.chunks += flow.log.chunks();
    }
}

/// What is done about it.
#[derive(Debug)]
pub(super) struct Limits {
    table: Arc<CrowdTable>,
    /// Sources without protection for new connections, as the data path has them; `None`: that
    /// is not known.
    crowds: Option<BTreeSet<Ipv6Addr>>,
    is_full: bool,
}

impl Limits {
    pub(super) const fn new(table: Arc<CrowdTable>) -> Self {
        Self {
            table,
            crowds: None,
            is_full: false,
        }
    }

    /// Limits sources; the logs that are to be given back.
    pub(super) fn apply(
        &mut self,
        flows: &FlowTable,
        fill: &Fill,
    ) -> Result<Vec<(ShareId, FlowId)>, MapError> {
        self.is_full = is_nearly_full(fill.flows, flows.room(), self.is_full);
        let mut crowds = BTreeMap::new();
        if self.is_full {
            let mut sources = BTreeMap::<_, u32>::new();
            flows.for_each(|flow| *sources.entry(source(flow.id.key.client)).or_default() += 1)?;
            crowds = crowded(sources, flows.room());
        }
        self.limit(&crowds)?;
        if !is_nearly_full(fill.chunks, LOG_CHUNKS, false) {
            return Ok(Vec::new());
        }
        let mut logs = Vec::new();
        flows.for_each(|flow| {
            if flow.log.chunks() > 0 && flow.phase != Phase::Rejoining {
                logs.push(Log {
                    share: flow.share,
                    flow: flow.id,
                    chunks: flow.log.chunks(),
                    heard_ns: flow.heard_ns,
                });
            }
        })?;
        Ok(evicted(logs, fill.chunks))
    }

    fn limit(&mut self, crowds: &BTreeMap<Ipv6Addr, u32>) -> Result<(), MapError> {
        let sources: BTreeSet<_> = crowds.keys().copied().collect();
        if self.crowds.as_ref() == Some(&sources) {
            return Ok(());
        }
        self.table.replace(crowds)?;
        for (source, flows) in crowds {
            let is_new = self.crowds.as_ref().is_none_or(|it| !it.contains(source));
            if is_new {
                tracing::warn!(
                    source = %source.to_canonical(), flows,
                    "the flow table is nearly full, and much of it is of one source: its new \
                     connections are not protected"
                );
            }
        }
        self.crowds = Some(sources);
        Ok(())
    }
}

/// What the addresses of one source begin with, and zeroes.
fn source(client: Endpoint) -> Ipv6Addr {
    match client.ip() {
        IpAddr::V4(addr) => {
            let [a, b, c, _] = addr.octets();
            std::net::Ipv4Addr::new(a, b, c, 0).to_ipv6_mapped()
        }
        IpAddr::V6(addr) => {
            let [a, b, c, d, ..] = addr.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)
        }
    }
}

/// Those that have their part of a table with so much room.
fn crowded(mut sources: BTreeMap<Ipv6Addr, u32>, room: u32) -> BTreeMap<Ipv6Addr, u32> {
    sources.retain(|_, flows| *flows > room / PARTS);
    while sources.len() > CROWDS {
        sources.pop_last();
    }
    sources
}

/// A log that takes room.
#[derive(Debug, Clone, Copy)]
struct Log {
    share: ShareId,
    flow: FlowId,
    chunks: u32,
    heard_ns: u64,
}

/// Those that make room, if so many chunks are used.
fn evicted(mut logs: Vec<Log>, mut used: u32) -> Vec<(ShareId, FlowId)> {
    let mut shares = BTreeMap::<_, u32>::new();
    for log in &logs {
        *shares.entry(log.share).or_default() += log.chunks;
    }
    let quota = LOG_CHUNKS / u32::try_from(shares.len().max(1)).unwrap_or(u32::MAX);
    logs.sort_unstable_by_key(|log| (log.chunks <= SMALL, log.heard_ns));
    let mut evicted = BTreeSet::new();
    for over_quota in [true, false] {
        for log in &logs {
            if evicted.len() == AT_ONCE || !is_nearly_full(used, LOG_CHUNKS, true) {
                return evicted.into_iter().collect();
            }
            let has = shares.entry(log.share).or_default();
            if (over_quota && *has <= quota) || !evicted.insert((log.share, log.flow)) {
                continue;
            }
            *has = has.saturating_sub(log.chunks);
            used = used.saturating_sub(log.chunks);
        }
    }
    evicted.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use godwit_wire::{FlowKey, SeqNumber};

    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().expect("an address")
    }

    #[test]
    fn neighbours_are_one_source() {
        let of = |text: &str| source(endpoint(text));
        assert_eq!(of("10.9.3.1:5"), of("10.9.3.250:6"));
        assert_ne!(of("10.9.3.1:5"), of("10.9.4.1:5"));
        assert_eq!(of("[2001:db8:0:1::5]:1"), of("[2001:db8:0:1:7::9]:2"));
        assert_ne!(of("[2001:db8:0:1::5]:1"), of("[2001:db8:0:2::5]:1"));
    }

    /// A flood of one network leaves room for others; without a flood nobody has too much.
    #[test]
    fn who_has_an_eighth_of_a_table_that_is_nearly_full_has_enough() {
        assert!(!is_nearly_full(600, 800, false));
        assert!(is_nearly_full(601, 800, false));
        assert!(is_nearly_full(501, 800, true), "it does not flap");
        assert!(!is_nearly_full(500, 800, true));
        let flood = source(endpoint("10.9.3.1:1"));
        let others = (0..500_u16).map(|it| (Ipv6Addr::new(0x2001, it, 0, 0, 0, 0, 0, 0), 1));
        let sources = others.chain([(flood, 101)]).collect();
        assert_eq!(crowded(sources, 800), BTreeMap::from([(flood, 101)]));
        assert!(crowded(BTreeMap::from([(flood, 100)]), 800).is_empty());
        let many = (0..40_u16).map(|it| (Ipv6Addr::new(0x2001, it, 0, 0, 0, 0, 0, 0), 500));
        assert_eq!(crowded(many.collect(), 800).len(), CROWDS);
    }

    fn log(share: u32, port: u16, chunks: u32, heard_ns: u64) -> Log {
        let client = endpoint(&format!("10.9.3.1:{port}"));
        let service = endpoint("10.9.0.100:80");
        Log {
            share: ShareId(share),
            flow: FlowId {
                key: FlowKey { client, service },
                irs: SeqNumber(1),
            },
            chunks,
            heard_ns,
        }
    }

    /// Eight hundred uploads that stopped half-way, of one share, and ordinary requests of both.
    #[test]
    fn uploads_that_stand_still_make_room_for_others() {
        const CHUNKS: u32 = 164;
        let uploads = (0..650).map(|port| log(1, port, CHUNKS, 1000 + u64::from(port)));
        let late = log(1, 2000, CHUNKS, 9000);
        let requests = [log(1, 3000, 3, 5), log(2, 3001, CHUNKS, 5)];
        let all: Vec<_> = uploads.chain([late]).chain(requests).collect();
        let used = all.iter().map(|log| log.chunks).sum();
        assert!(is_nearly_full(used, LOG_CHUNKS, false));
        let gone = evicted(all, used);
        let freed = u32::try_from(gone.len()).expect("few") * CHUNKS;
        assert!(!is_nearly_full(used - freed, LOG_CHUNKS, true));
        assert!(is_nearly_full(used - freed + CHUNKS, LOG_CHUNKS, true));
        assert!(gone.iter().all(|(share, _)| *share == ShareId(1)));
        let ports = gone.iter().map(|(_, flow)| flow.key.client.port);
        assert_eq!(ports.max(), Some(u16::try_from(gone.len() - 1).unwrap()));
    }

    /// Where all of it is requests, these go, too, and never too many at once.
    #[test]
    fn small_logs_go_last() {
        let small = (0..40_000).map(|port| log(1, port, 3, u64::from(port)));
        let all: Vec<_> = small.chain([log(1, 50_000, 17, 99_999)]).collect();
        let gone = evicted(all, LOG_CHUNKS);
        assert_eq!(gone.len(), AT_ONCE);
        let ports = BTreeSet::from_iter(gone.iter().map(|(_, flow)| flow.key.client.port));
        assert!(ports.contains(&50_000) && ports.contains(&0));
        assert!(!ports.contains(&255));
    }
}
