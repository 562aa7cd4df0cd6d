//! Decides what was on the wire: only the owner of a service speaks for its flows,
//! and only it may end them.

use std::time::SystemTime;

use godwit_wire::{FlowKey, MacAddr};

use super::judge::Verdict;
use super::turns::{Standing, Turns};
use super::world::RESIDENCE;
use crate::capture::{Books, Reset, Stays, Voice};

/// What is known of one round.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) books: &'a Books,
    pub(super) turns: &'a Turns,
    /// Of the machine whose queue is full, if one is.
    pub(super) stays: &'a Stays,
    /// When the fault came.
    pub(super) moment: SystemTime,
}

impl Verdict {
    /// Whoever speaks for a flow must own its service.
    pub(super) fn hear(&mut self, evidence: &Evidence<'_>) {
        let moment = evidence.moment;
        for (flow, voice) in evidence.books.voices() {
            let turns = voice.turns.iter();
            let wrong = turns.filter_map(|word| self.hear_word(evidence, flow, *word));
            let wrong = wrong.collect::<Vec<_>>();
            if !wrong.is_empty() {
                let turns = voice.turns.iter();
                let turns = turns.map(|(at, from)| format!("{from} {}", after(*at, moment)));
                self.violations.push(format!(
                    "second voice: {flow}: {}; it was spoken for by {}",
                    wrong.join(", "),
                    turns.collect::<Vec<_>>().join(", "),
                ));
            }
            self.hear_clock(evidence, flow, voice);
        }
        // A new owner resets what it can't serve, and has taken over by then. One that
        // has lost a share ends its sockets unheard.
        for reset in &evidence.books.resets {
            let Reset { at, flow, from } = reset;
            if let Some(wrong) = self.hear_word(evidence, flow, (*at, *from)) {
                self.violations
                    .push(format!("RST of another than the owner: {flow}: {wrong}"));
            }
        }
    }

    /// What is wrong with a word of a node.
    fn hear_word(
        &mut self,
        evidence: &Evidence<'_>,
        flow: &FlowKey,
        (at, from): (SystemTime, MacAddr),
    ) -> Option<String> {
        let since = match evidence.turns.standing(flow.service.port, from, at) {
            Standing::Owner => return None,
            Standing::GivenBack => {
                self.late += 1;
                return None;
            }
            Standing::Replaced(since) => since,
        };
        let Some(since) = since else {
            let at = after(at, evidence.moment);
            return Some(format!("{from} {at}, without ever having owned"));
        };
        let late = at.duration_since(since).unwrap_or_default();
        let wrong = format!(
            "{from} {}, {late:?} after another had taken over",
            after(at, evidence.moment)
        );
        // By then it had been silent for that long.
        if evidence.stays.explain(from, at, since - RESIDENCE) {
            self.stuck.push(format!("{flow}: {wrong}"));
            return None;
        }
        Some(wrong)
    }

    /// Time stamps go on from owner to owner. Those of a late word are below its
    /// successor's for a good reason.
    fn hear_clock(&mut self, evidence: &Evidence<'_>, flow: &FlowKey, voice: &Voice) {
        let port = flow.service.port;
        for back in &voice.ts_back {
            if evidence.turns.standing(port, back.from, back.at) != Standing::Owner {
                continue;
            }
            self.violations.push(format!(
                "time stamp: {flow}: TSval {} after {}, {} lower, from {} {}",
                back.now,
                back.before,
                back.before.wrapping_sub(back.now),
                back.from,
                after(back.at, evidence.moment),
            ));
        }
    }
}

/// When something was, from a fault on.
fn after(at: SystemTime, moment: SystemTime) -> String {
    match at.duration_since(moment) {
        Ok(span) => format!("after {span:?}"),
        Err(early) => format!("{:?} before", early.duration()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::chaos::world::Program;
    use crate::cluster::EventReport;
    use crate::host::{Host, Network};

    const A: MacAddr = Host::A.mac(Network::Data);
    const B: MacAddr = Host::B.mac(Network::Data);

    fn moment() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_375_131)
    }

    /// b took all services over from a at that moment, for `reason`.
    fn taken_over(reason: &str) -> Turns {
        let mut turns = Turns::default();
        let mut events = Vec::new();
        for program in [Program::Own, Program::Nginx, Program::Redis] {
            turns.begin(program, Host::A);
            events.push(EventReport {
                time: "2026-11-22T19:18:51.000000Z".to_owned(),
                reason: Some(reason.to_owned()),
                state: Some("owner".to_owned()),
                ..EventReport::of("b", "role_changed", Some(program.service()))
            });
        }
        turns.hear(&events, moment());
        turns
    }

    fn verdict(books: &Books, reason: &str, stays: &Stays) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.hear(&Evidence {
            books,
            turns: &taken_over(reason),
            stays,
            moment: moment(),
        });
        verdict
    }

    fn worth(books: &Books, reason: &str) -> (usize, u64) {
        let verdict = verdict(books, reason, &Stays::default());
        assert!(verdict.stuck.is_empty(), "{:?}", verdict.stuck);
        (verdict.violations.len(), verdict.late)
    }

    /// Violations and late words of a flow of the service at `port` that was spoken
    /// for by these, milliseconds after the takeover.
    fn spoken(port: u16, reason: &str, words: &[(u64, MacAddr)]) -> (usize, u64) {
        let early = moment() - Duration::from_secs(1);
        let words = words.iter();
        let words = words.map(|(millis, from)| (moment() + Duration::from_millis(*millis), *from));
        let words = [(early, A)].into_iter().chain(words).collect::<Vec<_>>();
        worth(&Books::spoken(port, &words), reason)
    }

    /// Three services had been taken over, which was as good as three turns of each.
    #[test]
    fn an_owner_that_was_replaced_does_not_speak_again() {
        let back = [(10, B), (12, A), (13, B)];
        for port in [80, 8080, 6379] {
            assert_eq!(spoken(port, "owner_failed", &[(10, B)]), (0, 0));
            assert_eq!(spoken(port, "owner_failed", &back), (1, 0));
            assert_eq!(spoken(port, "owner_failed", &[(10, B), (12, A)]), (1, 0));
        }
    }

    #[test]
    fn a_late_word_of_an_owner_that_gave_back_is_none() {
        let back = [(1, B), (12, A), (13, B), (20, A), (21, B)];
        for reason in ["owner_released", "moved"] {
            assert_eq!(spoken(80, reason, &back), (0, 2));
            assert_eq!(spoken(80, reason, &[(1, B), (26, A)]), (1, 0), "too late");
        }
    }

    /// A queue that kept frames for longer than it was made for is the lab's fault, and
    /// its alone: what it can't have kept for so long is a second voice.
    #[test]
    fn a_queue_of_the_lab_is_to_blame_for_what_it_kept() {
        let after = |millis| moment() + Duration::from_millis(millis);
        let words = [(after(10), B), (after(30), A), (after(31), B)];
        let books = Books::spoken(80, &words);
        let kept = |millis, from| {
            let stays = Stays::seen(from, &[(after(28), Duration::from_millis(millis))]);
            let verdict = verdict(&books, "owner_failed", &stays);
            (verdict.violations.len(), verdict.stuck.len())
        };
        assert_eq!(kept(55, A), (0, 1), "silent for 25 ms when b took over");
        assert_eq!(kept(45, A), (1, 0), "let out behind the fence");
        assert_eq!(kept(55, B), (1, 0));
    }

    /// Without a word before or after, for a RST ends a connection.
    #[test]
    fn only_the_owner_resets_connections() {
        let reset = |reason: &str, millis, from| {
            let at = moment() + Duration::from_millis(millis);
            worth(&Books::reset(80, at, from), reason)
        };
        assert_eq!(reset("owner_failed", 3, B), (0, 0), "not in sync");
        assert_eq!(reset("owner_failed", 3, A), (1, 0));
        assert_eq!(reset("owner_failed", 600, A), (1, 0), "it resumes");
        assert_eq!(reset("owner_released", 3, A), (0, 1));
        assert_eq!(reset("owner_released", 600, A), (1, 0));
        assert_eq!(reset("owner_failed", 600, MacAddr::ZERO), (1, 0));
    }
}
