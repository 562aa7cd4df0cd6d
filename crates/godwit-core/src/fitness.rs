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
    /// Twins are born and kept, and some clients are not served at present: no planned move
    /// comes here.
    NoMoves,
    /// Twins are born and kept, and no client is served at present. As
    /// [`Consequence::NoMoves`], and what a server elsewhere dies with is not taken over while
    /// its machine lives.
    NoServer,
    /// Some clients do not reach the service here. As [`Consequence::NoMoves`], and an owner
    /// hands the share to a standby that is in sync.
    HandOver,
    /// No twin can be born or live here: as a standby, the node leaves the in-sync set.
    NoTwins,
    /// Clients do not reach the service here. As [`Consequence::NoTwins`], and an owner
    /// hands the share over as with [`Consequence::HandOver`]; at last it resets what can't
    /// go along, which nobody serves either.
    NoService,
}

impl Consequence {
    /// Every consequence, the least first.
    pub const ALL: [Self; 6] = [
        Self::Say,
        Self::NoMoves,
        Self::NoServer,
        Self::HandOver,
        Self::NoTwins,
        Self::NoService,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Say => "say",
            Self::NoMoves => "no_moves",
            Self::NoServer => "no_server",
            Self::HandOver => "hand_over",
            Self::NoTwins => "no_twins",
            Self::NoService => "no_service",
        }
    }

    const fn fitness(self) -> Fitness {
        let serves = !matches!(self, Self::NoService);
        let (stands_by, takes, stays) = match self {
            Self::Say => (true, Takes::All, true),
            Self::NoMoves => (true, Takes::Lost, true),
            Self::NoServer => (true, Takes::Failed, true),
            Self::HandOver => (true, Takes::Lost, false),
            Self::NoTwins => (false, Takes::Lost, true),
            Self::NoService => (false, Takes::Failed, false),
        };
        Fitness {
            stands_by,
            takes,
            stays,
            serves,
            accepts: !matches!(self, Self::NoServer),
        }
    }
}

/// From which owners a node takes a share over, the fewest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Takes {
    /// From one that fails or ends.
    Failed,
    /// Also from one whose server has died.
    Lost,
    /// Also from one that would go on: as planned.
    All,
}

/// What a node can do for a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fitness {
    /// It can stand by, and take over from an owner that fails.
    pub stands_by: bool,
    /// From which owners it takes the share over.
    pub takes: Takes,
    /// As the owner it may stay that, although a standby is in sync.
    pub stays: bool,
    /// Some clients reach the service here.
    pub serves: bool,
    /// A server here goes on, so that new clients do not wait for it.
    pub accepts: bool,
}

impl Fitness {
    /// Everything.
    pub const FIT: Self = Self {
        stands_by: true,
        takes: Takes::All,
        stays: true,
        serves: true,
        accepts: true,
    };

    /// What two facts leave of it.
    fn and(self, other: Self) -> Self {
        Self {
            stands_by: self.stands_by && other.stands_by,
            takes: self.takes.min(other.takes),
            stays: self.stays && other.stays,
            serves: self.serves && other.serves,
            accepts: self.accepts && other.accepts,
        }
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
            .fold(Fitness::FIT, Fitness::and)
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

    fn fitness(stands_by: bool, takes: Takes, stays: bool) -> Fitness {
        Fitness {
            stands_by,
            takes,
            stays,
            serves: true,
            accepts: true,
        }
    }

    fn paused(stays: bool) -> Fitness {
        Fitness {
            accepts: false,
            ..fitness(true, Takes::Failed, stays)
        }
    }

    #[test]
    fn what_each_fact_takes_away_is_gone() {
        use Takes::{Failed, Lost};
        let table = [
            (vec![], Fitness::FIT),
            (vec![Consequence::Say], Fitness::FIT),
            (vec![Consequence::NoMoves], fitness(true, Lost, true)),
            (vec![Consequence::NoServer], paused(true)),
            (vec![Consequence::HandOver], fitness(true, Lost, false)),
            (vec![Consequence::NoTwins], fitness(false, Lost, true)),
            (
                vec![Consequence::NoTwins, Consequence::HandOver],
                fitness(false, Lost, false),
            ),
            (
                vec![Consequence::NoServer, Consequence::HandOver],
                paused(false),
            ),
            (
                vec![Consequence::NoService, Consequence::Say],
                Fitness {
                    serves: false,
                    ..fitness(false, Failed, false)
                },
            ),
        ];
        for (wrong, wanted) in table {
            let mut facts = Facts::default();
            for (number, consequence) in wrong.iter().enumerate() {
                facts.handle_fact(fact(&number.to_string(), None), Some(*consequence));
            }
            assert_eq!(facts.fitness(WEB), wanted, "{wrong:?}");
        }
    }

    #[test]
    fn a_fact_of_one_share_does_not_concern_another() {
        let mut facts = Facts::default();
        let listener = || fact("listener", Some(WEB));
        facts.handle_fact(listener(), Some(Consequence::NoTwins));
        assert_eq!(facts.fitness(WEB), Consequence::NoTwins.fitness());
        assert_eq!(facts.fitness(MAIL), Fitness::FIT);
        facts.handle_fact(fact("listener", None), None);
        assert!(!facts.fitness(WEB).stands_by, "another fact");
        facts.handle_fact(listener(), None);
        assert_eq!(facts.fitness(WEB), Fitness::FIT);
    }

    #[test]
    fn a_fact_that_changes_its_consequence_is_one_fact() {
        let mut facts = Facts::default();
        for consequence in Consequence::ALL {
            facts.handle_fact(fact("x", None), Some(consequence));
            assert_eq!(facts.fitness(WEB), consequence.fitness());
        }
        facts.handle_fact(fact("x", None), None);
        assert_eq!(facts.fitness(WEB), Fitness::FIT);
    }
}
