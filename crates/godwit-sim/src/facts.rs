//! Facts around a node that are wrong for a while: `godwit-agent/src/surroundings`.
//!
//! A wrong fact does by itself what it says of clients, and nothing else: where it means
//! that they do not reach a service, no frame of theirs arrives there. Whether twins are
//! born where it means that none are is another fault (`proof.rs`).

use godwit_core::fitness::{Consequence, FactId};

use crate::fault::FaultKind;
use crate::host::Input;
use crate::mutant::Mutant;
use crate::plan::MS;
use crate::proof::Barren;
use crate::world::{Happening, World};

/// An agent notices within a second.
pub(crate) const NOTICED_NS: u64 = 1_000 * MS;

/// A fact that is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wrong {
    pub(crate) until_ns: u64,
    /// `None`: it concerns all shares.
    share: Option<usize>,
    consequence: Consequence,
}

/// What is wrong around a node that it does not control.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Around {
    pub(crate) barren: Option<Barren>,
    pub(crate) wrong: Option<Wrong>,
}

impl World {
    /// What is wrong for a share at a node.
    fn consequence(&self, node: usize, share: usize) -> Option<Consequence> {
        let wrong = self.around[node].wrong?;
        let concerns = wrong.share.is_none_or(|of| of == share);
        (concerns && self.now_ns < wrong.until_ns).then_some(wrong.consequence)
    }

    /// Whether a node can't stand by for a share.
    pub(crate) fn is_unfit(&self, node: usize, share: usize) -> bool {
        match self.consequence(node, share) {
            Some(Consequence::NoTwins | Consequence::NoService) => true,
            Some(
                Consequence::Say
                | Consequence::NoMoves
                | Consequence::NoServer
                | Consequence::HandOver,
            )
            | None => false,
        }
    }

    /// Whether clients do not reach a share at a node.
    pub(crate) fn is_out_of_reach(&self, node: usize, share: usize) -> bool {
        self.consequence(node, share) == Some(Consequence::NoService)
    }

    /// The agent looks, and tells the core what it finds.
    pub(crate) fn report_facts(&mut self, node: usize) {
        if self.plan.mutant == Some(Mutant::NoFacts) {
            return;
        }
        let wrong = self.around[node].wrong;
        let wrong = wrong.filter(|it| self.now_ns < it.until_ns);
        let scopes = (0..self.plan.shares).map(Some).chain([None]);
        for scope in scopes {
            let found = wrong.filter(|it| it.share == scope);
            let fact = FactId {
                name: "around".to_owned(),
                share: scope.map(Self::share_id),
            };
            let consequence = found.map(|it| it.consequence);
            self.answer(node, |agent, now| agent.handle_fact(fact, consequence, now));
        }
    }

    /// The agent notices, sooner or later.
    pub(crate) fn facts_change(&mut self, node: usize) {
        let delay_ns = self.random.spread(MS, NOTICED_NS);
        self.tell_later(node, delay_ns, Input::Facts);
    }

    /// What was wrong at a node is right.
    pub(crate) fn facts_end(&mut self, node: usize) {
        self.note_fit(node);
        self.facts_change(node);
    }

    /// A fact is wrong at a node for a while.
    pub(crate) fn make_wrong(&mut self, node: usize) {
        if self.around[node]
            .wrong
            .is_some_and(|it| it.until_ns > self.now_ns)
        {
            return;
        }
        self.strike(FaultKind::WrongFact, false);
        let lasts_ns = self.random.spread(100 * MS, 6_000 * MS);
        let share = self.random.chance(500).then(|| self.any_share());
        let consequence = self.random.pick(&Consequence::ALL[1..]);
        let wrong = Wrong {
            until_ns: self.now_ns + lasts_ns,
            share,
            consequence,
        };
        self.around[node].wrong = Some(wrong);
        self.trace(|_| format!("{node}: {wrong:?}"));
        self.facts_change(node);
        self.queue.push(wrong.until_ns, Happening::Right { node });
    }

    /// When all that is wrong around nodes is right again.
    pub(crate) fn all_right_ns(&self) -> u64 {
        let ends = self.around.iter().flat_map(|it| {
            let wrong = it.wrong.map(|wrong| wrong.until_ns);
            [wrong, it.barren.map(|barren| barren.until_ns)]
        });
        ends.flatten().max().unwrap_or(0)
    }

    /// All is right from now on.
    pub(crate) fn put_right(&mut self) {
        for node in 0..self.around.len() {
            self.around[node] = Around::default();
            self.facts_change(node);
        }
    }
}
