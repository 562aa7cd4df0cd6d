//! Why what a peer says is not considered, and how often that was so.

/// Why what a peer says of a share is not considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// It is no server of that share, as far as our file knows.
    NoServer,
    /// The epoch is of more than a day from now.
    FarAhead,
    /// The epoch is not one of those that are its own.
    OutOfTurn,
    /// The lease that it calls void is in force, as far as is known here.
    NotVoid,
    /// The proposal was under way for so long that it counts as silence.
    Late,
    /// It answers, and is neither a voter nor a server of that share.
    NoVoter,
}

impl Doubt {
    /// Every doubt.
    pub const ALL: [Self; 6] = [
        Self::NoServer,
        Self::FarAhead,
        Self::OutOfTurn,
        Self::NotVoid,
        Self::Late,
        Self::NoVoter,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoServer => "no_server",
            Self::FarAhead => "far_ahead",
            Self::OutOfTurn => "out_of_turn",
            Self::NotVoid => "not_void",
            Self::Late => "late",
            Self::NoVoter => "no_voter",
        }
    }

    /// What the peer has done, for people.
    pub(in crate::node) const fn sentence(self) -> &'static str {
        match self {
            Self::NoServer => "owns or wants a share that it is no server of",
            Self::FarAhead => "claims an epoch of more than a day from now: a clock is wrong",
            Self::OutOfTurn => "wants a share under an epoch of another node",
            Self::NotVoid => "calls a lease void that is in force",
            Self::Late => "renews a lease long after it has asked for that: a queue on the way",
            Self::NoVoter => "answers a question that it was not asked",
        }
    }
}

/// How often each doubt arose about one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) struct Doubts {
    counts: [u64; Doubt::ALL.len()],
    told: [bool; Doubt::ALL.len()],
}

impl Doubts {
    pub(in crate::node) const NONE: Self = Self {
        counts: [0; Doubt::ALL.len()],
        told: [false; Doubt::ALL.len()],
    };

    /// Counts one. Whether people are to hear of it: once for each life of the peer.
    pub(in crate::node) fn count(&mut self, doubt: Doubt) -> bool {
        let mut places = self.counts.iter_mut().zip(&mut self.told).zip(Doubt::ALL);
        let place = places.find(|(_, other)| *other == doubt);
        place.is_some_and(|((count, told), _)| {
            *count = count.saturating_add(1);
            !std::mem::replace(told, true)
        })
    }

    /// The peer's agent was started anew.
    pub(in crate::node) const fn tell_again(&mut self) {
        self.told = [false; Doubt::ALL.len()];
    }

    /// Those that arose.
    pub(in crate::node) fn counts(&self) -> impl Iterator<Item = (Doubt, u64)> {
        let all = Doubt::ALL.into_iter().zip(self.counts);
        all.filter(|(_, count)| *count > 0)
    }
}
