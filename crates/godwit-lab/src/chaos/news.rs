//! Which events of an agent were handed out before.

use std::collections::BTreeMap;

use crate::cluster::EventReport;
use crate::host::Host;

/// The last event of each machine that was handed out. Each life of an agent counts its own from
/// 1, and agents begin anew while nobody looks.
#[derive(Debug, Default)]
pub(super) struct News(BTreeMap<Host, (String, u64)>);

impl News {
    /// Those of all events of the machine's agent that are later.
    pub(super) fn of(&mut self, host: Host, mut events: Vec<EventReport>) -> Vec<EventReport> {
        let at = |event: &EventReport| (event.time.clone(), event.sequence);
        if let Some(seen) = self.0.get(&host) {
            events.retain(|event| at(event) > *seen);
        }
        if let Some(last) = events.last() {
            self.0.insert(host, at(last));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(second: u8, sequence: u64) -> EventReport {
        EventReport {
            sequence,
            time: format!("2026-11-30T08:00:{second:02}.000000Z"),
            ..EventReport::of("a", "owner", None)
        }
    }

    #[test]
    fn another_life_counts_from_one_again() {
        let mut news = News::default();
        let first = vec![event(1, 1), event(1, 2)];
        assert_eq!(news.of(Host::A, first.clone()).len(), 2);
        assert_eq!(news.of(Host::A, first).len(), 0);
        assert_eq!(news.of(Host::B, vec![event(1, 1)]).len(), 1, "of another");
        let second = vec![event(3, 1), event(4, 2), event(4, 3)];
        assert_eq!(news.of(Host::A, second.clone()).len(), 3);
        assert_eq!(news.of(Host::A, second).len(), 0);
    }
}
