//! Other machines that claim a service's address (RFC 5227 section 2.4, RFC 4861).
//!
//! Such a claim is a frame of ARP or neighbour discovery. It makes a conflict if it is from a
//! machine that is no peer. A peer may be found on the link only after its first frame, so the
//! claim is confirmed first ([`CONFIRM`]). While there is a conflict, the link is asked for the
//! address now and then. The conflict is over when nobody else has answered for a while. A
//! machine that only answers is heard by those who ask. So the link is asked now and then
//! without a conflict, too, and soon after a client has asked. An owner defends its address, at
//! most once in [`DEFEND_INTERVAL`]: two that defend themselves must not flood the link.
//!
//! Peers have addresses of their own, and tell over their links where they are. A claim that
//! such an address is elsewhere counts in the same way, a little later: a peer that has got
//! another MAC address is heard on the link before its message comes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use godwit_wire::MacAddr;

use crate::MonoTime;
use crate::time::earliest;

/// From a claim until it counts: peers are looked for meanwhile.
pub const CONFIRM: Duration = Duration::from_millis(200);

/// The same for a peer's own address: its message that it has moved may be under way.
pub const CONFIRM_PLACE: Duration = Duration::from_millis(700);

/// DEFEND_INTERVAL of RFC 5227.
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// How often the link is asked for an address that nobody looks for.
pub const QUIET_INTERVAL: Duration = Duration::from_secs(10);

/// How often the link is asked for an address in conflict, or that clients look for, at most.
pub const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// After so long without another claim a conflict is over.
pub const FORGET: Duration = Duration::from_secs(5);

/// Most that are known at a time: whoever makes up more is said all the same.
const MOST: usize = 64;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimAction {
    /// Look for the mates on the link: [`Claims::handle_mates`] follows.
    FindMates,
    /// Say on the link where the address is, if this node owns it: that one has claimed it.
    Defend(Claimant),
    /// Ask the link who has the address.
    Ask(IpAddr),
}

/// Somebody who says that he has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// The address.
    pub address: IpAddr,
    /// Where it is to be.
    pub mac: MacAddr,
}

#[derive(Debug, Clone, Copy)]
struct Claim {
    /// From when on it counts.
    counts: MonoTime,
    last: MonoTime,
    /// When the link is asked next; `None`: it does not count yet.
    ask: Option<MonoTime>,
}

impl Claim {
    /// When it counts, and when the link is asked again.
    fn due(&self) -> MonoTime {
        self.ask.unwrap_or(self.counts)
    }
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    last: Option<MonoTime>,
    due: MonoTime,
}

/// The claims that are known.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// The MAC addresses of this node and its peers.
    mates: BTreeSet<MacAddr>,
    /// The MAC addresses that peers have told of their own addresses.
    places: BTreeMap<IpAddr, MacAddr>,
    claims: BTreeMap<Claimant, Claim>,
    /// The addresses of services: when the link was asked for each, and is next.
    asked: BTreeMap<IpAddr, Asked>,
    defended: BTreeMap<IpAddr, MonoTime>,
    actions: VecDeque<ClaimAction>,
}

impl Claims {
    /// Nobody has been asked for these addresses yet.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>, now: MonoTime) -> Self {
        let due = now.saturating_add(QUIET_INTERVAL);
        let asked = addresses.into_iter();
        Self {
            asked: asked.map(|it| (it, Asked { last: None, due })).collect(),
            ..Self::default()
        }
    }

    /// Somebody looks for an address: whoever has it answers him, and nobody else hears that.
    pub fn handle_question(&mut self, address: IpAddr, asker: MacAddr, now: MonoTime) {
        if self.mates.contains(&asker) {
            return;
        }
        if let Some(asked) = self.asked.get_mut(&address) {
            let soon = asked
                .last
                .map_or(now, |last| now.max(last.saturating_add(ASK_INTERVAL)));
            asked.due = asked.due.min(soon);
        }
    }

    /// Takes what a frame says of an address, of a service or of a peer.
    pub fn handle_claim(&mut self, claimant: Claimant, now: MonoTime) {
        let is_mate_s = self.places.contains_key(&claimant.address);
        if self.mates.contains(&claimant.mac) {
            return;
        }
        if let Some(claim) = self.claims.get_mut(&claimant) {
            claim.last = now;
        } else if self.claims.len() < MOST {
            let wait = if is_mate_s { CONFIRM_PLACE } else { CONFIRM };
            let claim = Claim {
                counts: now.saturating_add(wait),
                last: now,
                ask: None,
            };
            self.claims.insert(claimant, claim);
            self.actions.push_back(ClaimAction::FindMates);
        }
        if self.is_conflict(&claimant) {
            self.defend(claimant, now);
        }
    }

    /// Takes the MAC addresses of this node and its peers, which have made no claim. `places`:
    /// the own addresses of the peers that have told over their links where they are.
    pub fn handle_mates(&mut self, mates: BTreeSet<MacAddr>, places: BTreeMap<IpAddr, MacAddr>) {
        self.claims.retain(|it, _| !mates.contains(&it.mac));
        (self.mates, self.places) = (mates, places);
    }

    /// When [`Claims::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        let claims = self.claims.values();
        let claims = claims.map(|claim| Some(claim.due().min(claim.last.saturating_add(FORGET))));
        let questions = self.asked.values().map(|asked| Some(asked.due));
        earliest(claims.chain(questions))
    }

    /// Claims that are old enough count; those that were not repeated are over.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        let is_over = |claim: &Claim| now.since(claim.last) >= FORGET;
        self.claims.retain(|_, claim| !is_over(claim));
        let due = self.asked.iter().filter(|(_, asked)| asked.due <= now);
        let mut asked: BTreeSet<_> = due.map(|(address, _)| *address).collect();
        let mut new = Vec::new();
        for (claimant, claim) in &mut self.claims {
            let is_new = claim.ask.is_none();
            if claim.due() > now {
                continue;
            }
            claim.ask = Some(now.saturating_add(ASK_INTERVAL));
            asked.insert(claimant.address);
            if is_new {
                new.push(*claimant);
            }
        }
        for claimant in new {
            self.defend(claimant, now);
        }
        for address in &asked {
            if let Some(asked) = self.asked.get_mut(address) {
                asked.last = Some(now);
                asked.due = now.saturating_add(QUIET_INTERVAL);
            }
        }
        self.actions.extend(asked.into_iter().map(ClaimAction::Ask));
        let recent = |then: &MonoTime| now.since(*then) < DEFEND_INTERVAL;
        self.defended.retain(|_, then| recent(then));
    }

    fn defend(&mut self, claimant: Claimant, now: MonoTime) {
        let then = self.defended.get(&claimant.address);
        if then.is_none_or(|then| now.since(*then) >= DEFEND_INTERVAL) {
            self.defended.insert(claimant.address, now);
            self.actions.push_back(ClaimAction::Defend(claimant));
        }
    }

    fn is_conflict(&self, claimant: &Claimant) -> bool {
        let claim = self.claims.get(claimant);
        claim.is_some_and(|claim| claim.ask.is_some())
    }

    /// Whether there is something to be done already.
    pub fn is_pending(&self, now: MonoTime) -> bool {
        !self.actions.is_empty() || self.poll_timeout().is_some_and(|due| due <= now)
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<ClaimAction> {
        self.actions.pop_front()
    }

    /// The MAC address that the peer with this address has told; `None`: it is a service's.
    pub fn place(&self, address: IpAddr) -> Option<MacAddr> {
        self.places.get(&address).copied()
    }

    /// The machines that are no peers and claim an address of a service, or of a peer.
    pub fn conflicts(&self) -> impl Iterator<Item = Claimant> {
        let counted = self.claims.iter().filter(|(_, claim)| claim.ask.is_some());
        counted.map(|(claimant, _)| *claimant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xee]);

    fn ms(ms: u64) -> MonoTime {
        MonoTime(ms * 1_000_000)
    }

    fn at(mac: MacAddr) -> Claimant {
        let address = "10.9.0.100".parse().expect("a literal");
        Claimant { address, mac }
    }

    fn actions(claims: &mut Claims) -> Vec<ClaimAction> {
        std::iter::from_fn(|| claims.poll_action()).collect()
    }

    fn said(claims: &Claims) -> Vec<Claimant> {
        claims.conflicts().collect()
    }

    fn with_mate() -> Claims {
        let mut claims = Claims::default();
        claims.handle_mates(BTreeSet::from([MATE]), BTreeMap::new());
        claims
    }

    #[test]
    fn a_stranger_is_said_and_defended_against_and_forgotten() {
        let mut claims = with_mate();
        claims.handle_claim(at(MATE), ms(0));
        assert_eq!(
            (actions(&mut claims), claims.poll_timeout()),
            (vec![], None)
        );
        claims.handle_claim(at(STRANGER), ms(0));
        assert_eq!(actions(&mut claims), [ClaimAction::FindMates]);
        assert_eq!(
            said(&claims),
            [],
            "it may be a mate that nobody has found yet"
        );
        assert_eq!(claims.poll_timeout(), Some(ms(200)));
        claims.handle_timeout(ms(199));
        assert_eq!(said(&claims), []);
        claims.handle_timeout(ms(200));
        assert_eq!(said(&claims), [at(STRANGER)]);
        let both = [
            ClaimAction::Defend(at(STRANGER)),
            ClaimAction::Ask(at(STRANGER).address),
        ];
        assert_eq!(actions(&mut claims), both);
        // Nobody has answered.
        claims.handle_timeout(ms(4999));
        assert_eq!(said(&claims), [at(STRANGER)]);
        assert_eq!(claims.poll_timeout(), Some(ms(5000)));
        claims.handle_timeout(ms(5000));
        assert_eq!((said(&claims), claims.poll_timeout()), (vec![], None));
    }

    #[test]
    fn one_that_turns_out_to_be_a_mate_was_none() {
        let mut claims = with_mate();
        claims.handle_claim(at(STRANGER), ms(0));
        claims.handle_mates(BTreeSet::from([MATE, STRANGER]), BTreeMap::new());
        claims.handle_timeout(ms(200));
        assert_eq!(said(&claims), []);
        assert_eq!(actions(&mut claims), [ClaimAction::FindMates]);
    }

    /// One frame that says that a peer's own address is elsewhere; who has sent it may have a
    /// service's address no more than before.
    #[test]
    fn a_mate_is_where_it_has_said_and_not_where_frames_say() {
        let own: IpAddr = "2001:db8::2".parse().expect("a literal");
        let mut claims = Claims::default();
        let places = || BTreeMap::from([(own, MATE)]);
        claims.handle_mates(BTreeSet::from([MATE]), places());
        let lie = Claimant {
            address: own,
            mac: STRANGER,
        };
        claims.handle_claim(lie, ms(0));
        assert_eq!(claims.poll_timeout(), Some(ms(700)), "its word may be late");
        // It is looked for, and has said nothing else.
        claims.handle_mates(BTreeSet::from([MATE]), places());
        claims.handle_claim(at(STRANGER), ms(100));
        claims.handle_timeout(ms(300));
        assert_eq!(said(&claims), [at(STRANGER)]);
        claims.handle_timeout(ms(699));
        assert_eq!(said(&claims), [at(STRANGER)]);
        claims.handle_timeout(ms(700));
        assert_eq!(said(&claims), [at(STRANGER), lie]);
        assert_eq!(
            (claims.place(own), claims.place(at(MATE).address)),
            (Some(MATE), None)
        );
        assert!(actions(&mut claims).contains(&ClaimAction::Ask(own)));
    }

    /// Its frames come before its word does.
    #[test]
    fn a_mate_that_says_in_time_that_it_has_moved_was_none() {
        let mut claims = with_mate();
        let own: IpAddr = "10.9.0.12".parse().expect("a literal");
        let place = |mac| (BTreeSet::from([mac]), BTreeMap::from([(own, mac)]));
        let (mates, places) = place(MATE);
        claims.handle_mates(mates, places);
        let moved = Claimant {
            address: own,
            mac: STRANGER,
        };
        claims.handle_claim(moved, ms(0));
        let (mates, places) = place(STRANGER);
        claims.handle_mates(mates, places);
        claims.handle_timeout(ms(5000));
        assert_eq!(said(&claims), []);
        // Who is where it was is elsewhere now.
        let old = Claimant {
            address: own,
            mac: MATE,
        };
        claims.handle_claim(old, ms(6000));
        claims.handle_timeout(ms(6700));
        assert_eq!(said(&claims), [old]);
    }

    #[test]
    fn an_address_is_defended_once_in_ten_seconds() {
        let mut claims = with_mate();
        let mut defended = Vec::new();
        for now in (0..25_000).step_by(50) {
            claims.handle_claim(at(STRANGER), ms(now));
            claims.handle_timeout(ms(now));
            let all = actions(&mut claims).into_iter();
            defended.extend(
                all.filter(|it| matches!(it, ClaimAction::Defend(_)))
                    .map(|_| now),
            );
        }
        assert_eq!(defended, [200, 10_200, 20_200]);
    }

    /// It is repeated as long as somebody answers, and asked for once a second.
    #[test]
    fn as_long_as_somebody_answers_it_is_said() {
        let mut claims = with_mate();
        claims.handle_claim(at(STRANGER), ms(0));
        let mut asked = 0;
        while let Some(due) = claims.poll_timeout().filter(|due| *due < ms(20_000)) {
            claims.handle_timeout(due);
            for action in actions(&mut claims) {
                if matches!(action, ClaimAction::Ask(_)) {
                    asked += 1;
                    claims.handle_claim(at(STRANGER), due);
                }
            }
        }
        assert_eq!((said(&claims), asked), (vec![at(STRANGER)], 20));
    }

    /// Soon after a client has asked, if not just before; without that every ten seconds. A
    /// peer's question asks nobody: two would ask each other for ever.
    #[test]
    fn who_only_answers_is_asked() {
        let address = at(STRANGER).address;
        let mut claims = Claims::new([address], ms(0));
        claims.handle_mates(BTreeSet::from([MATE]), BTreeMap::new());
        let mut asked = |questions: &[(MacAddr, u64)], until: u64| {
            let mut asked = Vec::new();
            for now in (0..until).step_by(10) {
                for (asker, _) in questions.iter().filter(|(_, at)| *at == now) {
                    claims.handle_question(address, *asker, ms(now));
                }
                claims.handle_timeout(ms(now));
                let all = actions(&mut claims);
                asked.extend(all.iter().map(|_| now));
            }
            asked
        };
        let questions = [
            (MATE, 100),
            (STRANGER, 500),
            (STRANGER, 510),
            (STRANGER, 1490),
            (STRANGER, 5000),
        ];
        assert_eq!(asked(&questions, 20_000), [500, 1500, 5000, 15_000]);
    }

    #[test]
    fn made_up_claims_have_an_end() {
        let mut claims = with_mate();
        for number in 0..=255 {
            claims.handle_claim(at(MacAddr([6, 0, 0, 0, 0, number])), ms(0));
        }
        claims.handle_timeout(ms(200));
        assert_eq!(said(&claims).len(), MOST);
        let defences = actions(&mut claims).into_iter();
        let defences = defences.filter(|it| matches!(it, ClaimAction::Defend(_)));
        assert_eq!(defences.count(), 1);
    }
}
