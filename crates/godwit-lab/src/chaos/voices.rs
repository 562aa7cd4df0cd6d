//! Decides what was on the wire: only the owner of a service speaks for its flows,
//! and only it may end them.

use std::time::SystemTime;

use godwit_wire::MacAddr;

use super::judge::Verdict;
use super::turns::{Standing, Turns};
use crate::capture::{Books, Reset};

impl Verdict {
    /// Whoever speaks for a flow must own its service. When it did is told from the
    /// fault on, which was at `moment`.
    pub(super) fn hear(&mut self, books: &Books, turns: &Turns, moment: SystemTime) {
        for (flow, voice) in books.voices() {
            let standing = |at, from| turns.standing(flow.service.port, from, at);
            let mut wrong = Vec::new();
            for &(at, from) in &voice.turns {
                match standing(at, from) {
                    Standing::Owner => {}
                    Standing::GivenBack => self.late += 1,
                    Standing::Replaced(since) => wrong.push(replaced(at, from, since, moment)),
                }
            }
            if !wrong.is_empty() {
                let turns = voice.turns.iter();
                let turns = turns.map(|(at, from)| format!("{from} {}", after(*at, moment)));
                self.violations.push(format!(
                    "second voice: {flow}: {}; it was spoken for by {}",
                    wrong.join(", "),
                    turns.collect::<Vec<_>>().join(", "),
                ));
            }
            // Those of a late word are below its successor's for a good reason.
            let owners = voice.ts_back.iter();
            for back in owners.filter(|back| standing(back.at, back.from) == Standing::Owner) {
                self.violations.push(format!(
                    "time stamp: {flow}: TSval {} after {}, {} lower, from {} {}",
                    back.now,
                    back.before,
                    back.before.wrapping_sub(back.now),
                    back.from,
                    after(back.at, moment),
                ));
            }
        }
        for reset in &books.resets {
            self.hear_reset(reset, turns, moment);
        }
    }

    /// A new owner resets what it can't serve, and has taken over by then. One that
    /// has lost a share ends its sockets unheard.
    fn hear_reset(&mut self, reset: &Reset, turns: &Turns, moment: SystemTime) {
        let Reset { at, flow, from } = reset;
        match turns.standing(flow.service.port, *from, *at) {
            Standing::Owner => {}
            Standing::GivenBack => self.late += 1,
            Standing::Replaced(since) => self.violations.push(format!(
                "RST of another than the owner: {flow}: {}",
                replaced(*at, *from, since, moment),
            )),
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

/// Somebody spoke who did not own.
fn replaced(
    at: SystemTime,
    from: MacAddr,
    since: Option<SystemTime>,
    moment: SystemTime,
) -> String {
    let was = since.map_or_else(
        || "without ever having owned".to_owned(),
        |since| {
            let late = at.duration_since(since).unwrap_or_default();
            format!("{late:?} after another had taken over")
        },
    );
    format!("{from} {}, {was}", after(at, moment))
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

    fn worth(books: &Books, reason: &str) -> (usize, u64) {
        let mut verdict = Verdict::default();
        verdict.hear(books, &taken_over(reason), moment());
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
