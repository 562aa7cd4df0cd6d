//! Failure detector: is one peer alive?
//!
//! Heartbeats arrive, or they do not. What follows from silence is decided
//! elsewhere ([`crate::share`] for an owner, [`crate::insync`] for a standby).
//! ST-TCP §4.4: three missed heartbeats mean failure.

use std::collections::VecDeque;
use std::time::Duration;

use crate::MonoTime;
use delay::Delay;

mod delay;
#[cfg(test)]
mod tests;

/// How long an announced restart may take before silence counts as failure.
pub const RESTART_ALLOWANCE: Duration = Duration::from_secs(10);

/// How long a peer that said hello may take until its first heartbeat.
const INTRODUCTION_ALLOWANCE: Duration = Duration::from_secs(1);

/// When silence means failure. The same for all peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Time between two heartbeats of a peer; 1 ms to 10 s.
    pub interval: Duration,
    /// How many may be missed; 2 to 100.
    pub misses: u32,
    /// How wrong the clock of a node may be, in parts per million.
    pub drift_ppm: u32,
}

impl Config {
    /// How long a peer may be silent.
    ///
    /// A fifth of an interval is added: the last heartbeat that counts may be
    /// late by a scheduling delay at either end, and a peer must not fail for
    /// one that is under way.
    pub fn patience(&self) -> Duration {
        self.interval
            .saturating_mul(self.misses)
            .saturating_add(self.tolerance())
    }

    fn tolerance(&self) -> Duration {
        self.interval / 5
    }
}

/// What is known of a peer.
///
/// ```text
///            beat               silence
///  Unknown ────────► Alive ───────────────► Failed
///                    │   ▲ ▲ ▲                │ │
///             excuse │   │ │ └─── beat ───────┘ │
///                    ▼   │ └────────┐           │
///                 Excused┘ newborn  │ newborn   │ farewell
///                    │              │           ▼
///                    └─ silence ► Failed     Departed
/// ```
///
/// *Newborn* is a heartbeat of another incarnation. Heartbeats of the old one
/// are still under way after its goodbye and must not undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Never heard, or heard only over the link.
    Unknown,
    /// Its heartbeats arrive.
    Alive,
    /// It announced a restart: silence is expected for a while.
    Excused,
    /// It announced that it ends: silence means nothing.
    Departed,
    /// It has been silent for too long.
    Failed,
}

impl State {
    /// Every state, in the order of the diagram.
    pub const ALL: [Self; 5] = [
        Self::Unknown,
        Self::Alive,
        Self::Excused,
        Self::Departed,
        Self::Failed,
    ];

    /// Whether its heartbeats arrive.
    pub const fn is_alive(self) -> bool {
        matches!(self, Self::Alive)
    }

    /// Whether it has said that it ends.
    pub const fn is_departed(self) -> bool {
        matches!(self, Self::Departed)
    }

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Alive => "alive",
            Self::Excused => "excused",
            Self::Departed => "departed",
            Self::Failed => "failed",
        }
    }

    const fn on_beat(self) -> Self {
        match self {
            Self::Unknown | Self::Alive | Self::Failed => Self::Alive,
            Self::Excused => Self::Excused,
            Self::Departed => Self::Departed,
        }
    }

    const fn on_newborn(self) -> Self {
        match self {
            Self::Unknown | Self::Alive | Self::Excused | Self::Departed | Self::Failed => {
                Self::Alive
            }
        }
    }

    const fn on_silence(self) -> Self {
        match self {
            Self::Unknown | Self::Alive | Self::Excused | Self::Failed => Self::Failed,
            Self::Departed => Self::Departed,
        }
    }

    const fn on_excuse(self) -> Self {
        match self {
            Self::Unknown => Self::Unknown,
            Self::Alive | Self::Excused => Self::Excused,
            Self::Departed => Self::Departed,
            Self::Failed => Self::Failed,
        }
    }

    const fn on_farewell(self) -> Self {
        match self {
            Self::Unknown | Self::Alive | Self::Excused | Self::Departed | Self::Failed => {
                Self::Departed
            }
        }
    }
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its heartbeats arrive, for the first time or again.
    Up {
        /// How long it had been silent; `None` the first time.
        silent_for: Option<Duration>,
    },
    /// Its agent has been started anew.
    Restarted,
    /// It is silent.
    Failed {
        /// For how long.
        silent_for: Duration,
    },
}

/// Judges one peer by its heartbeats.
#[derive(Debug, Clone)]
pub struct Detector {
    config: Config,
    state: State,
    /// Named in the peer's last hello: only its heartbeats count.
    introduced: Option<u64>,
    /// Of the last heartbeat that counted, or of a goodbye.
    incarnation: Option<u64>,
    sequence: u64,
    heard: Option<MonoTime>,
    deadline: Option<MonoTime>,
    /// The current deadline is a second chance, see `handle_timeout`.
    overslept: bool,
    ignored: u64,
    delay: Delay,
    late: u64,
    max_interval: Duration,
    events: VecDeque<Event>,
}

impl Detector {
    /// A detector for a peer that has never been heard.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::Unknown,
            introduced: None,
            incarnation: None,
            sequence: 0,
            heard: None,
            deadline: None,
            overslept: false,
            ignored: 0,
            delay: Delay::new(config.patience(), config.drift_ppm),
            late: 0,
            max_interval: Duration::ZERO,
            events: VecDeque::new(),
        }
    }

    /// The peer said hello on an authenticated link.
    ///
    /// From now on only heartbeats of that incarnation count, even if it is
    /// below the last one: a host's clock may have been set back.
    pub fn handle_hello(&mut self, incarnation: u64, now: MonoTime) {
        self.introduced = Some(incarnation);
        if self.state == State::Unknown && self.deadline.is_none() {
            self.deadline = Some(now.saturating_add(INTRODUCTION_ALLOWANCE));
        }
    }

    /// When the peer has sent the heartbeat that is about to be handled. Whether it was under
    /// way for so long that it is silence: it does not count, and is not to be handled.
    pub fn handle_sent(&mut self, incarnation: u64, sent: MonoTime, now: MonoTime) -> bool {
        if !self.is_current(incarnation) {
            return false;
        }
        let is_late = self.delay.is_late(incarnation, sent, now);
        if is_late {
            self.late = self.late.saturating_add(1);
        } else {
            self.delay.note(incarnation, sent, now);
        }
        is_late
    }

    /// Whether something else that was sent then is late in the same way.
    pub fn is_late(&self, incarnation: u64, sent: MonoTime, now: MonoTime) -> bool {
        self.delay.is_late(incarnation, sent, now)
    }

    /// An authentic heartbeat arrived. An old or replayed one is ignored and counted.
    pub fn handle_heartbeat(&mut self, incarnation: u64, sequence: u64, now: MonoTime) {
        let known = self.incarnation == Some(incarnation);
        if !self.is_current(incarnation) || (known && sequence <= self.sequence) {
            self.ignored = self.ignored.saturating_add(1);
            return;
        }
        let prev = self.state;
        self.state = if known {
            prev.on_beat()
        } else {
            prev.on_newborn()
        };
        if !known && self.incarnation.is_some() {
            self.events.push_back(Event::Restarted);
        }
        let silent_for = self.heard.map(|heard| now.since(heard));
        if self.state.is_alive() {
            if prev.is_alive() {
                self.max_interval = self.max_interval.max(silent_for.unwrap_or_default());
            } else {
                self.events.push_back(Event::Up { silent_for });
            }
            self.deadline = Some(now.saturating_add(self.config.patience()));
            self.overslept = false;
        }
        self.incarnation = Some(incarnation);
        self.sequence = sequence;
        self.heard = Some(now);
    }

    /// The peer announced that it restarts.
    pub fn handle_excuse(&mut self, now: MonoTime) {
        self.state = self.state.on_excuse();
        self.incarnation = self.incarnation.or(self.introduced);
        if self.state == State::Excused {
            self.deadline = Some(now.saturating_add(RESTART_ALLOWANCE));
        }
    }

    /// The peer announced that it ends.
    pub fn handle_farewell(&mut self) {
        self.state = self.state.on_farewell();
        self.incarnation = self.incarnation.or(self.introduced);
        self.deadline = None;
    }

    /// When the peer fails if it stays silent.
    pub const fn poll_timeout(&self) -> Option<MonoTime> {
        self.deadline
    }

    /// Time has passed. Feed all heartbeats that have arrived before calling this.
    ///
    /// If the call comes an interval late then this node slept (it was stopped, or
    /// starved), and the silence says nothing about the peer: it gets one more
    /// interval before it fails. Two nodes whose host stood still for a moment
    /// would else each take the other for dead.
    pub fn handle_timeout(&mut self, now: MonoTime) {
        let Some(deadline) = self.deadline.filter(|deadline| *deadline <= now) else {
            return;
        };
        let slept = now.since(deadline) >= self.config.interval;
        if self.state.is_alive() && slept && !self.overslept {
            self.overslept = true;
            let chance = self.config.interval.saturating_add(self.config.tolerance());
            self.deadline = Some(now.saturating_add(chance));
            return;
        }
        self.deadline = None;
        let prev = self.state;
        self.state = prev.on_silence();
        if self.state != prev {
            self.delay.forget();
            self.events.push_back(Event::Failed {
                silent_for: self.heard.map(|heard| now.since(heard)).unwrap_or_default(),
            });
        }
    }

    /// The next change, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What is known of the peer.
    pub const fn state(&self) -> State {
        self.state
    }

    /// The incarnation last heard.
    pub const fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// When it was last heard.
    pub const fn heard(&self) -> Option<MonoTime> {
        self.heard
    }

    /// Longest time between two heartbeats while it was alive.
    pub const fn max_interval(&self) -> Duration {
        self.max_interval
    }

    /// Heartbeats that were old, replayed or of another incarnation.
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Heartbeats that were under way for too long.
    pub const fn late(&self) -> u64 {
        self.late
    }

    fn is_current(&self, incarnation: u64) -> bool {
        match (self.introduced, self.incarnation) {
            (Some(introduced), _) => incarnation == introduced,
            (None, Some(last)) => incarnation >= last,
            (None, None) => true,
        }
    }
}
