//! Tries everything, fewest faults first.
//!
//! From every state its usual course is followed until it comes to a state that
//! was seen before. Then every state of that course is left once more by every
//! fault that may come. A state that is first seen after so many faults can't be
//! reached with fewer, so each needs to be looked at once only.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::cluster::Cluster;
use super::{Bounds, Verdict};

const SHARDS: usize = 64;

/// A history without an end that never repeats itself is wrong. In a thousand
/// steps any is at rest again; see what a search prints as its depth.
const LONGEST: usize = 20_000;

/// A key that is a hash already.
#[derive(Debug, Default)]
struct Whole(u64);

impl Hasher for Whole {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// What usually follows a state, and whether all is well in it.
#[derive(Debug, Clone, Copy)]
struct Known {
    next: u64,
    whole: bool,
}

type Shard = HashMap<u64, Known, BuildHasherDefault<Whole>>;

/// All states that were seen.
#[derive(Debug)]
struct Seen(Vec<Mutex<Shard>>);

impl Seen {
    fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    fn shard(&self, digest: u64) -> std::sync::MutexGuard<'_, Shard> {
        let shard = usize::try_from(digest >> 58).unwrap_or(0) % SHARDS;
        self.0[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the state is new.
    fn meet(&self, digest: u64, whole: bool) -> bool {
        let mut new = false;
        self.shard(digest).entry(digest).or_insert_with(|| {
            new = true;
            Known { next: 0, whole }
        });
        new
    }

    fn follow(&self, digest: u64, next: u64) {
        if let Some(known) = self.shard(digest).get_mut(&digest) {
            known.next = next;
        }
    }

    fn count(&self) -> u64 {
        let sizes = self.0.iter().map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.len() as u64
        });
        sizes.sum()
    }

    /// A state from which the usual course of things goes round for ever and
    /// never comes by one in which all is well.
    fn astray(&self) -> Option<u64> {
        let mut all = Shard::default();
        for shard in &self.0 {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(shard.iter().map(|(digest, known)| (*digest, *known)));
        }
        let mut settled: HashSet<u64, BuildHasherDefault<Whole>> = HashSet::default();
        let mut starts: Vec<u64> = all.keys().copied().collect();
        starts.sort_unstable();
        for start in starts {
            let (mut path, mut at) = (Vec::new(), start);
            while all.contains_key(&at) && settled.insert(at) {
                path.push(at);
                at = all[&at].next;
            }
            // A circle that was closed just now, or the way into an older one.
            let Some(begin) = path.iter().position(|digest| *digest == at) else {
                continue;
            };
            if path[begin..].iter().all(|digest| !all[digest].whole) {
                return Some(at);
            }
        }
        None
    }
}

/// One search.
pub(super) struct Search {
    bounds: Arc<Bounds>,
    seen: Seen,
    /// A state that is looked for.
    wanted: Option<u64>,
    steps: AtomicUsize,
    longest: AtomicUsize,
    over: AtomicBool,
    wrong: Mutex<Option<(String, Cluster)>>,
}

impl Search {
    /// Tries everything within the bounds, or until something is wrong.
    pub(super) fn run(bounds: &Bounds) -> Verdict {
        let bounds = Arc::new(bounds.clone());
        let (mut verdict, astray) = Self::new(&bounds, None).exhaust();
        if let Some(digest) = astray.filter(|_| verdict.violation.is_none()) {
            // Once more, to see how that comes about.
            let (again, _) = Self::new(&bounds, Some(digest)).exhaust();
            let unknown = || vec![format!("state {digest:016x} leads nowhere")];
            verdict.violation = again.violation.or_else(|| Some(unknown()));
        }
        verdict
    }

    fn new(bounds: &Arc<Bounds>, wanted: Option<u64>) -> Self {
        Self {
            bounds: Arc::clone(bounds),
            seen: Seen::new(),
            wanted,
            steps: AtomicUsize::new(0),
            longest: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            wrong: Mutex::new(None),
        }
    }

    fn exhaust(self) -> (Verdict, Option<u64>) {
        let mut layer = self.begin();
        for faults in 1..=self.bounds.faults {
            layer = self.leave(&layer, faults < self.bounds.faults);
        }
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let violation = wrong.as_ref().map(|(what, cluster)| {
            let mut story = retrace(cluster);
            let end = format!("{what}, after {}", cluster.trail);
            story.push(end);
            story
        });
        drop(layer);
        let astray = if violation.is_none() && self.wanted.is_none() {
            self.seen.astray()
        } else {
            None
        };
        let verdict = Verdict {
            states: self.seen.count(),
            steps: self.steps.load(Ordering::Relaxed) as u64,
            depth: self.longest.load(Ordering::Relaxed) as u64,
            violation,
        };
        (verdict, astray)
    }

    /// The course of things without any fault.
    fn begin(&self) -> Vec<Cluster> {
        let mut kept = Vec::new();
        self.course(first(&self.bounds), Some(&mut kept));
        kept
    }

    /// Leaves each state of a layer by each fault; the states that are new, if
    /// they are to be left in turn.
    fn leave(&self, layer: &[Cluster], keep: bool) -> Vec<Cluster> {
        let place = AtomicUsize::new(0);
        let kept = Mutex::new(Vec::new());
        let work = || {
            let mut mine = Vec::new();
            while let Some(state) = layer.get(place.fetch_add(1, Ordering::Relaxed)) {
                for fault in state.faults() {
                    if self.over.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut next = state.clone();
                    next.suffer(fault);
                    self.course(next, keep.then_some(&mut mine));
                }
            }
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.append(&mut mine);
        };
        thread::scope(|scope| {
            for _ in 0..self.bounds.threads.max(1) {
                scope.spawn(work);
            }
        });
        kept.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the usual course, and that of each move that may be wanted on the
    /// way, as far as it is new.
    fn course(&self, first: Cluster, mut kept: Option<&mut Vec<Cluster>>) {
        let mut todo = vec![first];
        while let Some(mut state) = todo.pop() {
            let mut steps = 0;
            let mut last = None;
            loop {
                if state.trail.steps() > LONGEST {
                    state.violate(|| "this has no end".to_owned());
                }
                if let Some(what) = state.violation.take() {
                    self.report(what, state);
                    return;
                }
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
                let (digest, whole) = (state.digest(), state.is_whole());
                if let Some(last) = last.replace(digest) {
                    self.seen.follow(last, digest);
                }
                if !self.seen.meet(digest, whole) {
                    break;
                }
                if self.wanted == Some(digest) {
                    self.report("the cluster is never whole again".to_owned(), state);
                    return;
                }
                if let Some(kept) = &mut kept {
                    kept.push(state.clone());
                }
                if let Some(wish) = state.may_move() {
                    let mut moved = state.clone();
                    moved.suffer(wish);
                    todo.push(moved);
                }
                state.take(state.usual());
                steps += 1;
            }
            self.steps.fetch_add(steps, Ordering::Relaxed);
            self.longest
                .fetch_max(state.trail.steps(), Ordering::Relaxed);
        }
    }

    fn report(&self, what: String, state: Cluster) {
        self.over.store(true, Ordering::Relaxed);
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.get_or_insert((what, state));
    }
}

/// What happened until something was wrong, a line for each step.
fn retrace(wrong: &Cluster) -> Vec<String> {
    let mut state = first(&wrong.bounds);
    let mut lines = Vec::new();
    while state.trail.steps() < wrong.trail.steps() {
        let at = format!("{:>4} {:>4}", state.times.ticks(), state.trail.steps());
        if let Some(fault) = wrong.trail.fault_after(&state.trail) {
            lines.push(format!("{at}  fault: {fault:?}"));
            state.suffer(fault);
        } else {
            let step = state.usual();
            lines.push(format!("{at}  {}", state.say(step)));
            state.take(step);
        }
        lines.extend(state.roles());
    }
    lines
}

/// Where all histories begin.
fn first(bounds: &Arc<Bounds>) -> Cluster {
    let new = Cluster::new(bounds);
    if bounds.boot {
        return new;
    }
    let mut rest = settled(new);
    if bounds.away {
        while !rest.may_move_from(0) {
            rest.take(rest.usual());
        }
        rest.hand_over(0);
        rest = settled(rest);
    }
    rest
}

/// The state of a cluster that has been left alone until it repeats itself.
fn settled(mut state: Cluster) -> Cluster {
    let mut seen = HashSet::new();
    while seen.insert(state.digest()) {
        state.take(state.usual());
    }
    state.trail = super::trail::Trail::default();
    state
}
