//! Lease datagrams on their way out: written by the driver itself, beside the
//! heartbeats, as a decision must not wait for a tick.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use godwit_core::PeerId;
use godwit_wire::LeaseDatagram;

use super::{HeartbeatKeys, send};
use crate::config::Config;

/// The way to the voters.
#[derive(Debug, Clone)]
pub struct LeaseSender {
    socket: Arc<UdpSocket>,
    targets: Arc<[Option<send::Target>]>,
}

impl LeaseSender {
    pub(super) fn new(config: &Config, keys: &HeartbeatKeys, socket: UdpSocket) -> Self {
        Self {
            socket: Arc::new(socket),
            targets: send::all_targets(config, keys).collect(),
        }
    }

    /// Signs and sends a datagram; what is lost is said again by its author.
    ///
    /// # Errors
    /// If there is no such peer, or the kernel takes no datagram to it.
    pub fn send(&self, peer: PeerId, datagram: &LeaseDatagram) -> io::Result<()> {
        let target = self.targets.get(usize::from(peer.0));
        let target = target.and_then(Option::as_ref);
        let target = target.ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = Vec::with_capacity(LeaseDatagram::MAX_LEN);
        datagram
            .emit_unsigned(&mut bytes)
            .map_err(io::Error::other)?;
        HeartbeatKeys::sign(&target.key, &mut bytes);
        self.socket.send_to(&bytes, target.address).map(drop)
    }
}
