//! The ring buffer's reader: what the data path reports, as input.
//!
//! The kernel wakes the reader for a record only if it has read all before. That costs more
//! than the record: an interrupt, and a change of threads. So in a flood of connections, which
//! end by the thousand per second, the reader lets records gather for a millisecond ([`Pace`]).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use godwit_bpf::{Events, RawEvent, Record};
use godwit_core::{FlowEvent, FlowEventKind, MonoTime};

use super::doubts::Doubts;
use crate::clock;
use crate::input::{Inbox, Input, StopHint};
use crate::realtime::{Urgency, prefer};

/// How long records gather in a flood.
const NAP: Duration = Duration::from_millis(1);

/// How long reads are counted for.
const WINDOW: Duration = Duration::from_millis(10);

/// More reads than this in a window are a flood.
const MANY: u32 = 5;

/// Whether records come so often that the reader waits for more of them.
#[derive(Debug)]
struct Pace {
    begun: MonoTime,
    reads: u32,
    /// The window before had many reads.
    flooded: bool,
}

impl Pace {
    const fn new(now: MonoTime) -> Self {
        Self {
            begun: now,
            reads: 0,
            flooded: false,
        }
    }

    /// Something was read. How long nobody looks again; after a quiet time not at all.
    fn note_read(&mut self, now: MonoTime) -> Option<Duration> {
        let passed = now.since(self.begun);
        if passed >= WINDOW {
            self.flooded = self.reads > MANY && passed < 2 * WINDOW;
            (self.begun, self.reads) = (now, 0);
        }
        self.reads += 1;
        (self.flooded || self.reads > MANY).then_some(NAP)
    }
}

/// `events` is shared with the life after this one, which waits for the end of this thread.
pub(super) fn spawn_reader(
    events: Arc<Mutex<Events>>,
    doubts: Arc<Doubts>,
    inbox: Inbox,
) -> io::Result<()> {
    thread::Builder::new()
        .name("gw-events".into())
        .spawn(move || {
            prefer("gw-events", Urgency::Decisions);
            let events = events.lock().unwrap_or_else(PoisonError::into_inner);
            forward_events(&events, &doubts, &inbox);
        })
        .map(drop)
}

/// Reads the ring buffer until the driver is gone.
fn forward_events(events: &Events, doubts: &Doubts, inbox: &Inbox) {
    let mut pace = Pace::new(clock::now());
    while !inbox.is_closed() {
        let records = events.wait(Duration::from_millis(200));
        let nap = (!records.is_empty()).then(|| pace.note_read(clock::now()));
        for record in records {
            let input = match record {
                Record::Flow(raw) => flow_event(raw).map(Input::Flow),
                Record::Reset(raw) => {
                    doubts.add(ended(raw));
                    None
                }
                Record::Unanswered(question) => Some(Input::Unanswered(question)),
                Record::ListenerClosed => Some(Input::ListenerClosed),
                Record::Stopped(pid) => Some(Input::Stopped(StopHint::Signal(pid))),
                Record::Frozen => Some(Input::Stopped(StopHint::Frozen)),
                Record::Exit(exit) => Some(Input::Exit(exit)),
            };
            if input.is_some_and(|input| inbox.send(input).is_err()) {
                return;
            }
        }
        if let Some(nap) = nap.flatten() {
            thread::sleep(nap);
        }
    }
}

/// A kind that this version does not know comes from a later data path.
fn flow_event(raw: RawEvent) -> Option<FlowEvent> {
    let kind = FlowEventKind::try_from(raw.kind).ok()?;
    Some(FlowEvent { kind, ..ended(raw) })
}

/// What there is to say of a flow if it has no socket any more.
fn ended(raw: RawEvent) -> FlowEvent {
    FlowEvent {
        share: raw.share,
        flow: raw.flow,
        generation: raw.generation,
        kind: FlowEventKind::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> MonoTime {
        MonoTime::ZERO.saturating_add(Duration::from_micros(micros))
    }

    /// Records that come every 180 us, as long as the reader looks at once.
    fn flood(pace: &mut Pace, from: u64, until: u64) -> (u32, u64) {
        let (mut now, mut reads) = (from, 0);
        while now < until {
            let nap = pace.note_read(at(now)).unwrap_or_default();
            now += 180 + u64::try_from(nap.as_micros()).expect("it is short");
            reads += 1;
        }
        (reads, now)
    }

    #[test]
    fn records_of_a_flood_gather() {
        let mut pace = Pace::new(at(0));
        let (reads, _) = flood(&mut pace, 0, 1_000_000);
        assert!(reads < 1_000, "{reads} reads in a second");
    }

    #[test]
    fn who_comes_alone_or_after_a_flood_is_heard_at_once() {
        let mut pace = Pace::new(at(0));
        for number in 1..100 {
            assert_eq!(pace.note_read(at(number * 3_000)), None, "{number}");
        }
        let (_, end) = flood(&mut pace, 1_000_000, 1_100_000);
        assert!(pace.note_read(at(end)).is_some());
        for number in 1..10 {
            let later = at(end + 20_000 + number * 3_000);
            assert_eq!(pace.note_read(later), None, "{number}");
        }
    }
}
