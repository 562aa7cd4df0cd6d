//! Questions without an answer: the agents settle them, as `godwit_core::question` says.

use godwit_core::question::{Memory, Route, Settling, settle};
use godwit_core::request::{Input, Offer, Place, Verdict};

use super::Rule;
use super::node::Id;
use super::world::{World, server};

impl World {
    /// The timer of an entry.
    pub(super) fn remind(&mut self, node: Id) {
        let it = self.nodes[node];
        if !it.is_on || it.connection.place != Place::Asked {
            return;
        }
        let around = self.around(node, None, None);
        if self.hear(node, Input::Timer, &around) != Verdict::Remind {
            return;
        }
        let offer = Offer {
            number: it.connection.number,
            request: it.connection.request,
        };
        let Some(to) = it.connection.to else { return };
        if self.breaks(Rule::Waits) {
            self.hear(node, Input::Refused(offer, to), &around);
            return;
        }
        let Some(target) = self.has(usize::from(to.0)) else {
            return;
        };
        if self.breaks(Rule::Agents) || target == node {
            return;
        }
        let there = self.around(target, None, None);
        let Verdict::Settled(word) = self.hear(target, Input::RuleOut(offer.number), &there) else {
            return;
        };
        let Some(route) = self.route(node) else {
            return;
        };
        match settle(word, route, self.memory(node, target)) {
            Settling::TakeBack => {
                self.sums.refusals += 1;
                self.hear(node, Input::Refused(offer, to), &around);
                if it.is_kept {
                    self.serve(node, Some(offer.request));
                }
            }
            Settling::LetGo => {
                self.hear(node, Input::Accepted(offer, to), &around);
            }
            Settling::Lapse => {
                self.hear(node, Input::Lapse(offer, to), &around);
            }
            Settling::PutAgain => {
                self.nodes[node].is_put_again = true;
                self.ask(node, true);
            }
            Settling::Wait | Settling::Ignore => {}
        }
    }

    fn route(&self, node: Id) -> Option<Route> {
        let it = self.nodes[node];
        let puts_again = it.by_way && (!it.is_put_again || self.breaks(Rule::LetsGo));
        match (it.is_kept, puts_again) {
            (true, true) => Some(Route::ByStandby),
            (true, false) => Some(Route::Direct),
            (false, _) => (!self.breaks(Rule::WithoutCopy)).then_some(Route::Direct),
        }
    }

    /// Who answers may have begun since the question was put, or be in another's place.
    fn memory(&self, node: Id, target: Id) -> Memory {
        let it = self.nodes[node];
        let is_itself = it.connection.to == Some(server(target));
        let is_older = self.nodes[target].born_at <= it.asked_at;
        if (is_itself && is_older) || self.breaks(Rule::Remembers) {
            Memory::Whole
        } else {
            Memory::Partial
        }
    }
}
