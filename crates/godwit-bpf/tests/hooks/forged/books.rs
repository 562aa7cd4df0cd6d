//! What the data path knows of one connection, byte for byte, and of who else it hears.

use std::collections::BTreeSet;

use godwit_wire::FlowKey;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle};

/// Maps whose keys are connections.
const OF_A_CONNECTION: [&str; 6] = [
    "gw_flows",
    "gw_half_open",
    "gw_handoffs",
    "gw_outputs",
    "gw_talks",
    "gw_transfers",
];

/// Maps with few entries, of other servers and of the shares.
const OF_OTHERS: [&str; 6] = [
    "gw_canary_answers",
    "gw_fences",
    "gw_mate_loads",
    "gw_mates",
    "gw_paths",
    "gw_shares",
];

/// Maps that hold what was said: looked at as a whole, at the end.
const CONTENTS: [&str; 3] = ["gw_flows", "gw_log", "gw_passed"];

/// What may change, by map, place and bits: clocks, and what says how a frame was sent.
const NOT_COMPARED: [(&str, std::ops::Range<usize>, u8); 3] = [
    // gw_flow.tapped: what was mirrored last, and when. Whatever is news to a twin is mirrored,
    // and the twin's kernel judges it as the owner's does.
    ("gw_flows", 224..248, 0xff),
    // gw_flow.flags: the watchdog's timer is armed (GW_FLOW_WATCHED).
    ("gw_flows", 268..269, 1 << 6),
    // gw_transfer.heard_ns and idle_ns: when its client was heard, and when to remind.
    ("gw_transfers", 16..32, 0xff),
];

/// The entries of a few maps, by map and key.
type Entries = BTreeSet<(&'static str, Vec<u8>, Vec<u8>)>;

/// The maps that are looked at.
pub(super) struct Books {
    victim: Vec<u8>,
    of_victim: Vec<(&'static str, MapHandle)>,
    of_others: Vec<(&'static str, MapHandle)>,
    contents: Vec<(&'static str, MapHandle)>,
}

/// The kernel keeps so much of a map's name.
const NAME_LEN: usize = 15;

/// The maps that a program in the path uses; not all of them are pinned.
fn maps_of(pins: &str, program: &str) -> Vec<MapHandle> {
    let pin = format!("/sys/fs/bpf/godwit/{pins}/links/{program}");
    let mut link = Link::open(pin).expect("it is pinned");
    link.disconnect();
    let id = link.info().expect("the kernel says").prog_id;
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let mut programs = ProgInfoIter::with_query_opts(options);
    let program = programs.find(|program| program.id == id);
    let ids = program.expect("it is loaded").map_ids;
    let open = |id: u32| MapHandle::from_map_id(id).expect("it is there");
    ids.into_iter().map(open).collect()
}

fn open(maps: &[MapHandle], name: &'static str) -> (&'static str, MapHandle) {
    let short = &name[..name.len().min(NAME_LEN)];
    let is_it = |map: &&MapHandle| map.name().to_str() == Some(short);
    let found = maps.iter().find(is_it);
    let found = found.unwrap_or_else(|| panic!("{name} is not used"));
    (name, MapHandle::try_from(found).expect("it is there"))
}

/// An entry without what may change.
fn entry(name: &'static str, key: &[u8], mut value: Vec<u8>) -> (&'static str, Vec<u8>, Vec<u8>) {
    for (_, place, bits) in NOT_COMPARED.iter().filter(|it| it.0 == name) {
        value[place.clone()]
            .iter_mut()
            .for_each(|byte| *byte &= !bits);
    }
    (name, key.to_vec(), value)
}

fn all_of(maps: &[(&'static str, MapHandle)]) -> Entries {
    let entries = |(name, map): &(&'static str, MapHandle)| {
        let (name, values) = (*name, |key: &Vec<u8>| map.lookup(key, MapFlags::ANY));
        let found = map.keys().filter_map(|key| {
            let value = values(&key).expect("it can be read")?;
            Some(entry(name, &key, value))
        });
        found.collect::<Vec<_>>()
    };
    maps.iter().flat_map(entries).collect()
}

impl Books {
    pub(super) fn of(victim: FlowKey, pins: &str) -> Self {
        let ends = [victim.client, victim.service];
        let key = ends.iter().flat_map(|end| {
            let port = end.port.to_be_bytes();
            end.addr.octets().into_iter().chain(port).chain([0; 2])
        });
        let maps = ["tap", "gate"]
            .map(|program| maps_of(pins, program))
            .into_iter();
        let maps: Vec<_> = maps.flatten().collect();
        Self {
            victim: key.collect(),
            of_victim: OF_A_CONNECTION.map(|name| open(&maps, name)).into(),
            of_others: OF_OTHERS.map(|name| open(&maps, name)).into(),
            contents: CONTENTS.map(|name| open(&maps, name)).into(),
        }
    }

    /// What is known of the victim.
    pub(super) fn of_victim(&self) -> Entries {
        let found = self.of_victim.iter().filter_map(|(name, map)| {
            let value = map.lookup(&self.victim, MapFlags::ANY);
            let value = value.expect("it can be read")?;
            Some(entry(name, &self.victim, value))
        });
        found.collect()
    }

    /// The same, and all that is known of others, and what was said.
    pub(super) fn whole(&self) -> Entries {
        let mut all = self.of_victim();
        all.extend(all_of(&self.of_others));
        all.extend(all_of(&self.contents));
        all
    }
}

/// The maps in which two looks differ.
pub(super) fn changed(before: &Entries, after: &Entries) -> BTreeSet<&'static str> {
    let differ = before.symmetric_difference(after);
    differ.map(|(name, ..)| *name).collect()
}

/// Where in the values of entries that were there before they differ.
pub(super) fn places(before: &Entries, after: &Entries) -> Vec<(&'static str, Vec<usize>)> {
    let differ = before.difference(after).filter_map(|(name, key, old)| {
        let new = after.iter().find(|it| it.0 == *name && it.1 == *key)?;
        let differs = |at: &usize| old.get(*at) != new.2.get(*at);
        Some((*name, (0..old.len()).filter(differs).collect()))
    });
    differ.collect()
}
