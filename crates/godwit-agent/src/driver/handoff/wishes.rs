//! Who wants which connections to go to another server.

use std::collections::BTreeSet;

use godwit_core::handoff::{Course, HandoffError};
use godwit_wire::FlowId;
use tokio::sync::oneshot;

use crate::clock::ms;
use crate::moves::{FlowMoves, FlowStayed, MoveRefused, MoveSteps, MovedFlow};

/// Those who wait.
#[derive(Debug, Default)]
pub(super) struct Wishes(pub(super) Vec<Asker>);

/// Answered when the last of its connections has moved or has not.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) waits: BTreeSet<FlowId>,
    pub(super) report: FlowMoves,
    pub(super) reply: oneshot::Sender<Result<FlowMoves, MoveRefused>>,
}

impl Asker {
    pub(super) fn note(&mut self, flow: FlowId, outcome: Result<Course, HandoffError>) {
        let flow = flow.key.to_string();
        match outcome {
            Ok(course) => self.report.moved.push(MovedFlow {
                flow,
                silent_ms: ms(course.silent()),
                steps: MoveSteps::of(&course),
            }),
            Err(reason) => self.report.stayed.push(FlowStayed {
                flow,
                reason: reason.as_str().into(),
            }),
        }
    }

    pub(super) fn answer(self) {
        // Whoever asked may have gone.
        let _ = self.reply.send(Ok(self.report));
    }
}
