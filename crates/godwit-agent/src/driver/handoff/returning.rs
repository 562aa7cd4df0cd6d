//! Connections that were to come here and did not.
//!
//! Their origin goes on with them, and gets back what was kept of them. Until its data
//! path knows that, it forwards what clients send; our kernel has no socket for that, and
//! would answer with a RST. So nothing is heard of such a connection here as long as
//! something of it may still come. An agent that is away tells its data path nothing:
//! while an origin has none, time does not count.

use std::time::Duration;

use godwit_bpf::Whereabouts;
use godwit_core::{MonoTime, PeerId};
use godwit_sock::view_tcp_socket;
use godwit_wire::{FlowId, HandoffId, HandoffStep, MacAddr, ShareId};

use super::arriving::Coming;
use super::forwarding::UNREACHED;
use super::worker::Worker;
use crate::clock;

/// How long a connection is silent here that its origin alone can forward: that goes on
/// within a second of its agent's return, or of the end of the attempt.
const SENT_BACK: Duration = Duration::from_secs(2);

/// The same where clients send what is kept, and its origin is elsewhere again: there it
/// is forwarded to, which is silent itself as long as it forwards.
const SENT_BACK_HOME: Duration = Duration::from_millis(100);

/// How long an origin may have no link before what is kept for it is thrown away, and
/// nothing more is kept.
const LINK_GLIMPSE: Duration = Duration::from_millis(200);

/// Where packets of a connection go that did not come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Return {
    /// To its origin, while some may be under way; `None` if that is not known.
    pub(super) to: Option<PeerId>,
    /// Where it had gone from here, earlier: there they are forwarded again.
    pub(super) away: Option<MacAddr>,
}

/// A connection that did not come, and whose packets may.
pub(super) struct Returned {
    id: HandoffId,
    share: ShareId,
    how: Return,
    wait: Wait,
}

/// For the last packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wait {
    begun: MonoTime,
    /// Since when its origin is linked, as far as is known.
    since: MonoTime,
    /// When it was linked last.
    linked: MonoTime,
    /// How long a client is waited for whose origin is not.
    patience: Duration,
}

impl Wait {
    const fn new(now: MonoTime, patience: Duration) -> Self {
        Self {
            begun: now,
            since: now,
            linked: now,
            patience,
        }
    }

    /// Whether it is over. `heard` looks when a packet came last.
    fn is_over(
        &mut self,
        now: MonoTime,
        is_linked: bool,
        heard: impl FnOnce() -> Option<MonoTime>,
    ) -> bool {
        let limit = if is_linked {
            self.linked = now;
            SENT_BACK
        } else {
            self.since = now;
            self.patience
        };
        let from = if is_linked { self.since } else { self.begun };
        let silent = |from: MonoTime| now.since(from) >= limit;
        silent(from) && heard().is_none_or(silent)
    }
}

impl Wait {
    /// Whether an origin may soon be there to hear what is kept.
    fn is_worth_keeping(&self, now: MonoTime) -> bool {
        now.since(self.linked) < LINK_GLIMPSE
    }
}

impl Worker {
    /// An attempt has ended before the connection spoke here.
    pub(super) fn discard(&mut self, share: ShareId, id: HandoffId, how: Return) {
        let coming = self.arriving.coming.remove(&id.flow);
        if let (Some(Coming::Parts(parts)), Some(to)) = (&coming, how.away)
            && parts.is_empty()
        {
            // It was not stopped there, and has had all that waits here.
            self.send_on(id.flow, to);
            return self.end_waiting(id.flow);
        }
        if let Some(Coming::Restored { socket, .. }) = coming {
            socket.abandon();
        }
        self.returned.push(Returned {
            id,
            share,
            how,
            // As long as its origin may forward.
            wait: Wait::new(clock::now(), UNREACHED),
        });
    }

    /// What has come meanwhile for connections that did not.
    pub(super) fn send_back(&mut self, now: MonoTime) {
        for mut returned in std::mem::take(&mut self.returned) {
            let flow = returned.id.flow;
            if returned.how.away.is_some() {
                self.give_back(&returned);
                if now.since(returned.wait.begun) >= SENT_BACK_HOME {
                    self.forward_again(&returned);
                    continue;
                }
            } else {
                let is_linked = self.is_origin_linked(returned.how.to);
                if is_linked {
                    self.waiting.heed(flow.key);
                    self.give_back(&returned);
                } else if !returned.wait.is_worth_keeping(now) {
                    // Clients have said it again by the time that there is a link.
                    self.waiting.ignore(flow.key);
                }
                let heard = || self.places.get(flow)?.heard.map(MonoTime::from_nanos);
                if returned.wait.is_over(now, is_linked, heard) {
                    self.places.remove(flow);
                    self.end_waiting(flow);
                    continue;
                }
            }
            self.returned.push(returned);
        }
    }

    /// A connection for which an attempt begins anew is not given up any more, nor one
    /// with its addresses.
    pub(super) fn stop_sending_back(&mut self, flow: FlowId) {
        self.returned
            .retain(|returned| returned.id.flow.key != flow.key);
    }

    fn is_origin_linked(&self, origin: Option<PeerId>) -> bool {
        match origin {
            Some(peer) => self.speech.peers.is_linked(peer),
            None => self.speech.peers.is_linked_to_all(),
        }
    }

    /// Not more than the link has room for: what is too much its client repeats, and a
    /// link that is full is closed.
    fn give_back(&mut self, returned: &Returned) {
        let Some(to) = returned.how.to else {
            return;
        };
        let (room, id) = (self.speech.peers.room(to), returned.id);
        for packet in self.waiting.take_some(id.flow.key, room) {
            self.say(returned.share, id, to, HandoffStep::Held { packet });
        }
        // What is not in the queue yet takes up room, too.
        self.speech.speak();
    }

    fn forward_again(&mut self, returned: &Returned) {
        let flow = returned.id.flow;
        if let Some(to) = returned.how.away {
            self.send_on(flow, to);
        }
        // What came last before that.
        self.give_back(returned);
        self.end_waiting(flow);
    }

    /// What is in the device by now our kernel does not get, either.
    fn end_waiting(&mut self, flow: FlowId) {
        let dropped = self.waiting.end_in_silence(flow.key);
        if dropped > 0 {
            self.tell_dropped(flow, dropped);
        }
    }

    /// Whether a connection has ended here and went nowhere else: our kernel would answer
    /// what comes late with a RST. One that had come from elsewhere still has an entry.
    pub(super) fn is_over(&self, flow: FlowId) -> bool {
        let gone = || {
            matches!(
                view_tcp_socket(self.kernel.stand.ifindex(), flow.key),
                Ok(None)
            )
        };
        let entry = self.places.get(flow);
        entry.is_none_or(|entry| entry.whereabouts == Whereabouts::Here) && gone()
    }

    /// Packets that were kept, and that nobody gets.
    pub(super) fn tell_dropped(&self, flow: FlowId, packets: usize) {
        let (flow, packets) = (flow.key.to_string(), packets.to_string());
        let fields = [("flow", flow.as_str()), ("packets", packets.as_str())];
        self.speech.events.publish_own("held_dropped", true, fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1800);

    const fn at(seconds: u64) -> MonoTime {
        MonoTime(seconds * 1_000_000_000)
    }

    #[test]
    fn an_origin_that_is_there_goes_on_soon() {
        let mut wait = Wait::new(at(100), PATIENCE);
        assert!(!wait.is_over(at(101), true, || None));
        assert!(wait.is_over(at(102), true, || None));
        let mut wait = Wait::new(at(100), PATIENCE);
        assert!(!wait.is_over(at(102), true, || Some(at(101))), "not yet");
        assert!(wait.is_over(at(103), true, || Some(at(101))));
    }

    /// Its data path forwards until there is one that tells it not to: our kernel's RST
    /// would end the connection.
    #[test]
    fn an_origin_without_an_agent_is_waited_for() {
        let mut wait = Wait::new(at(100), PATIENCE);
        for now in 100..1000 {
            assert!(!wait.is_over(at(now), false, || None), "at {now}");
        }
        assert!(!wait.is_over(at(1000), true, || None), "it has just come");
        assert!(wait.is_over(at(1001), true, || None));
    }

    #[test]
    fn a_link_that_is_replaced_loses_nothing() {
        let mut wait = Wait::new(at(100), PATIENCE);
        assert!(!wait.is_over(at(101), true, || None));
        let soon = at(101).saturating_add(LINK_GLIMPSE / 2);
        assert!(!wait.is_over(soon, false, || None));
        assert!(wait.is_worth_keeping(soon));
        let later = at(101).saturating_add(LINK_GLIMPSE);
        assert!(!wait.is_over(later, false, || None));
        assert!(!wait.is_worth_keeping(later));
        assert!(!wait.is_over(at(102), true, || None));
        assert!(wait.is_worth_keeping(at(102)));
    }

    #[test]
    fn a_client_that_is_long_silent_is_not_waited_for() {
        let mut wait = Wait::new(at(100), PATIENCE);
        let heard = || Some(at(500));
        assert!(!wait.is_over(at(1900), false, heard));
        assert!(wait.is_over(at(2300), false, heard));
    }
}
