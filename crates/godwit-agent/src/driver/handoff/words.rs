//! What the thread has said and nobody has heard yet.
//!
//! To be told one thing the driver is woken up, and the links are by what it says
//! then. So what follows from jobs that are there together is said together.

use std::time::Duration;

use godwit_core::node::HandoffReport;
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{Message, ShareId};

use crate::clock;
use crate::events::EventLog;
use crate::input::{Inbox, Input};
use crate::peers::PeerSender;

/// How long the first word waits for others: a few jobs. For each a client is silent.
const PATIENCE: Duration = Duration::from_micros(300);

/// To whom, in which order.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Heard before what peers are told: a peer's answer must not be.
    reports: Vec<Input>,
    messages: Vec<(PeerId, Message)>,
    since: Option<MonoTime>,
}

impl Words {
    pub(super) fn report(&mut self, share: ShareId, report: HandoffReport) {
        self.begin();
        self.reports.push(Input::Handoff { share, report });
    }

    pub(super) fn message(&mut self, to: PeerId, message: Message) {
        self.begin();
        self.messages.push((to, message));
    }

    fn begin(&mut self) {
        self.since.get_or_insert_with(clock::now);
    }

    /// Whether something has waited long enough.
    fn are_due(&self, now: MonoTime) -> bool {
        self.since.is_some_and(|since| now.since(since) >= PATIENCE)
    }
}

/// How the thread speaks: to the driver, to peers, and to people.
pub(super) struct Speech {
    pub(super) words: Words,
    pub(super) inbox: Inbox,
    pub(super) peers: PeerSender,
    pub(super) events: EventLog,
}

impl Speech {
    pub(super) fn new(inbox: Inbox, peers: PeerSender, events: EventLog) -> Self {
        Self {
            words: Words::default(),
            inbox,
            peers,
            events,
        }
    }

    /// Has everybody hear what was said, unless there is more to do first.
    pub(super) fn speak_soon(&mut self, more: bool) {
        if !more || self.words.are_due(clock::now()) {
            self.speak();
        }
    }

    /// Has everybody hear what was said.
    pub(super) fn speak(&mut self) {
        let Words {
            reports, messages, ..
        } = std::mem::take(&mut self.words);
        // Without a driver nobody needs to know.
        let _ = self.inbox.send_all(reports);
        for (to, message) in messages {
            // Without a link the attempt is over, and the core hears of that.
            if let Err(error) = self.peers.send(to, message) {
                tracing::debug!(error = %error, "handoff not said");
            }
        }
        self.peers.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hello;

    #[test]
    fn words_wait_for_others_but_not_for_long() {
        let mut words = Words::default();
        let begun = clock::now();
        assert!(!words.are_due(begun.saturating_add(PATIENCE * 2)), "none");
        words.message(PeerId(0), hello("a", 1));
        let patient = begun.saturating_add(PATIENCE / 2);
        assert!(clock::now() > patient || !words.are_due(patient), "not yet");
        assert!(words.are_due(clock::now().saturating_add(PATIENCE)));
    }
}
