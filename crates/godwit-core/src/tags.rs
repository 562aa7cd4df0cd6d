//! How two servers, or a server and a director, agree on what proves, on the data network, whose
//! their frames are.
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
//!
//! Which frames have tags is a matter of the peer's version. From [`TAGS_VERSION`] on slips and
//! segments have, from [`ALL_TAGS_VERSION`] on all else that a server or a director makes itself,
//! too. Who says `Used` has heard before that which version it speaks with.

use godwit_wire::{ALL_TAGS_VERSION, TAGS_VERSION, TagDemand, TagWord};

/// What tags are made with.
pub type TagKey = [u8; 16];

/// Who the peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// A server of a service of this node.
    Server,
    /// A server and a director: one is this node, the other one is the peer.
    Director,
}

impl With {
    /// The first version in which such a peer is told a key.
    const fn first_version(self) -> u8 {
        match self {
            Self::Server => TAGS_VERSION,
            Self::Director => ALL_TAGS_VERSION,
        }
    }
}

/// What is agreed with one peer.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Tags {
    /// What it is sent has tags of this.
    pub out: Option<TagKey>,
    /// What it sends may have tags of this ...
    pub believed: Option<TagKey>,
    /// ... or of this, which it was told earlier.
    pub before: Option<TagKey>,
    /// What it is sent of notes, probes and canaries has tags, too.
    pub all: bool,
    /// What it sends without a tag, and is not of it.
    pub demanded: TagDemand,
    /// It has not said yet that it uses what it is believed by.
    pub pending: bool,
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
        (all, demanded, pending): (bool, TagDemand, bool),
    ) -> Self {
        Self {
            out,
            believed,
            before,
            all,
            demanded,
            pending,
        }
    }

    /// For people: whether its frames are proved.
    pub const fn as_str(&self) -> &'static str {
        match self.demanded {
            TagDemand::All => "demanded",
            TagDemand::Segments => "partly",
            TagDemand::Nothing if self.believed.is_some() => "believed",
            TagDemand::Nothing => "none",
        }
    }

    /// It has introduced itself over a new link. `fresh` is a key that nobody knows. Says what
    /// it is to be told, once that is believed.
    pub fn greet(&mut self, with: With, version: u8, fresh: TagKey) -> Option<TagWord> {
        if version < with.first_version() {
            *self = Self::default();
            return None;
        }
        self.all = version >= ALL_TAGS_VERSION;
        // An earlier version than the one that has said so tags less.
        if !self.all && self.demanded == TagDemand::All {
            self.demanded = TagDemand::Segments;
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
                self.demanded = match (self.believed, self.all) {
                    (None, _) => TagDemand::Nothing,
                    (Some(_), false) => TagDemand::Segments,
                    (Some(_), true) => TagDemand::All,
                };
                self.pending = false;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u8 = ALL_TAGS_VERSION;
    const VERSIONS: [u8; 3] = [TAGS_VERSION - 1, TAGS_VERSION, ALL_TAGS_VERSION];

    /// One of two, and the version that it runs.
    #[derive(Clone, Copy)]
    struct End {
        tags: Tags,
        version: u8,
        /// It has come back with nothing, and has not had a whole link yet.
        is_new: bool,
    }

    /// Two that link again and again.
    struct Pair {
        with: With,
        ends: [End; 2],
        fresh: u128,
    }

    fn key(of: u128) -> TagKey {
        of.to_be_bytes()
    }

    fn knows(key: TagKey, by: &Tags) -> bool {
        [by.believed, by.before].contains(&Some(key))
    }

    /// Is a segment, or a slip, that `from` sends now believed by `by`?
    fn is_believed(from: &End, by: &End) -> bool {
        match from.tags.out {
            None => by.tags.demanded == TagDemand::Nothing,
            Some(key) => knows(key, &by.tags),
        }
    }

    /// The same of a note, a probe or a canary. With a tag of an unknown key it is as one without.
    fn is_note_believed(from: &End, by: &End) -> bool {
        let tagged = from.tags.out.filter(|_| from.tags.all);
        let is_understood = tagged.is_none() || by.version >= ALL_TAGS_VERSION;
        let is_proved = tagged.is_some_and(|key| knows(key, &by.tags));
        is_understood && (is_proved || by.tags.demanded != TagDemand::All)
    }

    impl Pair {
        fn new(with: With, versions: [u8; 2]) -> Self {
            let end = |version| End {
                tags: Tags::default(),
                version,
                is_new: false,
            };
            Self {
                with,
                ends: versions.map(end),
                fresh: 0,
            }
        }

        fn check(&self) {
            let [a, b] = &self.ends;
            for (from, by) in [(a, b), (b, a)] {
                if from.is_new {
                    continue;
                }
                // Of a slip a tag of an unknown key is a forgery at once.
                let is_believed = by.is_new || is_believed(from, by);
                assert!(is_believed, "{:?} {:?}", from.tags, by.tags);
                assert!(is_note_believed(from, by), "{:?} {:?}", from.tags, by.tags);
            }
        }

        /// An end's hello reaches the other one. One of before there were tags says nothing.
        fn greet(&mut self, by: usize) -> Option<TagWord> {
            self.fresh += 1;
            let version = self.ends[1 - by].version;
            let end = &mut self.ends[by];
            if end.version < self.with.first_version() {
                return None;
            }
            let word = end.tags.greet(self.with, version, key(self.fresh));
            // What it does not know of it leaves alone.
            end.tags.all &= end.version >= ALL_TAGS_VERSION;
            word
        }

        /// A link that is cut after so many messages.
        fn link(&mut self, steps: usize) {
            let mut told = Vec::new();
            for by in [0, 1] {
                told.extend(self.greet(by).map(|word| (word, 1 - by)));
                self.check();
            }
            for _ in 0..steps {
                if told.is_empty() {
                    break;
                }
                let (word, to) = told.remove(0);
                let answer = self.ends[to].tags.hear(word);
                told.extend(answer.map(|answer| (answer, 1 - to)));
                self.check();
            }
            if told.is_empty() {
                self.ends.iter_mut().for_each(|end| end.is_new = false);
            }
        }

        /// The machine of an end dies, and comes back.
        fn die(&mut self, end: usize) {
            let end = &mut self.ends[end];
            end.tags = Tags::default();
            end.is_new = true;
        }

        /// The next agent of an end finds what its data path goes by.
        fn restart(&mut self, end: usize, version: u8) {
            let end = &mut self.ends[end];
            let left = end.tags;
            let keys = (left.believed, left.before);
            let demanded = (left.all, left.demanded, left.pending);
            end.tags = Tags::resume(left.out, keys, demanded);
            end.version = version;
        }
    }

    /// Links that are cut after each possible number of messages, with and without a new life of
    /// either agent: whatever is sent at any moment is believed.
    #[test]
    fn nothing_that_is_sent_is_refused_while_keys_change() {
        for with in [With::Server, With::Director] {
            for cuts in 0..5_usize.pow(3) {
                let mut pair = Pair::new(with, [NOW, NOW]);
                for steps in [cuts % 5, cuts / 5 % 5, cuts / 25] {
                    pair.link(steps);
                }
                pair.link(4);
                let demanded = pair.ends.map(|end| end.tags.demanded);
                assert_eq!(demanded, [TagDemand::All; 2]);
                let before = pair.ends[0].tags;
                pair.restart(0, NOW);
                pair.link(4);
                let after = pair.ends[0].tags;
                assert!(after.believed != before.believed && after.out != before.out);
                assert_eq!(after.before, before.believed, "frames may be under way");
            }
        }
    }

    /// All pairs of versions, servers and directors, where first one and then the other goes on
    /// with the latest: what is sent meanwhile is believed, and in the end all is demanded.
    #[test]
    fn nothing_that_is_sent_is_refused_while_versions_change() {
        for with in [With::Server, With::Director] {
            for (a, b) in VERSIONS.into_iter().flat_map(|a| VERSIONS.map(|b| (a, b))) {
                for cuts in 0..5_usize.pow(3) {
                    let mut pair = Pair::new(with, [a, b]);
                    pair.link(4);
                    pair.link(cuts % 5);
                    pair.restart(0, NOW);
                    pair.link(cuts / 5 % 5);
                    pair.restart(1, NOW);
                    pair.link(cuts / 25);
                    pair.link(4);
                    let said = pair.ends.map(|end| end.tags.as_str());
                    assert_eq!(said, ["demanded"; 2], "{with:?} {a} {b} {cuts}");
                }
            }
        }
    }

    /// Long histories, drawn: links that are cut anywhere, agents that are started anew, machines
    /// that die and come back with nothing. Nothing true is refused, but of who has come back: it
    /// has no key yet, and a link gives it one.
    #[test]
    fn nothing_true_is_refused_however_links_and_machines_die() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below).expect("it is small")
        };
        for history in 0..2000 {
            let with = [With::Server, With::Director][history % 2];
            let mut pair = Pair::new(with, [NOW, NOW]);
            for _ in 0..40 {
                match draw(4) {
                    0 => pair.restart(draw(2), NOW),
                    1 if draw(4) == 0 => pair.die(draw(2)),
                    _ => pair.link(draw(6)),
                }
                pair.check();
            }
            pair.link(4);
            let said = pair.ends.map(|end| end.tags.as_str());
            assert_eq!(said, ["demanded"; 2], "{history}");
        }
    }

    #[test]
    fn a_peer_that_knows_no_tags_is_asked_for_none() {
        let mut it = Tags::default();
        let server = With::Server;
        assert_eq!(it.greet(server, TAGS_VERSION - 1, key(1)), None);
        assert_eq!((it, it.as_str()), (Tags::default(), "none"));
        let told = it.greet(server, NOW, key(1));
        assert_eq!(told, Some(TagWord::Key(key(1))));
        assert_eq!(it.as_str(), "believed");
        it.hear(TagWord::Used);
        assert_eq!(it.as_str(), "demanded");
        // Its node went back to an earlier version.
        it.greet(server, TAGS_VERSION, key(2));
        assert_eq!((it.all, it.as_str()), (false, "partly"));
        assert_eq!(it.greet(server, TAGS_VERSION - 1, key(3)), None);
        assert_eq!(it, Tags::default());
        // Directors have known no tags before all were.
        assert_eq!(it.greet(With::Director, TAGS_VERSION, key(4)), None);
        assert_eq!(it, Tags::default());
    }

    #[test]
    fn nobody_uses_what_it_was_not_told() {
        let mut it = Tags::default();
        assert_eq!(it.hear(TagWord::Used), None);
        assert_eq!(it.demanded, TagDemand::Nothing);
    }
}
