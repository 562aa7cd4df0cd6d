//! What the thread asks the kernel, and what it knows of its answers.

use std::io;
use std::sync::Arc;

use godwit_bpf::{FlowTable, KernelView};
use godwit_sock::{Destroyer, Holders};

use crate::driver::follow::Place as Stand;

/// The ways to ask.
pub(super) struct Kernel {
    pub(super) view: KernelView,
    /// What the data path knows of connections whose handshake was here.
    pub(super) flows: Arc<FlowTable>,
    /// Where the services are.
    pub(super) stand: Arc<Stand>,
    pub(super) sockets: Destroyer,
    /// Which processes had which sockets, when that was looked up last.
    pub(super) holders: Holders,
}

impl Kernel {
    pub(super) fn open(
        view: KernelView,
        flows: Arc<FlowTable>,
        stand: Arc<Stand>,
    ) -> io::Result<Self> {
        Ok(Self {
            view,
            flows,
            sockets: Destroyer::open(stand.ifindex())?,
            stand,
            holders: Holders::default(),
        })
    }
}
