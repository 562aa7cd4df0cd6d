//! What makes two states one.
//!
//! A machine of the core is known by what it prints (`Debug`): no type of the
//! core has to learn anything for the checker's sake. Three things are not taken
//! as they stand. Times count from now, so that a cluster at rest is one state,
//! however long it rests. What only counts or only tells is left out, see
//! [`is_left_out`]. A time beyond [`LONG_AGO`] is long ago: no duration goes back
//! that far. Which of two such times was first is not told apart either; it could
//! matter to a voter that has accepted nothing for more than three terms.

use std::fmt::{self, Write};

use super::time::{LONG_AGO, Times};

/// What something prints, times apart.
#[derive(Debug, Clone, Default)]
pub(super) struct Print(Vec<Word>);

#[derive(Debug, Clone, Copy)]
enum Word {
    /// Hash of a stretch of text.
    Text(u64),
    /// A time of some machine's clock.
    Time(u64),
    /// When a machine sent something, and when another one got it.
    Way(u64, u64),
}

impl Print {
    /// Of anything that prints itself.
    pub(super) fn of(what: &impl fmt::Debug) -> Self {
        let mut reader = Reader::default();
        // Writing to memory does not fail.
        let _ = write!(reader, "{what:?}");
        reader.close();
        reader.print
    }

    /// Mixes it into a digest, as seen now.
    pub(super) fn mix(&self, mill: &mut Mill, times: &Times) {
        for word in &self.0 {
            match *word {
                Word::Text(text) => mill.add(text),
                Word::Time(time) => mill.add(times.age(time).min(LONG_AGO).cast_unsigned()),
                Word::Way(sent, got) => {
                    let (sent, got) = (times.age(sent), times.age(got));
                    mill.add(got.min(LONG_AGO).cast_unsigned());
                    mill.add((sent - got).cast_unsigned());
                }
            }
        }
    }
}

/// Hashes 64 bits at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mill(u64);

impl Mill {
    pub(super) const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub(super) const fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 ^= self.0 >> 32;
    }

    pub(super) const fn digest(&self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 29).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ mixed >> 32
    }

    fn text(&mut self, text: &str) {
        let (words, rest) = text.as_bytes().as_chunks();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let length = rest.len() as u64;
        self.add(
            rest.iter()
                .fold(length, |all, byte| all << 8 | u64::from(*byte)),
        );
    }
}

/// Structures of which something is treated in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    Line,
    Detector,
    ShareSide,
    ShareLease,
    Proposer,
    Tenure,
    Damping,
    Machine,
    Acceptor,
    Node,
    Pace,
    Datagram,
    #[default]
    Other,
}

impl Kind {
    fn named(name: &str) -> Self {
        match name {
            "Line" => Self::Line,
            "Detector" => Self::Detector,
            "ShareSide" => Self::ShareSide,
            "ShareLease" => Self::ShareLease,
            "Proposer" => Self::Proposer,
            "Tenure" => Self::Tenure,
            "Damping" => Self::Damping,
            "ShareMachine" => Self::Machine,
            "Acceptor" => Self::Acceptor,
            "Node" => Self::Node,
            "Pace" => Self::Pace,
            "LeaseDatagram" => Self::Datagram,
            _ => Self::Other,
        }
    }
}

/// What does not make a difference, or none that matters here:
///
/// - configuration, the same in all states;
/// - numbers of datagrams: those that are under way are newer than what was
///   heard, for they arrive in order or not at all;
/// - statistics and times that are only told to people;
/// - repeated announcements and probes, which nothing follows from;
/// - how often a standby has failed: none is held off for it here (`flap_limit`);
/// - what candidates draw when they have met: of two states that differ in
///   nothing else one stands for both.
fn is_left_out(kind: Kind, field: &str) -> bool {
    match kind {
        Kind::Line => matches!(field, "sent" | "heard" | "ignored"),
        Kind::Detector => matches!(
            field,
            "config" | "sequence" | "heard" | "ignored" | "max_interval"
        ),
        Kind::ShareSide => matches!(field, "name" | "announce" | "revive" | "policy" | "members"),
        Kind::ShareLease => matches!(
            field,
            "audience" | "ears" | "terms" | "servers" | "lapsed_at"
        ),
        Kind::Proposer => matches!(field, "config" | "backoff"),
        Kind::Tenure | Kind::Acceptor => field == "terms",
        Kind::Machine => field == "config",
        Kind::Damping => field == "failures",
        Kind::Node => matches!(field, "hello" | "name"),
        Kind::Datagram => field == "sequence",
        Kind::Pace | Kind::Other => false,
    }
}

/// Where the reader is in what a type prints.
#[derive(Debug, Clone, Copy)]
enum Level {
    /// In a structure; the next piece of text may be the name of a field.
    Fields(Kind, bool),
    /// In a list, a map or a tuple.
    Items,
}

/// Takes in what derived `Debug` writes, piece by piece.
#[derive(Debug)]
struct Reader {
    print: Print,
    mill: Mill,
    levels: Vec<Level>,
    /// The structure that may begin.
    last: Kind,
    /// Leaves out a field at that depth.
    skips: Option<usize>,
    /// Whether the times that come are those of a proposal: when it was sent, and
    /// when it was heard.
    pairs: bool,
    /// The first of the two.
    sent: Option<u64>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            print: Print::default(),
            mill: Mill::new(),
            levels: Vec::with_capacity(16),
            last: Kind::Other,
            skips: None,
            pairs: false,
            sent: None,
        }
    }
}

impl Reader {
    fn close(&mut self) {
        let text = std::mem::replace(&mut self.mill, Mill::new());
        self.print.0.push(Word::Text(text.digest()));
    }

    fn time(&mut self, time: u64) {
        match (self.pairs, self.sent.take()) {
            (false, _) => {
                self.close();
                self.print.0.push(Word::Time(time));
            }
            (true, None) => self.sent = Some(time),
            (true, Some(sent)) => {
                self.close();
                self.print.0.push(Word::Way(sent, time));
            }
        }
    }

    fn open(&mut self, level: Level) {
        self.levels.push(level);
    }

    fn shut(&mut self) {
        if self.skips.is_some_and(|depth| depth >= self.levels.len()) {
            self.skips = None;
        }
        self.levels.pop();
    }

    /// After `, `: another field, or another item.
    fn next(&mut self) {
        if self.skips.is_some_and(|depth| depth == self.levels.len()) {
            self.skips = None;
        }
        if let Some(Level::Fields(_, named)) = self.levels.last_mut() {
            *named = true;
        }
    }

    /// Whether the text is the name of a field. If so, it may be left out.
    fn is_field(&mut self, text: &str) -> bool {
        let depth = self.levels.len();
        let Some(Level::Fields(kind, named @ true)) = self.levels.last_mut() else {
            return false;
        };
        *named = false;
        self.pairs = *kind == Kind::Pace && matches!(text, "number" | "at");
        if is_left_out(*kind, text) {
            self.skips = Some(depth);
        }
        true
    }
}

impl Write for Reader {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let first = text.as_bytes().first().copied().unwrap_or_default();
        match first {
            b' ' | b'{' | b'}' | b'[' | b']' | b'(' | b')' | b',' => match text {
                " { " => self.open(Level::Fields(self.last, true)),
                "{" | "[" | "(" => self.open(Level::Items),
                " }" | ", .. }" | "}" | "]" | ")" => self.shut(),
                ", " => self.next(),
                _ => {}
            },
            _ if self.skips.is_some() => return Ok(()),
            b'0'..=b'9' => {
                // A time has sixteen digits or more.
                let number = (text.len() > 15).then(|| text.parse().ok()).flatten();
                if let Some(time) = number.filter(|number| Times::is_time(*number)) {
                    self.time(time);
                    return Ok(());
                }
            }
            _ => {
                if !self.is_field(text) && first.is_ascii_uppercase() {
                    self.last = Kind::named(text);
                }
            }
        }
        if self.skips.is_none() {
            self.mill.text(text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::time::LEAST_TICKS;
    use super::*;

    /// Named as the ones of the core.
    #[derive(Debug)]
    #[expect(dead_code, reason = "it is printed")]
    struct Detector {
        ignored: Vec<(u8, Option<u8>)>,
        deadline: u64,
        state: (u8, u8),
    }

    fn digest(what: &impl fmt::Debug, ticks: u32) -> u64 {
        let mut times = Times::new([0; 3], LEAST_TICKS);
        for _ in 0..ticks {
            times.pass();
        }
        let mut mill = Mill::new();
        Print::of(what).mix(&mut mill, &times);
        mill.digest()
    }

    /// What a voter knows of a holder's proposals.
    #[derive(Debug, Clone, Copy)]
    #[expect(dead_code, reason = "it is printed")]
    struct Pace {
        incarnation: u64,
        number: u64,
        at: u64,
        since: u64,
    }

    #[test]
    fn a_proposal_is_known_by_how_long_it_took() {
        let mut times = Times::new([0; 3], LEAST_TICKS);
        let since = times.now(2).0;
        let pace = |times: &Times| Pace {
            incarnation: 1,
            number: times.now(0).0,
            at: times.now(2).0,
            since,
        };
        let digest = |paces: [Pace; 2], times: &Times| {
            let mut mill = Mill::new();
            Print::of(&paces).mix(&mut mill, times);
            mill.digest()
        };
        let late = |pace: Pace| Pace {
            at: pace.at + 1,
            ..pace
        };
        let ticks = 2 * LONG_AGO / 400_000_000;
        (0..ticks).for_each(|_| times.pass());
        let [one, two] = [pace(&times); 2];
        let before = digest([one, two], &times);
        assert_ne!(before, digest([one, late(two)], &times), "it took longer");
        times.pass();
        let again = [pace(&times); 2];
        assert_eq!(before, digest(again, &times), "the beginning is long ago");
    }

    fn detector(ignored: u8, deadline: u64, state: u8) -> Detector {
        Detector {
            ignored: vec![(ignored, Some(ignored)), (1, None)],
            deadline,
            state: (2, state),
        }
    }

    #[test]
    fn what_only_counts_makes_no_difference() {
        let at = Times::new([0; 3], LEAST_TICKS).now(0).0;
        let one = digest(&detector(1, at, 7), 0);
        assert_eq!(one, digest(&detector(9, at, 7), 0));
        assert_ne!(one, digest(&detector(1, at, 8), 0));
        assert_ne!(one, digest(&detector(1, at + 1, 7), 0));
    }

    #[test]
    fn times_count_from_now() {
        let mut times = Times::new([0; 3], LEAST_TICKS);
        let at = times.now(1).0 + 5;
        times.pass();
        let later = times.now(1).0 + 5;
        assert_eq!(
            digest(&detector(1, at, 7), 0),
            digest(&detector(1, later, 7), 1)
        );
        let (old, older) = (
            digest(&detector(1, at, 7), 50),
            digest(&detector(1, at, 7), 51),
        );
        assert_eq!(old, older, "long ago");
    }
}
