//! The ring buffer's reader: what the data path reports, as input.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use godwit_bpf::{Events, RawEvent, Record};
use godwit_core::{FlowEvent, FlowEventKind};

use super::doubts::Doubts;
use crate::input::{Inbox, Input, StopHint};
use crate::realtime::{Urgency, prefer};

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
    while !inbox.is_closed() {
        for record in events.wait(Duration::from_millis(200)) {
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
