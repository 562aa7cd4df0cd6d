//! Flows of which the kernel is asked soon whether they have sockets.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use godwit_core::FlowEvent;
use godwit_wire::FlowKey;

/// Flows that wait for such a look at most. What is more waits for the next sweep.
const DOUBTED: usize = 4096;

/// Flows that may have ended: their clients have sent a RST of which the kernel knows better
/// than the data path whether it counts. Or their share is to move, and they stand in its way.
#[derive(Debug, Default)]
pub(super) struct Doubts(Mutex<BTreeMap<FlowKey, FlowEvent>>);

impl Doubts {
    /// The `event` is what there is to say if the flow has no socket.
    pub(super) fn add(&self, event: FlowEvent) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < DOUBTED {
            waiting.insert(event.flow.key, event);
        }
    }

    pub(super) fn take(&self) -> BTreeMap<FlowKey, FlowEvent> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use godwit_core::FlowEventKind;
    use godwit_wire::{Endpoint, FlowId, Generation, SeqNumber, ShareId};

    use super::*;

    fn flow(port: u16) -> FlowEvent {
        let endpoint = |text: String| text.parse::<Endpoint>().expect("an address");
        let key = FlowKey {
            client: endpoint(format!("10.9.0.10:{port}")),
            service: endpoint("10.9.0.100:80".into()),
        };
        FlowEvent {
            share: ShareId(1),
            flow: FlowId {
                key,
                irs: SeqNumber(77),
            },
            generation: Generation(1),
            kind: FlowEventKind::Ended,
        }
    }

    #[test]
    fn doubts_are_looked_into_once_and_are_not_without_a_limit() {
        let doubts = Doubts::default();
        for port in [1, 2, 1] {
            doubts.add(flow(port));
        }
        let taken: Vec<_> = doubts.take().into_values().collect();
        assert_eq!(taken, [flow(1), flow(2)]);
        assert!(doubts.take().is_empty());
        for port in 0..=u16::MAX {
            doubts.add(flow(port));
        }
        assert_eq!(doubts.take().len(), DOUBTED);
    }
}
