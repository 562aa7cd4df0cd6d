//! All facts of a node, as its driver knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use godwit_core::fitness::{Consequence, FactId};
use godwit_core::{MonoTime, Node};
use godwit_wire::ShareId;

use crate::config::Config;
use crate::events::EventLog;
use crate::facts::{FactReport, Look, Seen, Wrong};

/// The fact that others can't be looked at.
const UNCHECKED: &str = "unchecked";

/// So long after the last of them has looked it is over.
const QUIET: Duration = Duration::from_secs(5);

/// The last look of each source.
#[derive(Debug, Clone, Default)]
pub(crate) struct FactBoard {
    looks: BTreeMap<&'static str, Look>,
    /// Sources that can't look now, for want of descriptors.
    blind: BTreeSet<&'static str>,
    /// Those that could not since all could for a while, and when one of them was that last:
    /// each change of the list is told, and near the limit it changes all the time.
    lately: BTreeSet<&'static str>,
    last: MonoTime,
}

/// A fact that became wrong, changed while it was wrong, or became right (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    fact: FactId,
    wrong: Option<Wrong>,
}

impl FactBoard {
    /// Takes what a source has seen: tells people what has changed, and the core what follows.
    pub(crate) fn note(
        &mut self,
        seen: Seen,
        people: (&Config, &EventLog),
        node: &mut Node,
        now: MonoTime,
    ) {
        match seen {
            Seen::Look(look) => {
                self.open(look.source, now);
                self.put(look, people, node, now);
            }
            Seen::Nothing(source) => self.close(source),
        }
        self.put(self.unchecked(), people, node, now);
    }

    /// Once all sources have looked for a while nothing is old any more.
    pub(crate) fn settle(&mut self, people: (&Config, &EventLog), node: &mut Node, now: MonoTime) {
        if self.forget(now) {
            self.put(self.unchecked(), people, node, now);
        }
    }

    fn close(&mut self, source: &'static str) {
        self.blind.insert(source);
        self.lately.insert(source);
    }

    fn open(&mut self, source: &'static str, now: MonoTime) {
        if self.blind.remove(source) {
            self.last = now;
        }
    }

    fn forget(&mut self, now: MonoTime) -> bool {
        let is_over = self.blind.is_empty() && now.since(self.last) >= QUIET;
        is_over && !std::mem::take(&mut self.lately).is_empty()
    }

    /// Which facts nobody looks at now, or could not lately.
    fn unchecked(&self) -> Look {
        let mut names = BTreeSet::new();
        for source in &self.lately {
            match self.looks.get(source) {
                Some(look) => names.extend(look.watched.iter().map(String::as_str)),
                None => _ = names.insert(source),
            }
        }
        let names: Vec<_> = names.into_iter().collect();
        let found = (!names.is_empty()).then(|| {
            format!(
                "no file descriptor is left to look at {}: what is said of them may be old",
                names.join(", ")
            )
        });
        let advice = "raise LimitNOFILE of godwit.service (or fs.file-max), and restart the agent";
        Look::of_one(UNCHECKED, Consequence::Say, found, advice)
    }

    fn put(
        &mut self,
        look: Look,
        (config, events): (&Config, &EventLog),
        node: &mut Node,
        now: MonoTime,
    ) {
        for Change { fact, wrong } in self.take(look) {
            let service = fact.share.and_then(|share| name_of(config, share));
            tell(events, &fact, service.as_deref(), wrong.as_ref());
            node.handle_fact(fact, wrong.map(|wrong| wrong.consequence), now);
        }
    }

    fn take(&mut self, look: Look) -> Vec<Change> {
        let now = by_fact(&look);
        let before = self.looks.insert(look.source, look);
        let before = before.as_ref().map(by_fact).unwrap_or_default();
        let right = before.keys().filter(|fact| !now.contains_key(*fact));
        let right = right.cloned().map(|fact| Change { fact, wrong: None });
        let news = now.clone().into_iter();
        let news = news.filter(|(fact, wrong)| before.get(fact) != Some(wrong));
        let news = news.map(|(fact, wrong)| Change {
            fact,
            wrong: Some(wrong),
        });
        right.chain(news).collect()
    }

    /// Every fact, for `status` and metrics.
    pub(crate) fn reports(&self, config: &Config) -> Vec<FactReport> {
        let mut reports = Vec::new();
        for look in self.looks.values() {
            for name in &look.watched {
                if look.wrong.iter().all(|wrong| wrong.name != *name) {
                    reports.push(FactReport {
                        name: name.clone(),
                        service: None,
                        ok: true,
                        consequence: None,
                        found: None,
                        advice: None,
                        days_left: look.days_left.get(name).copied(),
                    });
                }
            }
            for wrong in &look.wrong {
                reports.push(FactReport {
                    name: wrong.name.clone(),
                    service: wrong.share.and_then(|share| name_of(config, share)),
                    ok: false,
                    consequence: Some(wrong.consequence.as_str().into()),
                    found: Some(wrong.found.clone()),
                    advice: Some(wrong.advice.clone()),
                    days_left: look.days_left.get(&wrong.name).copied(),
                });
            }
        }
        reports
    }
}

fn by_fact(look: &Look) -> BTreeMap<FactId, Wrong> {
    let wrong = look.wrong.iter().map(|wrong| {
        let fact = FactId {
            name: wrong.name.clone(),
            share: wrong.share,
        };
        (fact, wrong.clone())
    });
    wrong.collect()
}

fn name_of(config: &Config, share: ShareId) -> Option<String> {
    let mut shares = config.shares();
    let (_, service) = shares.find(|(id, _)| *id == share)?;
    Some(config.share_name(share, service))
}

/// `fact_wrong` or `fact_right`.
fn tell(events: &EventLog, fact: &FactId, service: Option<&str>, wrong: Option<&Wrong>) {
    let mut fields = vec![("fact", fact.name.as_str())];
    fields.extend(service.map(|service| ("service", service)));
    if let Some(wrong) = wrong {
        fields.extend([
            ("consequence", wrong.consequence.as_str()),
            ("found", wrong.found.as_str()),
            ("advice", wrong.advice.as_str()),
        ]);
    }
    let event = wrong.map_or("fact_right", |_| "fact_wrong");
    events.publish_own(event, wrong.is_some(), fields);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    fn wrong(name: &str, found: &str) -> Wrong {
        Wrong {
            name: name.into(),
            share: None,
            consequence: Consequence::Say,
            found: found.into(),
            advice: "mend it".into(),
        }
    }

    fn look(source: &'static str, wrong: &[Wrong]) -> Look {
        Look {
            source,
            watched: vec!["a".into(), "b".into()],
            wrong: wrong.to_vec(),
            days_left: BTreeMap::new(),
        }
    }

    /// What changes, by name, with what was found.
    fn changes(board: &mut FactBoard, look: Look) -> Vec<(String, Option<String>)> {
        let changes = board.take(look).into_iter();
        changes
            .map(|change| (change.fact.name, change.wrong.map(|wrong| wrong.found)))
            .collect()
    }

    #[test]
    fn both_events_are_documented() {
        let documents = include_str!("../../../../docs/cli.md");
        assert!(documents.contains("\n| `fact_wrong`, `fact_right` |"));
    }

    #[test]
    fn only_what_is_new_is_told_and_what_is_no_longer_named_is_right() {
        let mut board = FactBoard::default();
        let said = |name: &str, found: &str| (name.to_owned(), Some(found.to_owned()));
        let over = |name: &str| (name.to_owned(), None);
        assert_eq!(changes(&mut board, look("one", &[])), []);
        let bad = look("one", &[wrong("a", "1")]);
        assert_eq!(changes(&mut board, bad.clone()), [said("a", "1")]);
        assert_eq!(changes(&mut board, bad), [], "no news");
        let other = look("two", &[wrong("a", "2")]);
        assert_eq!(changes(&mut board, other), [said("a", "2")]);
        let both = look("one", &[wrong("a", "3"), wrong("b", "4")]);
        assert_eq!(
            changes(&mut board, both),
            [said("a", "3"), said("b", "4")],
            "another value is news"
        );
        assert_eq!(
            changes(&mut board, look("one", &[])),
            [over("a"), over("b")]
        );
    }

    /// What it said last stays meanwhile, and both are right again with the next look.
    #[test]
    fn a_source_that_can_not_look_is_said_with_its_facts() {
        let mut board = FactBoard::default();
        board.take(look("one", &[wrong("a", "1")]));
        assert!(board.unchecked().wrong.is_empty());
        board.close("one");
        board.close("new");
        let wrong: Vec<_> = board.unchecked().wrong;
        let [one] = &wrong[..] else {
            panic!("{wrong:?}");
        };
        assert_eq!(one.name, UNCHECKED);
        assert!(one.found.contains("look at a, b, new:"), "{one:?}");
        let config = &Pair::new().a;
        let reports = board.reports(config);
        assert!(
            reports.iter().any(|it| it.name == "a" && !it.ok),
            "it stays"
        );
    }

    /// At the limit one source or the other gets the last descriptor: few changes are told.
    #[test]
    fn sources_that_look_in_turn_are_one_change_each() {
        let mut board = FactBoard::default();
        let (mut told, at) = (0, |ms: u64| MonoTime::from_nanos(ms * 1_000_000));
        let sources = ["one", "two", "three"];
        for turn in 0..300_u64 {
            let source = sources[usize::try_from(turn % 3).expect("small")];
            board.close(source);
            told += board.take(board.unchecked()).len();
            board.open(source, at(turn * 100));
            assert!(!board.forget(at(turn * 100 + 50)));
            told += board.take(board.unchecked()).len();
        }
        assert_eq!(told, sources.len());
        assert!(!board.forget(at(29_900 + 4_999)));
        board.close("one");
        assert!(!board.forget(at(60_000)), "it still can't");
        board.open("one", at(60_000));
        assert!(board.forget(at(65_000)) && !board.forget(at(66_000)));
        assert_eq!(board.take(board.unchecked()).len(), 1, "it is right");
    }

    #[test]
    fn every_fact_is_reported_and_the_wrong_ones_warn() {
        let config = &Pair::new().a;
        let mut board = FactBoard::default();
        let share = config.own_shares().next().map(|(share, _)| share);
        let mut bad = wrong("a", "it is 0");
        bad.share = share;
        bad.consequence = Consequence::NoTwins;
        board.take(look("one", &[bad]));
        let reports = board.reports(config);
        let said: Vec<_> = reports.iter().map(|it| (it.name.as_str(), it.ok)).collect();
        assert_eq!(said, [("b", true), ("a", false)]);
        let warnings: Vec<_> = reports.iter().filter_map(FactReport::warning).collect();
        let [warning] = &warnings[..] else {
            panic!("{warnings:?}");
        };
        assert!(warning.contains(": a: it is 0; mend it; this node does not stand by"));
        assert!(warning.starts_with("service "), "{warning}");
    }
}
