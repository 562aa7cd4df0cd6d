//! Connections that this node forwards for: whose client is silent the core hears, which
//! asks where they went.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::{HandoffEntry, Whereabouts};
use godwit_core::node::HandoffReport;
use godwit_core::{MonoTime, PeerId};
use godwit_sock::has_tcp_socket;
use godwit_wire::{FlowId, HandoffId, ShareId};

use super::worker::Worker;

/// How long a target is waited for that can't be asked. Agents may be away, or not reach
/// each other, for as long as people need to mend that: connections go on without them,
/// and to forward in vain costs an entry of many.
pub(super) const UNREACHED: Duration = Duration::from_hours(24);

/// Who is asked for in one sweep, at most. After an agent's start, or in a quiet night,
/// thousands are silent in step, and a link that is given more than it takes is closed.
const AT_ONCE: usize = 100;

/// Since when clients have been silent.
#[derive(Debug, Default)]
pub(super) struct Forwarding(BTreeMap<FlowId, Watch>);

#[derive(Debug, Clone, Copy)]
struct Watch {
    /// Before that nobody has looked: an entry that was written anew tells of no client.
    begun: MonoTime,
    told: MonoTime,
}

/// A client that has been silent for longer than it may be without being asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Silent {
    told: MonoTime,
    flow: FlowId,
    lasted: Duration,
}

impl Forwarding {
    /// For how long the client of a connection has been silent, if that is to be told:
    /// longer than `limit`, and not told for as long.
    fn silent(
        &mut self,
        flow: FlowId,
        heard: Option<MonoTime>,
        limit: Duration,
        now: MonoTime,
    ) -> Option<Silent> {
        let begun = Watch {
            begun: now,
            told: now,
        };
        let watch = self.0.entry(flow).or_insert(begun);
        let lasted = now.since(heard.map_or(watch.begun, |heard| heard.max(watch.begun)));
        let due = lasted >= limit && now.since(watch.told) >= limit;
        due.then_some(Silent {
            told: watch.told,
            flow,
            lasted,
        })
    }

    /// As many of them as are told at once, first who was told longest ago.
    fn tell(&mut self, mut silent: Vec<Silent>, now: MonoTime) -> Vec<Silent> {
        silent.sort_unstable();
        silent.truncate(AT_ONCE);
        for Silent { flow, .. } in &silent {
            if let Some(watch) = self.0.get_mut(flow) {
                watch.told = now;
            }
        }
        silent
    }

    /// Others are not forwarded for any more.
    fn keep(&mut self, is_away: impl Fn(&FlowId) -> bool) {
        self.0.retain(|flow, _| is_away(flow));
    }
}

impl Worker {
    /// `entries` are all that there are.
    pub(super) fn look_after_forwarded(&mut self, entries: &[HandoffEntry], now: MonoTime) {
        let away: BTreeMap<_, _> = entries
            .iter()
            .filter(|entry| matches!(entry.whereabouts, Whereabouts::Away { .. }))
            .map(|entry| (entry.flow, entry.heard.map(MonoTime::from_nanos)))
            .collect();
        self.leaving.forwarding.keep(|flow| away.contains_key(flow));
        let silent = away.into_iter().filter_map(|(flow, heard)| {
            let limit = *self.terms.idle.get(&flow.key.service)?;
            self.leaving.forwarding.silent(flow, heard, limit, now)
        });
        let silent = silent.collect();
        for Silent { flow, lasted, .. } in self.leaving.forwarding.tell(silent, now) {
            if let Some(share) = self.terms.shares.get(&flow.key.service).copied() {
                let silent = HandoffReport::Silent {
                    flow,
                    lasted,
                    patience: UNREACHED,
                };
                self.report(share, silent);
            }
        }
    }

    /// Somebody forwards to this node, which knows of no such connection. It may have
    /// lost its memory only.
    pub(super) fn look(&mut self, share: ShareId, id: HandoffId, from: PeerId) {
        match has_tcp_socket(self.kernel.stand.ifindex(), id.flow.key) {
            Ok(true) => {}
            Ok(false) => self.report(share, HandoffReport::Absent { id, from }),
            Err(error) => tracing::warn!(error = %error, "can't look for a socket"),
        }
    }
}

#[cfg(test)]
mod tests {
    use godwit_wire::{FlowKey, SeqNumber};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn flow(irs: u32) -> FlowId {
        FlowId {
            key: FlowKey {
                client: "10.9.0.10:40000".parse().expect("a literal"),
                service: "10.9.0.100:80".parse().expect("a literal"),
            },
            irs: SeqNumber(irs),
        }
    }

    const fn at(seconds: u64) -> MonoTime {
        MonoTime(seconds * 1_000_000_000)
    }

    /// Once for each span of silence, however often it is looked at.
    #[test]
    fn silence_is_told_now_and_then() {
        let mut forwarding = Forwarding::default();
        let mut told = Vec::new();
        for now in (100..400).step_by(2) {
            // From 200 on it is heard for a while.
            let heard = (now >= 200).then(|| at(now.min(250)));
            let silent = forwarding.silent(flow(7), heard, LIMIT, at(now));
            let silent = forwarding.tell(silent.into_iter().collect(), at(now));
            told.extend(silent.iter().map(|it| (now, it.lasted.as_secs())));
        }
        assert_eq!(told, [(160, 60), (310, 60), (370, 120)]);
        forwarding.keep(|_| false);
        assert!(forwarding.0.is_empty());
    }

    /// However many are silent at the same moment: a few at a time, and each in its turn.
    #[test]
    fn a_crowd_that_is_silent_in_step_is_told_bit_by_bit() {
        const CROWD: u32 = 1000;
        let mut forwarding = Forwarding::default();
        let mut told = BTreeMap::new();
        for now in (0..180).step_by(2) {
            let silent = (0..CROWD)
                .filter_map(|irs| forwarding.silent(flow(irs), None, LIMIT, at(now)))
                .collect();
            let silent = forwarding.tell(silent, at(now));
            assert!(silent.len() <= AT_ONCE, "{} at {now}", silent.len());
            for Silent { flow, .. } in silent {
                *told.entry(flow).or_insert(0) += 1;
            }
        }
        // After 60 s for the first time, and 60 s later again.
        assert_eq!(told.len(), CROWD as usize);
        assert!(told.values().all(|times| *times == 2));
    }
}
