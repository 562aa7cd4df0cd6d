//! Decides what was on the wire: a connection has one voice, and that changes only to a server
//! that was asked to take the connection, or that took over a share of its service.
//!
//! What the switch saw is the judge, and the agents' events. Which share a connection is of
//! is not asked: a server that took over another share of the service at that very time may
//! speak unnoticed.

use std::time::SystemTime;

use godwit_wire::{FlowKey, MacAddr};

use super::super::disturb;
use super::super::turns::{TOLD_LATE, new_owner};
use super::world::{PROGRAMS, RESIDENCE, SERVERS};
use crate::capture::{Books, Question, Voice};
use crate::cluster::EventReport;
use crate::host::Network;

/// A server became the owner of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    at: SystemTime,
    port: u16,
    by: MacAddr,
    /// By the owner before: what that one has let out may still come out of its queues.
    given_back: bool,
}

/// What was wrong with one round's voices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) violations: Vec<String>,
    /// Words that a server had let out before it gave its share back.
    pub(super) late: u64,
    /// Connections that somebody spoke for, and how often that became another one.
    pub(super) flows: u64,
    pub(super) changes: u64,
}

/// Judges all that was heard since the last fault was healed, until the one at `moment` was.
pub(super) fn judge(books: &Books, news: &[EventReport], moment: SystemTime) -> Heard {
    let taken: Vec<_> = news.iter().filter_map(|it| taken(it, moment)).collect();
    let mut heard = Heard::default();
    for (flow, voice) in books.voices() {
        heard.flows += 1;
        heard.follow(flow, voice, &books.questions, &taken, moment);
    }
    heard
}

impl Heard {
    fn follow(
        &mut self,
        flow: &FlowKey,
        voice: &Voice,
        questions: &[Question],
        taken: &[Taken],
        moment: SystemTime,
    ) {
        let taken = taken.iter().filter(|it| it.port == flow.service.port);
        let taken: Vec<_> = taken.collect();
        let mut turns = voice.turns.iter();
        let Some((mut since, mut speaker)) = turns.next().copied() else {
            return;
        };
        for (at, from) in turns.copied() {
            if disturb::first(from) == disturb::first(speaker) {
                continue;
            }
            let from_then_on = since.checked_sub(RESIDENCE).unwrap_or(since);
            let asked = questions.iter().any(|it| {
                it.flow == *flow && is_same(it.to, from) && (from_then_on..=at).contains(&it.at)
            });
            let until = at + TOLD_LATE;
            let took = taken
                .iter()
                .any(|it| is_same(it.by, from) && (from_then_on..=until).contains(&it.at));
            if asked || took {
                self.changes += 1;
                (since, speaker) = (at, from);
                continue;
            }
            let late = taken
                .iter()
                .any(|it| it.given_back && it.at <= until && at <= it.at + RESIDENCE);
            if late {
                self.late += 1;
                continue;
            }
            self.violations.push(format!(
                "second voice: {flow}: {} {}, though {} had spoken since {}; all: {}",
                name(from),
                after(at, moment),
                name(speaker),
                after(since, moment),
                story(voice, moment),
            ));
            return;
        }
    }
}

fn is_same(one: MacAddr, other: MacAddr) -> bool {
    disturb::first(one) == disturb::first(other)
}

/// The share that a server took over, of which an event tells.
fn taken(event: &EventReport, moment: SystemTime) -> Option<Taken> {
    let (by, given_back) = new_owner(event)?;
    let host = SERVERS.into_iter().find(|host| host.name() == by)?;
    let service = event.service.as_deref()?.split('@').next()?;
    let program = PROGRAMS.into_iter().find(|it| it.service == service)?;
    Some(Taken {
        at: event.at(moment)?,
        port: program.port,
        by: host.mac(Network::Data),
        given_back,
    })
}

/// All that spoke, for a person.
fn story(voice: &Voice, moment: SystemTime) -> String {
    let turns = voice.turns.iter();
    let turns = turns.map(|(at, from)| format!("{} {}", name(*from), after(*at, moment)));
    turns.collect::<Vec<_>>().join(", ")
}

/// Whose MAC this is.
pub(super) fn name(mac: MacAddr) -> String {
    let mut servers = SERVERS.into_iter();
    let host = servers.find(|host| is_same(host.mac(Network::Data), mac));
    host.map_or_else(|| mac.to_string(), |host| host.to_string())
}

/// When something was, from a fault on.
fn after(at: SystemTime, moment: SystemTime) -> String {
    match at.duration_since(moment) {
        Ok(span) => format!("{span:?} after the fault"),
        Err(early) => format!("{:?} before the fault", early.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::turns::told::{after, moment, owns};
    use crate::host::Host;

    const A: MacAddr = Host::A.mac(Network::Data);
    const B: MacAddr = Host::B.mac(Network::Data);
    const C: MacAddr = Host::C.mac(Network::Data);

    fn books(words: &[(u64, MacAddr)], questions: &[(u64, MacAddr)]) -> Books {
        let words: Vec<_> = words.iter().map(|(ms, who)| (after(*ms), *who)).collect();
        let mut books = Books::spoken(80, &words);
        let flow = *books.voices().next().expect("one flow").0;
        let questions = questions.iter();
        books.questions = questions
            .map(|(ms, to)| Question {
                at: after(*ms),
                flow,
                to: *to,
            })
            .collect();
        books
    }

    fn wrong(books: &Books, news: &[EventReport]) -> (usize, u64) {
        let heard = judge(books, news, moment());
        (heard.violations.len(), heard.late)
    }

    #[test]
    fn a_server_that_was_asked_may_speak() {
        let words = [(100, A), (200, B), (300, C)];
        let asked = [(150, B), (250, C)];
        assert_eq!(wrong(&books(&words, &asked), &[]), (0, 0));
        assert_eq!(wrong(&books(&words, &asked[..1]), &[]), (1, 0), "c was not");
        assert_eq!(wrong(&books(&words, &[]), &[]), (1, 0));
        let late = [(150, B), (310, C)];
        assert_eq!(
            wrong(&books(&words, &late), &[]),
            (1, 0),
            "c was asked later"
        );
    }

    #[test]
    fn who_has_passed_a_connection_on_is_silent_until_it_is_asked() {
        let words = [(100, A), (200, B), (300, A), (301, B)];
        let asked = [(50, A), (150, B)];
        assert_eq!(wrong(&books(&words, &asked), &[]), (1, 0));
        let back = [(50, A), (150, B), (290, A), (300, B)];
        assert_eq!(wrong(&books(&words, &back), &[]), (0, 0));
    }

    #[test]
    fn who_took_a_share_over_may_speak_and_its_owner_of_before_may_not() {
        let took = [owns("b", "web@a", 180, "owner_failed")];
        assert_eq!(wrong(&books(&[(100, A), (200, B)], &[]), &took), (0, 0));
        let again = books(&[(100, A), (200, B), (210, A), (211, B)], &[]);
        assert_eq!(wrong(&again, &took), (1, 0));
        let other = [owns("b", "more@a", 180, "owner_failed")];
        assert_eq!(wrong(&books(&[(100, A), (200, B)], &[]), &other), (1, 0));
        let elsewhere = [owns("c", "web@b", 180, "owner_failed")];
        assert_eq!(
            wrong(&books(&[(100, A), (200, B)], &[]), &elsewhere),
            (1, 0)
        );
    }

    #[test]
    fn what_was_given_back_may_come_out_of_queues() {
        let took = [owns("b", "web@a", 190, "moved")];
        let words = |millis| books(&[(100, A), (200, B), (millis, A), (millis + 1, B)], &[]);
        assert_eq!(wrong(&words(210), &took), (0, 1));
        assert_eq!(wrong(&words(216), &took), (1, 0), "too late");
    }
}
