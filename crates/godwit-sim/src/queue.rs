//! What will happen, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Things that are due at some time; of two at one time the older comes first.
///
/// The heap sorts small keys only: what happens stays in its place.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
    places: Vec<Option<T>>,
    free: Vec<usize>,
    count: u64,
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self {
            due: BinaryHeap::new(),
            places: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }

    pub(crate) fn push(&mut self, at_ns: u64, what: T) {
        let place = self.free.pop().unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(Some(what));
        } else {
            self.places[place] = Some(what);
        }
        self.count += 1;
        self.due.push(Reverse((at_ns, self.count, place)));
    }

    /// The next thing, if it is due at `end_ns` or before.
    pub(crate) fn pop_until(&mut self, end_ns: u64) -> Option<(u64, T)> {
        let Reverse((at_ns, ..)) = self.due.peek()?;
        if *at_ns > end_ns {
            return None;
        }
        let Reverse((at_ns, _, place)) = self.due.pop()?;
        self.free.push(place);
        Some((at_ns, self.places[place].take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_of_two_the_older() {
        let mut queue = Queue::new();
        for (at, what) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b'), (9, 'e')] {
            queue.push(at, what);
        }
        let mut seen = String::new();
        while let Some((_, what)) = queue.pop_until(5) {
            seen.push(what);
        }
        assert_eq!(seen, "abcd");
        queue.push(6, 'f');
        assert_eq!(queue.pop_until(9), Some((6, 'f')));
        assert_eq!(queue.pop_until(9), Some((9, 'e')));
        assert_eq!(queue.pop_until(u64::MAX), None);
    }
}
