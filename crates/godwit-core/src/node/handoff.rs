//! Handoffs between nodes: whose connections may go to another server one by one.

use godwit_wire::{Epoch, HandoffId, HandoffRefusal, HandoffStep, Message};

use super::context::Context;
use super::share::ShareSide;
use crate::PeerId;

impl ShareSide {
    /// A peer speaks of a handoff. A share whose connections have twins moves as a
    /// whole ([`super::moving`]), so none of them comes by itself; and what never
    /// came was never served here.
    pub(super) fn handle_handoff(
        &self,
        peer: PeerId,
        (epoch, id): (Epoch, HandoffId),
        step: &HandoffStep,
        context: &mut Context<'_>,
    ) {
        let reason = match step {
            HandoffStep::Prepare => HandoffRefusal::WrongService,
            HandoffStep::Commit => HandoffRefusal::Forgotten,
            HandoffStep::Ready
            | HandoffStep::State { .. }
            | HandoffStep::Prepared
            | HandoffStep::Done
            | HandoffStep::Settled
            | HandoffStep::Abort
            | HandoffStep::Held { .. }
            | HandoffStep::Refused { .. }
            | HandoffStep::Over => return,
        };
        let refused = Message::Handoff {
            share: self.id,
            epoch,
            id,
            step: HandoffStep::Refused { reason },
        };
        context.send(peer, refused);
    }
}
