//! Which of several directors answers for the services' addresses.
//!
//! ```text
//!            all others are heard, or it has waited            nobody else holds,
//!   waiting ────────────────────────────────────────► standby ◄──────────────────► holding
//!                                                            and no earlier one could
//! ```
//!
//! Whoever holds goes on until it is not heard any more: a director that comes back leaves
//! them where they are. If nobody does, the first in the file's order that is able to takes
//! them. Two that hold, for each could not hear the other, come to terms by that order.
//!
//! A director that no back-end answers, while one answers another director, is *cut off*: its own
//! link to them is lost. It leaves the addresses to the others as if it had no interface. If nobody
//! is answered all stays as it is: what keeps their questions back may let clients pass.
//!
//! Nothing of this is a lease: two at once do no harm, for they send a connection to the
//! same back-end as far as they have told each other of it.

use std::time::Duration;

use crate::MonoTime;

/// So long others must be answered where this director is not: if all are lost at once, one
/// notices it half a second after the other.
const DOUBT: Duration = Duration::from_secs(1);

/// What is known of another director.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fellow {
    /// It has not been heard, and may be there.
    #[default]
    Unknown,
    /// It is not heard, or has said goodbye.
    Gone,
    /// It lives, and can't hold the addresses: its interface is lost, or it is cut off.
    Unable,
    /// It lives, and could hold them.
    Able,
    /// It holds them.
    Holding,
}

/// Whether this director is to hold the services' addresses.
#[derive(Debug, Clone)]
pub struct Holder {
    /// How many directors stand before this one in the file.
    rank: usize,
    /// All others in the file's order.
    fellows: Vec<Fellow>,
    /// What they were when this one could hold them last.
    before: Vec<Fellow>,
    holds: bool,
    able: bool,
    /// Until when others are waited for; `None` once they have been heard, or time is up.
    waits: Option<MonoTime>,
    /// Whether those are waited for that were not heard while this one could not hold them.
    returns: bool,
    /// Whether a back-end answers this one; `None`: that is not known.
    answered: Option<bool>,
    /// Whether a back-end answers each of the others.
    others_answered: Vec<bool>,
    /// Since when others are answered, and this one is not.
    doubted: Option<MonoTime>,
    is_cut_off: bool,
}

impl Holder {
    /// The `rank`-th of the directors, with so many `fellows`: others. `holds`: the addresses
    /// are on this machine already, from an earlier life; they stay there if nobody else
    /// who is heard until `waits` has them.
    pub fn new(rank: usize, fellows: usize, holds: bool, waits: MonoTime) -> Self {
        let mut holder = Self {
            rank,
            fellows: vec![Fellow::Unknown; fellows],
            before: Vec::new(),
            holds,
            able: true,
            waits: Some(waits),
            returns: false,
            answered: None,
            others_answered: vec![false; fellows],
            doubted: None,
            is_cut_off: false,
        };
        holder.settle();
        holder
    }

    /// Whether it holds them.
    pub const fn holds(&self) -> bool {
        self.holds
    }

    /// What others are told of this one; nothing if it is [`Fellow::Unknown`]: it has the
    /// addresses of an earlier life, and does not know yet whether another one has held them
    /// since. Whoever has not goes by what that life has said, and leaves them there.
    pub const fn claim(&self) -> Fellow {
        match (self.can_hold(), self.holds, self.waits) {
            (false, ..) => Fellow::Unable,
            (true, true, None) => Fellow::Holding,
            // Those that have held meanwhile know more than it does.
            (true, true, Some(_)) => Fellow::Unknown,
            (true, false, _) => Fellow::Able,
        }
    }

    /// Whether no back-end answers this one, and one answers another that could hold them.
    pub const fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    const fn can_hold(&self) -> bool {
        self.able && !self.is_cut_off
    }

    /// Whether another one is known to hold them.
    pub fn is_held_elsewhere(&self) -> bool {
        self.fellows.contains(&Fellow::Holding)
    }

    /// Something was heard of another one, or should have been. `fellow` counts them in the
    /// file's order, without this one.
    pub fn handle_fellow(&mut self, fellow: usize, what: Fellow) {
        let is_waited_for = self.returns && self.waits.is_some();
        if let Some(known) = self.fellows.get_mut(fellow) {
            if is_waited_for && (*known, what) == (Fellow::Unknown, Fellow::Gone) {
                return;
            }
            *known = what;
            self.settle();
        }
    }

    /// Whether this one could hold them. One that could not has perhaps heard nobody either:
    /// those that it has not heard since are waited for until `waits`, before it takes them.
    pub fn handle_able(&mut self, able: bool, waits: MonoTime) {
        if self.able && !able {
            self.before.clone_from(&self.fellows);
        }
        if able && !self.able {
            let missed = self.fellows.iter_mut().zip(&self.before);
            let missed = missed.filter(|(it, was)| **it == Fellow::Gone && **was != Fellow::Gone);
            for (fellow, _) in missed {
                *fellow = Fellow::Unknown;
                (self.waits, self.returns) = (Some(waits), true);
            }
        }
        self.able = able;
        self.settle();
    }

    /// Whether a back-end answers this one; `None`: that is not known.
    pub fn handle_answered(&mut self, answered: Option<bool>, now: MonoTime) {
        self.answered = answered;
        self.judge(now);
    }

    /// Whether a back-end answers another one, as that says.
    pub fn handle_fellow_answered(&mut self, fellow: usize, answered: bool, now: MonoTime) {
        if let Some(known) = self.others_answered.get_mut(fellow) {
            *known = answered;
            self.judge(now);
        }
    }

    fn judge(&mut self, now: MonoTime) {
        let others = self.fellows.iter().zip(&self.others_answered);
        let mut others = others.filter(|(it, _)| matches!(it, Fellow::Able | Fellow::Holding));
        let is_other = self.answered == Some(false) && others.any(|(_, answered)| *answered);
        let since = is_other.then(|| self.doubted.unwrap_or(now));
        self.doubted = since;
        let is_cut_off = since.is_some_and(|since| now.since(since) >= DOUBT);
        if self.is_cut_off != is_cut_off {
            self.is_cut_off = is_cut_off;
            self.settle();
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        let doubted = self.doubted.filter(|_| !self.is_cut_off);
        let due = doubted.map(|since| since.saturating_add(DOUBT));
        self.waits.into_iter().chain(due).min()
    }

    /// Whoever has not been heard by then is not waited for.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        self.judge(now);
        if self.waits.is_some_and(|waits| waits <= now) {
            self.waits = None;
            for fellow in &mut self.fellows {
                if *fellow == Fellow::Unknown {
                    *fellow = Fellow::Gone;
                }
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        let is_held = self.is_held_elsewhere();
        let is_held_before = self.earlier().any(|it| it == Fellow::Holding);
        let is_new = self.waits.is_some();
        if is_new && (is_held || !self.fellows.contains(&Fellow::Unknown)) {
            self.waits = None;
        }
        if !self.can_hold() || is_held_before || (is_new && is_held) {
            self.holds = false;
        } else if !self.holds && self.waits.is_none() {
            let is_before = |it| matches!(it, Fellow::Able | Fellow::Unknown);
            self.holds = !is_held && !self.earlier().any(is_before);
        }
    }

    fn earlier(&self) -> impl Iterator<Item = Fellow> + '_ {
        self.fellows.iter().copied().take(self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn one_that_is_alone_holds_at_once() {
        let holder = Holder::new(0, 0, false, at(100));
        assert!(holder.holds());
        assert_eq!(
            (holder.claim(), holder.poll_timeout()),
            (Fellow::Holding, None)
        );
    }

    #[test]
    fn the_first_in_the_file_holds_at_first() {
        let mut first = Holder::new(0, 1, false, at(100));
        let mut second = Holder::new(1, 1, false, at(100));
        assert!(!first.holds() && !second.holds(), "they wait");
        second.handle_fellow(0, first.claim());
        first.handle_fellow(0, second.claim());
        assert!(first.holds() && !second.holds());
        second.handle_fellow(0, first.claim());
        assert!(second.is_held_elsewhere() && !second.holds());
    }

    #[test]
    fn nobody_is_waited_for_for_ever() {
        let mut second = Holder::new(1, 1, false, at(100));
        second.handle_timeout(at(99));
        assert!(!second.holds());
        second.handle_timeout(at(100));
        assert!(second.holds());
    }

    #[test]
    fn the_next_one_takes_over_and_the_first_one_leaves_it_so() {
        let mut second = Holder::new(1, 1, false, at(100));
        second.handle_fellow(0, Fellow::Holding);
        assert!(!second.holds());
        second.handle_fellow(0, Fellow::Gone);
        assert!(second.holds());
        // It comes back, with the addresses still on its machine.
        let mut first = Holder::new(0, 1, true, at(100));
        assert!(first.holds(), "for others may be gone");
        assert_eq!(first.claim(), Fellow::Unknown, "but others come first");
        first.handle_fellow(0, second.claim());
        assert!(!first.holds());
        assert_eq!(first.claim(), Fellow::Able);
        second.handle_fellow(0, first.claim());
        assert!(second.holds());
    }

    /// The second one in the file holds them and is started again. The first one took them from
    /// it, for it had said that it only could hold them.
    #[test]
    fn one_that_is_restarted_keeps_them() {
        for rank in [0, 1] {
            let mut other = Holder::new(1 - rank, 1, false, at(100));
            other.handle_fellow(0, Fellow::Holding);
            let mut restarted = Holder::new(rank, 1, true, at(100));
            assert_eq!(restarted.claim(), Fellow::Unknown, "so nothing is said");
            restarted.handle_fellow(0, other.claim());
            assert_eq!(restarted.claim(), Fellow::Holding);
            other.handle_fellow(0, restarted.claim());
            assert!(restarted.holds() && !other.holds());
        }
    }

    #[test]
    fn of_two_that_hold_the_later_one_gives_way() {
        let mut first = Holder::new(0, 1, false, at(0));
        let mut second = Holder::new(1, 1, false, at(0));
        for holder in [&mut first, &mut second] {
            holder.handle_timeout(at(0));
            assert!(holder.holds());
            holder.handle_fellow(0, Fellow::Holding);
        }
        assert!(first.holds() && !second.holds());
    }

    #[test]
    fn one_without_an_interface_leaves_it_to_others() {
        let mut first = Holder::new(0, 1, false, at(0));
        first.handle_fellow(0, Fellow::Able);
        assert!(first.holds());
        first.handle_able(false, at(0));
        assert_eq!((first.holds(), first.claim()), (false, Fellow::Unable));
        let mut second = Holder::new(1, 1, false, at(0));
        second.handle_fellow(0, Fellow::Holding);
        second.handle_fellow(0, first.claim());
        assert!(second.holds());
        first.handle_fellow(0, second.claim());
        first.handle_able(true, at(0));
        assert!(!first.holds(), "it is held");
    }

    /// Its only link was cut: it has heard nobody, and the other one has taken them.
    #[test]
    fn one_whose_link_comes_back_hears_first_who_has_them() {
        let mut first = Holder::new(0, 1, false, at(0));
        first.handle_fellow(0, Fellow::Able);
        assert!(first.holds());
        first.handle_able(false, at(0));
        first.handle_fellow(0, Fellow::Gone);
        first.handle_able(true, at(600));
        assert_eq!((first.holds(), first.claim()), (false, Fellow::Able));
        // It is still not heard, as everybody is told again and again.
        first.handle_fellow(0, Fellow::Gone);
        assert!(!first.holds());
        let mut alone = first.clone();
        first.handle_fellow(0, Fellow::Holding);
        assert!(!first.holds() && first.poll_timeout().is_none());
        // Nobody else is there after all.
        alone.handle_timeout(at(599));
        assert!(!alone.holds());
        alone.handle_timeout(at(600));
        assert!(alone.holds());
        // That one was gone before: nobody is waited for.
        alone.handle_able(false, at(700));
        alone.handle_able(true, at(1300));
        assert!(alone.holds());
    }

    /// Of three, the third does not go before the second.
    #[test]
    fn they_take_turns_in_the_order_of_the_file() {
        let mut third = Holder::new(2, 2, false, at(0));
        third.handle_fellow(0, Fellow::Holding);
        third.handle_fellow(1, Fellow::Able);
        third.handle_fellow(0, Fellow::Gone);
        assert!(!third.holds());
        third.handle_fellow(1, Fellow::Unable);
        assert!(third.holds());
        // A later one that holds is left alone by an earlier one.
        let mut second = Holder::new(1, 2, false, at(0));
        second.handle_fellow(0, Fellow::Gone);
        second.handle_fellow(1, Fellow::Holding);
        assert!(!second.holds());
    }

    /// Two that hear each other; the first holds, and back-ends answer both.
    fn answered_pair() -> [Holder; 2] {
        let mut pair = [0, 1].map(|rank| Holder::new(rank, 1, false, at(0)));
        pair[0].handle_fellow(0, Fellow::Able);
        pair[1].handle_fellow(0, Fellow::Holding);
        for holder in &mut pair {
            holder.handle_answered(Some(true), at(0));
            holder.handle_fellow_answered(0, true, at(0));
        }
        pair
    }

    /// Its data network is lost, and its control network is another one.
    #[test]
    fn one_that_no_back_end_answers_leaves_it_to_one_that_is_answered() {
        let [mut first, mut second] = answered_pair();
        first.handle_answered(Some(false), at(500));
        assert_eq!(first.poll_timeout(), Some(at(1500)));
        first.handle_timeout(at(1499));
        assert!(first.holds() && !first.is_cut_off());
        first.handle_timeout(at(1500));
        assert!(first.is_cut_off() && !first.holds());
        assert_eq!(
            (first.claim(), first.poll_timeout()),
            (Fellow::Unable, None)
        );
        second.handle_fellow(0, first.claim());
        assert!(second.holds());
        first.handle_fellow(0, second.claim());
        // Its link is mended: it leaves them there.
        first.handle_answered(Some(true), at(9000));
        assert_eq!((first.holds(), first.claim()), (false, Fellow::Able));
        second.handle_fellow(0, first.claim());
        assert!(second.holds());
    }

    /// A switch drops all questions; the two notice it one after the other.
    #[test]
    fn those_that_nobody_answers_stay_as_they_are() {
        let [mut first, mut second] = answered_pair();
        first.handle_answered(Some(false), at(200));
        first.handle_timeout(at(800));
        first.handle_fellow_answered(0, false, at(900));
        second.handle_answered(Some(false), at(900));
        second.handle_fellow_answered(0, false, at(300));
        for holder in [&mut first, &mut second] {
            holder.handle_timeout(at(60_000));
            assert!(!holder.is_cut_off());
            assert_eq!(holder.poll_timeout(), None);
        }
        assert!(first.holds() && !second.holds());
    }

    /// The one that it has left them to is gone: clients' segments may still pass here.
    #[test]
    fn one_that_is_cut_off_holds_again_if_nobody_else_can() {
        for gone in [Fellow::Gone, Fellow::Unable] {
            let [mut first, _] = answered_pair();
            first.handle_answered(Some(false), at(0));
            first.handle_timeout(at(1000));
            first.handle_fellow(0, Fellow::Holding);
            assert!(!first.holds());
            first.handle_fellow(0, gone);
            first.handle_timeout(at(2000));
            assert!(first.holds() && !first.is_cut_off(), "{gone:?}");
        }
    }

    #[test]
    fn nothing_follows_where_nobody_is_asked() {
        let [mut first, _] = answered_pair();
        first.handle_answered(None, at(0));
        first.handle_timeout(at(5000));
        assert!(first.holds() && !first.is_cut_off());
    }
}
