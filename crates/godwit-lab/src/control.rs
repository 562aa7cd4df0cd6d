//! The control arm: the same crash with plain TCP and a moved virtual address.
//!
//! It does what any fail-over of an address does: the survivor takes the
//! address and announces itself. The connections are not there, so they die.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use godwit_wire::{ArpOperation, ArpPacket, NeighbourAdvertisement};

use crate::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use crate::lab::Lab;
use crate::links::Crash;
use crate::packet::PacketSocket;

/// How long the survivor needs to notice: the same as Godwit's default.
pub const DETECTION: Duration = Duration::from_millis(30);

impl Lab {
    /// Gives `host` the service addresses the plain way.
    ///
    /// # Errors
    /// Fails if it has them already.
    pub fn take_service_address(&self, host: Host) -> Result<()> {
        let node = self.node(host);
        node.netns().ip(&[
            format!("addr add {SERVICE_V4}/32 dev eth0"),
            format!("addr add {SERVICE_V6}/128 dev eth0 nodad"),
        ])?;
        let mac = host.mac(Network::Data);
        let request = ArpPacket::gratuitous(ArpOperation::Request, SERVICE_V4, mac);
        let advertisement = NeighbourAdvertisement {
            target: SERVICE_V6,
            mac,
        };
        node.enter(|| {
            let socket = PacketSocket::open(Network::Data.interface())?;
            socket.send(&request.broadcast_frame())?;
            socket.send(&advertisement.multicast_frame())
        })?
    }

    /// Lets `from` die and, after `detection`, moves the service addresses to
    /// `to`.
    ///
    /// # Errors
    /// Fails as [`crash`](Self::crash) does.
    pub fn crash_and_move_address(
        &self,
        from: Host,
        to: Host,
        detection: Duration,
    ) -> Result<Crash> {
        let crash = self.crash(from)?;
        thread::sleep((crash.until + detection).saturating_duration_since(Instant::now()));
        self.take_service_address(to)?;
        Ok(crash)
    }
}
