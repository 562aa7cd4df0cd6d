//! How far an attempt has come, and when: where the time of a move goes.

use std::time::Duration;

use crate::MonoTime;

/// Moments of an attempt, each as one node saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Origin: the target is asked. Target: it has been.
    Begun,
    /// Origin: the target is ready. Target: segments wait there.
    Ready,
    /// Origin: the server has let go of the connection, which is silent.
    Silent,
    /// Origin: it is bytes. Target: all of them have come.
    State,
    /// Origin: the target has a socket. Target: it is made.
    Agreed,
    /// Target: it is told to speak.
    Committed,
    /// Origin: it hears that the target speaks. Target: it does.
    Done,
}

const MARKS: usize = Mark::Done as usize + 1;

/// The moments of one attempt; those that have not come are [`MonoTime::ZERO`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Course([MonoTime; MARKS]);

impl Course {
    pub(super) const NONE: Self = Self([MonoTime::ZERO; MARKS]);

    /// One of which nothing is known but that it goes on now.
    pub(super) const fn resumed(now: MonoTime) -> Self {
        Self([now; MARKS])
    }

    pub(super) const fn begun(now: MonoTime) -> Self {
        let mut course = Self::NONE;
        course.note(Mark::Begun, now);
        course
    }

    pub(super) const fn note(&mut self, mark: Mark, now: MonoTime) {
        self.0[mark as usize] = now;
    }

    /// From one moment to another; nothing if they came the other way round.
    pub fn between(&self, from: Mark, until: Mark) -> Duration {
        let [from, until] = [from, until].map(|mark| self.0[mark as usize]);
        until.since(from)
    }

    /// How long nobody spoke, as the origin saw it.
    pub fn silent(&self) -> Duration {
        self.between(Mark::Silent, Mark::Done)
    }

    /// What the time at the origin went to, in order.
    pub fn at_origin(&self) -> [(&'static str, Duration); 5] {
        [
            ("asked", self.between(Mark::Begun, Mark::Ready)),
            ("taken", self.between(Mark::Ready, Mark::Silent)),
            ("dumped", self.between(Mark::Silent, Mark::State)),
            ("prepared", self.between(Mark::State, Mark::Agreed)),
            ("committed", self.between(Mark::Agreed, Mark::Done)),
        ]
    }

    /// The same at the target.
    pub fn at_target(&self) -> [(&'static str, Duration); 5] {
        [
            ("held", self.between(Mark::Begun, Mark::Ready)),
            ("waited", self.between(Mark::Ready, Mark::State)),
            ("restored", self.between(Mark::State, Mark::Agreed)),
            ("agreed", self.between(Mark::Agreed, Mark::Committed)),
            ("placed", self.between(Mark::Committed, Mark::Done)),
        ]
    }
}
