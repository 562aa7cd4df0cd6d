//! `gw_handoffs`: connections that go from one server to another by themselves.

use godwit_wire::{Epoch, FlowEpoch, FlowId, FlowKey, MacAddr, SeqNumber};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::gw_handoff_mode as Mode;
use crate::skel::types::gw_handoff_place as Place;

const _: () = assert!(size_of::<types::gw_handoff>() == 64);

/// Where a connection is, as the data path of this node has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// About to come: what its client sends goes into a device of the agent, by
    /// interface index, and nothing goes out.
    Held {
        /// The device, which takes packets without a link header.
        device: u32,
        /// It had left from here, to that node, and runs there until it is stopped:
        /// what its client sends goes on to it as well.
        runs_at: Option<MacAddr>,
        /// The node that gives it away, if its address on the link is known: what that
        /// forwards is not sent on once more.
        origin: Option<MacAddr>,
    },
    /// It has left: what its client sends goes on to that node, and nothing of
    /// ours goes out.
    Away {
        /// Its address on the service interface's link.
        to: MacAddr,
        /// It was about to come back, from that node, and has not: what that forwards
        /// here has been here.
        origin: Option<MacAddr>,
    },
    /// It has come.
    Here,
    /// It has come, and its server is about to get its socket ([`Newborn`]): that may
    /// speak, and what its client sends goes into a device of the agent.
    ///
    /// [`Newborn`]: crate::Newborn
    Born {
        /// The device, as with `Held`.
        device: u32,
    },
}

/// What the agent has decided of a connection; no program reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandoffNote {
    /// Where it is.
    pub place: NotedPlace,
    /// How it came to this node, if by a handoff.
    pub arrival: Option<NotedArrival>,
    /// The greatest number of an attempt that was used here for it.
    pub spent: FlowEpoch,
}

/// Where a connection is, as decided. Peers are numbered as in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NotedPlace {
    /// Nowhere, as far as this node has to say.
    #[default]
    Elsewhere,
    /// On this node.
    Here,
    /// Given away; the other node has not said that it is there.
    Committed {
        /// The attempt.
        epoch: FlowEpoch,
        /// The node.
        to: u16,
        /// Its epoch then.
        life: Epoch,
    },
    /// Given away, and there.
    Moved {
        /// The attempt.
        epoch: FlowEpoch,
        /// The node.
        to: u16,
    },
}

/// By whom a connection was handed to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotedArrival {
    /// The node.
    pub from: u16,
    /// The attempt.
    pub epoch: FlowEpoch,
    /// Whether that node knows that it arrived.
    pub settled: bool,
}

/// An entry as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffEntry {
    /// The connection.
    pub flow: FlowId,
    /// Where it is.
    pub whereabouts: Whereabouts,
    /// What was decided.
    pub note: HandoffNote,
    /// When its client spoke last on this node, in nanoseconds of CLOCK_BOOTTIME;
    /// a write begins anew.
    pub heard: Option<u64>,
}

/// Typed access to `gw_handoffs`. A write replaces a whole entry, so an entry has
/// one writer at a time.
#[derive(Debug)]
pub struct HandoffTable(TypedMap<types::gw_flow_key, types::gw_handoff>);

impl HandoffTable {
    pub(crate) fn new(handle: MapHandle) -> Self {
        Self(TypedMap::new(handle, "gw_handoffs"))
    }

    /// Says where a connection is. Segments that are on their way through a hook
    /// may still meet what was said before.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write; the table may be full.
    pub fn set(&self, entry: &HandoffEntry) -> Result<(), MapError> {
        let key = types::gw_flow_key::from(entry.flow.key);
        self.0.update(&key, &raw(entry))
    }

    /// Where a connection is, if it was ever handed over.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn get(&self, key: FlowKey) -> Result<Option<HandoffEntry>, MapError> {
        let raw = self.0.lookup(&types::gw_flow_key::from(key))?;
        Ok(raw.and_then(|raw| entry(key, &raw)))
    }

    /// From here on the connection is where its service is.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write, or there was no entry.
    pub fn remove(&self, key: FlowKey) -> Result<(), MapError> {
        self.0.delete(&types::gw_flow_key::from(key))
    }

    /// All entries, in no order. Those that come or go meanwhile may be missed.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn entries(&self) -> Result<Vec<HandoffEntry>, MapError> {
        let mut entries = Vec::new();
        for key in self.0.keys()? {
            entries.extend(self.get(FlowKey::from(key))?);
        }
        Ok(entries)
    }
}

fn raw(entry: &HandoffEntry) -> types::gw_handoff {
    let mut raw = types::gw_handoff {
        irs: entry.flow.irs.0,
        spent: entry.note.spent.0,
        ..types::gw_handoff::default()
    };
    raw.mode = match entry.whereabouts {
        Whereabouts::Held {
            device,
            runs_at,
            origin,
        } => {
            raw.device = device;
            raw.mac = bytes(runs_at);
            raw.origin = bytes(origin);
            Mode::GW_HANDOFF_HELD.0
        }
        Whereabouts::Away { to, origin } => {
            raw.mac = to.0;
            raw.origin = bytes(origin);
            Mode::GW_HANDOFF_AWAY.0
        }
        Whereabouts::Here => Mode::GW_HANDOFF_HERE.0,
        Whereabouts::Born { device } => {
            raw.device = device;
            Mode::GW_HANDOFF_BORN.0
        }
    };
    let (place, away) = match entry.note.place {
        NotedPlace::Elsewhere => (Place::GW_HANDOFF_ELSEWHERE, None),
        NotedPlace::Here => (Place::GW_HANDOFF_PRESENT, None),
        NotedPlace::Committed { epoch, to, life } => {
            raw.life = life.0;
            (Place::GW_HANDOFF_COMMITTED, Some((epoch, to)))
        }
        NotedPlace::Moved { epoch, to } => (Place::GW_HANDOFF_MOVED, Some((epoch, to))),
    };
    raw.place = place.0;
    if let Some((epoch, to)) = away {
        (raw.epoch, raw.to) = (epoch.0, to);
    }
    if let Some(arrival) = entry.note.arrival {
        (raw.arrival, raw.from) = (arrival.epoch.0, arrival.from);
        raw.settled = arrival.settled.into();
    }
    raw
}

fn bytes(node: Option<MacAddr>) -> [u8; 6] {
    node.unwrap_or(MacAddr::ZERO).0
}

fn node(bytes: [u8; 6]) -> Option<MacAddr> {
    Some(MacAddr(bytes)).filter(|mac| *mac != MacAddr::ZERO)
}

/// `None` for what a later data path has written.
fn entry(key: FlowKey, raw: &types::gw_handoff) -> Option<HandoffEntry> {
    let whereabouts = match Mode(raw.mode) {
        Mode::GW_HANDOFF_HELD => Whereabouts::Held {
            device: raw.device,
            runs_at: node(raw.mac),
            origin: node(raw.origin),
        },
        Mode::GW_HANDOFF_AWAY => Whereabouts::Away {
            to: MacAddr(raw.mac),
            origin: node(raw.origin),
        },
        Mode::GW_HANDOFF_HERE => Whereabouts::Here,
        Mode::GW_HANDOFF_BORN => Whereabouts::Born { device: raw.device },
        _ => return None,
    };
    let (epoch, to) = (FlowEpoch(raw.epoch), raw.to);
    let place = match Place(raw.place) {
        Place::GW_HANDOFF_ELSEWHERE => NotedPlace::Elsewhere,
        Place::GW_HANDOFF_PRESENT => NotedPlace::Here,
        Place::GW_HANDOFF_COMMITTED => NotedPlace::Committed {
            epoch,
            to,
            life: Epoch(raw.life),
        },
        Place::GW_HANDOFF_MOVED => NotedPlace::Moved { epoch, to },
        _ => return None,
    };
    let arrival = (raw.arrival != 0).then_some(NotedArrival {
        from: raw.from,
        epoch: FlowEpoch(raw.arrival),
        settled: raw.settled != 0,
    });
    let irs = SeqNumber(raw.irs);
    Some(HandoffEntry {
        flow: FlowId { key, irs },
        whereabouts,
        note: HandoffNote {
            place,
            arrival,
            spent: FlowEpoch(raw.spent),
        },
        heard: (raw.heard_ns != 0).then_some(raw.heard_ns),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written down for the next agent is what it reads.
    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let end = |text: &str| text.parse().expect("a literal");
        let key = FlowKey {
            client: end("10.9.0.10:40000"),
            service: end("10.9.0.100:80"),
        };
        let (epoch, to) = (FlowEpoch(7), 3);
        let arrival = NotedArrival {
            from: 2,
            epoch: FlowEpoch(6),
            settled: true,
        };
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let other = Some(MacAddr([2, 0, 0, 0, 0, 2]));
        let held = |runs_at, origin| Whereabouts::Held {
            device: 9,
            runs_at,
            origin,
        };
        let away = |origin| Whereabouts::Away { to: mac, origin };
        let whereabouts = [
            held(None, None),
            held(None, other),
            held(Some(mac), other),
            away(None),
            away(other),
            Whereabouts::Here,
            Whereabouts::Born { device: 9 },
        ];
        let places = [
            NotedPlace::Elsewhere,
            NotedPlace::Here,
            NotedPlace::Committed {
                epoch,
                to,
                life: Epoch(5 << 32),
            },
            NotedPlace::Moved { epoch, to },
        ];
        for (whereabouts, place) in whereabouts
            .into_iter()
            .flat_map(|at| places.map(|place| (at, place)))
        {
            for arrival in [None, Some(arrival)] {
                let written = HandoffEntry {
                    flow: FlowId {
                        key,
                        irs: SeqNumber(5),
                    },
                    whereabouts,
                    note: HandoffNote {
                        place,
                        arrival,
                        spent: epoch,
                    },
                    heard: None,
                };
                assert_eq!(entry(key, &raw(&written)), Some(written));
            }
        }
    }
}
