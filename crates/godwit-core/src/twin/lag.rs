//! A twin whose application is behind its owner's: who is to be asked how far it
//! is, and which lags.
//!
//! The leash times a twin that is many bytes behind. A server that has stopped
//! answering on the standby is behind by few, if its answers are short: it lags
//! when the client has been told more, and the twin has not even come to where the
//! client was `lag_limit` ago. A client that has been told no more since is silent,
//! and what its twin has said then is the whole of its answer or not: that is
//! judged where answers are compared ([`compare`](super::compare)).
//!
//! A twin that has just said it all may not have told its owner. So nothing
//! counts before the standby was asked.

use std::time::Duration;

use godwit_wire::SeqNumber;

use crate::MonoTime;

/// The standby is asked for the first time after this part of `lag_limit`, if the
/// client is not silent, and again after as long; then later and later.
const PART: u32 = 4;

/// How far a flow has come, as its owner's data path knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What the client has acknowledged.
    pub snd_una: SeqNumber,
    /// What the twin's application has said.
    pub twin_snd_nxt: SeqNumber,
}

/// A flow whose twin has not said all that its client has acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct Behind {
    /// Where the client was when the twin was first seen behind that.
    due: SeqNumber,
    since: MonoTime,
    /// When the standby was first asked since then.
    asked: Option<MonoTime>,
    /// What it was told last, and when.
    told: Option<(SeqNumber, MonoTime)>,
}

/// What one look at it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// The standby is to hear where the client is, and will say how far the twin is.
    pub ask: bool,
    /// Its application has been behind for longer than `lag_limit`.
    pub lags: bool,
}

impl Behind {
    /// Seen behind for the first time; `None` if the twin has said it all.
    #[must_use]
    pub fn new(progress: Progress, now: MonoTime) -> Option<Self> {
        let Progress {
            snd_una,
            twin_snd_nxt,
        } = progress;
        twin_snd_nxt.lt(snd_una).then_some(Self {
            due: snd_una,
            since: now,
            asked: None,
            told: None,
        })
    }

    /// Looks at a flow that [`Behind::new`] has found behind; `quiet` if its
    /// client is silent.
    pub fn look(
        &mut self,
        progress: Progress,
        quiet: bool,
        lag_limit: Duration,
        now: MonoTime,
    ) -> Finding {
        let Progress {
            snd_una,
            twin_snd_nxt,
        } = progress;
        if twin_snd_nxt.ge(self.due) {
            (self.due, self.since, self.asked) = (snd_una, now, None);
        }
        let ask = match self.told {
            Some((told, _)) if quiet && told != snd_una => true,
            None if quiet => true,
            None => now.since(self.since) >= lag_limit / PART,
            Some((_, last)) => now >= last.saturating_add(self.patience(last, lag_limit)),
        };
        if ask {
            self.asked = self.asked.or(Some(now));
            self.told = Some((snd_una, now));
        }
        let overdue = |asked: MonoTime| now.since(asked) >= lag_limit;
        Finding {
            ask,
            lags: snd_una.gt(self.due) && self.asked.is_some_and(overdue),
        }
    }

    /// How long the standby is not asked again: thousands of twins whose server
    /// hangs must cost little.
    fn patience(&self, last: MonoTime, lag_limit: Duration) -> Duration {
        let so_far = last.since(self.asked.unwrap_or(last));
        so_far.max(lag_limit / PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(400);

    const NOTHING: Finding = Finding {
        ask: false,
        lags: false,
    };
    const ASK: Finding = Finding {
        ask: true,
        lags: false,
    };

    const fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(ms * 1_000_000)
    }

    const fn places(snd_una: u32, twin_snd_nxt: u32) -> Progress {
        Progress {
            snd_una: SeqNumber(snd_una),
            twin_snd_nxt: SeqNumber(twin_snd_nxt),
        }
    }

    fn behind(snd_una: u32, twin_nxt: u32) -> Behind {
        Behind::new(places(snd_una, twin_nxt), at(0)).expect("it is behind")
    }

    #[test]
    fn a_twin_that_has_said_it_all_is_not_behind() {
        assert!(Behind::new(places(100, 100), at(0)).is_none());
        assert!(Behind::new(places(100, 101), at(0)).is_none(), "a FIN");
    }

    /// An exchange of a few bytes every 50 ms with a server that hangs on the
    /// standby.
    #[test]
    fn a_twin_that_answers_nothing_lags() {
        let mut behind = behind(100, 90);
        let mut lags = Vec::new();
        for round in 1..=12_u32 {
            let look = places(100 + 10 * round, 90);
            let now = at(50 * u64::from(round));
            if behind.look(look, false, LIMIT, now).lags {
                lags.push(50 * round);
            }
        }
        // A quarter until it is asked, and then all of the limit.
        assert_eq!(lags, [500, 550, 600]);
    }

    /// It is always an answer behind, and comes to where the client was.
    #[test]
    fn a_twin_that_follows_does_not_lag() {
        let mut behind = behind(100, 90);
        for round in 1..=100_u32 {
            let look = places(100 + 10 * round, 90 + 10 * round);
            let found = behind.look(look, false, LIMIT, at(50 * u64::from(round)));
            assert_eq!(found, NOTHING, "round {round}");
        }
    }

    /// How much it says while the client is silent is for others to compare.
    #[test]
    fn a_silent_client_has_no_twin_that_lags() {
        let mut behind = behind(100, 90);
        let mut asked = Vec::new();
        for step in 0..2000 {
            let found = behind.look(places(100, 90), true, LIMIT, at(10 * step));
            assert!(!found.lags, "after {step} steps");
            if found.ask {
                asked.push(10 * step);
            }
        }
        assert_eq!(asked, [0, 100, 200, 400, 800, 1600, 3200, 6400, 12_800]);
    }

    /// Its last word may not have reached the owner: that is no lag of its own.
    #[test]
    fn nothing_counts_before_the_standby_was_asked() {
        let mut behind = behind(100, 90);
        // The next look comes late: with thousands of flows it takes its time.
        assert_eq!(behind.look(places(110, 90), false, LIMIT, at(5000)), ASK);
        let found = behind.look(places(120, 110), false, LIMIT, at(5400));
        assert!(!found.lags, "{found:?}");
    }

    #[test]
    fn a_silent_client_is_asked_about_at_once_and_when_it_has_more() {
        let mut behind = behind(100, 90);
        assert_eq!(behind.look(places(100, 90), true, LIMIT, at(10)), ASK);
        assert_eq!(behind.look(places(100, 90), true, LIMIT, at(20)), NOTHING);
        assert_eq!(behind.look(places(101, 90), true, LIMIT, at(30)), ASK);
    }

    #[test]
    fn sequence_numbers_come_round() {
        let mut behind = behind(5, u32::MAX - 5);
        let found = behind.look(places(15, 6), false, LIMIT, at(600));
        assert_eq!(found, NOTHING, "it came to 5");
    }
}
