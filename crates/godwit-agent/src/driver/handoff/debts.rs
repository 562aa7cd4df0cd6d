//! What could not be done yet with sockets that an earlier agent had stopped: their
//! servers look for this one once a second, and have not found it.

use std::time::Duration;

use godwit_core::MonoTime;
use godwit_sock::without_tcp_socket;
use godwit_wire::FlowId;
use godwit_wire::app::region::SlotState;

use super::worker::Worker;

/// How often servers are looked for that something is owed to.
pub(super) const LOOK: Duration = Duration::from_millis(50);

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

impl Worker {
    pub(super) fn owe(&mut self, flow: FlowId, debt: Debt) {
        self.owed.insert(flow, debt);
    }

    pub(super) fn owes(&self, flow: FlowId) -> bool {
        self.owed.contains_key(&flow)
    }

    /// Does what can be done by now. A socket that is gone waits for nothing.
    pub(super) fn pay_debts(&mut self, now: MonoTime) {
        if self.owed.is_empty() || now.since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        let keys = self.owed.keys().map(|flow| flow.key).collect();
        match without_tcp_socket(self.ifindex, keys) {
            Ok(gone) => self.owed.retain(|flow, _| !gone.contains(&flow.key)),
            Err(error) => {
                return tracing::warn!(error = %error, "can't look for sockets that wait");
            }
        }
        for (flow, debt) in self.owed.clone() {
            // Its server may have let go of it by now, for the sake of that: it is paid
            // when that begins, or after it.
            if self.departures.has(flow) {
                continue;
            }
            match (self.apps.stage(flow.key), debt) {
                (None | Some(SlotState::Empty), _)
                    if !self.may_be_unread(flow) || now.since(self.started) < PATIENCE =>
                {
                    continue;
                }
                // Nobody will ask for it.
                (None | Some(SlotState::Empty), _) => {}
                // Its server goes on with it by itself.
                (Some(SlotState::Live), _) => {}
                (Some(SlotState::Parked), Debt::Thaw) => self.thaw(flow),
                (Some(SlotState::Parked), Debt::Release) => self.release(flow),
            }
            self.owed.remove(&flow);
        }
    }
}
