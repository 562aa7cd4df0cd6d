//! After a takeover: twins of idle clients may speak.
//!
//! A silent twin's window is shut at what its client has acknowledged. A busy
//! client's answer to a probe opens it; an idle one is not probed, and what its
//! server wants to push would wait for the kernel's persist timer (200 ms). So
//! such a twin hears its client's last window from us. Off the driver's thread:
//! there may be hundreds of thousands, and clients that wait come first.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_bpf::{FlowState, FlowTable, Phase};
use godwit_core::MonoTime;
use godwit_sock::FrameSender;
use godwit_wire::{MacAddr, ShareId};

use super::ground::Ground;
use super::segments;
use crate::realtime::be_ordinary;

/// Flows that are served before others may have the processor.
const BATCH: usize = 128;
const PAUSE: Duration = Duration::from_millis(1);

/// What the thread works with.
struct Offers {
    share: ShareId,
    /// Silent since before then.
    idle_since: MonoTime,
    mac: MacAddr,
    injected: Arc<FrameSender>,
    done: usize,
}

/// Tells the twins of `share` whose clients are silent since `idle_since`.
pub(super) fn offer_windows(ground: &Ground, share: ShareId, idle_since: MonoTime) {
    let flows = Arc::clone(&ground.datapath.flows);
    let offers = Offers {
        share,
        idle_since,
        mac: ground.voice.mac,
        injected: Arc::clone(&ground.voice.injected),
        done: 0,
    };
    let spawned = thread::Builder::new()
        .name("gw-offers".into())
        .spawn(move || {
            be_ordinary();
            offers.make(&flows);
        });
    if let Err(error) = spawned {
        tracing::warn!(error = %error, "idle twins not told of their windows");
    }
}

impl Offers {
    fn make(mut self, flows: &FlowTable) {
        let scanned = flows.for_each(|flow| {
            if self.is_due(&flow) {
                self.tell(&flow);
            }
        });
        if let Err(error) = scanned {
            tracing::warn!(error = %error, "can't read the flows that are idle");
        }
    }

    fn is_due(&self, flow: &FlowState) -> bool {
        flow.share == self.share
            && flow.twin
            && (flow.phase == Phase::Twin || flow.is_taken_over())
            && !flow.not_in_sync
            && !flow.cut_short
            && flow.heard_ns <= self.idle_since.0
    }

    fn tell(&mut self, flow: &FlowState) {
        let Some(packet) = segments::client_offer(flow) else {
            return;
        };
        let frame = segments::frame(self.mac, flow.client_mac, &packet);
        if let Err(error) = self.injected.send(&frame) {
            tracing::debug!(flow = %flow.id.key, error = %error, "own kernel not told");
        }
        self.done += 1;
        if self.done.is_multiple_of(BATCH) {
            thread::sleep(PAUSE);
        }
    }
}
