//! What must hold at each step, and in the end.

use godwit_core::request::{Connection, Input, Place, Socket, Verdict};

use super::Rule;
use super::node::Id;
use super::world::World;

/// After all faults are over: how often the client says its request and agents look, until
/// each question is settled, and it has had this many replies.
const ROUNDS: u32 = 40;
const REPLIES: u32 = 3;

impl World {
    /// Whether its client hears this server.
    pub(super) fn speaks(&self, node: Id) -> bool {
        let it = &self.nodes[node];
        let owns = self.shares[it.share].owner == Some(node);
        let place = it.connection.place;
        let leaks = self.breaks(Rule::Silent) && place == Place::Asked;
        let leaks = leaks && it.connection.socket.is_owners();
        it.is_on && owns && (it.connection.is_voice() || leaks)
    }

    /// One voice, and none lost without a reason.
    pub(super) fn look(&mut self) {
        let all = 0..self.nodes.len();
        let voices: Vec<Id> = all.filter(|node| self.speaks(*node)).collect();
        if voices.len() > 1 {
            return self.violate(|_| format!("two voices: {voices:?}"));
        }
        let has_socket = |node: &super::node::Node| node.connection.socket != Socket::None;
        if !self.is_lost && !self.nodes.iter().any(has_socket) {
            self.lose("nobody has it");
        }
    }

    /// It is lost; with a machine, or for no reason.
    fn lose(&mut self, how: &str) {
        if self.is_lost {
            return;
        }
        if !self.at_risk {
            return self.violate(|_| format!("lost without a reason: {how}"));
        }
        self.is_lost = true;
        self.sums.lost += 1;
    }

    pub(super) fn reset_by_stranger(&mut self, node: Id) {
        self.tell(|_| format!("{node} resets what it does not know"));
        self.lose("its client was reset");
    }

    /// After each input.
    pub(super) fn judge(&mut self, before: Connection, input: Input, verdict: Verdict) {
        if before.place == Place::Here && verdict == Verdict::Come {
            self.violate(|_| format!("it came twice: {input:?}"));
        }
        self.look();
    }

    pub(super) fn violate(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.violation.is_none() && !self.is_lost {
            self.violation = Some(what(self));
        }
    }

    /// All faults are over, but that the link may carry nothing of what servers send each
    /// other: each question is settled, and the client is served.
    pub(super) fn recover(&mut self) {
        self.is_calm = true;
        self.is_deaf = self.is_deaf && self.random.chance(500);
        for node in 0..self.nodes.len() {
            self.come_back(node);
            self.nodes[node].is_heard = true;
        }
        let goal = self.request + REPLIES;
        for round in 0..ROUNDS {
            // What goes by a standby waits for the link; all else is settled without it.
            self.is_deaf &= !self.is_ring || round < ROUNDS / 2;
            if self.is_wrong() || self.is_lost {
                return;
            }
            for node in 0..self.nodes.len() {
                self.mend(node);
                self.remind(node);
            }
            self.say();
            while !self.link.is_empty() && !self.is_wrong() && !self.is_lost {
                self.deliver();
            }
            if self.request < goal || self.is_open() {
                self.reply();
            } else {
                return;
            }
        }
        self.violate(|world| {
            let open = world.is_open();
            format!(
                "not settled and served in the end: open {open}, {:?}",
                world.nodes
            )
        });
    }

    /// A question that nobody remembers waits for its client, which may be served elsewhere.
    pub(super) fn is_open(&self) -> bool {
        let open = |node: &super::node::Node| {
            node.is_on && node.connection.place == Place::Asked && !node.connection.lapsed
        };
        self.nodes.iter().any(open)
    }
}
