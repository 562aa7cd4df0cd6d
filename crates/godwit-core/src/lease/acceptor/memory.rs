//! What an acceptor has voted for, as text: for the next process. Without it that one would
//! have to keep quiet for as long as its votes bind, and voters that restart one after the
//! other would leave no majority.
//!
//! ```text
//! quiet 81000000000
//! share 3839256262 0
//! last 3839256262 a 7712596... 81523... 10000000000 81600... 91600... 81523... 0 b:4,c:7 7712595...
//! promise 3839256262 7712596... b 1795728591000 81700...
//! end
//! ```
//!
//! Times are nanoseconds of CLOCK_BOOTTIME: the text means nothing after a boot. How fast
//! proposals came is not in it, as of a node that was never heard.

use std::fmt::Write as _;
use std::str::FromStr;

use godwit_wire::{Epoch, Generation, Lease, ShareId, Stay};

use super::{Accepted, Acceptor, Promise, Slot, Speaker};
use crate::MonoTime;
use crate::lease::Terms;

impl Acceptor {
    /// All that the next process must know.
    pub fn to_text(&self) -> String {
        let mut text = format!("quiet {}\n", self.quiet_until.as_nanos());
        for (share, slot) in &self.slots {
            // A string takes everything.
            let _ = writeln!(text, "share {} {}", share.0, u8::from(slot.endless));
            for (word, accepted) in [("last", &slot.last), ("inherited", &slot.inherited)] {
                if let Some(accepted) = accepted {
                    let _ = writeln!(text, "{word} {} {}", share.0, accepted.to_text());
                }
            }
            if let Some(promise) = slot.promise {
                let (epoch, to) = (promise.epoch.0, promise.to);
                let until = promise.until.as_nanos();
                let _ = writeln!(
                    text,
                    "promise {} {epoch} {} {} {until}",
                    share.0, to.node, to.incarnation
                );
            }
        }
        text.push_str("end\n");
        text
    }

    /// An acceptor that has voted for that; `None` if the text is not whole.
    pub fn of_text(text: &str, terms: Terms) -> Option<Self> {
        let mut lines = text.strip_suffix("end\n")?.lines();
        let quiet = lines.next()?.strip_prefix("quiet ")?;
        let mut acceptor = Self::new(terms, [], MonoTime::from_nanos(quiet.parse().ok()?));
        for line in lines {
            let mut words = line.split(' ');
            let word = words.next()?;
            let share = ShareId(next(&mut words)?);
            if word == "share" {
                let slot = Slot {
                    endless: next::<u8>(&mut words)? == 1,
                    ..Slot::default()
                };
                acceptor.slots.insert(share, slot);
                continue;
            }
            let slot = acceptor.slots.get_mut(&share)?;
            match word {
                "last" => slot.last = Some(Accepted::of_words(&mut words)?),
                "inherited" => slot.inherited = Some(Accepted::of_words(&mut words)?),
                "promise" => {
                    slot.promise = Some(Promise {
                        epoch: Epoch(next(&mut words)?),
                        to: Speaker {
                            node: next(&mut words)?,
                            incarnation: next(&mut words)?,
                        },
                        until: MonoTime::from_nanos(next(&mut words)?),
                    });
                }
                _ => return None,
            }
        }
        Some(acceptor)
    }
}

impl Accepted {
    fn to_text(&self) -> String {
        let lease = &self.lease;
        let stay = |stay: &Stay| format!("{}:{}", stay.node, stay.generation.0);
        let in_sync: Vec<_> = lease.in_sync.iter().map(stay).collect();
        format!(
            "{} {} {} {} {} {} {} {} {} {}",
            lease.holder,
            lease.epoch.0,
            lease.number,
            lease.term_ns,
            self.at.as_nanos(),
            self.expires.as_nanos(),
            self.latest,
            u8::from(self.released),
            in_sync.join(","),
            self.life,
        )
    }

    fn of_words<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut lease = Lease {
            holder: next(words)?,
            epoch: Epoch(next(words)?),
            number: next(words)?,
            term_ns: next(words)?,
            in_sync: Vec::new(),
        };
        let (at, expires) = (next(words)?, next(words)?);
        let (latest, released) = (next(words)?, next::<u8>(words)? == 1);
        let in_sync = words.next()?.split(',').filter(|word| !word.is_empty());
        let stay = |word: &str| {
            let (node, generation) = word.split_once(':')?;
            Some(Stay {
                node: node.parse().ok()?,
                generation: Generation(generation.parse().ok()?),
            })
        };
        lease.in_sync = in_sync.map(stay).collect::<Option<_>>()?;
        // An earlier version has not written it down.
        let life = words.next().map_or(Ok(u64::MAX), str::parse).ok()?;
        Some(Self {
            lease,
            at: MonoTime::from_nanos(at),
            expires: MonoTime::from_nanos(expires),
            latest,
            released,
            life,
        })
    }
}

fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use godwit_wire::NodeName;

    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().expect("a name")
    }

    fn acceptor() -> Acceptor {
        let shares = [(ShareId(1), false), (ShareId(9), true), (ShareId(7), false)];
        let mut acceptor = Acceptor::new(Terms::default(), shares, MonoTime::from_nanos(5));
        let accepted = |released| Accepted {
            lease: Lease {
                holder: name("a"),
                epoch: Epoch::new(1_795_728_591, 3),
                number: 17,
                term_ns: Lease::ENDLESS,
                in_sync: vec![
                    Stay {
                        node: name("b"),
                        generation: Generation(4),
                    },
                    Stay {
                        node: name("web-2.example"),
                        generation: Generation(7),
                    },
                ],
            },
            at: MonoTime::from_nanos(100),
            expires: MonoTime::from_nanos(u64::MAX),
            latest: 18,
            released,
            life: 11,
        };
        let slot = acceptor.slots.get_mut(&ShareId(1)).expect("it is there");
        slot.last = Some(accepted(true));
        slot.promise = Some(Promise {
            epoch: Epoch(8),
            to: Speaker {
                node: name("c"),
                incarnation: 12,
            },
            until: MonoTime::from_nanos(77),
        });
        let slot = acceptor.slots.get_mut(&ShareId(9)).expect("it is there");
        slot.inherited = Some(accepted(false));
        slot.last = Some(Accepted {
            lease: Lease {
                in_sync: Vec::new(),
                ..accepted(false).lease
            },
            ..accepted(false)
        });
        acceptor
    }

    #[test]
    fn what_was_voted_for_is_read_as_it_was_written() {
        let before = acceptor();
        let text = before.to_text();
        let after = Acceptor::of_text(&text, Terms::default()).expect("it is whole");
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
    }

    #[test]
    fn what_an_earlier_version_has_written_is_read() {
        let text = acceptor().to_text();
        let earlier = text.replace(" 11\n", "\n");
        assert_ne!(earlier, text);
        let read = Acceptor::of_text(&earlier, Terms::default()).expect("it is whole");
        let life = read.view(ShareId(1)).map(|view| view.life);
        assert_eq!(life, Some(u64::MAX), "the latest");
    }

    #[test]
    fn what_is_not_whole_says_nothing() {
        let text = acceptor().to_text();
        for length in 0..text.len() {
            let cut = Acceptor::of_text(&text[..length], Terms::default());
            assert!(cut.is_none(), "{length}");
        }
        for (old, new) in [
            ("quiet 5", "quiet x"),
            ("share 1 0", "share 2 0"),
            ("promise", "forgotten"),
            ("b:4", "b4"),
        ] {
            let changed = text.replace(old, new);
            assert_ne!(changed, text);
            let read = Acceptor::of_text(&changed, Terms::default());
            assert!(read.is_none(), "{new}");
        }
    }
}
