//! The standby: its twins, and what it says of them.

use godwit_core::snapshot::commit::Standing;

use super::Fault;
use super::world::{Word, World};

/// A twin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Twin {
    /// The last commit that it has come to.
    pub(super) stands_at: u64,
    /// This node would serve it.
    pub(super) counts: bool,
    is_given_up: bool,
}

impl World {
    pub(super) fn hear_owner(&mut self, at: usize, word: Word) {
        let answer = match (word, &mut self.twins[at]) {
            (Word::Install, twin) => {
                let is_first = self.served[at].standing == Standing::Confirming;
                let fresh = Twin {
                    stands_at: 0,
                    counts: is_first,
                    is_given_up: false,
                };
                // Said again, it is there already.
                if twin.is_none_or(|it| it.is_given_up) {
                    *twin = Some(fresh);
                }
                Some(Word::Installed)
            }
            (Word::Parcel(number, made), Some(twin)) if !twin.is_given_up => {
                if self.fault != Some(Fault::EarlyAnswer) {
                    twin.stands_at = twin.stands_at.max(made);
                }
                Some(Word::Held(number))
            }
            (Word::Counts, Some(twin)) if !twin.is_given_up => {
                twin.counts = true;
                Some(Word::Counted)
            }
            (Word::GiveUp, twin) => {
                *twin = Some(Twin {
                    stands_at: 0,
                    counts: false,
                    is_given_up: true,
                });
                Some(Word::GivenUp)
            }
            (
                Word::Parcel(..)
                | Word::Counts
                | Word::Installed
                | Word::Held(_)
                | Word::Counted
                | Word::GivenUp,
                _,
            ) => None,
        };
        if let Some(answer) = answer {
            self.say(at, true, answer);
        }
    }
}
