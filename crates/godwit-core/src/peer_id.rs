//! How this node numbers its peers.

/// A peer of this node: its index in [`NodeConfig::peers`](crate::NodeConfig::peers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u16);
