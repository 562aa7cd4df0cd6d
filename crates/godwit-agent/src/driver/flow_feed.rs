//! Where news of a flow goes: to those that follow it beside the core, and to the core.

use godwit_core::{FlowEvent, FlowEventKind, MonoTime};

use super::digest::Digest;
use super::ground::Ground;
use super::snapshots::Snapshots;
use crate::reprotect::is_small;

/// All of them, as the driver lends them.
pub(super) struct FlowFeed<'a> {
    pub(super) ground: &'a mut Ground,
    pub(super) digest: &'a mut Digest,
    pub(super) snapshots: &'a mut Snapshots,
}

impl FlowFeed<'_> {
    pub(super) fn feed(&mut self, event: FlowEvent, now: MonoTime) {
        if event.kind == FlowEventKind::Ended {
            self.digest.note_end(event);
            self.ground.apps.note_end(event.flow.key);
        }
        if !self.snapshots.note_event(self.ground, event) {
            self.ground.node.handle_flow_event(event, now);
            self.excuse(event, now);
        }
    }

    /// Of some clients no kernel makes a twin: that says nothing of the standby.
    fn excuse(&mut self, event: FlowEvent, now: MonoTime) {
        let (share, id) = (event.share, event.flow);
        if event.kind == FlowEventKind::NotConfirmed
            && let Some(flow) = self.ground.flow(id)
            && is_small(id.key.client.addr, flow.mss)
        {
            self.ground.node.handle_odd_flow(share, id, now);
        }
    }
}
