//! One machine: its clock, its agent, and what its data path was told.

use std::collections::{BTreeMap, VecDeque};

use godwit_core::lease::Terms;
use godwit_core::node::HandoffReport;
use godwit_core::{FlowEvent, Link, MonoTime, Node, ServerExit};
use godwit_wire::{Epoch, Generation, LeaseDatagram, Message, Role, ShareClaim, ShareId};

use crate::clock::Clock;
use crate::flow::{Flow, Frame};
use crate::homes::{Asker, File};
use crate::plan::Plan;
use crate::singles::Single;

/// The most shares of a history, with one for connections that move by themselves.
pub(crate) const SHARES: usize = 3;

/// What the data path was last told of a share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) role: Role,
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    /// The other side of the tap, a node.
    pub(crate) peer: Option<usize>,
    /// When an owner falls silent; `None`: never.
    pub(crate) expiry: Option<MonoTime>,
    /// Since when the share is silent, for its server has died.
    pub(crate) released: Option<MonoTime>,
    /// Since when flows of a dead process are.
    pub(crate) died: Option<MonoTime>,
    /// Whether something listens.
    pub(crate) listening: bool,
    /// The epoch whose lease was given back before its end.
    pub(crate) given_back: Epoch,
    /// The generation whose twins an owner continues, of a greater epoch.
    pub(crate) from: Option<(Epoch, Generation)>,
    /// The greatest generation that flows may have.
    pub(crate) latest: Generation,
}

impl Entry {
    /// Of a host that has just been booted: a fence that was never written is shut.
    pub(crate) const DARK: Self = Self {
        role: Role::None,
        epoch: Epoch::NONE,
        generation: Generation::NONE,
        peer: None,
        expiry: Some(MonoTime::ZERO),
        released: None,
        died: None,
        listening: true,
        given_back: Epoch::NONE,
        from: None,
        latest: Generation::NONE,
    };
}

/// A handshake that the data path has seen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Half {
    pub(crate) irs: u32,
    /// Drawn by the kernel of who answers.
    pub(crate) iss: u32,
    pub(crate) generation: Generation,
    pub(crate) answered: bool,
    /// Through the tap: the socket is elsewhere.
    pub(crate) tapped: bool,
    /// The twin that comes of it must not be served.
    pub(crate) not_in_sync: bool,
}

impl Half {
    /// gw_is_third_ack
    pub(crate) const fn is_third_ack(&self, frame: Frame) -> bool {
        let exact = frame.seq == 0 && frame.ack == 0 && frame.iss == self.iss;
        self.irs == frame.irs && self.answered && exact
    }

    /// gw_is_ahead
    pub(crate) fn is_ahead(&self, frame: Frame, continued: Generation) -> bool {
        let known = self.tapped && self.irs == frame.irs && self.answered;
        let gated = !continued.is_none() && self.generation == continued;
        known && gated && frame.seq > 0 && frame.ack == 0
    }
}

/// What heartbeats say of the shares.
pub(crate) type Claims = [Option<ShareClaim>; SHARES];

/// What waits for an agent.
#[derive(Debug)]
pub(crate) enum Input {
    Beat {
        from: usize,
        incarnation: u64,
        sequence: u64,
        sent: MonoTime,
        claims: Claims,
        /// When the receiving thread saw it; `None` if that slept too.
        at: Option<MonoTime>,
    },
    Lease(usize, LeaseDatagram),
    Message(usize, Message),
    Link(usize, Link),
    Flow(FlowEvent),
    Exit(ServerExit),
    Handoff(ShareId, HandoffReport),
    Listening(usize),
    /// What is wrong around the node has changed.
    Facts,
    Stonith(usize, bool),
}

/// Why and until when something does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// Runs.
    No,
    /// The thread that decides; heartbeats go on.
    Driver,
    /// The agent, as by SIGSTOP.
    Agent,
    /// The whole host; its clock goes on.
    Host,
    /// The whole host and its clock.
    Clock,
}

/// What a new agent knows of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Votes {
    /// None has run since the host was booted.
    None,
    /// The last one did not end in order.
    Unknown,
    /// Until when the votes of the last one bind.
    Until(MonoTime),
}

impl Votes {
    /// Until when a new agent does not vote.
    pub(crate) fn quiet_until(self, terms: &Terms, now: MonoTime) -> MonoTime {
        match self {
            Self::None => MonoTime::ZERO.saturating_add(terms.quarantine()),
            Self::Unknown => now.saturating_add(terms.quarantine()),
            Self::Until(end) => end,
        }
    }
}

/// One machine.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) up: bool,
    /// How often it was booted.
    pub(crate) boots: u64,
    pub(crate) clock: Clock,
    pub(crate) agent: Option<Node>,
    /// Counts starts of agents: what was meant for an earlier one is void.
    pub(crate) life: u64,
    pub(crate) incarnation: u64,
    pub(crate) voted: Voted,
    pub(crate) beats: u64,
    pub(crate) claims: Claims,
    /// Incarnation of each node whose key is known.
    pub(crate) keys: Vec<u64>,
    pub(crate) rest: Rest,
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) kernel: Kernel,
    /// A planned restart that waits for its preparation, until then.
    pub(crate) parting_ns: Option<u64>,
    pub(crate) file: File,
    /// What moves away from here together.
    pub(crate) askers: Vec<Asker>,
}

/// What is known of the votes of a host's agents.
#[derive(Debug)]
pub(crate) struct Voted {
    /// Of earlier ones.
    pub(crate) votes: Votes,
    /// What the last one has written down of its own, if it ended in order.
    pub(crate) memory: Option<String>,
    /// What the agent has voted for, where it outlives it.
    pub(crate) kept: Option<String>,
}

/// When a host does nothing.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) sleep: Sleep,
    /// Names the present sleep.
    pub(crate) nap: u64,
    /// In true time: the earliest wake-up that is queued.
    pub(crate) wake_ns: u64,
}

/// Data path and sockets of a host: they outlive its agents.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) entries: [Entry; SHARES],
    /// A role that is half written, see [`crate::world::World::set_share`].
    pub(crate) unwritten: Option<(usize, Entry)>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) halves: Vec<Half>,
    /// Connections that go from server to server by themselves, by the client's number.
    pub(crate) singles: BTreeMap<u32, Single>,
    /// Under which its share of those is owned.
    pub(crate) singles_epoch: Epoch,
    /// Segments stay in its queues until then.
    pub(crate) deep_until_ns: u64,
}

impl Host {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            up: false,
            boots: 0,
            clock: Clock::new(0, 0, 0),
            agent: None,
            life: 0,
            incarnation: 0,
            voted: Voted {
                votes: Votes::None,
                memory: None,
                kept: None,
            },
            beats: 0,
            claims: [None; SHARES],
            keys: vec![0; plan.nodes],
            rest: Rest {
                sleep: Sleep::No,
                nap: 0,
                wake_ns: u64::MAX,
            },
            inbox: VecDeque::new(),
            kernel: Kernel {
                entries: [Entry::DARK; SHARES],
                unwritten: None,
                flows: vec![Flow::default(); plan.clients()],
                halves: vec![Half::default(); plan.clients()],
                singles: BTreeMap::new(),
                singles_epoch: Epoch::NONE,
                deep_until_ns: 0,
            },
            parting_ns: None,
            file: File::new(plan),
            askers: Vec::new(),
        }
    }

    /// Whether kernel and data path run.
    pub(crate) const fn runs(&self) -> bool {
        self.up && !matches!(self.rest.sleep, Sleep::Host | Sleep::Clock)
    }

    /// Whether the thread that decides runs.
    pub(crate) const fn thinks(&self) -> bool {
        self.agent.is_some() && matches!(self.rest.sleep, Sleep::No)
    }

    /// Whether heartbeats are sent and stamped.
    pub(crate) const fn beats(&self) -> bool {
        self.agent.is_some() && matches!(self.rest.sleep, Sleep::No | Sleep::Driver)
    }
}

/// The number that `node` knows `other` by.
pub(crate) fn peer_of(node: usize, other: usize) -> godwit_core::PeerId {
    let index = other - usize::from(other > node);
    godwit_core::PeerId(u16::try_from(index).unwrap_or(u16::MAX))
}

/// The node that `node` knows by that number.
pub(crate) fn node_of(node: usize, peer: godwit_core::PeerId) -> usize {
    let index = usize::from(peer.0);
    index + usize::from(index >= node)
}
