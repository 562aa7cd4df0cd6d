//! Connections that this node's agent ends with a RST, because nobody serves them:
//! each with a reason, which log, event, status and metrics show.

use std::collections::BTreeMap;

use godwit_bpf::{FlowState, Order, Phase};
use godwit_sock::destroy_tcp;
use godwit_wire::{FlowId, Role, ShareId};

use super::ground::Ground;
use super::segments;
use crate::clock;

/// Why a connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResetReason {
    /// This node took over and its twin may lack bytes: it was given up before.
    NotInSync,
    /// This node took over and its twin had been closed before the owner's end.
    TwinClosed,
    /// This node took over, and no server process took its twin.
    NoServer,
    /// A move by force: the new owner has no twin of it.
    Unprotected,
    /// Its server process died, and nobody took over.
    NoTaker,
    /// Nobody owned the share, and this node has begun it anew, without the connection.
    BegunAnew,
}

/// How many connections were reset since the agent started, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Resets(BTreeMap<ResetReason, u64>);

impl ResetReason {
    /// The stable name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::NotInSync => "not_in_sync",
            Self::TwinClosed => "twin_closed",
            Self::NoServer => "no_server",
            Self::Unprotected => "unprotected",
            Self::NoTaker => "no_taker",
            Self::BegunAnew => "begun_anew",
        }
    }

    /// Of a twin that can't be served.
    pub(super) const fn of_twin(flow: &FlowState) -> Self {
        if flow.not_in_sync {
            Self::NotInSync
        } else {
            Self::TwinClosed
        }
    }

    /// Whether this node was not the one that has spoken to the client.
    const fn is_of_twin(self) -> bool {
        match self {
            Self::NotInSync | Self::TwinClosed | Self::NoServer => true,
            Self::Unprotected | Self::NoTaker | Self::BegunAnew => false,
        }
    }

    /// Whether the kernel may still have a socket of it.
    const fn leaves_socket(self) -> bool {
        match self {
            Self::NotInSync | Self::TwinClosed | Self::NoServer | Self::Unprotected => true,
            Self::NoTaker | Self::BegunAnew => false,
        }
    }
}

impl Resets {
    fn count(&mut self, reason: ResetReason) {
        self.count_many(reason, 1);
    }

    pub(super) fn count_many(&mut self, reason: ResetReason, count: u64) {
        *self.0.entry(reason).or_default() += count;
    }

    fn add(&mut self, other: &Self) {
        for (reason, count) in &other.0 {
            *self.0.entry(*reason).or_default() += count;
        }
    }

    /// By name, as `status` has it.
    pub(super) fn report(&self) -> BTreeMap<String, u64> {
        let named = |(reason, count): (&ResetReason, &u64)| (reason.as_str().to_owned(), *count);
        self.0.iter().map(named).collect()
    }
}

/// Resets connections of a share, each for its reason.
///
/// A client that has got more than a twin knows of drops a RST from before that
/// (RFC 9293 section 3.10.7.4). So it is asked where it is, and our kernel, which
/// has no socket for the answer, resets it from there; as whenever it speaks.
/// One that has closed and has heard its owner out needs no RST: that the standby
/// had no whole twin of its last moments is nothing to it.
pub(super) fn reset(ground: &mut Ground, share: ShareId, flows: &[(FlowState, ResetReason)]) {
    let (mut resets, now) = (Resets::default(), clock::now());
    for (flow, reason) in flows {
        if flow.parted && reason.is_of_twin() {
            tracing::debug!(flow = %flow.id.key, "its client has closed");
            end_here(ground, flow, *reason);
            continue;
        }
        resets.count(*reason);
        tracing::info!(flow = %flow.id.key, reason = reason.as_str(), "connection reset");
        ground.speak(flow, segments::reset(flow));
        end_here(ground, flow, *reason);
        if reason.is_of_twin() {
            ground.speak(flow, segments::last_probe(flow, now));
        }
    }
    tell_resets(ground, share, &resets);
}

/// No server process takes a connection that this node has taken over. Its socket has never
/// said anything: a RST of the kernel's own would be far behind the client.
pub(super) fn reset_unserved(ground: &mut Ground, share: ShareId, flow: FlowId) {
    let known = ground.shares.get(share);
    let owns = known.is_some_and(|known| known.entry.role == Role::Owner);
    let flow = ground.flow(flow).filter(|it| it.phase != Phase::Ended);
    if let (Some(flow), true) = (flow, owns) {
        reset(ground, share, &[(flow, ResetReason::NoServer)]);
    }
}

pub(super) fn tell_resets(ground: &mut Ground, share: ShareId, resets: &Resets) {
    let Some(known) = ground.shares.get_mut(share) else {
        return;
    };
    known.resets.add(resets);
    for (reason, count) in resets.report() {
        let count = count.to_string();
        let fields = [
            ("service", known.name.as_str()),
            ("reason", &reason),
            ("count", &count),
        ];
        ground.events.publish_own("connections_reset", true, fields);
    }
}

fn end_here(ground: &Ground, flow: &FlowState, reason: ResetReason) {
    ground.give(flow.share, flow.id, Order::End);
    if reason.leaves_socket()
        && let Err(error) = destroy_tcp(ground.voice.ifindex, flow.id.key)
    {
        tracing::warn!(flow = %flow.id.key, error = %error, "socket not ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_counted_by_reason() {
        let (mut all, mut some) = (Resets::default(), Resets::default());
        assert!(all.report().is_empty());
        for reason in [
            ResetReason::NotInSync,
            ResetReason::TwinClosed,
            ResetReason::NotInSync,
        ] {
            some.count(reason);
        }
        all.add(&some);
        all.add(&some);
        let wanted = [("not_in_sync", 4), ("twin_closed", 2)];
        let wanted = wanted.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(all.report(), BTreeMap::from(wanted));
    }
}
