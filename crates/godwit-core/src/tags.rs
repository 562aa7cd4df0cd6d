//! How two servers agree on what proves, on the data network, whose their frames are.
//!
//! Each makes the key of what the other sends it, and tells it over the authenticated link.
//! No frame that is under way is lost by a change of keys: a key is believed before it is told,
//! it is used once it was told, and what has no tag is refused only when the sender has said
//! that it uses it. The key before it is believed for as long as there is no later one.
//!
//! ```text
//!   a                              b
//!   believes k  ── Key(k) ──────►  tags with k
//!   demands k   ◄── Used ────────
//! ```

use godwit_wire::{TAGS_VERSION, TagWord};

/// What tags are made with.
pub type TagKey = [u8; 16];

/// What is agreed with one peer.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Tags {
    /// What it is sent has tags of this.
    pub out: Option<TagKey>,
    /// What it sends may have tags of this ...
    pub believed: Option<TagKey>,
    /// ... or of this, which it was told earlier.
    pub before: Option<TagKey>,
    /// What it sends without a tag is not of it.
    pub demanded: bool,
    /// It has not said yet that it uses what it is believed by.
    pending: bool,
}

/// Keys are secrets, so they are not printed.
impl core::fmt::Debug for Tags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Tags {
    /// What an earlier agent has agreed on: its data path goes by it.
    pub const fn resume(
        out: Option<TagKey>,
        (believed, before): (Option<TagKey>, Option<TagKey>),
        demanded: bool,
    ) -> Self {
        Self {
            out,
            believed,
            before,
            demanded,
            pending: false,
        }
    }

    /// For people: whether its frames are proved.
    pub const fn as_str(&self) -> &'static str {
        if self.demanded {
            "demanded"
        } else if self.believed.is_some() {
            "believed"
        } else {
            "none"
        }
    }

    /// It has introduced itself over a new link. `fresh` is a key that nobody knows. Says what
    /// it is to be told, once that is believed.
    pub fn greet(&mut self, version: u8, fresh: TagKey) -> Option<TagWord> {
        if version < TAGS_VERSION {
            *self = Self::default();
            return None;
        }
        // One that was told and perhaps not heard is told again: it may be in use.
        if !self.pending {
            self.before = self.believed.take();
        }
        let key = *self.believed.get_or_insert(fresh);
        self.pending = true;
        Some(TagWord::Key(key))
    }

    /// It speaks of tags. Says what it is to be told, once that is so.
    pub const fn hear(&mut self, word: TagWord) -> Option<TagWord> {
        match word {
            TagWord::Key(key) => {
                self.out = Some(key);
                Some(TagWord::Used)
            }
            TagWord::Used => {
                // Nobody uses what it was not told.
                self.demanded = self.believed.is_some();
                self.pending = false;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u8 = TAGS_VERSION;

    /// Would what `from` sends now be believed by `by`?
    fn is_believed(from: &Tags, by: &Tags) -> bool {
        match from.out {
            None => !by.demanded,
            key => key == by.believed || key == by.before,
        }
    }

    fn key(of: u128) -> TagKey {
        of.to_be_bytes()
    }

    /// Links that are cut after each possible number of messages, with and without a new life of
    /// either agent: whatever is sent at any moment is believed.
    #[test]
    fn nothing_that_is_sent_is_refused_while_keys_change() {
        let mut fresh = 0..;
        let mut link = |a: &mut Tags, b: &mut Tags, steps: usize| {
            let mut told = Vec::new();
            for (from, to_b) in [(&mut *a, true), (&mut *b, false)] {
                let next = fresh.next().expect("there are enough");
                told.extend(from.greet(NOW, key(next)).map(|word| (word, to_b)));
            }
            let mut steps = 0..steps;
            while let (Some(_), false) = (steps.next(), told.is_empty()) {
                let (word, to_b) = told.remove(0);
                let to = if to_b { &mut *b } else { &mut *a };
                told.extend(to.hear(word).map(|answer| (answer, !to_b)));
                assert!(is_believed(a, b) && is_believed(b, a), "{a:?} {b:?}");
            }
        };
        for cuts in 0..5_usize.pow(3) {
            let (mut a, mut b) = (Tags::default(), Tags::default());
            for steps in [cuts % 5, cuts / 5 % 5, cuts / 25] {
                link(&mut a, &mut b, steps);
            }
            link(&mut a, &mut b, 4);
            assert!(a.demanded && b.demanded);
            let before = a;
            // The next agent of this node finds what its data path goes by.
            a = Tags::resume(a.out, (a.believed, a.before), a.demanded);
            link(&mut a, &mut b, 4);
            assert!(a.believed != before.believed && a.out != before.out);
            assert_eq!(a.before, before.believed, "frames may be under way");
        }
    }

    #[test]
    fn a_peer_that_knows_no_tags_is_asked_for_none() {
        let mut it = Tags::default();
        assert_eq!(it.greet(NOW - 1, key(1)), None);
        assert_eq!((it, it.as_str()), (Tags::default(), "none"));
        let told = it.greet(NOW, key(1));
        assert_eq!(told, Some(TagWord::Key(key(1))));
        assert_eq!(it.as_str(), "believed");
        it.hear(TagWord::Used);
        assert_eq!(it.as_str(), "demanded");
        // Its node went back to an earlier version.
        assert_eq!(it.greet(NOW - 1, key(2)), None);
        assert_eq!(it, Tags::default());
    }

    #[test]
    fn nobody_uses_what_it_was_not_told() {
        let mut it = Tags::default();
        assert_eq!(it.hear(TagWord::Used), None);
        assert!(!it.demanded);
    }
}
