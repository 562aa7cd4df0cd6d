//! Connections that are to leave, until their servers have let go of them.
//!
//! Servers are asked for several at a time: each answer takes as long as a process
//! needs to be woken up, and meanwhile another socket becomes bytes.

use std::time::Duration;

use godwit_bpf::Whereabouts;
use godwit_core::node::HandoffReport;
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{FlowId, HandoffId, HandoffRefusal, MacAddr, SeqNumber, ShareId};

use super::worker::Worker;
use crate::apps::{Take, Taken};
use crate::clock;

/// An application that is ahead of what it has exported exports more in a moment.
const TRIES: usize = 8;
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// A server that is given a connection registers it when it accepts it: so often it is
/// asked again for one that has come.
const TRIES_TO_ACCEPT: usize = 40;

/// How long a server is waited for that has read or written since it exported its
/// state; its connection runs meanwhile.
const EXPORT_PATIENCE: Duration = Duration::from_millis(50);

/// Connections that servers are asked for at a time. One that is let go of is silent
/// until those before it are bytes, so these are few.
const MAX_ASKED: usize = 2;

/// A connection that is to be frozen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    pub(super) share: ShareId,
    pub(super) id: HandoffId,
    /// Who gets it, and where on the link that is.
    pub(super) to: (PeerId, MacAddr),
    /// The service's initial sequence number, if the handshake was here.
    pub(super) iss: Option<SeqNumber>,
}

/// Those that wait for their servers, oldest first.
#[derive(Debug, Default)]
pub(super) struct Departures(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    departure: Departure,
    tries: usize,
    stage: Stage,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// Its server is to be asked, not before this moment.
    Due(MonoTime),
    Asked(Take),
}

impl Departures {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, flow: FlowId) -> bool {
        self.0.iter().any(|it| it.departure.id.flow == flow)
    }

    pub(super) fn flows(&self) -> Vec<FlowId> {
        self.0.iter().map(|it| it.departure.id.flow).collect()
    }

    pub(super) fn add(&mut self, departure: Departure) {
        self.0.push(Waiting {
            departure,
            tries: 0,
            stage: Stage::Due(clock::now()),
        });
    }

    fn add_again(&mut self, departure: Departure, tries: usize) {
        let stage = Stage::Due(clock::now().saturating_add(BETWEEN_TRIES));
        self.0.push(Waiting {
            departure,
            tries,
            stage,
        });
    }

    fn remove(&mut self, flow: FlowId) -> Option<Waiting> {
        let of_flow = |it: &Waiting| it.departure.id.flow == flow;
        let at = self.0.iter().position(of_flow)?;
        Some(self.0.remove(at))
    }
}

impl Worker {
    /// Asks servers for connections, and has those silent that were let go of.
    pub(super) fn look_after_departures(&mut self) {
        if self.leaving.departures.is_empty() {
            return;
        }
        self.ask_servers();
        while let Some((waiting, outcome)) = self.next_answered() {
            // The next one is let go of while this one becomes bytes.
            self.ask_servers();
            self.depart(waiting.departure, waiting.tries + 1, outcome);
            self.speech.speak_soon(true);
        }
    }

    /// Something else is to be done with a connection. The attempt is over by then: it is
    /// not stopped, nor is anything sent to a peer that may not keep it any more. Its
    /// server may be one that says nothing for a while, and others wait for this thread:
    /// what that hands out late goes back to it.
    pub(super) fn end_departure(&mut self, flow: FlowId) {
        let Some(waiting) = self.leaving.departures.remove(flow) else {
            return;
        };
        if let Stage::Asked(take) = waiting.stage {
            self.apps.give_up(take);
        }
        let Departure { share, id, .. } = waiting.departure;
        let refusal = Err(HandoffRefusal::SnapshotBehind);
        self.report(share, HandoffReport::Frozen(id, refusal));
    }

    fn ask_servers(&mut self) {
        let now = clock::now();
        let is_asked = |it: &&Waiting| matches!(it.stage, Stage::Asked(_));
        let asked = self.leaving.departures.0.iter().filter(is_asked).count();
        let is_due = |it: &&mut Waiting| matches!(it.stage, Stage::Due(at) if at <= now);
        let due = self.leaving.departures.0.iter_mut().filter(is_due);
        for waiting in due.take(MAX_ASKED.saturating_sub(asked)) {
            let (flow, bell) = (waiting.departure.id.flow.key, self.leaving.bell.clone());
            let take = self.apps.ask_for(flow, EXPORT_PATIENCE, Some(bell));
            waiting.stage = Stage::Asked(take);
        }
    }

    fn next_answered(&mut self) -> Option<(Waiting, Result<Taken, HandoffRefusal>)> {
        let mut waiting = self.leaving.departures.0.iter_mut().enumerate();
        let (at, outcome) = waiting.find_map(|(at, waiting)| match &mut waiting.stage {
            Stage::Due(_) => None,
            Stage::Asked(take) => Some((at, self.apps.taken(take)?)),
        })?;
        Some((self.leaving.departures.0.remove(at), outcome))
    }

    /// Has it silent if it can be, and its peer told.
    fn depart(
        &mut self,
        departure: Departure,
        tries: usize,
        outcome: Result<Taken, HandoffRefusal>,
    ) {
        let Departure { share, id, to, iss } = departure;
        let result = self.freeze(id.flow, to.1, iss, outcome);
        let most = result.map_or_else(|refusal| self.tries_for(id.flow, refusal), |_| 0);
        if tries < most {
            return self.leaving.departures.add_again(departure, tries);
        }
        self.report(share, HandoffReport::Frozen(id, result));
        // Its answer must not come before the report. If the core has called the
        // attempt off meanwhile, the peer has forgotten it, or will.
        self.send(share, id, to.0);
    }

    /// How often a server is asked that refuses; not again if that is for good.
    fn tries_for(&self, flow: FlowId, refusal: HandoffRefusal) -> usize {
        let is_unknown = [HandoffRefusal::NoServer, HandoffRefusal::NotRegistered];
        if refusal == HandoffRefusal::SnapshotBehind {
            TRIES
        } else if is_unknown.contains(&refusal) && self.has_come(flow) {
            TRIES_TO_ACCEPT
        } else {
            0
        }
    }

    /// Whether it is here from elsewhere.
    fn has_come(&self, flow: FlowId) -> bool {
        let entry = self.places.get(flow);
        entry.is_some_and(|entry| entry.whereabouts == Whereabouts::Here)
    }
}
