//! Questions without an answer: the agents settle them, as `godwit_core::question` says.

use godwit_core::question::{Route, Settling, settle};
use godwit_core::request::{Input, Offer, Place, Verdict};

use super::Rule;
use super::node::Id;
use super::world::World;

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
        let route = if it.by_way {
            Route::ByStandby
        } else {
            Route::Direct
        };
        match settle(word, route) {
            Settling::TakeBack => {
                self.sums.refusals += 1;
                self.hear(node, Input::Refused(offer, to), &around);
                self.serve(node, Some(offer.request));
            }
            Settling::LetGo => {
                self.hear(node, Input::Accepted(offer, to), &around);
            }
            Settling::PutAgain => self.ask(node, true),
            Settling::Wait | Settling::Ignore => {}
        }
    }
}
