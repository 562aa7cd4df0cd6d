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

/// A target that can't be asked is waited for as many times as long as a client may be
/// silent before it is asked: half an hour at the default. An agent may be away for a
/// while without harm, for connections go on without it.
const UNREACHED: u32 = 30;

/// The same, where a client may be silent so long before anybody is asked.
pub(super) const fn patience(idle: Duration) -> Duration {
    idle.saturating_mul(UNREACHED)
}

/// Since when clients have been silent.
#[derive(Debug, Default)]
pub(super) struct Forwarding(BTreeMap<FlowId, Watch>);

#[derive(Debug, Clone, Copy)]
struct Watch {
    /// Before that nobody has looked: an entry that was written anew tells of no client.
    begun: MonoTime,
    told: MonoTime,
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
    ) -> Option<Duration> {
        let begun = Watch {
            begun: now,
            told: now,
        };
        let watch = self.0.entry(flow).or_insert(begun);
        let lasted = now.since(heard.map_or(watch.begun, |heard| heard.max(watch.begun)));
        let due = lasted >= limit && now.since(watch.told) >= limit;
        if due {
            watch.told = now;
        }
        due.then_some(lasted)
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
        self.forwarding.keep(|flow| away.contains_key(flow));
        for (flow, heard) in away {
            let service = &flow.key.service;
            let (Some(share), Some(limit)) = (self.shares.get(service), self.idle.get(service))
            else {
                continue;
            };
            if let Some(lasted) = self.forwarding.silent(flow, heard, *limit, now) {
                let silent = HandoffReport::Silent {
                    flow,
                    lasted,
                    patience: patience(*limit),
                };
                self.report(*share, silent);
            }
        }
    }

    /// Somebody forwards to this node, which knows of no such connection. It may have
    /// lost its memory only.
    pub(super) fn look(&self, share: ShareId, id: HandoffId, from: PeerId) {
        match has_tcp_socket(self.ifindex, id.flow.key) {
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

    fn flow() -> FlowId {
        FlowId {
            key: FlowKey {
                client: "10.9.0.10:40000".parse().expect("a literal"),
                service: "10.9.0.100:80".parse().expect("a literal"),
            },
            irs: SeqNumber(7),
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
            let silent = forwarding.silent(flow(), heard, LIMIT, at(now));
            told.extend(silent.map(|lasted| (now, lasted.as_secs())));
        }
        assert_eq!(told, [(160, 60), (310, 60), (370, 120)]);
        forwarding.keep(|_| false);
        assert!(forwarding.0.is_empty());
    }
}
