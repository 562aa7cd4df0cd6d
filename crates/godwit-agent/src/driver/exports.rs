//! Snapshots that servers have exported, from the owner to its standby: of each
//! connection the latest of which its client has all that was written before. There is
//! one under way at a time, so a standby that is slow gets fewer, not more.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::FlowState;
use godwit_core::MonoTime;
use godwit_wire::app::{Carried, SnapshotPlace};
use godwit_wire::{Endpoint, FlowId, FlowKey, Generation, Role, SeqNumber, ShareId, SnapshotPart};

use super::Driver;
use super::keeper;
use crate::apps::Exported;
use crate::clock;
use crate::config::Config;

/// Shortest time between two looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// A look may take at most this part of the driver's time.
const SHARE_OF_TIME: u32 = 20;

/// Of a snapshot, in one message.
const PART: usize = 256 << 10;

/// Bytes of snapshots that are sent in one round; the others have their turn later.
const ROUND: usize = 4 << 20;

/// What was sent, and what is coming.
#[derive(Debug)]
pub(super) struct Exports {
    due: MonoTime,
    /// Whose connections are kept, by the services' addresses.
    services: BTreeMap<Endpoint, ShareId>,
    sent: BTreeMap<FlowKey, Sent>,
    /// As a standby: what has come of snapshots that are not whole.
    coming: BTreeMap<FlowId, SnapshotPart>,
}

/// The last snapshot of a connection that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    irs: SeqNumber,
    generation: Generation,
    read: u64,
    written: u64,
    /// The standby has it.
    kept: bool,
}

impl Exports {
    pub(super) fn new(config: &Config, now: MonoTime) -> Self {
        Self {
            due: now,
            services: keeper::shares(config),
            sent: BTreeMap::new(),
            coming: BTreeMap::new(),
        }
    }

    /// When to look next; `None` if this node has no such service.
    pub(super) fn due(&self) -> Option<MonoTime> {
        (!self.services.is_empty()).then_some(self.due)
    }

    /// A link has changed: what was under way on it is lost.
    pub(super) fn forget(&mut self) {
        self.sent.clear();
        self.coming.clear();
    }

    /// The data path reports a connection's end.
    pub(super) fn note_end(&mut self, flow: FlowId) {
        self.coming.remove(&flow);
        let sent = self.sent.get(&flow.key);
        if sent.is_some_and(|sent| sent.irs == flow.irs) {
            self.sent.remove(&flow.key);
        }
    }

    /// The standby has the last one of that connection.
    pub(super) fn note_kept(&mut self, flow: FlowId) {
        let sent = self.sent.get_mut(&flow.key);
        if let Some(sent) = sent.filter(|sent| sent.irs == flow.irs) {
            sent.kept = true;
        }
    }

    /// Adds a part; the snapshot once it is whole.
    fn add(&mut self, flow: FlowId, part: SnapshotPart) -> Option<Exported> {
        let first = part.part.len() as u64;
        let whole = match self.coming.remove(&flow) {
            Some(mut begun) if is_same(&begun, &part) => {
                begun.part.extend_from_slice(&part.part);
                begun
            }
            Some(_) | None => part,
        };
        let length = whole.part.len() as u64;
        if length < u64::from(whole.length) && first > 0 {
            self.coming.insert(flow, whole);
            return None;
        }
        (length == u64::from(whole.length)).then(|| exported(whole))
    }
}

fn is_same(a: &SnapshotPart, b: &SnapshotPart) -> bool {
    let of = |it: &SnapshotPart| (it.kind, it.read, it.written, it.length);
    of(a) == of(b)
}

fn exported(whole: SnapshotPart) -> Exported {
    Exported {
        place: SnapshotPlace {
            offset: 0,
            length: whole.length,
            kind: whole.kind,
            read: whole.read,
            written: whole.written,
        },
        carried: Carried {
            kind: whole.kind,
            bytes: whole.part,
        },
    }
}

/// A snapshot in parts; one that is empty has one.
fn parts(exported: Exported) -> impl Iterator<Item = SnapshotPart> {
    let Exported { place, carried } = exported;
    let count = carried.bytes.len().div_ceil(PART).max(1);
    (0..count).map(move |index| {
        let rest = carried.bytes.get(index * PART..).unwrap_or_default();
        SnapshotPart {
            kind: carried.kind,
            read: place.read,
            written: place.written,
            length: place.length,
            part: rest.get(..PART).unwrap_or(rest).to_vec(),
        }
    })
}

/// The latest snapshot of which the client has all that was written before. Positions
/// count from the connection's first byte.
fn latest((iss, snd_una): (SeqNumber, SeqNumber), kept: &[SnapshotPlace]) -> Option<SnapshotPlace> {
    let mut newest_first = kept.iter().rev();
    let found = newest_first.find(|place| written_at(iss, place.written).le(snd_una));
    found.copied()
}

/// The sequence number behind that many bytes of output.
fn written_at(iss: SeqNumber, written: u64) -> SeqNumber {
    let [.., a, b, c, d] = written.to_be_bytes();
    iss + 1 + u32::from_be_bytes([a, b, c, d])
}

impl Driver {
    /// Sends what is new.
    pub(super) fn send_snapshots(&mut self, now: MonoTime) {
        if self.owns_kept_share() {
            let mut chosen = BTreeMap::new();
            let mut room = ROUND;
            let exported = self.apps.exported(|key, kept| {
                let (flow, place) = self.choose(key, kept)?;
                let length = usize::try_from(place.length).unwrap_or(usize::MAX);
                if chosen.contains_key(&key) || (length > room && room < ROUND) {
                    return None;
                }
                room = room.saturating_sub(length);
                chosen.insert(key, (flow.share, flow.id, flow.generation));
                Some(place)
            });
            for (key, exported) in exported {
                if let Some((share, flow, generation)) = chosen.get(&key).copied() {
                    self.send_snapshot(share, flow, generation, exported, now);
                }
            }
        }
        let took = clock::now().since(now);
        self.exports.due = now.saturating_add(INTERVAL.max(took * SHARE_OF_TIME));
    }

    fn owns_kept_share(&self) -> bool {
        let mut shares = self.shares.iter();
        shares.any(|(_, share)| {
            let entry = &share.entry;
            share.kept && entry.role == Role::Owner && !entry.generation.is_none()
        })
    }

    /// What of a connection the standby should get now.
    fn choose(&self, key: FlowKey, kept: &[SnapshotPlace]) -> Option<(FlowState, SnapshotPlace)> {
        let share = self.exports.services.get(&key.service)?;
        let entry = &self.shares.get(*share)?.entry;
        let (latest_of_all, sent) = (kept.last()?, self.exports.sent.get(&key));
        let is_old = |sent: &Sent, place: &SnapshotPlace| {
            sent.generation == entry.generation
                && (sent.read, sent.written) == (place.read, place.written)
        };
        // The flow itself is looked up only if there may be something.
        if sent.is_some_and(|sent| is_old(sent, latest_of_all)) {
            return None;
        }
        let flow = self.datapath.flows.get(key).ok().flatten()?;
        if flow.generation != entry.generation || entry.role != Role::Owner {
            return None;
        }
        let place = latest((flow.iss, flow.snd_una), kept)?;
        let sent =
            sent.filter(|sent| sent.irs == flow.id.irs && sent.generation == entry.generation);
        let busy = sent.is_some_and(|sent| !sent.kept || is_old(sent, &place));
        (!busy).then_some((flow, place))
    }

    fn send_snapshot(
        &mut self,
        share: ShareId,
        flow: FlowId,
        generation: Generation,
        exported: Exported,
        now: MonoTime,
    ) {
        let sent = Sent {
            irs: flow.irs,
            generation,
            read: exported.place.read,
            written: exported.place.written,
            kept: false,
        };
        self.exports.sent.insert(flow.key, sent);
        for part in parts(exported) {
            self.node.handle_snapshot(share, flow, &part, now);
        }
    }

    /// As a standby: a part of a snapshot has come.
    pub(super) fn keep_snapshot(&mut self, share: ShareId, flow: FlowId, part: SnapshotPart) {
        let Some(exported) = self.exports.add(flow, part) else {
            return;
        };
        if let Some(state) = self.flow(flow).filter(|state| state.twin) {
            // What is written in the server's place must go nowhere.
            self.poke_twin(flow, written_at(state.iss, exported.place.written));
            if let Some(keeper) = &self.keeper {
                keeper.keep(flow, exported);
            }
        }
        self.node.handle_snapshot_kept(share, flow, clock::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    fn place(read: u64, written: u64, length: u32) -> SnapshotPlace {
        SnapshotPlace {
            offset: 0,
            length,
            kind: godwit_wire::app::SnapshotKind::Regenerable,
            read,
            written,
        }
    }

    fn snapshot(length: usize) -> Exported {
        let bytes: Vec<_> = (0..=250).cycle().take(length).collect();
        let length = u32::try_from(length).expect("short");
        let place = place(1, 2, length);
        let carried = Carried {
            kind: place.kind,
            bytes,
        };
        Exported { place, carried }
    }

    fn flow(irs: u32) -> FlowId {
        let client = std::net::SocketAddr::from(([10, 9, 0, 10], 1)).into();
        let service = std::net::SocketAddr::from(([10, 9, 0, 100], 80)).into();
        FlowId {
            key: FlowKey { client, service },
            irs: SeqNumber(irs),
        }
    }

    fn exports() -> Exports {
        Exports::new(&Pair::new().a, MonoTime::ZERO)
    }

    #[test]
    fn a_snapshot_comes_in_parts() {
        for length in [0, 1, PART, PART + 1, 3 * PART - 1] {
            let (sent, mut exports) = (snapshot(length), exports());
            let mut came = None;
            for part in parts(sent.clone()) {
                assert_eq!(came, None);
                came = exports.add(flow(1), part);
            }
            assert_eq!(came, Some(sent));
            assert!(exports.coming.is_empty());
        }
    }

    /// One that is not whole is thrown away with the link, or by the next.
    #[test]
    fn parts_of_two_snapshots_make_none() {
        let mut exports = exports();
        let mut first = parts(snapshot(2 * PART));
        let begun = first.next().expect("two parts");
        let rest = first.next().expect("two parts");
        assert_eq!(exports.add(flow(1), begun.clone()), None);
        assert_eq!(
            exports.add(flow(2), rest.clone()),
            None,
            "another connection"
        );
        let other = SnapshotPart {
            read: 7,
            ..rest.clone()
        };
        assert_eq!(exports.add(flow(1), other), None, "another snapshot");
        assert_eq!(exports.add(flow(1), begun), None);
        exports.forget();
        assert_eq!(exports.add(flow(1), rest), None, "another link");
        // What has no end, and adds nothing.
        let empty = SnapshotPart {
            part: Vec::new(),
            ..parts(snapshot(1)).next().expect("one part")
        };
        exports.forget();
        assert_eq!(exports.add(flow(1), empty), None);
        assert!(exports.coming.is_empty());
    }

    /// Others with the same addresses may have begun.
    #[test]
    fn nothing_is_remembered_of_a_connection_that_has_ended() {
        let mut exports = exports();
        let sent = Sent {
            irs: SeqNumber(1),
            generation: Generation(1),
            read: 0,
            written: 0,
            kept: true,
        };
        exports.sent.insert(flow(1).key, sent);
        let begun = parts(snapshot(2 * PART)).next().expect("two parts");
        assert_eq!(exports.add(flow(1), begun), None);
        exports.note_end(flow(2));
        assert_eq!((exports.sent.len(), exports.coming.len()), (1, 1));
        exports.note_end(flow(1));
        assert!(exports.sent.is_empty() && exports.coming.is_empty());
    }

    /// Where sequence numbers come round, too.
    #[test]
    fn the_latest_is_sent_whose_output_the_client_has() {
        let kept = [place(0, 0, 0), place(5, 1000, 0), place(5, 1 << 33, 0)];
        for iss in [SeqNumber(7), SeqNumber(u32::MAX - 500)] {
            let at = |written: u32| latest((iss, iss + 1 + written), &kept[..2]);
            assert_eq!(at(0), Some(kept[0]));
            assert_eq!(at(999), Some(kept[0]));
            assert_eq!(at(1000), Some(kept[1]));
            assert_eq!(latest((iss, iss), &kept), None, "before its SYN-ACK");
            let round = latest((iss, iss + 1), &kept);
            assert_eq!(round, Some(kept[2]), "8 GiB later");
        }
        assert_eq!(latest((SeqNumber(0), SeqNumber(1)), &[]), None);
    }
}
