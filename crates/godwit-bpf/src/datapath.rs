//! Loading, taking over what is pinned, attaching, detaching.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use godwit_wire::{Endpoint, MacAddr};
use libbpf_rs::btf::Btf;
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{
    AsRawLibbpf as _, MapCore as _, MapFlags, MapHandle, MapMut, OpenObject, ProgramMut,
};
use thiserror::Error;

use crate::attach::{AttachError, attach_beside};
use crate::birth::{self, Births};
use crate::convert::{Plain, addr_words, bytes_of, mapped};
use crate::earlier;
use crate::events::Events;
use crate::hooks::{Hooks, Identity, Loaded};
use crate::install::Installer;
use crate::local::{self, LocalError};
use crate::maps::canaries::CanaryTable;
use crate::maps::counters::Counters;
use crate::maps::crowds::CrowdTable;
use crate::maps::fences::Fences;
use crate::maps::flows::FlowTable;
use crate::maps::half_open::HalfOpenTable;
use crate::maps::handoffs::HandoffTable;
use crate::maps::log::LogTable;
use crate::maps::newborns::NewbornTable;
use crate::maps::outputs::OutputTable;
use crate::maps::placing::{PlacingMaps, PlacingTable};
use crate::maps::questions::QuestionTable;
use crate::maps::services::ServiceTable;
use crate::maps::shares::ShareTable;
use crate::maps::slots::Slots;
use crate::maps::steering::SteeringTable;
use crate::maps::transfers::TransferTable;
use crate::maps::trusts::TrustTable;
use crate::maps::{MapError, TypedMap};
use crate::orders::Orders;
use crate::pin::PinDir;
use crate::policy::{Places, Policy, PolicyError};
use crate::skel::types;
use crate::skel::{GodwitSkel, GodwitSkelBuilder, OpenGodwitSkel};
use crate::stopped::{self, StoppedServers};
use crate::trial::Hook;

/// What the programs must know before they are loaded.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The service interface, in the caller's network namespace.
    pub ifindex: u32,
    /// Its MAC address.
    pub mac: MacAddr,
    /// The other ways out of this machine, see [`Hooks::guard`].
    pub others: BTreeSet<u32>,
    /// An IPv4 address of this node that is no service address.
    pub node_v4: Option<Ipv4Addr>,
    /// An IPv6 address of this node that is no service address; link-local will do.
    pub node_v6: Option<Ipv6Addr>,
    /// Cookie of that namespace: which processes' ends matter.
    pub netns_cookie: u64,
    /// Most flows at a time, 1 to 16 777 216.
    pub max_flows: u32,
    /// Programs of the user's own, at most [`MAX_POLICIES`](crate::MAX_POLICIES); the first
    /// one is number 1.
    pub policies: Vec<Policy>,
    /// Directors that reach this node by a tunnel.
    pub tunnel: Option<TunnelEnd>,
}

/// Most stations that a tunnel's frames may be bound to.
pub const MAX_ROUTERS: usize = 16;

/// Where a director's tunnel (VXLAN, RFC 7348) ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelEnd {
    /// This node's address on the way.
    pub at: IpAddr,
    /// VXLAN network identifier, below 2^24.
    pub vni: u32,
    /// The directors, by their addresses on the way.
    pub directors: Vec<IpAddr>,
    /// The stations on the link that their frames may come from, at most [`MAX_ROUTERS`];
    /// none: any.
    pub routers: Vec<MacAddr>,
}

/// Why the data path is not in place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The programs did not load: kernel too old, or a capability is missing.
    #[error("can't load the data path (`godwit doctor` tells what is missing)")]
    Load(#[source] libbpf_rs::Error),
    /// Another version has left its flows in another shape, see [`crate::Earlier`].
    #[error("an agent of another version has left map {map}, which this version can't read")]
    OtherVersion {
        /// Map name.
        map: String,
    },
    /// A director has left connections that this one would take for others.
    #[error(
        "a director of another {what} has left its connections here: write what it had, or \
         end it for good first (`godwit director --detach`)"
    )]
    OtherBasis {
        /// What differs.
        what: &'static str,
    },
    /// A map can't be shared with user space.
    #[error("can't open map {map}")]
    Map {
        /// Map name.
        map: &'static str,
        /// What libbpf said.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A program is not in the path.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A program of the user's own is not in place.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A map can't be read or written.
    #[error(transparent)]
    Table(#[from] MapError),
}

/// The data path of one node, in place. Dropping it changes nothing: programs
/// and maps are pinned.
#[derive(Debug)]
pub struct Datapath {
    /// Which share has which place in the maps.
    pub share_slots: Arc<Slots>,
    /// Which node has which number in rules.
    pub node_slots: Arc<Slots>,
    /// Who this node is, per share.
    pub shares: ShareTable,
    /// Endpoints that the data path cares for.
    pub services: ServiceTable,
    /// Flows; shared, so that a long scan need not hold up its owner.
    pub flows: Arc<FlowTable>,
    /// Sources of new connections that have their part of that table.
    pub crowds: Arc<CrowdTable>,
    /// Handshakes under way.
    pub half_open: HalfOpenTable,
    /// Connections that go to other servers by themselves.
    pub handoffs: Arc<HandoffTable>,
    /// Those of them that get a socket here.
    pub newborns: Arc<NewbornTable>,
    /// Of connections that go to other servers with a request.
    pub requests: RequestTables,
    /// How frames of other servers are proved.
    pub trusts: TrustTable,
    /// Verdict counters.
    pub counters: Counters,
    /// Changes to single flows.
    pub orders: Orders,
    /// How twins come to be, and are judged.
    pub twins: TwinTables,
    /// Whether local clients of services that are owned elsewhere are refused.
    pub locals: Result<(), LocalError>,
    /// Where servers that stand are found.
    pub stopped: Arc<StoppedServers>,
    /// Where the programs are, until somebody takes it to follow the interfaces.
    pub hooks: Option<Hooks>,
    /// The loaded object stays for the life of the process.
    skel: &'static mut MaybeSkel,
    pins: PinDir,
}

/// What the data path has for handoffs with a request.
#[derive(Debug)]
pub struct RequestTables {
    /// Where requests are served best.
    pub placing: PlacingTable,
    /// Where connections begin.
    pub steering: SteeringTable,
    /// Requests whose questions are open.
    pub questions: QuestionTable,
    /// Connections that need another server.
    pub transfers: Arc<TransferTable>,
}

/// What the data path has for twins.
#[derive(Debug)]
pub struct TwinTables {
    /// Sums of what flows have said.
    pub outputs: OutputTable,
    /// What clients have said to running flows.
    pub log: LogTable,
    /// The way to have twins of running flows.
    pub installer: Installer,
    /// Proof that twins can be born at a standby.
    pub canaries: Arc<CanaryTable>,
    /// Whether twins are looked at when they are born.
    pub births: Births,
}

struct MaybeSkel(GodwitSkel<'static>);

impl std::fmt::Debug for MaybeSkel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GodwitSkel")
    }
}

impl Datapath {
    /// Loads the programs, takes over pinned maps, and puts `tap` and `gate`
    /// on the service interface and `guard` on the others. No share has a
    /// role until one is written, unless an earlier agent left it.
    ///
    /// # Errors
    /// Fails if the kernel refuses a program or a link, or if another version has
    /// left what this one can't take over. Links that were made in this call are
    /// removed again; those of an earlier agent stay.
    pub fn open(settings: &Settings, pins: PinDir) -> Result<(Self, Events), OpenError> {
        // The object outlives every handle made from it.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = GodwitSkelBuilder::default()
            .open(storage)
            .map_err(OpenError::Load)?;
        configure(&mut open, settings, &pins)?;
        let births = if birth::configure(&mut open).map_err(OpenError::Load)? {
            Births::Watched
        } else {
            Births::Plain
        };
        stopped::configure(&mut open);
        let mut skel = open.load().map_err(OpenError::Load)?;
        let stopped = Arc::new(stopped::attach(&mut skel)?);
        // SAFETY: the loaded object lives as long as the process.
        let object = unsafe { skel.object().as_libbpf_object().as_ref() };
        let btf = Btf::from_bpf_object(object).ok().flatten();
        let maps = &skel.maps;
        let share_slots = slots(&maps.gw_share_ids, "gw_share_ids")?;
        let node_slots = slots(&maps.gw_node_ids, "gw_node_ids")?;
        let events = event_rings(&skel, share_slots.clone(), node_slots.clone())?;
        let hooks = hooks(&skel, settings, &pins)?;
        let mut datapath = Self {
            shares: share_table(&skel, share_slots.clone())?,
            services: service_table(&skel, share_slots.clone())?,
            flows: Arc::new(FlowTable::new(
                handle(&maps.gw_flows, "gw_flows")?,
                share_slots.clone(),
            )),
            crowds: Arc::new(CrowdTable::new(handle(&maps.gw_crowds, "gw_crowds")?)),
            half_open: HalfOpenTable::new(
                handle(&maps.gw_half_open, "gw_half_open")?,
                share_slots.clone(),
            ),
            handoffs: Arc::new(HandoffTable::new(handle(&maps.gw_handoffs, "gw_handoffs")?)),
            newborns: Arc::new(NewbornTable::new(handle(&maps.gw_newborns, "gw_newborns")?)),
            requests: request_tables(&skel, share_slots.clone(), node_slots.clone())?,
            trusts: TrustTable::new(handle(&maps.gw_trusts, "gw_trusts")?),
            counters: Counters::new(handle(&maps.gw_counters, "gw_counters")?, btf.as_ref()),
            orders: Orders::new(&skel.progs.order, share_slots.clone()).map_err(no_descriptor)?,
            twins: TwinTables {
                outputs: output_table(&skel, share_slots.clone())?,
                log: LogTable::new(handle(&maps.gw_log, "gw_log")?),
                installer: Installer::new(&skel.progs.install, share_slots.clone())
                    .map_err(no_descriptor)?,
                canaries: Arc::new(canary_table(&skel)?),
                births,
            },
            share_slots,
            node_slots,
            locals: Ok(()),
            stopped,
            hooks: None,
            skel: Box::leak(Box::new(MaybeSkel(skel))),
            pins,
        };
        // If there is no memory for it now the agent tries again (godwit-agent, driver/sweep.rs).
        datapath.orders.tick().map_err(no_descriptor)?;
        datapath.hooks = Some(datapath.attach(hooks, settings)?);
        Ok((datapath, events))
    }

    fn attach(&mut self, mut hooks: Hooks, settings: &Settings) -> Result<Hooks, OpenError> {
        let before = self.pins.link_names();
        let attached = self.attach_all(&mut hooks, settings);
        if attached.is_err() {
            for name in self.pins.link_names() {
                if !before.contains(&name) {
                    let _ = std::fs::remove_file(self.pins.link(&name));
                }
            }
        }
        attached.map(|()| hooks)
    }

    /// What `tap` calls is in its place before it sees a frame.
    fn attach_all(&mut self, hooks: &mut Hooks, settings: &Settings) -> Result<(), OpenError> {
        let skel = &self.skel.0;
        policy_places(skel)?.fill(&settings.policies, &skel.progs.tap, &self.requests.steering)?;
        if let Some(end) = &settings.tunnel {
            self.let_in(end)?;
        }
        hooks.identify(&Identity {
            mac: settings.mac,
            v4: settings.node_v4,
            v6: settings.node_v6,
        })?;
        self.fill_places()?;
        hooks.learn_names(settings.ifindex);
        hooks.attach(settings.ifindex)?;
        hooks.come_first(settings.ifindex)?;
        let progs = &mut self.skel.0.progs;
        for (name, program) in [
            ("signal_sent", &mut progs.signal_sent),
            ("signal_taken", &mut progs.signal_taken),
            ("process_exit", &mut progs.process_exit),
        ] {
            attach_beside(name, &self.pins, name, || program.attach())?;
        }
        let is_needed = !matches!(self.twins.births, Births::Plain);
        self.twins.births = birth::attach(&mut self.skel.0, &self.pins, is_needed);
        self.locals = local::attach(&mut self.skel.0, &self.pins);
        hooks.guard(&settings.others)?;
        hooks.watch(&settings.others)?;
        Ok(())
    }

    /// What is called in place of a program whose move was broken off.
    fn fill_places(&self) -> Result<(), OpenError> {
        let (progs, maps) = (&self.skel.0.progs, &self.skel.0.maps);
        let places = [
            (&maps.gw_ingress_places, 0_u32, &progs.tap),
            (&maps.gw_ingress_places, 1, &progs.untunnel),
            (&maps.gw_egress_places, 0, &progs.gate),
        ];
        for (map, place, program) in places {
            let fd = program.as_fd().as_raw_fd();
            map.update(&place.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
                .map_err(OpenError::Load)?;
        }
        Ok(())
    }

    /// From here on a tunnel's frames come from these directors, by these routers, and from
    /// no other ones. Where the tunnel ends, and its number, stay as they were at the start.
    ///
    /// # Errors
    /// Fails if the kernel does not take it.
    pub fn let_in(&self, end: &TunnelEnd) -> Result<(), OpenError> {
        let maps = &self.skel.0.maps;
        let ends = handle(&maps.gw_tunnel_ends, "gw_tunnel_ends")?;
        let ends = TypedMap::<types::gw_endpoint, u32>::new(ends, "gw_tunnel_ends");
        let routers = handle(&maps.gw_tunnel_routers, "gw_tunnel_routers")?;
        let routers = TypedMap::<types::gw_mate_mac, u32>::new(routers, "gw_tunnel_routers");
        let bound = handle(&maps.gw_tunnel_bound, "gw_tunnel_bound")?;
        let bound = TypedMap::<u32, u32>::new(bound, "gw_tunnel_bound");
        let address = |it: &IpAddr| Endpoint::from(SocketAddr::new(*it, 0)).into();
        let directors: Vec<types::gw_endpoint> = end.directors.iter().map(address).collect();
        keep_only(&ends, &directors)?;
        let station = |router: &MacAddr| types::gw_mate_mac {
            mac: router.0,
            pad: 0,
        };
        let stations: Vec<_> = end.routers.iter().map(station).collect();
        // No frame that may come is dropped meanwhile.
        if end.routers.is_empty() {
            bound.update(&0, &0)?;
        }
        keep_only(&routers, &stations)?;
        if !end.routers.is_empty() {
            bound.update(&0, &1)?;
        }
        Ok(())
    }

    /// The program of a hook, for [`Trial`](crate::Trial).
    pub(crate) fn program(&self, hook: Hook) -> &ProgramMut<'static> {
        let progs = &self.skel.0.progs;
        match hook {
            Hook::Tap => &progs.tap,
            Hook::Gate => &progs.gate,
            Hook::Guard => &progs.guard,
            Hook::Untunnel => &progs.untunnel,
            Hook::ClosedTap => &progs.closed_tap,
            Hook::ClosedGate => &progs.closed_gate,
        }
    }

    /// The programs in the path of packets, and those that see processes end.
    pub(crate) fn programs(&self) -> [&ProgramMut<'static>; 9] {
        let progs = &self.skel.0.progs;
        [
            &progs.tap,
            &progs.gate,
            &progs.guard,
            &progs.beside,
            &progs.order,
            &progs.install,
            &progs.process_exit,
            &progs.signal_sent,
            &progs.signal_taken,
        ]
    }

    /// Takes the programs out of the path and forgets all flows.
    ///
    /// # Errors
    /// Fails if a pin can't be removed.
    pub fn detach(self) -> Result<(), crate::PinError> {
        self.pins.remove()
    }
}

/// The table has these keys, and no other ones.
fn keep_only<K: Plain>(table: &TypedMap<K, u32>, wanted: &[K]) -> Result<(), MapError> {
    for key in wanted {
        table.update(key, &1)?;
    }
    for key in table.keys()? {
        if !wanted.iter().any(|it| bytes_of(it) == bytes_of(&key)) {
            table.delete(&key)?;
        }
    }
    Ok(())
}

fn configure(
    open: &mut OpenGodwitSkel<'static>,
    settings: &Settings,
    pins: &PinDir,
) -> Result<(), OpenError> {
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.gw_tunnel_vni = settings.tunnel.as_ref().map_or(0, |it| it.vni);
        let end = settings.tunnel.as_ref().map(|it| addr_words(mapped(it.at)));
        rodata.gw_tunnel_at = end.unwrap_or_default();
        rodata.gw_netns_cookie = settings.netns_cookie;
    }
    let maps = &mut open.maps;
    let tables = [
        &mut maps.gw_flows,
        &mut maps.gw_outputs,
        &mut maps.gw_handoffs,
        &mut maps.gw_talks,
        &mut maps.gw_transfers,
    ];
    for map in tables {
        map.set_max_entries(settings.max_flows)
            .map_err(OpenError::Load)?;
    }
    for map in [
        &mut maps.gw_services,
        &mut maps.gw_wards,
        &mut maps.gw_addresses,
        &mut maps.gw_shares,
        &mut maps.gw_share_ids,
        &mut maps.gw_node_ids,
        &mut maps.gw_fences,
        &mut maps.gw_flows,
        &mut maps.gw_untimed_ended,
        &mut maps.gw_untimed_watched,
        &mut maps.gw_untimed_moved,
        &mut maps.gw_tickers,
        &mut maps.gw_crowds,
        &mut maps.gw_passed,
        &mut maps.gw_log,
        &mut maps.gw_half_open,
        &mut maps.gw_verifies,
        &mut maps.gw_outputs,
        &mut maps.gw_handoffs,
        &mut maps.gw_talks,
        &mut maps.gw_transfers,
        &mut maps.gw_kepts,
        &mut maps.gw_settled,
        &mut maps.gw_placings,
        &mut maps.gw_mates,
        &mut maps.gw_mate_macs,
        &mut maps.gw_trusts,
        &mut maps.gw_orders,
        &mut maps.gw_prefixes,
        &mut maps.gw_suffixes,
        &mut maps.gw_steerings,
        &mut maps.gw_policy_calls,
        &mut maps.gw_policy_programs,
        &mut maps.gw_ingress_places,
        &mut maps.gw_egress_places,
        &mut maps.gw_events,
        &mut maps.gw_exits,
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

fn slots(map: &MapMut<'_>, name: &'static str) -> Result<Arc<Slots>, OpenError> {
    Ok(Arc::new(Slots::new(handle(map, name)?, name)?))
}

fn event_rings(
    skel: &GodwitSkel<'static>,
    slots: Arc<Slots>,
    nodes: Arc<Slots>,
) -> Result<Events, OpenError> {
    Events::new(
        handle(&skel.maps.gw_events, "gw_events")?,
        handle(&skel.maps.gw_exits, "gw_exits")?,
        slots,
        nodes,
    )
    .map_err(|source| OpenError::Map {
        map: "gw_events",
        source,
    })
}

fn service_table(skel: &GodwitSkel<'static>, slots: Arc<Slots>) -> Result<ServiceTable, OpenError> {
    Ok(ServiceTable::new(
        handle(&skel.maps.gw_services, "gw_services")?,
        handle(&skel.maps.gw_wards, "gw_wards")?,
        handle(&skel.maps.gw_addresses, "gw_addresses")?,
        slots,
    ))
}

fn share_table(skel: &GodwitSkel<'static>, slots: Arc<Slots>) -> Result<ShareTable, OpenError> {
    let fences = handle(&skel.maps.gw_fences, "gw_fences")?;
    let fences = Fences::new(fences, slots.clone(), &skel.progs.fence).map_err(no_descriptor)?;
    let entries = handle(&skel.maps.gw_shares, "gw_shares")?;
    Ok(ShareTable::new(entries, slots, fences))
}

fn output_table(skel: &GodwitSkel<'static>, slots: Arc<Slots>) -> Result<OutputTable, OpenError> {
    let verifies = handle(&skel.maps.gw_verifies, "gw_verifies")?;
    let outputs = handle(&skel.maps.gw_outputs, "gw_outputs")?;
    Ok(OutputTable::new(verifies, outputs, slots))
}

fn canary_table(skel: &GodwitSkel<'static>) -> Result<CanaryTable, OpenError> {
    let maps = &skel.maps;
    Ok(CanaryTable::new(
        handle(&maps.gw_canaries, "gw_canaries")?,
        handle(&maps.gw_canary_answers, "gw_canary_answers")?,
        handle(&maps.gw_canary_homes, "gw_canary_homes")?,
        handle(&maps.gw_canary_peers, "gw_canary_peers")?,
    ))
}

fn placing_table(
    skel: &GodwitSkel<'static>,
    shares: Arc<Slots>,
    nodes: Arc<Slots>,
) -> Result<PlacingTable, OpenError> {
    let maps = &skel.maps;
    let tables = PlacingMaps {
        placings: handle(&maps.gw_placings, "gw_placings")?,
        mates: handle(&maps.gw_mates, "gw_mates")?,
        macs: handle(&maps.gw_mate_macs, "gw_mate_macs")?,
        paths: handle(&maps.gw_paths, "gw_paths")?,
        paths_asked: handle(&maps.gw_paths_asked, "gw_paths_asked")?,
        prefixes: handle(&maps.gw_prefixes, "gw_prefixes")?,
        suffixes: handle(&maps.gw_suffixes, "gw_suffixes")?,
    };
    Ok(PlacingTable::new(tables, shares, nodes))
}

fn request_tables(
    skel: &GodwitSkel<'static>,
    shares: Arc<Slots>,
    nodes: Arc<Slots>,
) -> Result<RequestTables, OpenError> {
    let maps = &skel.maps;
    let transfers = TransferTable::new(handle(&maps.gw_transfers, "gw_transfers")?);
    Ok(RequestTables {
        steering: SteeringTable::new(handle(&maps.gw_steerings, "gw_steerings")?, shares.clone()),
        placing: placing_table(skel, shares, nodes)?,
        questions: QuestionTable::new(handle(&maps.gw_kepts, "gw_kepts")?),
        transfers: Arc::new(transfers),
    })
}

fn hooks(
    skel: &GodwitSkel<'static>,
    settings: &Settings,
    pins: &PinDir,
) -> Result<Hooks, OpenError> {
    let progs = &skel.progs;
    let loaded = Loaded {
        tap: &progs.tap,
        gate: &progs.gate,
        guard: &progs.guard,
        beside: &progs.beside,
        untunnel: settings.tunnel.as_ref().map(|_| &progs.untunnel),
        vacant: &progs.vacant,
        closed: [
            &progs.closed_tap,
            &progs.closed_gate,
            &progs.closed_untunnel,
        ],
        settings: handle(&skel.maps.bss, "settings")?,
        strays: handle(&skel.maps.gw_strays, "gw_strays")?,
    };
    Hooks::new(loaded, pins.clone()).map_err(no_descriptor)
}

fn policy_places(skel: &GodwitSkel<'static>) -> Result<Places, OpenError> {
    let programs = || handle(&skel.maps.gw_policy_programs, "gw_policy_programs");
    let calls = handle(&skel.maps.gw_policy_calls, "gw_policy_calls")?;
    Ok(Places::new(calls, [programs()?, programs()?]))
}

fn no_descriptor(error: io::Error) -> OpenError {
    OpenError::Load(error.into())
}
