//! Many histories, on several threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::history::{self, Outcome};
use crate::mutant::Mutant;
use crate::tally::Tally;

/// When a run ends, and what it is of.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The first seed; each history has the next one.
    pub seed: u64,
    /// Ends when so many faults have counted.
    pub faults: u64,
    /// Ends after this time.
    pub time: Duration,
    /// Ends when so many histories were wrong.
    pub violations: usize,
    /// How many threads work on it.
    pub threads: usize,
    /// What is missing.
    pub mutant: Option<Mutant>,
}

/// Runs histories until a limit is reached: sums, and those that were wrong,
/// by seed.
///
/// Which histories are run depends on how fast the machine is; each by itself
/// does not.
pub fn run(limits: &Limits) -> (Tally, Vec<Outcome>) {
    let next = AtomicU64::new(limits.seed);
    let faults = AtomicU64::new(0);
    let sums = Mutex::new((Tally::default(), Vec::new()));
    let begun = Instant::now();
    let work = || {
        loop {
            let wrong = sums.lock().map_or(usize::MAX, |sums| sums.1.len());
            let enough = faults.load(Ordering::Relaxed) >= limits.faults;
            if enough || wrong >= limits.violations || begun.elapsed() >= limits.time {
                return;
            }
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let outcome = guarded(seed, limits.mutant);
            faults.fetch_add(outcome.tally.faults, Ordering::Relaxed);
            if let Ok(mut sums) = sums.lock() {
                sums.0.add(&outcome.tally);
                if outcome.violation.is_some() {
                    sums.1.push(outcome);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..limits.threads.max(1) {
            scope.spawn(work);
        }
    });
    let (tally, mut wrong) = sums.into_inner().unwrap_or_default();
    wrong.sort_by_key(|outcome| outcome.seed);
    (tally, wrong)
}

/// A core that panics is wrong too.
fn guarded(seed: u64, mutant: Option<Mutant>) -> Outcome {
    let run = AssertUnwindSafe(|| history::run(seed, mutant, false));
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Outcome {
            seed,
            tally: Tally::default(),
            violation: Some(format!("panic: {}", text.unwrap_or("of unknown kind"))),
        }
    })
}
