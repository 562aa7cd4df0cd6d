//! Why handoffs do not begin.

use std::io;

use godwit_bpf::KernelViewError;
use thiserror::Error;

/// Why connections can't move one by one on this machine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandoffStartError {
    /// Sockets can't be looked into.
    #[error(transparent)]
    View(#[from] KernelViewError),
    /// Packets can't be held.
    #[error("can't make a tun device (/dev/net/tun)")]
    Tun(#[source] io::Error),
}
