//! `godwit.flows/1`: every flow of a node, as the control socket answers it.
//!
//! The schema is stable: fields may be added, none is renamed or removed.

use godwit_bpf::{FlowState, Phase};
use godwit_core::MonoTime;
use godwit_wire::{FlowKey, Generation, Role, ShareId, UnprotectedReason};
use serde::{Deserialize, Serialize};

use crate::clock::whole_ms;
use crate::reprotect;

/// The schema's name and version.
pub const SCHEMA: &str = "godwit.flows/1";

/// The flows of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// [`SCHEMA`].
    pub schema: String,
    /// This node.
    pub node: String,
    /// The flows, in no particular order.
    pub flows: Vec<FlowReport>,
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowReport {
    /// `client -> service`, addresses with ports.
    pub flow: String,
    /// Name of the service.
    pub service: String,
    /// Number of the share.
    pub share: u32,
    /// What this node does for the flow: `owner` or `shadow`.
    pub role: String,
    /// `confirming`, `protected`, `unprotected`, `twin`, `closed` or `ended`; of a
    /// connection that was handed over by itself `coming`, `here` or `away`.
    pub state: FlowStateName,
    /// Where a connection is that is `away`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Whether it would survive the owner's failure now, as far as this node knows.
    pub protected: bool,
    /// Why not: `confirming`, `ended`, `no_quorum` (the event of that name), or a
    /// reason of the event `flow_demoted`.
    pub reason: Option<String>,
    /// What the client has acknowledged and the twin's application has not yet
    /// said; absent where there is no twin.
    pub lag_bytes: Option<u32>,
    /// What the owner has and has not yet acknowledged to the client.
    pub held_bytes: u32,
    /// Received from the client.
    pub bytes_in: u64,
    /// Sent to the client (owner), or would have been (shadow).
    pub bytes_out: u64,
    /// Time since its handshake.
    pub age_ms: u64,
    /// Time since the client last spoke.
    pub last_client_ms: u64,
    /// Owner: what an unprotected flow waits for until it is protected again;
    /// absent in answers of agents before 0.2.
    #[serde(default)]
    pub reprotect: Option<String>,
    /// Owner: time since it became protected again while it ran.
    #[serde(default)]
    pub protected_again_ms: Option<u64>,
}

/// Where a flow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowStateName {
    /// Owner: gated, no twin has answered yet.
    Confirming,
    /// Owner: a twin holds all that the client was told.
    Protected,
    /// Owner: goes on alone.
    Unprotected,
    /// Shadow: a silent twin.
    Twin,
    /// Shadow: its twin closed before the flow ended.
    Closed,
    /// Over; kept a few seconds for late segments.
    Ended,
    /// About to come from another server, of a service without twins.
    Coming,
    /// It has come from another server.
    Here,
    /// It is on another server; what its client sends goes on to there.
    Away,
}

/// Flows of one service by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCounts {
    /// All of them.
    pub total: u64,
    /// In [`FlowStateName::Confirming`].
    pub confirming: u64,
    /// In [`FlowStateName::Protected`].
    pub protected: u64,
    /// In [`FlowStateName::Unprotected`].
    pub unprotected: u64,
    /// In [`FlowStateName::Twin`].
    pub twin: u64,
    /// In [`FlowStateName::Closed`].
    pub closed: u64,
    /// In [`FlowStateName::Ended`].
    pub ended: u64,
    /// In [`FlowStateName::Coming`].
    #[serde(default)]
    pub coming: u64,
    /// In [`FlowStateName::Here`].
    #[serde(default)]
    pub here: u64,
    /// In [`FlowStateName::Away`].
    #[serde(default)]
    pub away: u64,
    /// Twins that would be served if the owner failed now.
    #[serde(skip)]
    pub ready: u64,
}

/// The share that a flow belongs to, as far as its report depends on it.
#[derive(Debug, Clone, Copy)]
pub struct ShareView<'a> {
    /// Name of the service.
    pub service: &'a str,
    /// What this node does for it.
    pub role: Role,
    /// The generation in sync.
    pub generation: Generation,
    /// As the owner: whether no other node could be elected if this one failed.
    pub no_quorum: bool,
    /// Whether its twins stand at their servers' snapshots.
    pub kept: bool,
}

impl Flows {
    /// A list of flows of a node.
    pub fn new(node: &str, flows: Vec<FlowReport>) -> Self {
        Self {
            schema: SCHEMA.into(),
            node: node.into(),
            flows,
        }
    }
}

impl FlowReport {
    /// Puts together what the data path and the share say of a flow.
    pub fn new(flow: &FlowState, share: ShareView<'_>, now: MonoTime) -> Self {
        let state = FlowStateName::of(flow, share);
        let reason = state.why_not_protected(flow, share);
        let since = |ns| whole_ms(now.since(MonoTime::from_nanos(ns)));
        Self {
            flow: flow.id.key.to_string(),
            service: share.service.to_owned(),
            share: flow.share.0,
            role: share.role.as_str().into(),
            state,
            at: None,
            protected: reason.is_none(),
            reason: reason.map(Into::into),
            lag_bytes: state.lag_bytes(flow),
            held_bytes: state.held_bytes(flow),
            bytes_in: flow.bytes_in,
            bytes_out: flow.bytes_out,
            age_ms: since(flow.born_ns),
            last_client_ms: since(flow.heard_ns),
            reprotect: (share.role == Role::Owner)
                .then(|| reprotect::obstacle(flow, share.generation, share.kept))
                .flatten()
                .map(|why| why.as_str().into()),
            protected_again_ms: (flow.rejoined_ns != 0 && state == FlowStateName::Protected)
                .then(|| since(flow.rejoined_ns)),
        }
    }
}

/// A connection that was handed over by itself.
#[derive(Debug, Clone)]
pub struct Handed {
    /// Which.
    pub flow: FlowKey,
    /// `coming`, `here` or `away`.
    pub state: FlowStateName,
    /// Where it is, if it is `away` for good.
    pub at: Option<String>,
    /// When its client spoke last, if it spoke here.
    pub heard: Option<MonoTime>,
}

impl FlowReport {
    /// What is known of a connection that was handed over: its socket alone counts
    /// its bytes, and its handshake may have been elsewhere.
    pub fn handed(handed: &Handed, (service, share): (&str, ShareId), now: MonoTime) -> Self {
        Self {
            flow: handed.flow.to_string(),
            service: service.to_owned(),
            share: share.0,
            role: Role::Owner.as_str().into(),
            state: handed.state,
            at: handed.at.clone(),
            protected: false,
            reason: Some(UnprotectedReason::NoStandby.as_str().into()),
            lag_bytes: None,
            held_bytes: 0,
            bytes_in: 0,
            bytes_out: 0,
            age_ms: 0,
            last_client_ms: handed.heard.map_or(0, |heard| whole_ms(now.since(heard))),
            reprotect: None,
            protected_again_ms: None,
        }
    }
}

impl FlowStateName {
    /// Where a flow stands: a twin that does not follow a takeover yet is an owner's
    /// flow, and one whose standby is gone is not protected any more.
    pub fn of(flow: &FlowState, share: ShareView<'_>) -> Self {
        let owned = share.role == Role::Owner;
        match flow.phase {
            Phase::Ended => Self::Ended,
            Phase::Closed => Self::Closed,
            Phase::Confirming if share.generation == flow.generation => Self::Confirming,
            Phase::Protected if flow.is_protected(share.generation) => Self::Protected,
            Phase::Twin if !owned => Self::Twin,
            Phase::Confirming
            | Phase::Protected
            | Phase::Unprotected
            | Phase::Twin
            | Phase::Rejoining => Self::Unprotected,
            Phase::Unknown(_) => Self::Unprotected,
        }
    }

    /// The name in outputs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirming => "confirming",
            Self::Protected => "protected",
            Self::Unprotected => "unprotected",
            Self::Twin => "twin",
            Self::Closed => "closed",
            Self::Ended => "ended",
            Self::Coming => "coming",
            Self::Here => "here",
            Self::Away => "away",
        }
    }

    fn why_not_protected(self, flow: &FlowState, share: ShareView<'_>) -> Option<&'static str> {
        match self {
            Self::Protected if share.no_quorum => Some("no_quorum"),
            Self::Protected => None,
            Self::Confirming => Some("confirming"),
            Self::Ended => Some("ended"),
            Self::Coming | Self::Here | Self::Away => Some("no_standby"),
            Self::Closed => Some(UnprotectedReason::TwinClosed.as_str()),
            Self::Twin if flow.not_in_sync => {
                Some(flow.why.unwrap_or(UnprotectedReason::NotInSync).as_str())
            }
            Self::Twin if flow.generation == share.generation => None,
            Self::Twin => Some(UnprotectedReason::StandbyLost.as_str()),
            Self::Unprotected => Some(flow.why.unwrap_or_else(|| implied(flow)).as_str()),
        }
    }

    /// Without a gate nothing is held.
    fn held_bytes(self, flow: &FlowState) -> u32 {
        match self {
            Self::Confirming | Self::Protected => {
                flow.rcv_nxt.checked_distance(flow.told_ack).unwrap_or(0)
            }
            Self::Unprotected
            | Self::Twin
            | Self::Closed
            | Self::Ended
            | Self::Coming
            | Self::Here
            | Self::Away => 0,
        }
    }

    fn lag_bytes(self, flow: &FlowState) -> Option<u32> {
        let behind = |twin| flow.snd_una.checked_distance(twin).unwrap_or(0);
        match self {
            Self::Protected => Some(behind(flow.twin_snd_nxt)),
            Self::Twin => Some(behind(flow.snd_nxt)),
            Self::Confirming
            | Self::Unprotected
            | Self::Closed
            | Self::Ended
            | Self::Coming
            | Self::Here
            | Self::Away => None,
        }
    }
}

/// Why an owner's flow is alone although the data path gives no reason: its
/// generation is over, which is one write for all flows.
fn implied(flow: &FlowState) -> UnprotectedReason {
    if flow.twin {
        UnprotectedReason::AfterTakeover
    } else if flow.generation.is_none() {
        UnprotectedReason::NoStandby
    } else {
        UnprotectedReason::StandbyLost
    }
}

impl FlowCounts {
    /// The counts with the names of their states.
    pub const fn by_state(&self) -> [(&'static str, u64); 9] {
        [
            (FlowStateName::Confirming.as_str(), self.confirming),
            (FlowStateName::Protected.as_str(), self.protected),
            (FlowStateName::Unprotected.as_str(), self.unprotected),
            (FlowStateName::Twin.as_str(), self.twin),
            (FlowStateName::Closed.as_str(), self.closed),
            (FlowStateName::Ended.as_str(), self.ended),
            (FlowStateName::Coming.as_str(), self.coming),
            (FlowStateName::Here.as_str(), self.here),
            (FlowStateName::Away.as_str(), self.away),
        ]
    }

    /// Counts one flow of the data path more.
    pub fn note(&mut self, flow: &FlowState, share: ShareView<'_>) {
        let state = FlowStateName::of(flow, share);
        self.count(state);
        let survives = state.why_not_protected(flow, share).is_none();
        self.ready += u64::from(survives && state == FlowStateName::Twin);
    }

    /// Counts one flow more.
    pub fn count(&mut self, state: FlowStateName) {
        self.total += 1;
        *match state {
            FlowStateName::Confirming => &mut self.confirming,
            FlowStateName::Protected => &mut self.protected,
            FlowStateName::Unprotected => &mut self.unprotected,
            FlowStateName::Twin => &mut self.twin,
            FlowStateName::Closed => &mut self.closed,
            FlowStateName::Ended => &mut self.ended,
            FlowStateName::Coming => &mut self.coming,
            FlowStateName::Here => &mut self.here,
            FlowStateName::Away => &mut self.away,
        } += 1;
    }
}
