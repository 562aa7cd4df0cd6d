//! What is known of claims to connections, and what to do about one that is not: no call
//! here asks anybody.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_sock::SocketView;
use godwit_wire::FlowKey;

use super::counts::Fault;

/// How long what the kernel has said of a socket is good: its end is heard of, as a rule.
const AGE: Duration = Duration::from_secs(30);

/// Connections whose owners are remembered: as many as a node has flows.
const MOST: usize = 1 << 18;

/// Sockets of one process that are remembered as shown: as many as the library has slots.
const MOST_SHOWN: usize = 1 << 14;

/// False claims of one process that are remembered: the kernel is not asked about them
/// again.
const MOST_DOUBTS: usize = 4096;

/// And how many new ones it is asked about in a second.
const DOUBTS_PER_SECOND: u32 = 200;

/// How long a process may take to show a socket of another account that it claims.
const GRACE: Duration = Duration::from_secs(1);

/// What a process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) client: u64,
    pub(super) slot: u32,
    pub(super) key: FlowKey,
    pub(super) cookie: u64,
}

/// What is known of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is right.
    Right,
    /// So is another one.
    Contested,
    /// The kernel has not been asked, or long ago.
    Unknown,
}

/// Claims that the kernel has borne out.
#[derive(Debug, Default)]
pub(super) struct Ledger(BTreeMap<FlowKey, Known>);

#[derive(Debug)]
struct Known {
    cookie: u64,
    /// When the kernel was asked.
    since: MonoTime,
    /// More than one: they contest it.
    claims: Vec<Claim>,
}

impl Ledger {
    /// `still`: whether somebody else claims a connection yet; without a time what is known
    /// is not too old.
    pub(super) fn look(
        &mut self,
        claim: &Claim,
        now: Option<MonoTime>,
        still: impl Fn(&Claim) -> bool,
    ) -> Standing {
        let known = self.0.get_mut(&claim.key);
        let is_this = |known: &&mut Known| {
            let is_old = now.is_some_and(|now| now.since(known.since) >= AGE);
            known.cookie == claim.cookie && known.claims.contains(claim) && !is_old
        };
        match known.filter(is_this) {
            Some(known) => known.standing(claim, still),
            None => Standing::Unknown,
        }
    }

    /// The kernel has borne out a claim: whatever was known of another socket is over.
    pub(super) fn add(
        &mut self,
        claim: Claim,
        now: MonoTime,
        still: impl Fn(&Claim) -> bool,
    ) -> Standing {
        if self.0.len() >= MOST {
            // All are asked about anew, a few at a time.
            self.0.clear();
        }
        let fresh = || Known {
            cookie: claim.cookie,
            since: now,
            claims: Vec::new(),
        };
        let known = self.0.entry(claim.key).or_insert_with(fresh);
        if known.cookie != claim.cookie {
            *known = fresh();
        }
        known.since = now;
        if !known.claims.contains(&claim) {
            known.claims.push(claim);
        }
        known.standing(&claim, still)
    }

    /// The connection is over.
    pub(super) fn forget(&mut self, key: FlowKey) {
        self.0.remove(&key);
    }

    /// The process has gone.
    pub(super) fn forget_client(&mut self, client: u64) {
        self.0.retain(|_, known| {
            known.claims.retain(|claim| claim.client != client);
            !known.claims.is_empty()
        });
    }
}

impl Known {
    fn standing(&mut self, claim: &Claim, still: impl Fn(&Claim) -> bool) -> Standing {
        if self.claims.len() > 1 {
            self.claims.retain(|other| other == claim || still(other));
        }
        match self.claims.len() {
            1 => Standing::Right,
            _ => Standing::Contested,
        }
    }
}

/// Sockets that a process has shown, or was given, by their cookies; the latest.
#[derive(Debug, Default)]
pub(super) struct Shown {
    known: BTreeMap<u64, FlowKey>,
    order: VecDeque<u64>,
}

impl Shown {
    pub(super) fn add(&mut self, key: FlowKey, cookie: u64) {
        if self.known.insert(cookie, key).is_none() {
            self.order.push_back(cookie);
        }
        if self.order.len() > MOST_SHOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn get(&self, cookie: u64) -> Option<FlowKey> {
        self.known.get(&cookie).copied()
    }

    pub(super) fn has(&self, claim: &Claim) -> bool {
        self.get(claim.cookie) == Some(claim.key)
    }
}

/// Claims of one process that were found false.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    known: BTreeMap<u32, Doubt>,
    /// The second that is counted, and what was found in it.
    second: MonoTime,
    found: u32,
}

#[derive(Debug)]
struct Doubt {
    claim: Claim,
    /// What is wrong, until that is said.
    fault: Option<Fault>,
    since: MonoTime,
}

/// What to do about a claim that is not known to be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Ask,
    /// It is known to be false, or too many of the same process are.
    Leave,
    /// As before, and it is time to say so.
    Tell(Fault),
}

impl Doubts {
    pub(super) fn next(&mut self, claim: &Claim, now: MonoTime) -> Next {
        if now.since(self.second) >= Duration::from_secs(1) {
            self.second = now;
            self.found = 0;
        }
        let known = self.known.get_mut(&claim.slot);
        if let Some(doubt) = known.filter(|doubt| doubt.claim == *claim) {
            let is_due = now.since(doubt.since) >= GRACE;
            return doubt
                .fault
                .take_if(|_| is_due)
                .map_or(Next::Leave, Next::Tell);
        }
        if self.found < DOUBTS_PER_SECOND {
            Next::Ask
        } else {
            Next::Leave
        }
    }

    pub(super) fn add(&mut self, claim: Claim, fault: Option<Fault>, now: MonoTime) {
        self.found += u32::from(fault.is_some());
        if self.known.len() >= MOST_DOUBTS {
            self.known.pop_first();
        }
        let doubt = Doubt {
            claim,
            fault,
            since: now,
        };
        self.known.insert(claim.slot, doubt);
    }

    /// It was shown meanwhile.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.known.retain(|_, doubt| doubt.claim.cookie != cookie);
    }
}

/// Whether the socket that the kernel has is what a process claims, which runs as that
/// account. If there is none it is over, and nobody's fault.
pub(super) fn judge(
    claim: &Claim,
    uid: u32,
    is_shown: bool,
    view: Option<&SocketView>,
) -> Result<(), Option<Fault>> {
    let view = view.ok_or(None)?;
    if view.cookie != claim.cookie {
        return Err(Some(Fault::OtherSocket));
    }
    if uid == 0 || view.uid == uid || is_shown {
        Ok(())
    } else {
        Err(Some(Fault::NotItsOwn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(client: u64, port: u16, cookie: u64) -> Claim {
        Claim {
            client,
            slot: 3,
            key: FlowKey {
                client: format!("10.9.0.10:{port}").parse().expect("an address"),
                service: "10.9.0.100:80".parse().expect("an address"),
            },
            cookie,
        }
    }

    fn view(cookie: u64, uid: u32) -> SocketView {
        SocketView {
            inode: 9,
            uid,
            cookie,
            received: 0,
            state: None,
            counts_microseconds: false,
        }
    }

    fn at(seconds: u64) -> Option<MonoTime> {
        Some(MonoTime::ZERO.saturating_add(Duration::from_secs(seconds)))
    }

    fn second(number: u64) -> MonoTime {
        at(number).expect("it is one")
    }

    #[test]
    fn the_kernel_has_to_bear_a_claim_out() {
        let claim = claim(1, 40_000, 7);
        let cases = [
            (33, false, Some(view(7, 33)), Ok(())),
            (33, false, Some(view(7, 34)), Err(Some(Fault::NotItsOwn))),
            (33, true, Some(view(7, 34)), Ok(())),
            (0, false, Some(view(7, 33)), Ok(())),
            (33, false, Some(view(7, 0)), Err(Some(Fault::NotItsOwn))),
            (33, true, Some(view(8, 33)), Err(Some(Fault::OtherSocket))),
            (0, true, Some(view(8, 0)), Err(Some(Fault::OtherSocket))),
            (0, true, None, Err(None)),
        ];
        for (uid, is_shown, view, expected) in cases {
            let found = judge(&claim, uid, is_shown, view.as_ref());
            assert_eq!(found, expected, "{uid} {is_shown} {view:?}");
        }
    }

    #[test]
    fn of_two_claims_none_is_right_until_one_is_gone() {
        let mut ledger = Ledger::default();
        let (one, other) = (claim(1, 1, 7), claim(2, 1, 7));
        let all = |_: &Claim| true;
        assert_eq!(ledger.look(&one, at(0), all), Standing::Unknown);
        assert_eq!(ledger.add(one, MonoTime::ZERO, all), Standing::Right);
        assert_eq!(ledger.look(&other, at(0), all), Standing::Unknown);
        assert_eq!(ledger.add(other, MonoTime::ZERO, all), Standing::Contested);
        for claim in [one, other] {
            assert_eq!(ledger.look(&claim, at(0), all), Standing::Contested);
        }
        let not_one = |claim: &Claim| *claim != one;
        assert_eq!(ledger.look(&other, at(0), not_one), Standing::Right);
        assert_eq!(ledger.look(&one, at(0), all), Standing::Unknown);
        ledger.add(one, MonoTime::ZERO, all);
        ledger.forget_client(2);
        assert_eq!(ledger.look(&one, at(0), all), Standing::Right);
    }

    /// The addresses are another connection's by now.
    #[test]
    fn a_new_socket_ends_what_was_known_of_the_one_before() {
        let mut ledger = Ledger::default();
        let (before, now) = (claim(1, 1, 7), claim(2, 1, 8));
        let all = |_: &Claim| true;
        ledger.add(before, MonoTime::ZERO, all);
        assert_eq!(ledger.add(now, MonoTime::ZERO, all), Standing::Right);
        assert_eq!(ledger.look(&before, at(0), all), Standing::Unknown);
        assert_eq!(ledger.look(&now, at(29), all), Standing::Right);
        assert_eq!(ledger.look(&now, at(30), all), Standing::Unknown);
        assert_eq!(ledger.look(&now, None, all), Standing::Right);
        ledger.forget(now.key);
        assert_eq!(ledger.look(&now, at(0), all), Standing::Unknown);
    }

    #[test]
    fn the_kernel_is_asked_about_few_lies() {
        let mut doubts = Doubts::default();
        let mut asked = 0;
        for slot in 0..10_000 {
            let claim = Claim {
                slot,
                ..claim(1, 1, 7)
            };
            if doubts.next(&claim, second(1)) == Next::Ask {
                doubts.add(claim, Some(Fault::NotItsOwn), second(1));
                asked += 1;
            }
        }
        assert_eq!(asked, DOUBTS_PER_SECOND);
        for slot in 0..1000 {
            let claim = Claim {
                slot,
                ..claim(1, 1, 8)
            };
            let next = doubts.next(&claim, second(2));
            assert_eq!(next, Next::Ask, "such as are over");
            doubts.add(claim, None, second(2));
        }
        let fault = Fault::NotItsOwn;
        doubts.add(claim(1, 1, 7), Some(fault), second(2));
        let first = Claim {
            slot: 3,
            ..claim(1, 1, 7)
        };
        assert_eq!(doubts.next(&first, second(2)), Next::Leave, "it is known");
        assert_eq!(doubts.next(&first, second(3)), Next::Tell(fault));
        assert_eq!(doubts.next(&first, second(3)), Next::Leave, "it was said");
        let another = Claim { cookie: 9, ..first };
        assert_eq!(doubts.next(&another, second(3)), Next::Ask);
        doubts.forget(7);
        assert_eq!(
            doubts.next(&first, second(3)),
            Next::Ask,
            "it was shown meanwhile"
        );
    }

    #[test]
    fn what_was_shown_is_of_one_connection_and_the_latest() {
        let mut shown = Shown::default();
        for cookie in 0..=MOST_SHOWN as u64 {
            shown.add(claim(1, 1, 0).key, cookie);
        }
        assert!(!shown.has(&claim(1, 1, 0)) && shown.has(&claim(1, 1, 1)));
        assert!(!shown.has(&claim(1, 2, 1)), "other addresses");
        assert_eq!(shown.known.len(), MOST_SHOWN);
    }
}
