//! What one account may use up of an agent: places, memory, descriptors.
//!
//! Who runs as one account is one to an agent: it could trace its own processes in any
//! case. So limits are per account, and only what makes one process wait for another
//! is per process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::closing::{Closer, is_overfull};

/// Processes that an agent works for at a time, and those that have not said who they
/// are. Twice as many as of one account.
const MOST: usize = 512;

/// The same of one account.
const MOST_OF_ONE: usize = 256;

/// Of these, such as have not said who they are.
const STRANGERS_OF_ONE: usize = 32;

/// Bytes that wait for all processes of one account, as they do not listen.
const UNSAID: usize = 16 << 20;

/// Bytes of commits under way of all processes of one account.
const COMMITS: usize = 256 << 20;

/// Bytes that something may take, and does.
#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    taken: AtomicUsize,
}

/// Bytes taken from budgets, until this is dropped.
#[derive(Debug)]
pub struct Weight {
    bytes: usize,
    from: Vec<Arc<Budget>>,
}

impl Budget {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let taken = AtomicUsize::new(0);
        Arc::new(Self { most, taken })
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| {
            let taken = taken.checked_add(bytes)?;
            (taken <= self.most).then_some(taken)
        };
        let order = Ordering::Relaxed;
        self.taken.fetch_update(order, order, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Weight {
    /// `None` if one of the budgets has not so much left.
    pub(super) fn take(bytes: usize, budgets: &[&Arc<Budget>]) -> Option<Self> {
        let mut weight = Self {
            bytes,
            from: Vec::with_capacity(budgets.len()),
        };
        for budget in budgets {
            if !budget.take(bytes) {
                return None;
            }
            weight.from.push((*budget).clone());
        }
        Some(weight)
    }

    /// It is less than was thought.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        for budget in &self.from {
            budget.give_back(less);
        }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// One account.
#[derive(Debug)]
pub(super) struct Account {
    /// Its number, as the agent's user namespace has it.
    pub(super) uid: u32,
    pub(super) closer: Arc<Closer>,
    pub(super) unsaid: Arc<Budget>,
    pub(super) commits: Arc<Budget>,
}

/// All that have processes here. Used by one thread.
#[derive(Debug)]
pub(super) struct Accounts {
    known: BTreeMap<u32, Entry>,
    /// Descriptors that are not closed yet.
    unclosed: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Entry {
    account: Arc<Account>,
    strangers: usize,
    clients: usize,
}

impl Accounts {
    pub(super) fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            unclosed: Arc::default(),
        }
    }

    /// The account of this number.
    pub(super) fn get(&mut self, uid: u32) -> Arc<Account> {
        self.forget_idle();
        let unclosed = &self.unclosed;
        let entry = self.known.entry(uid).or_insert_with(|| Entry {
            account: Arc::new(Account {
                uid,
                closer: Closer::new(unclosed.clone()),
                unsaid: Budget::new(UNSAID),
                commits: Budget::new(COMMITS),
            }),
            strangers: 0,
            clients: 0,
        });
        entry.account.clone()
    }

    /// Those without a process, a descriptor or memory.
    fn forget_idle(&mut self) {
        self.known.retain(|_, entry| {
            let is_used = Arc::strong_count(&entry.account) > 1;
            entry.strangers + entry.clients > 0 || is_used || entry.account.closer.is_busy()
        });
    }

    /// Whether nobody may come in now.
    pub(super) fn are_overfull(&self) -> bool {
        is_overfull(&self.unclosed)
    }

    /// One more that has not said who it is; whether there is a place for it.
    pub(super) fn let_in(&mut self, uid: u32) -> bool {
        let all: usize = self.known.values().map(Entry::count).sum();
        let Some(entry) = self.known.get_mut(&uid) else {
            return false;
        };
        let room = all < MOST
            && entry.count() < MOST_OF_ONE
            && entry.strangers < STRANGERS_OF_ONE
            && !entry.account.closer.is_full();
        entry.strangers += usize::from(room);
        room
    }

    /// One of them has said who it is.
    pub(super) fn introduce(&mut self, uid: u32) {
        if let Some(entry) = self.known.get_mut(&uid) {
            entry.strangers = entry.strangers.saturating_sub(1);
            entry.clients += 1;
        }
    }

    /// One has gone, which had said so or not.
    pub(super) fn leave(&mut self, uid: u32, was_stranger: bool) {
        if let Some(entry) = self.known.get_mut(&uid) {
            let count = if was_stranger {
                &mut entry.strangers
            } else {
                &mut entry.clients
            };
            *count = count.saturating_sub(1);
        }
    }
}

impl Entry {
    const fn count(&self) -> usize {
        self.strangers + self.clients
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enters(accounts: &mut Accounts, uid: u32) -> bool {
        let _account = accounts.get(uid);
        let entered = accounts.let_in(uid);
        if entered {
            accounts.introduce(uid);
        }
        entered
    }

    #[test]
    fn one_account_leaves_half_of_the_places_to_others() {
        let mut accounts = Accounts::new();
        let entered = (0..MOST).filter(|_| enters(&mut accounts, 33)).count();
        assert_eq!(entered, MOST_OF_ONE);
        assert!(enters(&mut accounts, 34));
        accounts.leave(33, false);
        assert!(enters(&mut accounts, 33) && !enters(&mut accounts, 33));
    }

    #[test]
    fn strangers_of_one_account_are_few() {
        let mut accounts = Accounts::new();
        let _account = accounts.get(33);
        let entered = (0..MOST).filter(|_| accounts.let_in(33)).count();
        assert_eq!(entered, STRANGERS_OF_ONE);
        accounts.leave(33, true);
        assert!(accounts.let_in(33));
        accounts.introduce(33);
        assert!(accounts.let_in(33) && !accounts.let_in(33));
    }

    #[test]
    fn who_has_left_is_forgotten() {
        let mut accounts = Accounts::new();
        for uid in 0..1000 {
            assert!(enters(&mut accounts, uid));
            accounts.leave(uid, false);
        }
        assert_eq!(accounts.known.len(), 1);
    }

    #[test]
    fn a_weight_is_taken_from_all_budgets_or_none() {
        let (small, large) = (Budget::new(10), Budget::new(100));
        let mut one = Weight::take(8, &[&large, &small]).expect("it fits");
        assert!(Weight::take(8, &[&large, &small]).is_none());
        assert_eq!(large.taken.load(Ordering::Relaxed), 8, "nothing is lost");
        one.shrink(2);
        let other = Weight::take(8, &[&large, &small]).expect("it fits");
        drop((one, other));
        assert_eq!(small.taken.load(Ordering::Relaxed), 0);
        assert_eq!(large.taken.load(Ordering::Relaxed), 0);
        assert!(Weight::take(usize::MAX, &[&large]).is_none());
    }
}
