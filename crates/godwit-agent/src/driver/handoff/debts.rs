//! What could not be done yet with sockets that an earlier agent had stopped: their
//! servers look for this one once a second, and have not found it.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_sock::without_tcp_socket;
use godwit_wire::FlowId;
use godwit_wire::app::region::SlotState;

use super::worker::Worker;

/// How often servers are looked for that something is owed to.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// When a server is asked again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a server is waited for that may know nothing of Godwit.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a stopped socket waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Debt {
    /// To go on.
    Thaw,
    /// To end unheard: another server has the connection.
    Release,
}

/// What is owed, and when servers were looked for.
#[derive(Debug)]
pub(super) struct Debts {
    pub(super) owed: BTreeMap<FlowId, Debt>,
    /// Of those the one whose server did not answer last.
    silent: Option<FlowId>,
    looked: MonoTime,
    started: MonoTime,
}

impl Debts {
    pub(super) fn new(now: MonoTime) -> Self {
        Self {
            owed: BTreeMap::new(),
            silent: None,
            looked: now,
            started: now,
        }
    }
}

impl Worker {
    pub(super) fn owe(&mut self, flow: FlowId, debt: Debt) {
        self.debts.owed.insert(flow, debt);
    }

    pub(super) fn owes(&self, flow: FlowId) -> bool {
        self.debts.owed.contains_key(&flow)
    }

    /// Does what can be done by now. A socket that is gone waits for nothing.
    pub(super) fn pay_debts(&mut self, now: MonoTime) {
        if self.debts.owed.is_empty() || now.since(self.debts.looked) < LOOK {
            return;
        }
        self.debts.looked = now;
        let keys = self.debts.owed.keys().map(|flow| flow.key).collect();
        match without_tcp_socket(self.kernel.stand.ifindex(), keys) {
            Ok(gone) => self.debts.owed.retain(|flow, _| !gone.contains(&flow.key)),
            Err(error) => {
                return tracing::warn!(error = %error, "can't look for sockets that wait");
            }
        }
        // First those behind the one whose server was silent last: it holds up nobody.
        let silent = self.debts.silent.take();
        let mut debts: Vec<_> = self
            .debts
            .owed
            .iter()
            .map(|(flow, debt)| (*flow, *debt))
            .collect();
        debts.sort_by_key(|(flow, _)| silent.is_some_and(|silent| *flow <= silent));
        for (flow, debt) in debts {
            // Its server may have let go of it by now, for the sake of that: it is paid
            // when that begins, or after it.
            if self.leaving.departures.has(flow) {
                continue;
            }
            match (self.apps.stage(flow.key), debt) {
                (None | Some(SlotState::Empty), _)
                    if !self.may_be_unread(flow) || now.since(self.debts.started) < PATIENCE =>
                {
                    continue;
                }
                // Nobody will ask for it.
                (None | Some(SlotState::Empty), _) => {}
                // Its server goes on with it by itself.
                (Some(SlotState::Live), _) => {}
                (Some(SlotState::Parked), debt) => {
                    self.debts.owed.remove(&flow);
                    match debt {
                        Debt::Thaw => self.thaw_now(flow, None),
                        Debt::Release => self.release(flow),
                    }
                    if self.owes(flow) {
                        // One a round: the driver waits meanwhile.
                        self.debts.silent = Some(flow);
                        self.debts.looked = now.saturating_add(AGAIN);
                        return;
                    }
                    continue;
                }
            }
            self.debts.owed.remove(&flow);
        }
    }
}
