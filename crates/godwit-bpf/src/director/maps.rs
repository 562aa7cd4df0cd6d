//! The maps of a director, a type each.

use std::collections::BTreeSet;
use std::net::IpAddr;

use godwit_wire::{Endpoint, FlowKey, MacAddr, NodeName, SeqNumber};

use super::handle;
use super::skel::{DirectorSkel, types};
use crate::OpenError;
use crate::convert::{Plain, addr_from_words, addr_words, mapped};
use crate::maps::paths::PathTable;
use crate::maps::trusts::TrustTable;
use crate::maps::{MapError, TypedMap};

const _: () = assert!(size_of::<types::gw_backend>() == 40);
const _: () = assert!(size_of::<types::gw_basis>() == 16);
const _: () = assert!(size_of::<types::gw_tunnel>() == 40);
const _: () = assert!(size_of::<types::gw_post>() == 8);
const _: () = assert!(size_of::<types::gw_slot>() == 8);
const _: () = assert!(size_of::<types::gw_entry>() == 8);
const _: () = assert!(size_of::<types::gw_station>() == 8);
const _: () = assert!(size_of::<types::gw_trust>() == size_of::<crate::skel::types::gw_trust>());

// SAFETY: integers and arrays of integers only, with explicit padding.
unsafe impl Plain for types::gw_backend {}
// SAFETY: as above.
unsafe impl Plain for types::gw_basis {}
// SAFETY: as above.
unsafe impl Plain for types::gw_tunnel {}
// SAFETY: as above.
unsafe impl Plain for types::gw_post {}
// SAFETY: as above.
unsafe impl Plain for types::gw_slot {}
// SAFETY: as above.
unsafe impl Plain for types::gw_entry {}
// SAFETY: as above.
unsafe impl Plain for types::gw_station {}
// SAFETY: as above.
unsafe impl Plain for types::gw_endpoint {}
// SAFETY: as above.
unsafe impl Plain for types::gw_flow_key {}

/// `GW_NO_SERVICE` of `gw_director.h`.
const NO_SERVICE: u32 = u32::MAX;

/// A server behind the director.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backend {
    /// Its name.
    pub name: NodeName,
    /// Where its frames go: to itself, or to the router before it.
    pub mac: MacAddr,
    /// How, if it is not on the link.
    pub tunnel: Option<Tunnel>,
    /// Whether it lives, if it drains too: without it, nothing goes there.
    pub there: bool,
    /// Whether the operator wants no new connections there; only remembered here.
    pub drained: bool,
    /// Whether another one may have what it had, see [`PostTable`].
    pub followed: bool,
    /// Whether it has nothing itself any more, and is there for that only.
    pub gone: bool,
    /// Whether it says of a SYN that it has no such connection, when it is asked.
    pub tells: bool,
}

/// A tunnel (VXLAN, RFC 7348) to a back-end that is not on the link. Both ends are of one
/// family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// The director's address.
    pub from: IpAddr,
    /// The back-end's.
    pub to: IpAddr,
    /// VXLAN network identifier, below 2^24.
    pub vni: u32,
}

/// What a slot leads to; numbers are places in [`BackendTable`], below 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Where new connections go.
    pub now: Option<u16>,
    /// Where connections are that have no entry.
    pub base: Option<u16>,
    /// Whether connections may have entries.
    pub mixed: bool,
}

/// Where one connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The number of its back-end.
    pub backend: u32,
    /// Its initial receive sequence number.
    pub irs: SeqNumber,
}

/// Typed access to the endpoints that are directed.
#[derive(Debug)]
pub struct FrontTable(TypedMap<types::gw_endpoint, u32>);

/// Typed access to the slots of all services.
#[derive(Debug)]
pub struct SlotTable {
    slots: TypedMap<u32, types::gw_slot>,
    size: u32,
}

/// Typed access to the back-ends.
#[derive(Debug)]
pub struct BackendTable {
    backends: TypedMap<u32, types::gw_backend>,
    tunnels: TypedMap<u32, types::gw_tunnel>,
    /// Their numbers by MAC address: who may say where connections are.
    stations: TypedMap<types::gw_station, u32>,
}

/// Typed access to who has what a back-end had.
#[derive(Debug)]
pub struct PostTable(TypedMap<types::gw_post, u32>);

/// Typed access to the entries of connections.
#[derive(Debug)]
pub struct EntryTable(TypedMap<types::gw_flow_key, types::gw_entry>);

pub(super) struct Tables {
    pub(super) fronts: FrontTable,
    pub(super) slots: SlotTable,
    pub(super) backends: BackendTable,
    pub(super) posts: PostTable,
    pub(super) entries: EntryTable,
    pub(super) trusts: TrustTable,
    pub(super) paths: PathTable,
}

pub(super) fn new_tables(skel: &DirectorSkel<'static>, size: u32) -> Result<Tables, OpenError> {
    let maps = &skel.maps;
    let fronts = handle(&maps.gw_fronts, "gw_fronts")?;
    let slots = handle(&maps.gw_slots, "gw_slots")?;
    let backends = handle(&maps.gw_backends, "gw_backends")?;
    let tunnels = handle(&maps.gw_tunnels, "gw_tunnels")?;
    let stations = handle(&maps.gw_stations, "gw_stations")?;
    let entries = handle(&maps.gw_entries, "gw_entries")?;
    Ok(Tables {
        fronts: FrontTable(TypedMap::new(fronts, "gw_fronts")),
        slots: SlotTable {
            slots: TypedMap::new(slots, "gw_slots"),
            size,
        },
        backends: BackendTable {
            backends: TypedMap::new(backends, "gw_backends"),
            tunnels: TypedMap::new(tunnels, "gw_tunnels"),
            stations: TypedMap::new(stations, "gw_stations"),
        },
        posts: PostTable(TypedMap::new(
            handle(&maps.gw_posts, "gw_posts")?,
            "gw_posts",
        )),
        // Of the same layout as a server's: one header has both.
        trusts: TrustTable::new(handle(&maps.gw_trusts, "gw_trusts")?),
        paths: PathTable::new(
            handle(&maps.gw_paths, "gw_paths")?,
            handle(&maps.gw_paths_asked, "gw_paths_asked")?,
        ),
        entries: EntryTable(TypedMap::new(entries, "gw_entries")),
    })
}

/// Holds the seed and the size that slots were written for against those of the programs,
/// which are the first to write if nobody has.
pub(super) fn claim_basis(
    skel: &DirectorSkel<'static>,
    seed: u64,
    table_size: u32,
) -> Result<(), OpenError> {
    let basis = handle(&skel.maps.gw_basis, "gw_basis")?;
    let basis = TypedMap::<u32, types::gw_basis>::new(basis, "gw_basis");
    let left = basis.lookup(&0)?.filter(|left| left.written != 0);
    match left {
        None => {
            let own = types::gw_basis {
                seed,
                table_size,
                written: 1,
            };
            Ok(basis.update(&0, &own)?)
        }
        Some(left) if left.seed != seed => Err(OpenError::OtherBasis { what: "seed" }),
        Some(left) if left.table_size != table_size => {
            Err(OpenError::OtherBasis { what: "table size" })
        }
        Some(_) => Ok(()),
    }
}

/// The number of a service, and whether an earlier director gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceNumber {
    /// By which slots and posts know it.
    pub number: u32,
    /// Its slots are as an earlier director left them.
    pub is_known: bool,
}

impl FrontTable {
    /// Numbers for services, by their endpoints: the one that an earlier director gave, or
    /// one that it gave to nobody. The order of the services means nothing.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn numbers(&self, services: &[Vec<Endpoint>]) -> Result<Vec<ServiceNumber>, MapError> {
        let mut left = BTreeSet::new();
        for key in self.0.keys()? {
            left.extend(self.0.lookup(&key)?.filter(|number| *number != NO_SERVICE));
        }
        let mut given: Vec<Option<u32>> = Vec::new();
        for endpoints in services {
            let mut found = None;
            for endpoint in endpoints {
                let number = self.0.lookup(&types::gw_endpoint::from(*endpoint))?;
                let number = number.filter(|it| *it != NO_SERVICE && !given.contains(&Some(*it)));
                found = found.or(number);
            }
            given.push(found);
        }
        let known = given.clone();
        let fresh = (0..).filter(|number| !left.contains(number));
        // Where there is no other room: those of services that are gone.
        let used: Vec<_> = left
            .iter()
            .filter(|it| !known.contains(&Some(**it)))
            .collect();
        let room = u32::try_from(services.len().max(8).next_power_of_two()).unwrap_or(u32::MAX);
        let mut free = fresh
            .take_while(|it| *it < room)
            .chain(used.into_iter().copied());
        let number = |known: Option<u32>| ServiceNumber {
            number: known.or_else(|| free.next()).unwrap_or(room),
            is_known: known.is_some(),
        };
        Ok(known.into_iter().map(number).collect())
    }

    /// Makes the table hold exactly these endpoints, each with the number of its
    /// service. Those that stay are never absent meanwhile.
    ///
    /// # Errors
    /// If the kernel refuses a change.
    pub fn replace(&self, endpoints: &[(Endpoint, u32)]) -> Result<(), MapError> {
        let address =
            |(endpoint, _): &(Endpoint, u32)| (Endpoint::new(endpoint.addr, 0), NO_SERVICE);
        let wanted: Vec<_> = endpoints
            .iter()
            .map(address)
            .chain(endpoints.iter().copied())
            .map(|(endpoint, service)| (types::gw_endpoint::from(endpoint), service))
            .collect();
        for (key, service) in &wanted {
            self.0.update(key, service)?;
        }
        for key in self.0.keys()? {
            let is_wanted = |(kept, _): &(types::gw_endpoint, u32)| {
                (kept.addr, kept.port) == (key.addr, key.port)
            };
            if !wanted.iter().any(is_wanted) {
                self.0.delete(&key)?;
            }
        }
        Ok(())
    }
}

impl SlotTable {
    /// Written in some ten microseconds.
    const AT_A_TIME: usize = 32;

    /// Writes slots of a service, each in one piece. One that is mixed stays so: the program
    /// may have learnt of a connection there.
    ///
    /// # Errors
    /// If the kernel refuses a change.
    pub fn set(
        &self,
        service: u32,
        slots: impl IntoIterator<Item = (u32, Slot)>,
    ) -> Result<(), MapError> {
        let first = service * self.size;
        let slots: Vec<_> = slots.into_iter().collect();
        // What the program learns between the look and the write is lost, and said again
        // with the connection's next segment: so few at a time.
        for few in slots.chunks(Self::AT_A_TIME) {
            let entries: Vec<_> = few
                .iter()
                .map(|(slot, value)| self.kept_mixed(first + slot, *value))
                .collect::<Result<_, _>>()?;
            self.slots.update_all(&entries)?;
        }
        Ok(())
    }

    /// Connections of a slot may have entries from now on.
    ///
    /// # Errors
    /// If the kernel refuses the change.
    pub fn mix(&self, service: u32, slot: u32) -> Result<(), MapError> {
        let index = service * self.size + slot;
        match self.slots.lookup(&index)? {
            // Nobody else writes what is beside it.
            Some(there) if there.mixed == 0 => {
                let mixed = types::gw_slot { mixed: 1, ..there };
                self.slots.update(&index, &mixed)
            }
            _ => Ok(()),
        }
    }

    fn kept_mixed(&self, index: u32, mut slot: Slot) -> Result<(u32, types::gw_slot), MapError> {
        if !slot.mixed {
            let there = self.slots.lookup(&index)?;
            slot.mixed = there.is_some_and(|there| there.mixed != 0);
        }
        Ok((index, slot.into()))
    }

    /// The slots of a service, in order.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn all(&self, service: u32) -> Result<Vec<Slot>, MapError> {
        let first = service * self.size;
        (first..first + self.size)
            .map(|index| {
                Ok(self
                    .slots
                    .lookup(&index)?
                    .map(Slot::from)
                    .unwrap_or_default())
            })
            .collect()
    }
}

const MARK_DRAINED: u32 = types::gw_backend_marks::GW_BACKEND_DRAINED.0;
const MARK_FOLLOWED: u32 = types::gw_backend_marks::GW_BACKEND_FOLLOWED.0;
const MARK_GONE: u32 = types::gw_backend_marks::GW_BACKEND_GONE.0;
const MARK_TELLS: u32 = types::gw_backend_marks::GW_BACKEND_TELLS.0;

fn marks(backend: &Backend) -> u8 {
    let marks = [
        (backend.drained, MARK_DRAINED),
        (backend.followed, MARK_FOLLOWED),
        (backend.gone, MARK_GONE),
        (backend.tells, MARK_TELLS),
    ];
    let marks = marks.into_iter().filter(|(is, _)| *is);
    let sum = marks.fold(0, |sum, (_, mark)| sum | mark);
    u8::try_from(sum).expect("they are bits of one byte")
}

impl PostTable {
    /// What the back-end `of` had of a service is at `owner`, which may be itself.
    ///
    /// # Errors
    /// If the kernel refuses the change.
    pub fn set(&self, service: u32, of: u16, owner: u16) -> Result<(), MapError> {
        let backend = u32::from(of);
        let post = types::gw_post { service, backend };
        if of != owner {
            return self.0.update(&post, &owner.into());
        }
        match self.0.lookup(&post)? {
            Some(_) => self.0.delete(&post),
            None => Ok(()),
        }
    }
}

impl BackendTable {
    /// Most back-ends of a director.
    pub const MAX: u16 = 1024;

    /// Writes one. What it says of connections counts from then on, if it is there.
    ///
    /// # Errors
    /// If there is no such number.
    pub fn set(&self, number: u16, backend: &Backend) -> Result<(), MapError> {
        let before = self.get(number)?.map(|before| before.mac);
        let number = u32::from(number);
        if let Some(before) = before.filter(|before| *before != backend.mac) {
            // Another one may have it by now.
            let before = station(before);
            if self.stations.lookup(&before)? == Some(number) {
                let _ = self.stations.delete(&before);
            }
        }
        let mut name = [0; NodeName::MAX_LEN];
        for (place, byte) in name.iter_mut().zip(backend.name.as_str().bytes()) {
            *place = byte;
        }
        let value = types::gw_backend {
            mac: backend.mac.0,
            there: there(backend),
            marks: marks(backend),
            name,
        };
        self.tunnels.update(&number, &tunnel(backend.tunnel))?;
        self.backends.update(&number, &value)?;
        // A router says nothing of connections.
        if backend.mac == MacAddr::ZERO || backend.tunnel.is_some() {
            return Ok(());
        }
        self.stations.update(&station(backend.mac), &number)
    }

    fn tunnel(&self, number: u16) -> Result<Option<Tunnel>, MapError> {
        let raw = self.tunnels.lookup(&number.into())?;
        Ok(raw.filter(|raw| raw.there != 0).map(|raw| Tunnel {
            from: addr_from_words(raw.from).to_canonical(),
            to: addr_from_words(raw.to).to_canonical(),
            vni: raw.vni,
        }))
    }

    /// Reads one; `None` if that number was never used.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn get(&self, number: u16) -> Result<Option<Backend>, MapError> {
        let Some(value) = self.backends.lookup(&number.into())? else {
            return Ok(None);
        };
        let name = value.name.split(|byte| *byte == 0).next();
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let name = name.and_then(|name| NodeName::new(name).ok());
        let tunnel = self.tunnel(number)?;
        Ok(name.map(|name| Backend {
            name,
            mac: MacAddr(value.mac),
            tunnel,
            there: value.there != 0,
            drained: u32::from(value.marks) & MARK_DRAINED != 0,
            followed: u32::from(value.marks) & MARK_FOLLOWED != 0,
            gone: u32::from(value.marks) & MARK_GONE != 0,
            tells: u32::from(value.marks) & MARK_TELLS != 0,
        }))
    }
}

impl EntryTable {
    /// The entry of a flow, if it has one.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn get(&self, key: FlowKey) -> Result<Option<Entry>, MapError> {
        let entry = self.0.lookup(&key.into())?;
        Ok(entry.map(|entry| Entry {
            backend: entry.backend,
            irs: SeqNumber(entry.irs),
        }))
    }

    /// Writes the entry of a flow. Its slot must be mixed, or nobody looks for it.
    ///
    /// # Errors
    /// If there is no room.
    pub fn set(&self, key: FlowKey, entry: Entry) -> Result<(), MapError> {
        let value = types::gw_entry {
            irs: entry.irs.0,
            backend: entry.backend,
        };
        self.0.update(&key.into(), &value)
    }

    /// Removes the entry of a flow; it is no error if there is none.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn remove(&self, key: FlowKey) -> Result<(), MapError> {
        match self.get(key)? {
            Some(_) => self.0.delete(&key.into()),
            None => Ok(()),
        }
    }

    /// Every entry. Those that come or go meanwhile may be missed or seen.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn for_each(&self, mut each: impl FnMut(FlowKey, Entry)) -> Result<(), MapError> {
        self.0.for_each(|key, entry| {
            let irs = SeqNumber(entry.irs);
            let backend = entry.backend;
            each(flow_key(&key), Entry { backend, irs });
        })
    }

    /// How many there are.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn count(&self) -> Result<u64, MapError> {
        let mut count = 0;
        self.0.for_each(|_, _| count += 1)?;
        Ok(count)
    }
}

pub(super) fn flow_key(raw: &types::gw_flow_key) -> FlowKey {
    FlowKey {
        client: endpoint(&raw.client),
        service: endpoint(&raw.service),
    }
}

fn endpoint(raw: &types::gw_endpoint) -> Endpoint {
    Endpoint::new(addr_from_words(raw.addr), u16::from_be(raw.port))
}

fn station(mac: MacAddr) -> types::gw_station {
    types::gw_station { mac: mac.0, pad: 0 }
}

/// A back-end as slots have it: 0, which is in a slot that nobody has written, is
/// nobody (`GW_NOBODY`).
fn place(backend: Option<u16>) -> u16 {
    backend.map_or(0, |number| number.saturating_add(1))
}

impl From<Slot> for types::gw_slot {
    fn from(slot: Slot) -> Self {
        Self {
            now: place(slot.now),
            base: place(slot.base),
            mixed: slot.mixed.into(),
            pad: 0,
        }
    }
}

impl From<types::gw_slot> for Slot {
    fn from(raw: types::gw_slot) -> Self {
        Self {
            now: raw.now.checked_sub(1),
            base: raw.base.checked_sub(1),
            mixed: raw.mixed != 0,
        }
    }
}

impl From<Endpoint> for types::gw_endpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            addr: addr_words(endpoint.addr),
            port: endpoint.port.to_be(),
            pad: 0,
        }
    }
}

impl From<FlowKey> for types::gw_flow_key {
    fn from(key: FlowKey) -> Self {
        Self {
            client: key.client.into(),
            service: key.service.into(),
        }
    }
}

fn there(backend: &Backend) -> u8 {
    let there = match (backend.there, backend.tunnel) {
        (false, _) => types::gw_there::GW_THERE_NOT,
        (true, None) => types::gw_there::GW_THERE_ON_LINK,
        (true, Some(_)) => types::gw_there::GW_THERE_FAR,
    };
    u8::try_from(there.0).unwrap_or(0)
}

fn tunnel(tunnel: Option<Tunnel>) -> types::gw_tunnel {
    let words = |addr| addr_words(mapped(addr));
    tunnel.map_or_else(types::gw_tunnel::default, |it| types::gw_tunnel {
        from: words(it.from),
        to: words(it.to),
        vni: it.vni,
        there: 1,
    })
}
