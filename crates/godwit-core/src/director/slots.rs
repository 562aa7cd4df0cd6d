//! What becomes of slots when the table changes, so that no connection changes place.

use godwit_wire::SeqNumber;

use super::BackendId;

/// One slot, see the [module](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Where new connections go.
    pub now: Option<BackendId>,
    /// Where its connections are that have no entry.
    pub base: Option<BackendId>,
    /// Whether connections of it may have entries. It stays so: nobody knows when the
    /// last of them has ended.
    pub mixed: bool,
}

/// Where a connection is, written down because its slot does not say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The back-end that has it.
    pub backend: BackendId,
    /// Its initial receive sequence number: a SYN with another begins another one.
    pub irs: SeqNumber,
}

/// What a client says, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// A SYN without an ACK, with its sequence number.
    Syn(SeqNumber),
    /// The same, come back from a back-end that was asked and knows no such connection.
    Unknown(SeqNumber, BackendId),
    /// Any other segment, or an ICMP error about the flow.
    Other,
}

/// Why a segment goes where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A new connection.
    New,
    /// The slot has only one back-end.
    Slot,
    /// Its entry says so.
    Entry,
    /// It has no entry in a slot that has several back-ends.
    Base,
    /// Anybody can send a SYN, and its four-tuple may be that of a connection that goes on:
    /// who would have that is asked, and whoever begins a new one answers [`Word::Unknown`].
    Asked,
}

/// Where a segment goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// To whom.
    pub backend: BackendId,
    /// Why.
    pub route: Route,
    /// The flow's entry from now on, `None`: it is to have none.
    pub entry: Option<Entry>,
}

/// The slots of a service, with what they remember.
#[derive(Debug, Clone)]
pub struct Slots(Vec<Slot>);

impl Slots {
    /// As many as the table has.
    pub fn new(count: usize) -> Self {
        Self(vec![Slot::default(); count])
    }

    /// All of them, in order.
    pub fn all(&self) -> &[Slot] {
        &self.0
    }

    /// A slot by its number.
    pub fn get(&self, slot: u32) -> Slot {
        self.0.get(slot as usize).copied().unwrap_or_default()
    }

    /// Takes on another table. `is_there` says which back-ends still have connections:
    /// those that live, if they drain too. Returns the numbers of the slots that are no
    /// longer what they were.
    pub fn change(
        &mut self,
        table: &[Option<BackendId>],
        is_there: impl Fn(BackendId) -> bool,
    ) -> Vec<u32> {
        let mut changed = Vec::new();
        for ((slot, now), number) in self.0.iter_mut().zip(table).zip(0..) {
            let next = slot.after(*now, &is_there);
            if next != *slot {
                *slot = next;
                changed.push(number);
            }
        }
        changed
    }

    /// Takes over what another director remembers of slots, from the `first` one on: of each
    /// its base, `None` if that is not there, and whether it is mixed. Returns the numbers of
    /// those that are no longer what they were.
    pub fn adopt(
        &mut self,
        first: u32,
        told: impl IntoIterator<Item = (Option<BackendId>, bool)>,
    ) -> Vec<u32> {
        let mut changed = Vec::new();
        let own = self.0.iter_mut().skip(first as usize);
        for ((slot, (base, mixed)), number) in own.zip(told).zip(first..) {
            let next = slot.adopting(base, mixed);
            if next != *slot {
                *slot = next;
                changed.push(number);
            }
        }
        changed
    }
}

impl From<Vec<Slot>> for Slots {
    fn from(slots: Vec<Slot>) -> Self {
        Self(slots)
    }
}

impl Slot {
    fn after(self, now: Option<BackendId>, is_there: impl Fn(BackendId) -> bool) -> Self {
        // Connections whose back-end is gone have nothing to lose.
        let base = self.base.filter(|base| is_there(*base)).or(now);
        Self {
            now,
            base,
            mixed: self.mixed || (now.is_some() && now != base),
        }
    }

    fn adopting(self, base: Option<BackendId>, mixed: bool) -> Self {
        let base = base.or(self.base);
        Self {
            base,
            mixed: self.mixed || mixed || (self.now.is_some() && self.now != base),
            ..self
        }
    }

    /// Where a segment goes, given the flow's entry; `None` if there is nobody, or nobody
    /// was asked who says that. An entry of a back-end that is gone is none. `can_tell`:
    /// whether that back-end says what it does not know.
    pub fn place(
        self,
        word: Word,
        entry: Option<Entry>,
        is_there: impl Fn(BackendId) -> bool,
        can_tell: impl Fn(BackendId) -> bool,
    ) -> Option<Placed> {
        let entry = entry.filter(|entry| self.mixed && is_there(entry.backend));
        // Who has the connection, if there is one.
        let keeper = entry.map(|entry| entry.backend).or(self.base);
        let keeper = keeper.filter(|keeper| self.mixed && is_there(*keeper));
        let placed = |backend, route, entry| Placed {
            backend,
            route,
            entry,
        };
        match (word, entry) {
            (Word::Syn(irs), Some(entry)) if entry.irs == irs => {
                // Said again: the table may have changed in between.
                Some(placed(entry.backend, Route::Entry, Some(entry)))
            }
            (Word::Syn(irs), _) => match keeper {
                Some(keeper) if self.now == Some(keeper) => Some(placed(keeper, Route::New, entry)),
                Some(keeper) if can_tell(keeper) => Some(placed(keeper, Route::Asked, entry)),
                _ => self.begin(irs),
            },
            (Word::Unknown(irs, by), entry) => {
                if let Some(entry) = entry.filter(|entry| entry.irs == irs) {
                    return Some(placed(entry.backend, Route::Entry, Some(entry)));
                }
                keeper.filter(|keeper| *keeper == by)?;
                self.begin(irs)
            }
            (Word::Other, Some(entry)) => Some(placed(entry.backend, Route::Entry, Some(entry))),
            (Word::Other, None) => {
                let route = if self.mixed { Route::Base } else { Route::Slot };
                Some(placed(self.base?, route, None))
            }
        }
    }

    /// A new connection, and the entry that it needs.
    fn begin(self, irs: SeqNumber) -> Option<Placed> {
        let backend = self.now?;
        let is_exception = self.base != Some(backend);
        let entry = is_exception.then_some(Entry { backend, irs });
        Some(Placed {
            backend,
            route: Route::New,
            entry,
        })
    }
}
