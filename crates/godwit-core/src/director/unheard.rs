//! Which back-ends do not hear a director that hears them.
//!
//! A link may carry frames one way only. A server whose heartbeats come can then get nothing
//! that it is sent, and clients that it is given wait for ever. Only the server knows: it says in
//! its heartbeats which directors it should hear and does not ([`unheard`]). Such a back-end keeps
//! what it has and gets no new connections, as long as another one hears this director. If
//! nobody does, the director has fallen silent, and to take all of them out would help nobody.

use std::time::Duration;

use godwit_wire::{Epoch, NodeName, Role, ShareClaim, ShareId, node_id};

use super::BackendId;
use crate::MonoTime;

/// The share that heartbeats of servers speak of, under the number of the director's name as an
/// epoch. No service has it; heartbeats of directors speak of it under no epoch.
const UNHEARD: ShareId = ShareId(u32::MAX);

/// So long it is to be said: a director that starts is heard a moment after it hears.
const SETTLING: Duration = Duration::from_millis(200);

/// For so long a back-end's last word counts.
const RECENT: Duration = Duration::from_secs(1);

/// What a server says in its heartbeats of a director that it does not hear.
pub fn unheard(director: NodeName) -> ShareClaim {
    ShareClaim {
        share: UNHEARD,
        role: Role::None,
        epoch: Epoch(node_id(director).get().into()),
    }
}

/// What back-ends have said of one director.
#[derive(Debug, Clone)]
pub struct Unheard {
    word: ShareClaim,
    said: Vec<Said>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Said {
    /// When it said last that it hears this director.
    hears: Option<MonoTime>,
    /// Since when it says that it does not.
    since: Option<MonoTime>,
    /// When it said so last.
    last: Option<MonoTime>,
}

impl Unheard {
    /// Of the director of that name, which has so many back-ends.
    pub fn new(director: NodeName, backends: usize) -> Self {
        Self {
            word: unheard(director),
            said: vec![Said::default(); backends],
        }
    }

    /// A heartbeat has come. `is_whole`: it says all that its sender has to say.
    pub fn handle_beat(
        &mut self,
        id: BackendId,
        claims: &[ShareClaim],
        is_whole: bool,
        now: MonoTime,
    ) {
        let Some(said) = self.said.get_mut(usize::from(id.0)) else {
            return;
        };
        if claims.contains(&self.word) {
            said.since.get_or_insert(now);
            said.last = Some(now);
        } else if is_whole || !is_recent(said.last, now) {
            (said.hears, said.since, said.last) = (Some(now), None, None);
        }
    }

    /// Whether what this director sends does not reach a back-end whose heartbeats come.
    pub fn is_cut_off(&self, id: BackendId, now: MonoTime) -> bool {
        let said = self.said.get(usize::from(id.0));
        let since = said.and_then(|said| said.since);
        let settled = since.is_some_and(|since| now.since(since) >= SETTLING);
        settled && self.said.iter().any(|said| is_recent(said.hears, now))
    }
}

fn is_recent(then: Option<MonoTime>, now: MonoTime) -> bool {
    then.is_some_and(|then| now.since(then) < RECENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BackendId = BackendId(0);
    const B: BackendId = BackendId(1);

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(ms * 1_000_000)
    }

    fn name(name: &str) -> NodeName {
        NodeName::new(name).expect("a name")
    }

    /// Heartbeats of both each 50 ms; those of `deaf` say that they do not hear d1.
    fn beats(it: &mut Unheard, deaf: &[BackendId], (from, to): (u64, u64)) {
        for ms in (from..to).step_by(50) {
            for id in [A, B] {
                let word = deaf.contains(&id).then(|| unheard(name("d1")));
                it.handle_beat(id, word.as_slice(), true, at(ms));
            }
        }
    }

    #[test]
    fn who_does_not_hear_it_is_cut_off_while_another_one_does() {
        let mut it = Unheard::new(name("d1"), 2);
        beats(&mut it, &[], (0, 1000));
        assert!(!it.is_cut_off(A, at(1000)));
        beats(&mut it, &[B], (1000, 1200));
        assert!(!it.is_cut_off(B, at(1199)), "it may have just begun");
        beats(&mut it, &[B], (1200, 9000));
        assert!(it.is_cut_off(B, at(1200)) && it.is_cut_off(B, at(9000)));
        assert!(!it.is_cut_off(A, at(9000)));
        beats(&mut it, &[], (9000, 9050));
        assert!(!it.is_cut_off(B, at(9050)), "at once");
    }

    #[test]
    fn a_director_that_nobody_hears_takes_nobody_out() {
        let mut it = Unheard::new(name("d1"), 2);
        beats(&mut it, &[], (0, 1000));
        beats(&mut it, &[A, B], (1000, 3000));
        assert!(![A, B].iter().any(|id| it.is_cut_off(*id, at(3000))));
        // The one that hears it is gone.
        let mut it = Unheard::new(name("d1"), 2);
        beats(&mut it, &[B], (0, 1000));
        assert!(it.is_cut_off(B, at(1900)) && !it.is_cut_off(B, at(1950)));
    }

    #[test]
    fn what_is_said_of_another_director_is_not_of_this_one() {
        let mut it = Unheard::new(name("d2"), 2);
        beats(&mut it, &[B], (0, 3000));
        assert!(!it.is_cut_off(B, at(3000)));
    }

    /// Of a server with more shares than fit only some heartbeats have the word.
    #[test]
    fn one_that_tells_in_turn_is_not_misunderstood() {
        let mut it = Unheard::new(name("d1"), 2);
        for ms in (0..3000).step_by(50) {
            let word = (ms % 150 == 0).then(|| unheard(name("d1")));
            it.handle_beat(B, word.as_slice(), false, at(ms));
            it.handle_beat(A, &[], true, at(ms));
        }
        assert!(it.is_cut_off(B, at(3000)));
        for ms in (3000..4100).step_by(50) {
            it.handle_beat(B, &[], false, at(ms));
        }
        it.handle_beat(A, &[], true, at(4100));
        assert!(!it.is_cut_off(B, at(4100)));
    }
}
