//! What must hold, by what has been heard of the share.
//!
//! 1. *One voice.* No two data paths let segments out at one time, and who has
//!    been followed by another voice never speaks again.
//! 2. *Acknowledged means safe.* A node that goes on with the twins of a generation does
//!    so only if the last voice kept that stay up to its last word, or was about to
//!    begin it: no other node has owned in between, and no client was told more
//!    than the standby has.
//!    Sockets of one generation or ownership are never taken for those of another.
//! 3. *Protected means continued.* If nothing goes wrong but that the machine of
//!    an owner with a standby goes dark, the standby goes on with its twins.

use std::cmp::Ordering;

use godwit_wire::{Epoch, Generation};

use super::print::Mill;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Voice {
    pub(super) node: usize,
    pub(super) boots: u64,
    pub(super) epoch: Epoch,
}

/// What has been heard.
#[derive(Debug, Clone, Default)]
pub(super) struct Ghost {
    voice: Option<Voice>,
    /// The generation that it kept, when it was heard last.
    stay: Generation,
    /// Who must not be heard any more.
    retired: Vec<Voice>,
    /// Other stays that it kept: they must not be continued.
    left: Vec<Generation>,
    /// The generation that the next voice has to go on with.
    owed: Generation,
}

impl Ghost {
    /// A node is heard that keeps the generation `stay`, and went on with the twins of
    /// `from`, a generation with the owner of that epoch. What is wrong with that?
    pub(super) fn hear(
        &mut self,
        voice: Voice,
        stay: Generation,
        from: (Epoch, Generation),
    ) -> Option<String> {
        let last = std::mem::replace(&mut self.stay, stay);
        if self.voice == Some(voice) {
            self.leave(last, stay);
            return None;
        }
        let before = self.voice.replace(voice);
        let owed = std::mem::take(&mut self.owed);
        let wrong = self.judge(voice, before, last, from);
        self.left.clear();
        self.retired.extend(before);
        if wrong.is_none() && !owed.is_none() && from.1 != owed {
            return Some(format!("{voice:?} goes on without stay {owed}"));
        }
        wrong
    }

    fn judge(
        &self,
        voice: Voice,
        before: Option<Voice>,
        last: Generation,
        (epoch, from): (Epoch, Generation),
    ) -> Option<String> {
        if self.retired.contains(&voice) {
            return Some(format!("{voice:?} speaks again, after {before:?}"));
        }
        let safe = match before.map(|before| epoch.cmp(&before.epoch)) {
            // One that it neither keeps nor has left was about to begin.
            Some(Ordering::Equal) => from == last || !self.left.contains(&from),
            // Handed over to a node that was never heard.
            Some(Ordering::Greater) => from == last,
            Some(Ordering::Less) | None => false,
        };
        (!from.is_none() && !safe).then(|| {
            format!("{voice:?} goes on with stay {from}, which {before:?} had left for {last}")
        })
    }

    fn leave(&mut self, last: Generation, stay: Generation) {
        if last != stay && !last.is_none() && !self.left.contains(&last) {
            self.left.push(last);
        }
    }

    /// Nothing was wrong so far, and now the machine of the voice goes dark.
    pub(super) fn owe(&mut self, node: usize) {
        if self.voice.is_some_and(|voice| voice.node == node) {
            self.owed = self.stay;
        }
    }

    /// Something else has gone wrong as well.
    pub(super) const fn remit(&mut self) {
        self.owed = Generation::NONE;
    }

    pub(super) fn mix(&self, mill: &mut Mill) {
        let add = |mill: &mut Mill, voice: &Voice| {
            mill.add(voice.node as u64 + (voice.boots << 8));
            mill.add(voice.epoch.0);
        };
        mill.add(u64::from(self.stay.0) + (u64::from(self.owed.0) << 32));
        for voice in self.voice.iter().chain(&self.retired) {
            add(mill, voice);
        }
        for stay in &self.left {
            mill.add(u64::from(stay.0));
        }
        mill.add(self.retired.len() as u64 + ((self.left.len() as u64) << 32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: Generation = Generation(3);

    fn voice(node: usize, epoch: u64) -> Voice {
        Voice {
            node,
            boots: 0,
            epoch: Epoch(epoch),
        }
    }

    const NEW: (Epoch, Generation) = (Epoch::NONE, Generation::NONE);

    #[test]
    fn a_stay_that_was_kept_or_about_to_begin_may_be_continued() {
        for stay in [G, Generation::NONE] {
            let mut ghost = Ghost::default();
            assert_eq!(ghost.hear(voice(0, 1), stay, NEW), None);
            ghost.owe(0);
            let from = (Epoch(1), G);
            assert_eq!(ghost.hear(voice(1, 2), Generation::NONE, from), None);
            assert!(ghost.hear(voice(0, 1), G, NEW).is_some());
        }
    }

    #[test]
    fn a_stay_that_was_left_must_not_be_continued() {
        let mut ghost = Ghost::default();
        assert_eq!(ghost.hear(voice(0, 1), G, NEW), None);
        assert_eq!(ghost.hear(voice(0, 1), Generation::NONE, NEW), None);
        let from = (Epoch(1), G);
        assert!(ghost.hear(voice(1, 2), Generation::NONE, from).is_some());
    }

    #[test]
    fn who_stood_by_for_an_earlier_owner_must_not_continue() {
        let mut ghost = Ghost::default();
        assert_eq!(ghost.hear(voice(0, 1), Generation::NONE, NEW), None);
        assert_eq!(ghost.hear(voice(1, 2), Generation::NONE, NEW), None);
        let from = (Epoch(1), G);
        assert!(ghost.hear(voice(0, 3), Generation::NONE, from).is_some());
    }

    #[test]
    fn what_is_owed_has_to_be_continued() {
        let mut ghost = Ghost::default();
        assert_eq!(ghost.hear(voice(0, 1), G, NEW), None);
        ghost.owe(0);
        assert!(ghost.hear(voice(1, 2), Generation::NONE, NEW).is_some());
    }
}
