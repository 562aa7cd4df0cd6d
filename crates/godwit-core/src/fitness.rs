//! Whether this node can do its part, given what is wrong around it.
//!
//! A *fact* is something that a node relies on and does not control: a sysctl, a
//! firewall rule, a certificate, an address. The agent watches facts and reports each
//! one that is wrong, with its [`Consequence`]. This module keeps the wrong ones and
//! says how fit the node is for a share. What an unfit node does is in
//! `node/fitness.rs`.

use std::collections::BTreeMap;

use godwit_wire::ShareId;

/// What follows while a fact is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consequence {
    /// People are told.
    Say,
    /// Twins are born and kept, and nobody is served at present: no planned move comes here.
    NoMoves,
    /// No twin can be born or live here: as a standby, the node leaves the in-sync set.
    NoTwins,
    /// Clients do not reach the service here. As [`Consequence::NoTwins`], and an owner
    /// hands the share to a standby that is in sync.
    NoService,
}

impl Consequence {
    /// Every consequence, the least first.
    pub const ALL: [Self; 4] = [Self::Say, Self::NoMoves, Self::NoTwins, Self::NoService];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Say => "say",
            Self::NoMoves => "no_moves",
            Self::NoTwins => "no_twins",
            Self::NoService => "no_service",
        }
    }

    const fn fitness(self) -> Fitness {
        match self {
            Self::Say => Fitness::Fit,
            Self::NoMoves => Fitness::NoMoves,
            Self::NoTwins => Fitness::NoTwins,
            Self::NoService => Fitness::NoService,
        }
    }
}

/// What a node can do for a share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fitness {
    /// Everything.
    #[default]
    Fit,
    /// It can stand by and take over, but nothing is moved here without need.
    NoMoves,
    /// It can own the share, but not stand by for it.
    NoTwins,
    /// Neither.
    NoService,
}

impl Fitness {
    /// Whether the node can stand by.
    pub const fn is_fit(self) -> bool {
        matches!(self, Self::Fit | Self::NoMoves)
    }
}

/// Which fact: one name may stand for several shares.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FactId {
    /// The stable name.
    pub name: String,
    /// The share that it concerns; `None`: all of this node.
    pub share: Option<ShareId>,
}

/// The facts that are wrong at present.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    wrong: BTreeMap<FactId, Consequence>,
}

impl Facts {
    /// Takes a report; `None`: the fact is right.
    pub fn handle_fact(&mut self, fact: FactId, wrong: Option<Consequence>) {
        match wrong {
            Some(consequence) => self.wrong.insert(fact, consequence),
            None => self.wrong.remove(&fact),
        };
    }

    /// What this node can do for a share.
    pub fn fitness(&self, share: ShareId) -> Fitness {
        let concerns = |fact: &FactId| fact.share.is_none_or(|of| of == share);
        let wrong = self.wrong.iter().filter(|(fact, _)| concerns(fact));
        wrong
            .map(|(_, consequence)| consequence.fitness())
            .max()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: ShareId = ShareId(1);
    const MAIL: ShareId = ShareId(2);

    fn fact(name: &str, share: Option<ShareId>) -> FactId {
        FactId {
            name: name.into(),
            share,
        }
    }

    #[test]
    fn the_worst_consequence_counts() {
        let table = [
            (vec![], Fitness::Fit),
            (vec![Consequence::Say], Fitness::Fit),
            (vec![Consequence::NoMoves], Fitness::NoMoves),
            (vec![Consequence::NoTwins], Fitness::NoTwins),
            (vec![Consequence::NoService], Fitness::NoService),
            (
                vec![Consequence::NoService, Consequence::Say],
                Fitness::NoService,
            ),
            (
                vec![Consequence::Say, Consequence::NoTwins],
                Fitness::NoTwins,
            ),
        ];
        for (wrong, fitness) in table {
            let mut facts = Facts::default();
            for (number, consequence) in wrong.iter().enumerate() {
                facts.handle_fact(fact(&number.to_string(), None), Some(*consequence));
            }
            assert_eq!(facts.fitness(WEB), fitness, "{wrong:?}");
            assert_eq!(fitness.is_fit(), fitness < Fitness::NoTwins);
        }
    }

    #[test]
    fn a_fact_of_one_share_does_not_concern_another() {
        let mut facts = Facts::default();
        let listener = || fact("listener", Some(WEB));
        facts.handle_fact(listener(), Some(Consequence::NoTwins));
        assert_eq!(facts.fitness(WEB), Fitness::NoTwins);
        assert_eq!(facts.fitness(MAIL), Fitness::Fit);
        facts.handle_fact(fact("listener", None), None);
        assert_eq!(facts.fitness(WEB), Fitness::NoTwins, "another fact");
        facts.handle_fact(listener(), None);
        assert_eq!(facts.fitness(WEB), Fitness::Fit);
    }

    #[test]
    fn a_fact_that_changes_its_consequence_is_one_fact() {
        let mut facts = Facts::default();
        for consequence in Consequence::ALL {
            facts.handle_fact(fact("x", None), Some(consequence));
            assert_eq!(facts.fitness(WEB), consequence.fitness());
        }
        facts.handle_fact(fact("x", None), None);
        assert_eq!(facts.fitness(WEB), Fitness::Fit);
    }
}
