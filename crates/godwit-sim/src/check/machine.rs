//! One machine of the small cluster: its agent, and what its data path was told.

use std::collections::VecDeque;
use std::time::Duration;

use godwit_core::lease::Terms;
use godwit_core::node::Resume;
use godwit_core::{
    Action, Fencing, FlowPolicy, LeaseConfig, MonoTime, Node, NodeConfig, PeerConfig, ShareConfig,
};
use godwit_wire::{Epoch, Generation, Role, ShareId};

use super::time::{DRIFT_PPM, LEAST_TICKS, NO_DRIFT_PPM, TERM_NS};
use super::{Bounds, Flaw};
use crate::world::name;

/// Nodes 0 and 1 serve, the third one votes.
pub(super) const NODES: usize = 3;
pub(super) const SERVERS: usize = 2;
pub(super) const SHARE: ShareId = ShareId(0);

const TERM: Duration = Duration::from_nanos(TERM_NS);

/// How long a share whose server died is silent for a taker.
const HOLD: Duration = Duration::from_nanos(2 * TERM_NS);

/// What the data path was last told of the share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) role: Role,
    pub(super) epoch: Epoch,
    pub(super) generation: Generation,
    /// When an owner falls silent.
    pub(super) expiry: Option<MonoTime>,
    /// Since when the share is silent, for its server has died.
    pub(super) released: Option<MonoTime>,
    /// The generation whose twins an owner went on with, and the epoch that they were of.
    pub(super) from: (Epoch, Generation),
    /// The greatest generation that flows may have.
    pub(super) latest: Generation,
    pub(super) sockets: Sockets,
    pub(super) listening: bool,
}

/// What connections the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sockets {
    None,
    /// Those of an owner.
    Own,
    /// Twins of that generation.
    Twins(Generation),
}

impl Entry {
    const DARK: Self = Self {
        role: Role::None,
        epoch: Epoch::NONE,
        generation: Generation::NONE,
        expiry: None,
        released: None,
        from: (Epoch::NONE, Generation::NONE),
        latest: Generation::NONE,
        sockets: Sockets::None,
        listening: true,
    };
}

/// One machine.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) agent: Option<Node>,
    /// Of the agent that runs or ran last.
    pub(super) incarnation: u64,
    /// Since when no agent has run, as far as is known: the machine was switched
    /// on then. `None` if one has.
    pub(super) silent_since: Option<MonoTime>,
    /// Heartbeats that were sent.
    pub(super) beats: u64,
    /// Number of the last lease datagram to each node.
    pub(super) said: [u64; NODES],
    /// Incarnation of each node whose key is known.
    pub(super) keys: [u64; NODES],
    pub(super) entry: Entry,
    /// Actions that an agent has decided on, and was stopped before.
    pub(super) undone: VecDeque<Action>,
    /// Flows are to be looked at.
    pub(super) asked: bool,
}

impl Machine {
    pub(super) const fn new() -> Self {
        Self {
            agent: None,
            incarnation: 0,
            silent_since: Some(MonoTime::ZERO),
            beats: 0,
            said: [0; NODES],
            keys: [0; NODES],
            entry: Entry::DARK,
            undone: VecDeque::new(),
            asked: false,
        }
    }

    /// The machine goes dark, and is switched on again at once: `now` by its new
    /// clock. It takes a while until there is an agent.
    pub(super) fn darken(&mut self, now: MonoTime) {
        self.end_agent();
        self.silent_since = Some(now);
        self.entry = Entry {
            listening: self.entry.listening,
            ..Entry::DARK
        };
    }

    /// The agent is gone; the data path goes on.
    pub(super) fn end_agent(&mut self) {
        self.agent = None;
        self.keys = [0; NODES];
        self.undone.clear();
        self.asked = false;
    }

    /// Starts an agent, with what an earlier one left in the data path.
    ///
    /// Agents of one boot start within one second, as far as their epochs go.
    pub(super) fn start(&mut self, node: usize, boots: u64, bounds: &Bounds, now: MonoTime) {
        let second = (1 + boots) << 32;
        self.incarnation = (self.incarnation + 1).max(second + 1);
        let silent_since = match bounds.flaw {
            Some(Flaw::NoQuarantine) => MonoTime::ZERO,
            Some(_) | None => self.silent_since.take().unwrap_or(now),
        };
        self.beats = 0;
        self.said = [0; NODES];
        let config = self.config(node, bounds, silent_since);
        let mut agent = Node::new(&config, now);
        if node < SERVERS {
            agent.handle_inherited_flows(SHARE, self.entry.latest, now);
            agent.handle_listening(SHARE, self.entry.listening, now);
        }
        self.agent = Some(agent);
    }

    fn config(&self, node: usize, bounds: &Bounds, silent_since: MonoTime) -> NodeConfig {
        let others = (0..NODES).filter(|other| *other != node);
        let entry = &self.entry;
        let resume = Resume {
            role: entry.role,
            epoch: entry.epoch,
            generation: entry.generation,
            expiry: entry.expiry,
            other: None,
        };
        let drift_ppm = match (bounds.drift, bounds.flaw) {
            (false, _) | (true, Some(Flaw::NoDrift)) => NO_DRIFT_PPM,
            (true, _) => DRIFT_PPM,
        };
        let terms = Terms {
            term: TERM,
            long_term: TERM,
            drift_ppm,
            egress_residence: Duration::ZERO,
        };
        NodeConfig {
            name: name(node),
            incarnation: self.incarnation,
            peers: others
                .map(|other| PeerConfig { name: name(other) })
                .collect(),
            shares: vec![ShareConfig {
                id: SHARE,
                name: String::new(),
                primary: name(0),
                mates: Vec::new(),
                backups: vec![name(1)],
                fencing: Fencing::Lease,
                server_lost_hold: HOLD,
                policy: FlowPolicy::default(),
                flap_limit: 0,
                failback: None,
                paths: 0,
                moves_within: None,
                resume: (node < SERVERS).then_some(resume),
            }],
            lease: LeaseConfig {
                voters: (0..NODES).map(name).collect(),
                quiet_until: silent_since.saturating_add(terms.quarantine()),
                terms,
                seed: 0,
            },
            // One may be missed, two may not.
            heartbeat: TERM * 2 / 3 / bounds.ticks.max(LEAST_TICKS),
            misses: 2,
            startup_grace: NodeConfig::STARTUP_GRACE,
            heartbeat_key: [0; 32],
            config_digest: [0; 32],
        }
    }

    /// Whether the data path lets segments out.
    pub(super) fn can_speak(&self, now: MonoTime, flaw: Option<Flaw>) -> bool {
        let entry = &self.entry;
        let fenced = entry.expiry.is_none_or(|expiry| expiry <= now);
        let held = |since| now.since(since) < HOLD + HOLD / 2;
        entry.role == Role::Owner
            && (!fenced || flaw == Some(Flaw::NoFence))
            && !entry.released.is_some_and(held)
    }
}
