//! How this node speaks on the data network, and to its own kernel.

use std::io;
use std::sync::Arc;

use godwit_bpf::{MARK_CANARY, MARK_INJECT, MARK_REPLAY, MARK_SETTLED, MARK_SPOKEN};
use godwit_sock::{FrameSender, Interface, SegmentSender};
use godwit_wire::MacAddr;

/// A socket for each mark that frames may have.
#[derive(Debug)]
pub(super) struct Voice {
    /// Of the service interface.
    pub(super) ifindex: u32,
    /// Of the service interface.
    pub(super) mac: MacAddr,
    /// Segments to clients; the kernel routes them.
    pub(super) segments: SegmentSender,
    /// Frames to the standby and to the whole link.
    pub(super) frames: FrameSender,
    /// Frames to our own kernel, turned round by the gate.
    pub(super) injected: Arc<FrameSender>,
    /// As `injected`, for twins of flows that run already.
    pub(super) replayed: Arc<FrameSender>,
    /// Canaries, to our own tap.
    pub(super) canary_frames: FrameSender,
    /// Answers to our own questions, turned round by the gate.
    pub(super) settled: FrameSender,
}

impl Voice {
    pub(super) fn open(interface: &Interface) -> io::Result<Self> {
        let frames = |mark| FrameSender::open(interface.index, mark);
        Ok(Self {
            ifindex: interface.index,
            mac: interface.mac,
            segments: SegmentSender::open(interface.index, MARK_SPOKEN)?,
            frames: frames(MARK_SPOKEN)?,
            injected: Arc::new(frames(MARK_INJECT)?),
            replayed: Arc::new(frames(MARK_REPLAY)?),
            canary_frames: frames(MARK_CANARY)?,
            settled: frames(MARK_SETTLED)?,
        })
    }

    /// The service interface is another one now, or has another MAC address.
    pub(super) fn follow(&mut self, ifindex: u32, mac: MacAddr) {
        (self.ifindex, self.mac) = (ifindex, mac);
        self.segments.follow(ifindex);
        for frames in [
            &self.frames,
            &*self.injected,
            &*self.replayed,
            &self.canary_frames,
            &self.settled,
        ] {
            if let Err(error) = frames.follow(ifindex) {
                tracing::warn!(%error, "frames don't leave by the service interface");
            }
        }
    }
}
