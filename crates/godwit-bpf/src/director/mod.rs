//! A director's data path (`director.bpf.c`, docs/director.md): clients' frames go to
//! back-ends on the same link.
//!
//! It is a program of its own, on a machine of its own, and has maps and pins of its
//! own. What it does is decided elsewhere: user space writes services, slots and
//! back-ends, the program makes and reads entries.

mod exceptions;
mod maps;
mod skel;
mod trial;

use std::mem::MaybeUninit;
use std::path::Path;

use godwit_wire::MacAddr;
use libbpf_rs::btf::Btf;
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{AsRawLibbpf as _, MapHandle, MapMut, OpenObject};

use crate::OpenError;
use crate::attach::{AttachError, attach_or_replace, attach_or_replace_xdp, is_attached, release};
use crate::earlier;
use crate::maps::counters::Counters;
use crate::maps::paths::PathTable;
use crate::maps::trusts::TrustTable;
use crate::pin::PinDir;
use maps::{Tables, claim_basis, new_tables};
use skel::{DirectorSkel, DirectorSkelBuilder, OpenDirectorSkel};

pub use exceptions::{Exception, Exceptions};
pub use maps::{
    Backend, BackendTable, Entry, EntryTable, FrontTable, PostTable, ServiceNumber, Slot,
    SlotTable, Tunnel,
};
pub use trial::Load;

/// What the programs must know before they are loaded.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The interface to clients and back-ends, in the caller's network namespace.
    pub ifindex: u32,
    /// Its MAC address: frames to it are looked at.
    pub mac: MacAddr,
    /// Where the program is to be; if the interface's driver has no XDP, it is on tcx.
    pub via: Via,
    /// Slots of each service, 1 to 2^20.
    pub table_size: u32,
    /// How many services have a table.
    pub services: u32,
    /// Most connections that have an entry; the least used one makes room.
    pub max_entries: u32,
    /// Seed of the hash of flows, the same at all directors.
    pub seed: u64,
    /// Whether other directors are to hear of entries, see [`Director::exceptions`].
    pub shares: bool,
    /// Loads the program for figures too, see [`Director::load_trial`]: so many flows.
    pub trial_flows: Option<u32>,
}

/// Which of two programs a frame passes; they decide alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// XDP, in the driver: before the kernel has made a packet of it.
    Xdp,
    /// tcx, ingress: any interface.
    Tcx,
}

/// The data path of a director, in place. Dropping it changes nothing: programs and
/// maps are pinned.
#[derive(Debug)]
pub struct Director {
    /// Endpoints, and the numbers of their services.
    pub fronts: FrontTable,
    /// Which back-end a slot leads to.
    pub slots: SlotTable,
    /// Where back-ends are.
    pub backends: BackendTable,
    /// Who has what a back-end had.
    pub posts: PostTable,
    /// Connections that are not where their slot says.
    pub entries: EntryTable,
    /// By which back-ends' words are proved.
    pub trusts: TrustTable,
    /// Which questions whether notes arrive have been answered.
    pub paths: PathTable,
    /// Verdict counters.
    pub counters: Counters,
    via: Via,
    /// Where the program was to be.
    wanted: Via,
    skel: MaybeSkel,
    pins: PinDir,
}

struct MaybeSkel(DirectorSkel<'static>);

impl std::fmt::Debug for MaybeSkel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DirectorSkel")
    }
}

impl Via {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tcx => "tcx",
        }
    }
}

impl Director {
    /// Loads the programs, takes over pinned maps, and puts one program in the path.
    /// Nothing is directed until services, slots and back-ends are written, unless an
    /// earlier director left them.
    ///
    /// # Errors
    /// If the kernel refuses a program or a link, or another version, or a director of
    /// another seed or table size, has left what this one can't take over. With
    /// [`Via::Xdp`] also if the driver knows XDP and refuses this program.
    pub fn open(settings: &Settings, pins: PinDir) -> Result<Self, OpenError> {
        // Maps are pinned as they are loaded.
        let is_first = !pins.map("gw_basis").exists();
        match Self::load(settings, &pins) {
            Ok((skel, tables, counters, via)) => Ok(Self {
                fronts: tables.fronts,
                slots: tables.slots,
                backends: tables.backends,
                posts: tables.posts,
                entries: tables.entries,
                trusts: tables.trusts,
                paths: tables.paths,
                counters,
                via,
                wanted: settings.via,
                skel: MaybeSkel(skel),
                pins,
            }),
            Err(error) => {
                if is_first {
                    // The reason for the retreat is what people should read, not this.
                    let _ = Self::release(pins);
                }
                Err(error)
            }
        }
    }

    fn load(
        settings: &Settings,
        pins: &PinDir,
    ) -> Result<(DirectorSkel<'static>, Tables, Counters, Via), OpenError> {
        // The object outlives every handle made from it.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = DirectorSkelBuilder::default()
            .open(storage)
            .map_err(OpenError::Load)?;
        configure(&mut open, settings, pins)?;
        let mut skel = open.load().map_err(OpenError::Load)?;
        // SAFETY: the loaded object lives as long as the process.
        let object = unsafe { skel.object().as_libbpf_object().as_ref() };
        let btf = Btf::from_bpf_object(object).ok().flatten();
        let counters = handle(&skel.maps.gw_counters, "gw_counters")?;
        let tables = new_tables(&skel, settings.table_size)?;
        claim_basis(&skel, settings.seed, settings.table_size)?;
        set_mac(&mut skel, settings.mac);
        let via = attach(&mut skel, (settings.via, settings.ifindex), pins)?;
        let counters = Counters::new(counters, btf.as_ref());
        Ok((skel, tables, counters, via))
    }

    /// The interface is another one now, or has another MAC address. The program is in
    /// its path afterwards; if it was before, no frame passes without it.
    ///
    /// # Errors
    /// If the kernel refuses the link, as with [`Director::open`].
    pub fn follow(&mut self, ifindex: u32, mac: MacAddr) -> Result<(), AttachError> {
        set_mac(&mut self.skel.0, mac);
        let pin = match self.via {
            Via::Xdp => self.pins.link("direct"),
            Via::Tcx => self.pins.link("direct_tc"),
        };
        if !is_attached(&pin, ifindex) {
            self.via = attach(&mut self.skel.0, (self.wanted, ifindex), &self.pins)?;
        }
        Ok(())
    }

    /// What the program writes down of connections from now on. To be read, if
    /// [`Settings::shares`], or it is lost.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn exceptions(&self) -> Result<Exceptions, OpenError> {
        let map = handle(&self.skel.0.maps.gw_exceptions, "gw_exceptions")?;
        Exceptions::new(map).map_err(|source| OpenError::Map {
            map: "gw_exceptions",
            source,
        })
    }

    /// Which program is in the path.
    pub const fn via(&self) -> Via {
        self.via
    }

    /// Takes the program out of the path and forgets all entries.
    ///
    /// # Errors
    /// If a pin can't be removed.
    pub fn detach(self) -> Result<(), crate::PinError> {
        Self::release(self.pins)
    }

    /// The same of what an earlier director has left.
    ///
    /// # Errors
    /// If a pin can't be removed.
    pub fn release(pins: PinDir) -> Result<(), crate::PinError> {
        for name in pins.link_names() {
            release(&pins.link(&name));
        }
        pins.remove()
    }
}

/// The one that is wanted, or the one that every interface has if the driver has no XDP.
/// A program of an earlier director that was in the other place goes last: meanwhile both
/// are there, and what the first one has sent the second one does not see.
fn attach(
    skel: &mut DirectorSkel<'static>,
    (wanted, ifindex): (Via, u32),
    pins: &PinDir,
) -> Result<Via, AttachError> {
    let (xdp, tcx) = (pins.link("direct"), pins.link("direct_tc"));
    if wanted == Via::Xdp {
        match attach_or_replace_xdp(&mut skel.progs.direct, ifindex, &xdp) {
            Ok(()) => {
                give_up(&tcx);
                return Ok(Via::Xdp);
            }
            // What else it may be (another program is there, the MTU is too large for
            // it) is for people to decide.
            Err(error) if error.is_unsupported() => {}
            Err(error) => return Err(error),
        }
    }
    attach_or_replace(&mut skel.progs.direct_tc, ifindex, &tcx)?;
    give_up(&xdp);
    Ok(Via::Tcx)
}

fn set_mac(skel: &mut DirectorSkel<'static>, mac: MacAddr) {
    let [a, b, c, d, e, f] = mac.0;
    if let Some(bss) = skel.maps.bss_data.as_deref_mut() {
        bss.gw_self = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
    }
}

fn give_up(pin: &Path) {
    if pin.exists() {
        release(pin);
    }
}

fn configure(
    open: &mut OpenDirectorSkel<'static>,
    settings: &Settings,
    pins: &PinDir,
) -> Result<(), OpenError> {
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.gw_table_size = settings.table_size;
        rodata.gw_seed = settings.seed;
        rodata.gw_is_shared = settings.shares.into();
        rodata.gw_load_flows = settings.trial_flows.unwrap_or(1);
    }
    open.progs
        .direct_load
        .set_autoload(settings.trial_flows.is_some());
    let maps = &mut open.maps;
    let slots = settings.table_size.saturating_mul(settings.services);
    maps.gw_slots
        .set_max_entries(slots)
        .map_err(OpenError::Load)?;
    maps.gw_entries
        .set_max_entries(settings.max_entries)
        .map_err(OpenError::Load)?;
    for map in [
        &mut maps.gw_basis,
        &mut maps.gw_fronts,
        &mut maps.gw_slots,
        &mut maps.gw_backends,
        &mut maps.gw_tunnels,
        &mut maps.gw_posts,
        &mut maps.gw_stations,
        &mut maps.gw_trusts,
        &mut maps.gw_orders,
        &mut maps.gw_entries,
        &mut maps.gw_counters,
    ] {
        let name = map.name().to_string_lossy().into_owned();
        if earlier::is_other(map, pins) {
            return Err(OpenError::OtherVersion { map: name });
        }
        map.set_pin_path(pins.map(&name)).map_err(OpenError::Load)?;
    }
    Ok(())
}

fn handle(map: &MapMut<'_>, name: &'static str) -> Result<MapHandle, OpenError> {
    MapHandle::try_from(map).map_err(|source| OpenError::Map { map: name, source })
}
