//! What the data path is told of connections that go to other servers, and what is
//! written down there for the next agent.

use std::sync::Arc;

use godwit_bpf::{
    HandoffEntry, HandoffNote, HandoffTable, MapError, NotedArrival, NotedPlace, Whereabouts,
};
use godwit_core::PeerId;
use godwit_core::handoff::{Arrival, Place, Written};
use godwit_wire::{FlowId, FlowKey, MacAddr};

/// The table, written by one thread at a time for each connection.
#[derive(Debug, Clone)]
pub(super) struct Places(Arc<HandoffTable>);

impl Places {
    pub(super) const fn new(table: Arc<HandoffTable>) -> Self {
        Self(table)
    }

    /// The entry of a connection; not that of an earlier one with its addresses.
    pub(super) fn get(&self, flow: FlowId) -> Option<HandoffEntry> {
        let found = self.0.get(flow.key).unwrap_or_else(|error| {
            tracing::error!(flow = %flow.key, error = %error, "whereabouts can't be read");
            None
        });
        found.filter(|entry| entry.flow == flow)
    }

    /// Says where it is; what was decided of it stays.
    pub(super) fn set(&self, flow: FlowId, whereabouts: Whereabouts) -> Result<(), MapError> {
        let note = self.get(flow).map(|entry| entry.note).unwrap_or_default();
        self.0.set(&HandoffEntry {
            flow,
            whereabouts,
            note,
            heard: None,
        })
    }

    /// Writes down what was decided of a connection that has an entry.
    pub(super) fn note(&self, flow: FlowId, written: &Written) -> Result<(), MapError> {
        match self.get(flow) {
            Some(entry) => self.0.set(&HandoffEntry {
                note: note(written),
                ..entry
            }),
            None => Ok(()),
        }
    }

    /// The connection is where its handshake was.
    pub(super) fn remove(&self, flow: FlowId) {
        if self.get(flow).is_some()
            && let Err(error) = self.0.remove(flow.key)
        {
            tracing::error!(flow = %flow.key, error = %error, "whereabouts not removed");
        }
    }

    /// What its client sends waits in that device; where the connection had gone from
    /// here, it still goes there, too, until it comes back from `origin`.
    pub(super) fn held(
        &self,
        flow: FlowId,
        device: u32,
        origin: Option<MacAddr>,
    ) -> Result<(), MapError> {
        let runs_at = match self.get(flow).map(|entry| entry.whereabouts) {
            Some(Whereabouts::Away { to, .. }) => Some(to),
            Some(Whereabouts::Held { runs_at, .. }) => runs_at,
            Some(Whereabouts::Here | Whereabouts::Born { .. }) | None => None,
        };
        let held = Whereabouts::Held {
            device,
            runs_at,
            origin,
        };
        self.set(flow, held)
    }

    /// It leaves from here.
    pub(super) fn away(&self, flow: FlowId, to: MacAddr) -> Result<(), MapError> {
        self.set(flow, Whereabouts::Away { to, origin: None })
    }

    /// It had left from here and was about to come back, or has gone to another place on
    /// the link: it is forwarded there.
    pub(super) fn away_again(&self, flow: FlowId, to: MacAddr) -> Result<(), MapError> {
        let origin = match self.get(flow).map(|entry| entry.whereabouts) {
            Some(Whereabouts::Held { origin, .. } | Whereabouts::Away { origin, .. }) => origin,
            Some(Whereabouts::Here | Whereabouts::Born { .. }) | None => None,
        };
        self.set(flow, Whereabouts::Away { to, origin })
    }

    /// Whether one with these addresses has come.
    pub(super) fn is_here(&self, key: FlowKey) -> bool {
        let entry = self.0.get(key).ok().flatten();
        entry.is_some_and(|entry| entry.whereabouts == Whereabouts::Here)
    }

    /// Whether a connection has come whose origin has not heard of that yet.
    pub(super) fn is_unsettled(&self, key: FlowKey) -> bool {
        let entry = self.0.get(key).unwrap_or_else(|error| {
            tracing::error!(flow = %key, error = %error, "whereabouts can't be read");
            None
        });
        entry.is_some_and(|entry| entry.note.arrival.is_some_and(|it| !it.settled))
    }

    /// All entries.
    pub(super) fn all(&self) -> Vec<HandoffEntry> {
        self.0.entries().unwrap_or_else(|error| {
            tracing::error!(error = %error, "whereabouts can't be read");
            Vec::new()
        })
    }
}

fn note(written: &Written) -> HandoffNote {
    HandoffNote {
        place: match written.place {
            Place::Elsewhere => NotedPlace::Elsewhere,
            Place::Here => NotedPlace::Here,
            Place::Committed { epoch, to, life } => NotedPlace::Committed {
                epoch,
                to: to.0,
                life,
            },
            Place::Moved { epoch, to } => NotedPlace::Moved { epoch, to: to.0 },
        },
        arrival: written.arrival.map(|arrival| NotedArrival {
            from: arrival.from.0,
            epoch: arrival.epoch,
            settled: arrival.settled,
        }),
        spent: written.spent,
    }
}

/// What an earlier agent has decided.
pub(super) fn written(note: &HandoffNote) -> Written {
    Written {
        place: match note.place {
            NotedPlace::Elsewhere => Place::Elsewhere,
            NotedPlace::Here => Place::Here,
            NotedPlace::Committed { epoch, to, life } => Place::Committed {
                epoch,
                to: PeerId(to),
                life,
            },
            NotedPlace::Moved { epoch, to } => Place::Moved {
                epoch,
                to: PeerId(to),
            },
        },
        arrival: note.arrival.map(|arrival| Arrival {
            from: PeerId(arrival.from),
            epoch: arrival.epoch,
            settled: arrival.settled,
        }),
        spent: note.spent,
    }
}

#[cfg(test)]
mod tests {
    use godwit_wire::{Epoch, FlowEpoch};

    use super::*;

    #[test]
    fn what_was_decided_outlives_the_agent() {
        let epoch = FlowEpoch(4);
        for place in [
            Place::Elsewhere,
            Place::Here,
            Place::Committed {
                epoch,
                to: PeerId(1),
                life: Epoch(9),
            },
            Place::Moved {
                epoch,
                to: PeerId(2),
            },
        ] {
            for settled in [None, Some(false), Some(true)] {
                let decided = Written {
                    place,
                    arrival: settled.map(|settled| Arrival {
                        from: PeerId(3),
                        epoch,
                        settled,
                    }),
                    spent: FlowEpoch(5),
                };
                assert_eq!(written(&note(&decided)), decided);
            }
        }
    }
}
