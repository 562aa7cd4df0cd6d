//! Whom a candidate has to hear.

use super::config::NodeConfig;
use super::context::Context;
use crate::PeerId;

/// The voters that are peers, and how many of them make a majority with this node.
///
/// A node that speaks and does not hear could have every voter promise itself
/// one round after the other, win none of them, and keep out the owner that asks
/// for its lease again.
#[derive(Debug, Clone)]
pub(super) struct Ears {
    voters: Vec<PeerId>,
    needed: usize,
}

impl Ears {
    pub(super) fn new(config: &NodeConfig) -> Self {
        let voters = &config.lease.voters;
        let majority = voters.len() / 2 + 1;
        let peers = (0..).map(PeerId).zip(&config.peers);
        Self {
            voters: peers
                .filter(|(_, peer)| voters.contains(&peer.name))
                .map(|(peer, _)| peer)
                .collect(),
            needed: majority.saturating_sub(usize::from(voters.contains(&config.name))),
        }
    }

    /// Whether the answers of a majority could arrive.
    pub(super) fn hear_majority(&self, context: &Context<'_>) -> bool {
        let alive = |peer: &&PeerId| context.is_alive(**peer);
        self.voters.iter().filter(alive).count() >= self.needed
    }
}
