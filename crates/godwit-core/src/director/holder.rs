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
//! Nothing of this is a lease: two at once do no harm, for they send a connection to the
//! same back-end as far as they have told each other of it.

use crate::MonoTime;

/// What is known of another director.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fellow {
    /// It has not been heard, and may be there.
    #[default]
    Unknown,
    /// It is not heard, or has said goodbye.
    Gone,
    /// It lives, and can't hold the addresses: its interface is lost.
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
        match (self.able, self.holds, self.waits) {
            (false, ..) => Fellow::Unable,
            (true, true, None) => Fellow::Holding,
            // Those that have held meanwhile know more than it does.
            (true, true, Some(_)) => Fellow::Unknown,
            (true, false, _) => Fellow::Able,
        }
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

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub const fn poll_timeout(&self) -> Option<MonoTime> {
        self.waits
    }

    /// Whoever has not been heard by then is not waited for.
    pub fn handle_timeout(&mut self, now: MonoTime) {
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
        if !self.able || is_held_before || (is_new && is_held) {
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
}
