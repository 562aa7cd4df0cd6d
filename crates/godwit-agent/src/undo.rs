//! Steps of a start that are undone, the latest first, if a later one fails.
//!
//! ```text
//! let installed = Step::new(Installed::new(config)?, Installed::remove);
//! let edge = Step::new(Edge::start(prepared)?, stop);
//! listen()?;                               // fails: stop(edge), then installed.remove()
//! let (edge, installed) = (edge.keep(), installed.keep());
//! ```

use std::ops::Deref;

/// What a step has made, with how it is undone. It is when this is dropped, unless it was
/// [kept](Step::keep).
#[derive(Debug)]
pub(crate) struct Step<T> {
    made: Option<T>,
    undo: fn(T),
}

impl<T> Step<T> {
    pub(crate) const fn new(made: T, undo: fn(T)) -> Self {
        Self {
            made: Some(made),
            undo,
        }
    }

    /// Nothing that could fail comes any more, or what comes undoes it itself.
    pub(crate) fn keep(mut self) -> T {
        self.made.take().expect("it is taken here or in drop alone")
    }
}

impl<T> Deref for Step<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.made.as_ref().expect("it is there until it is kept")
    }
}

impl<T> Drop for Step<T> {
    fn drop(&mut self) {
        if let Some(made) = self.made.take() {
            (self.undo)(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static UNDONE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    fn undo(step: u8) {
        UNDONE.with_borrow_mut(|undone| undone.push(step));
    }

    /// As a start does: three steps, of which the last may fail.
    fn start(fails: bool) -> Result<(u8, u8), ()> {
        let first = Step::new(1, undo);
        let second = Step::new(*first + 1, undo);
        if fails {
            return Err(());
        }
        Ok((first.keep(), second.keep()))
    }

    #[test]
    fn the_latest_step_is_undone_first() {
        assert_eq!(start(true), Err(()));
        assert_eq!(UNDONE.take(), [2, 1]);
    }

    #[test]
    fn what_is_kept_stays() {
        assert_eq!(start(false), Ok((1, 2)));
        assert!(UNDONE.take().is_empty());
    }
}
