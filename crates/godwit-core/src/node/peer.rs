//! One peer as a node sees it: its heartbeats and its link.

use std::collections::BTreeSet;

use godwit_wire::{
    ASKED_VERSION, CANARY_VERSION, Hello, LeaseMessage, MAX_VERSION, MIN_VERSION, NAMED_SHARES,
    NodeName, ShareId,
};

use super::differences::Difference;
use super::doubt::Doubts;
use super::input::StonithFault;
use crate::MonoTime;
use crate::detector::{self, Detector};

/// How far the control link has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    /// There is none.
    Down,
    /// Up; the peer has not said hello.
    Silent,
    /// Up; both have said hello.
    Ready,
    /// Up; there is no common version.
    Incompatible,
}

/// Whether a peer is known to be without power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// It may be on.
    Unknown,
    /// The command that powers it off runs.
    Cutting,
    /// The command failed; not before then again.
    Stuck {
        /// When it is tried again.
        until: MonoTime,
    },
    /// It is off, and has not been heard since.
    Off,
}

impl Power {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Cutting => "cutting",
            Self::Stuck { .. } => "stuck",
            Self::Off => "off",
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct PeerSide {
    pub(super) name: NodeName,
    pub(super) detector: Detector,
    pub(super) link: LinkState,
    /// From the last hello.
    pub(super) incarnation: u64,
    pub(super) config_differs: bool,
    /// Shares that this life of its agent has proposed a lease of, whatever voters it counts.
    pub(super) proposes: BTreeSet<ShareId>,
    /// What differs, as far as it is known.
    pub(super) differences: Vec<Difference>,
    /// It understands what our file says.
    pub(super) takes_lines: bool,
    pub(super) power: Power,
    /// Whether its data path knows canaries: see `proof.rs`.
    pub(super) answers_canaries: bool,
    /// Its data path says of a SYN whether it has the connection.
    pub(super) tells_connections: bool,
    /// Why it could not be powered off when that was last tried.
    pub(super) stonith_fault: Option<StonithFault>,
    /// What it said that was not considered.
    pub(super) doubts: Doubts,
    /// Its agent was started more than a day from what our clock of day says.
    pub(super) ahead: bool,
    /// The same of what that clock has ever said: it is granted nothing here, and is not taken
    /// for in sync.
    pub(super) shunned: bool,
}

impl PeerSide {
    pub(super) fn new(name: NodeName, config: detector::Config) -> Self {
        Self {
            name,
            detector: Detector::new(config),
            link: LinkState::Down,
            incarnation: 0,
            config_differs: false,
            proposes: BTreeSet::new(),
            differences: Vec::new(),
            takes_lines: false,
            power: Power::Unknown,
            answers_canaries: false,
            tells_connections: false,
            stonith_fault: None,
            doubts: Doubts::NONE,
            ahead: false,
            shunned: false,
        }
    }

    /// Whether messages may be sent.
    pub(super) const fn is_linked(&self) -> bool {
        match self.link {
            LinkState::Silent | LinkState::Ready => true,
            LinkState::Down | LinkState::Incompatible => false,
        }
    }

    /// Whether it is alive and both sides have introduced themselves.
    pub(super) fn is_ready(&self) -> bool {
        self.link == LinkState::Ready && self.detector.state().is_alive()
    }

    /// Whether a proposal was under way for so long that its author may be dead. Its number
    /// is the time of sending, by the clock of the heartbeats.
    pub(super) fn sent_late(&self, message: &LeaseMessage, now: MonoTime) -> bool {
        let LeaseMessage::Propose { lease, .. } = message else {
            return false;
        };
        let sent = MonoTime::from_nanos(lease.number);
        self.detector.is_late(self.incarnation, sent, now)
    }

    /// Takes over what a hello says; true if there is a common version.
    pub(super) fn greet(&mut self, hello: &Hello) -> bool {
        if self.incarnation != hello.incarnation {
            self.doubts.tell_again();
            self.proposes.clear();
        }
        self.incarnation = hello.incarnation;
        self.takes_lines = hello.max_version >= NAMED_SHARES;
        self.answers_canaries = hello.max_version >= CANARY_VERSION;
        self.tells_connections = hello.max_version >= ASKED_VERSION;
        let common = hello.min_version <= MAX_VERSION && hello.max_version >= MIN_VERSION;
        self.link = if common {
            LinkState::Ready
        } else {
            LinkState::Incompatible
        };
        common
    }
}
