//! Everything that can fail at start, before anybody hears of this node.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use godwit_bpf::{
    Births, Datapath, Events, Identity, Keepers, MARK_SPOKEN, OpenError, PinDir, Settings,
    ShareEntry, TunnelEnd, remove_stale_pins,
};
use godwit_core::node::Resume;
use godwit_core::{MonoTime, Node, NodeConfig, VoterMemory};
use godwit_sock::{Devices, FrameSender, Interface, join_group, netns_cookie};
use godwit_wire::{Endpoint, Generation, NodeName, Role, ShareId};

use super::addresses;
use super::canary::{Canaries, Nest, Origins};
use super::detach::{DetachError, detach};
use super::digest::Digest;
use super::dismissal::Dismissals;
use super::earlier;
use super::fence::from_expiry;
use super::follow::{self, Follow, Place};
use super::gone;
use super::ground::Ground;
use super::handoff::{Handoffs, Kit, Means, Newborns};
use super::keeper::{self, Keeper, Perches};
use super::leash;
use super::leave::Ending;
use super::locals::Locals;
use super::moves::Moves;
use super::neighbours::Resolver;
use super::pins::{MAX_FLOWS, pin_name};
use super::rejoin::Rejoins;
use super::requests::{self, Requests};
use super::servers::Servers;
use super::shares::Shares;
use super::snapshots::Snapshots;
use super::standstill::Standstill;
use super::sweep::Sweep;
use super::twins::Twins;
use super::unlisted::Strays;
use super::voice::Voice;
use super::{
    Driver, InstallError, Lasting, Outside, Surroundings, leftover, other, ring, routes, unlisted,
};
use crate::clock;
use crate::config::{Config, PeerRole, Reach};
use crate::era::Era;
use crate::input::{Inbox, Inputs};
use crate::machine_error::MachineError;
use crate::membership::{self, Life, node_config};
use crate::programs::policies;
use crate::surroundings::FactBoard;
use crate::undo::Step;

/// A node whose data path is in place and silent.
#[derive(Debug)]
pub struct Installed {
    pub(crate) config: Arc<Config>,
    parts: Remains,
    /// Where canaries end; the thread outlives this driver.
    nest: Option<Nest>,
    perches: Option<Perches>,
}

/// What a process makes once, while it has the rights to: it outlives a driver when the
/// file is reloaded.
#[derive(Debug)]
pub struct Remains {
    pub(super) place: Arc<Place>,
    pub(super) interface: Interface,
    pub(super) datapath: Datapath,
    pub(super) events: Arc<Mutex<Events>>,
    pub(super) voice: Voice,
    pub(super) origins: Origins,
    pub(super) kit: Option<Kit>,
    /// The other side of each share, as the driver before knew it.
    pub(super) others: BTreeMap<ShareId, NodeName>,
    /// The shares that it owned because they had begun here for want of their primaries.
    pub(super) begun: Vec<ShareId>,
}

impl Installed {
    /// Loads and attaches the data path and adds the service addresses. What
    /// this call attached is detached again if it fails.
    ///
    /// May change the mount namespace of the calling thread, see
    /// [`PinDir::open`]: call it before other threads exist.
    ///
    /// # Errors
    /// If the kernel or the interface lacks something.
    pub fn new(config: Arc<Config>) -> Result<Self, InstallError> {
        let services: Vec<IpAddr> = config
            .own_shares()
            .flat_map(|(_, service)| service.ips())
            .collect();
        let interface = Interface::by_name(config.node.interface.as_str())?;
        let voice = Voice::open(&interface).map_err(MachineError::Socket)?;
        let settings = Settings {
            ifindex: interface.index,
            mac: interface.mac,
            others: Devices::read()
                .map_err(MachineError::Devices)?
                .others(interface.index),
            node_v4: interface.own_v4(&services),
            node_v6: interface.own_v6(&services),
            netns_cookie: netns_cookie().map_err(MachineError::Socket)?,
            max_flows: MAX_FLOWS,
            policies: policies(&config)?,
            tunnel: tunnel(&config),
        };
        clean_up();
        leftover::take_over(&config, interface.index)?;
        let kit = Kit::new(&config)?;
        let perches = Perches::open(&config).map_err(InstallError::Perch)?;
        let (datapath, events) = open_datapath(&config, &settings)?;
        let installed = Self {
            config,
            parts: Remains {
                place: Arc::new(Place::new(interface.index, interface.mac)),
                interface,
                datapath,
                events: Arc::new(Mutex::new(events)),
                voice,
                origins: Origins {
                    v4: settings.node_v4,
                    v6: settings.node_v6,
                },
                kit,
                others: BTreeMap::new(),
                begun: Vec::new(),
            },
            nest: Some(Nest::open()),
            perches,
        };
        let installed = Step::new(installed, Self::remove);
        installed.introduce(&services)?;
        Ok(installed.keep())
    }

    /// Goes on with another file in the same process.
    ///
    /// # Errors
    /// If the new file can't be carried out; what is left can go on with the old one.
    pub(crate) fn again(
        config: Arc<Config>,
        parts: Remains,
    ) -> Result<Self, Box<(InstallError, Remains)>> {
        let services: Vec<IpAddr> = config
            .own_shares()
            .flat_map(|(_, service)| service.ips())
            .collect();
        let perches = match Perches::open(&config) {
            Ok(perches) => perches,
            Err(error) => return Err(Box::new((InstallError::Perch(error), parts))),
        };
        // It may have been made anew since the start.
        let mut parts = parts;
        if let Ok(found) = Interface::by_name(config.node.interface.as_str()) {
            parts.interface = found;
        }
        let installed = Self {
            config,
            parts,
            // That of the life before goes on.
            nest: None,
            perches,
        };
        match installed.introduce(&services) {
            Ok(()) => Ok(installed),
            Err(error) => Err(Box::new((error, installed.parts))),
        }
    }

    /// What the core must know, with what an earlier agent left, and has voted for.
    pub fn node_config(&self, life: &Life, memory: Option<&VoterMemory>) -> NodeConfig {
        let mut node = node_config(&self.config, life);
        for share in &mut node.shares {
            share.resume = self.resume(share.id);
            if let Some(from) = &mut share.resume {
                let stay = (from.epoch, from.generation);
                let known = self.parts.others.get(&share.id).copied();
                let voted = memory.and_then(|it| it.other_side(share.id, node.name, stay));
                from.other = known.or(voted).or_else(|| self.found_on_link(share.id));
            }
        }
        node
    }

    /// Undoes [`Installed::new`], unless an earlier agent's flows are in there.
    pub fn remove(self) {
        let left = self
            .config
            .own_shares()
            .any(|(share, _)| self.resume(share).is_some());
        if left {
            return;
        }
        // The reason for the retreat is what people should read, not this.
        let _ = self.detach();
    }

    /// Takes the data path away, see [`DetachError`] for what may remain.
    ///
    /// # Errors
    /// If something could not be ended or removed.
    pub fn detach(self) -> Result<(), DetachError> {
        detach(
            &self.config,
            self.parts.interface.index,
            self.parts.datapath,
        )
    }

    /// Tells the data path its services, then adds their addresses: an address
    /// is never up without a program that keeps it silent.
    fn introduce(&self, services: &[IpAddr]) -> Result<(), InstallError> {
        gone::settle(
            &self.config,
            self.parts.interface.index,
            &self.parts.datapath,
        )?;
        let shares = self.config.own_shares();
        let endpoints = shares.flat_map(|(share, service)| {
            let all = service.addresses.iter();
            all.map(move |address| (Endpoint::from(*address), share))
        });
        let (wards, own): (Vec<_>, Vec<_>) =
            endpoints.partition(|(_, share)| self.config.is_ward(*share));
        self.parts.datapath.services.replace(&own, &wards)?;
        gone::release(&self.config, &self.parts.datapath)?;
        for (share, service) in self.config.own_shares() {
            let hold = self.config.server_lost_hold(service);
            self.parts.datapath.shares.hold(share, hold)?;
            self.parts
                .datapath
                .twins
                .outputs
                .verify(share, &service.verification())?;
        }
        if let Some(nest) = &self.nest {
            self.parts.datapath.twins.canaries.set_home(nest.ports())?;
        }
        requests::forget_others(&self.config, &self.parts.datapath.requests.placing)?;
        requests::introduce(&self.config, &self.parts.datapath.requests.steering)?;
        if let Some(end) = tunnel(&self.config) {
            self.parts.datapath.let_in(&end)?;
        }
        for group in self
            .config
            .own_shares()
            .filter_map(|(_, service)| service.group())
        {
            join_group(&self.parts.interface.name, group)
                .map_err(|source| InstallError::Group { group, source })?;
        }
        addresses::add(self.parts.interface.index, services)
            .map_err(|(address, source)| MachineError::Address { address, source })?;
        Ok(())
    }

    /// What an earlier agent of this node left in the data path.
    fn resume(&self, share: ShareId) -> Option<Resume> {
        let left = self.left_over(share)?;
        Some(Resume {
            role: left.role,
            epoch: left.epoch,
            generation: left.generation,
            expiry: from_expiry(left.expiry),
            other: None,
        })
    }

    fn left_over(&self, share: ShareId) -> Option<ShareEntry> {
        self.parts.datapath.shares.left_over(share).ok().flatten()
    }

    /// The other side of that, by its address on the link.
    fn found_on_link(&self, share: ShareId) -> Option<NodeName> {
        let left = self.left_over(share)?;
        // Behind a stay it is where somebody was.
        let left = Some(left).filter(|left| !left.generation.is_none())?;
        other::server_at(&self.config, self.parts.interface.index, left.peer_mac)
    }

    /// The greatest generation of flows that an earlier agent left, per share.
    fn inherited(&self) -> BTreeMap<ShareId, Generation> {
        let mut latest = BTreeMap::new();
        // An unreadable table has no flow that could be taken for another's.
        let _ = self.parts.datapath.flows.for_each(|flow| {
            let greatest = latest.entry(flow.share).or_insert(flow.generation);
            *greatest = flow.generation.max(*greatest);
        });
        latest
    }

    /// With what an earlier life in this process has voted for, and has begun.
    fn core(&self, node: &NodeConfig, memory: Option<VoterMemory>, now: MonoTime) -> Node {
        let node = membership::node(&self.config, node, now);
        node.remembering(memory).beginning(&self.parts.begun)
    }

    /// With what an earlier agent has left of them.
    fn shares(&self, node: &NodeConfig, keepers: Option<Keepers>) -> Shares {
        let other = |id| {
            let share = node.shares.iter().find(|share| share.id == id)?;
            share.resume?.other
        };
        let left = |share| Some((self.left_over(share)?, other(share)));
        Shares::new(&self.config, keepers, left)
    }

    fn start_keeper(
        &mut self,
        surroundings: &Surroundings,
    ) -> Result<Option<Keeper>, InstallError> {
        let Some(perches) = self.perches.take() else {
            return Ok(None);
        };
        let means = keeper::Means {
            flows: self.parts.datapath.flows.clone(),
            apps: surroundings.apps.clone(),
            events: surroundings.events.clone(),
            inbox: surroundings.inbox.clone(),
            place: self.parts.place.clone(),
        };
        let started = Keeper::start(perches, &self.config, means);
        Ok(Some(started.map_err(MachineError::Thread)?))
    }

    fn start_standstill(&self, surroundings: &Surroundings) -> Result<Standstill, InstallError> {
        let servers = self.parts.datapath.stopped.clone();
        let inbox = surroundings.inbox.clone();
        Ok(Standstill::spawn(servers, &self.config, inbox).map_err(MachineError::Thread)?)
    }

    fn start_handoffs(&mut self, surroundings: &Surroundings) -> Result<Handoffs, InstallError> {
        let Some(kit) = self.parts.kit.take() else {
            return Ok(Handoffs::new(None));
        };
        let means = Means {
            apps: surroundings.apps.clone(),
            peers: surroundings.peers.clone(),
            inbox: surroundings.inbox.clone(),
            events: surroundings.events.clone(),
            stand: self.parts.place.clone(),
            flows: self.parts.datapath.flows.clone(),
            newborns: Newborns {
                table: self.parts.datapath.newborns.clone(),
                frames: self.parts.voice.replayed.clone(),
                place: self.parts.place.clone(),
            },
        };
        let started = kit.start(&self.config, self.parts.datapath.handoffs.clone(), means);
        let way = started.map_err(MachineError::Thread)?;
        Ok(Handoffs::new(Some(way)))
    }

    fn follow(
        &mut self,
        place: Arc<Place>,
        resolver: Resolver,
        inbox: Inbox,
    ) -> Result<Follow, InstallError> {
        let services: Vec<IpAddr> = self.services();
        let frames = FrameSender::open(self.parts.interface.index, MARK_SPOKEN);
        let start = follow::Start {
            config: self.config.clone(),
            hooks: self
                .parts
                .datapath
                .hooks
                .take()
                .expect("not taken since the start"),
            place,
            identity: Identity {
                mac: self.parts.interface.mac,
                v4: self.parts.interface.own_v4(&services),
                v6: self.parts.interface.own_v6(&services),
            },
            frames: frames.map_err(MachineError::Socket)?,
            resolver,
            inbox,
            announces: self.has_another_tap(),
            births: match &self.parts.datapath.twins.births {
                Births::Unwatched(why) => Some(with_sources(why)),
                Births::Plain | Births::Watched => None,
            },
        };
        Ok(Follow::spawn(start).map_err(MachineError::Devices)?)
    }

    /// Whether clients of a share that this node owns know it by another link-layer address
    /// than the file's: its tap was another one before.
    fn has_another_tap(&self) -> bool {
        let mut shares = self.config.own_shares();
        shares.any(|(share, service)| {
            let left = self.left_over(share);
            left.is_some_and(|it| it.role == Role::Owner && it.group != service.group())
        })
    }

    fn services(&self) -> Vec<IpAddr> {
        let shares = self.config.own_shares();
        shares.flat_map(|(_, service)| service.ips()).collect()
    }

    /// Starts the threads that read the data path's tables and ring buffers.
    fn start_readers(
        &mut self,
        place: Arc<Place>,
        inbox: &Inbox,
        now: MonoTime,
    ) -> io::Result<(Sweep, Arc<Strays>)> {
        let flows = &self.parts.datapath.flows;
        let crowds = self.parts.datapath.crowds.clone();
        leash::spawn_census(flows.clone(), crowds, inbox.clone())?;
        let sweep = Sweep::spawn(
            (
                flows.clone(),
                self.parts.datapath.requests.transfers.clone(),
            ),
            place.clone(),
            inbox.clone(),
            now,
        )?;
        let lists = (flows.clone(), self.parts.datapath.handoffs.clone());
        routes::spawn(flows.clone(), place.clone(), inbox.clone())?;
        let strays = unlisted::spawn(&self.config, lists, place, inbox.clone())?;
        ring::spawn_reader(self.parts.events.clone(), sweep.doubts(), inbox.clone())?;
        let canaries = self.parts.datapath.twins.canaries.clone();
        let nest = self.nest.take();
        nest.map_or(Ok(()), |nest| nest.spawn(canaries))?;
        Ok((sweep, strays))
    }

    /// Puts the driver together; [`Driver::run`] starts it.
    ///
    /// # Errors
    /// If the thread that reads the ring buffer can't be started.
    pub fn into_driver(
        mut self,
        node: NodeConfig,
        surroundings: Surroundings,
    ) -> Result<(Driver, Inputs), InstallError> {
        let now = clock::now();
        surroundings.apps.follow(self.parts.interface.index);
        let inherited = self.inherited();
        let handoffs = self.start_handoffs(&surroundings)?;
        let standstill = self.start_standstill(&surroundings)?;
        let keeper = self.start_keeper(&surroundings)?;
        let place = self.parts.place.clone();
        let resolver = Resolver::spawn(&self.config, place.clone(), surroundings.ears());
        let resolver = resolver.map_err(MachineError::Thread)?;
        let follow = self.follow(place.clone(), resolver.clone(), surroundings.inbox.clone())?;
        let readers = self.start_readers(place, &surroundings.inbox, now);
        let (sweep, strays) = readers.map_err(MachineError::Thread)?;
        let shares = self.shares(&node, keeper.as_ref().map(Keeper::ports));
        let core = self.core(&node, surroundings.memory, now);
        let interface = self.parts.interface;
        let mut voice = self.parts.voice;
        (voice.ifindex, voice.mac) = (interface.index, interface.mac);
        let ground = Ground {
            node: core,
            started: now,
            shares,
            voice,
            peers: surroundings.peers,
            events: surroundings.events,
            resolver,
            apps: surroundings.apps,
            config: self.config,
            datapath: self.parts.datapath,
        };
        let config = &ground.config;
        let outside = Outside {
            board: surroundings.board,
            facts: FactBoard::default(),
            leases: surroundings.leases,
            stonith: surroundings.stonith,
            metrics: surroundings.metrics,
        };
        let lasting = Lasting {
            stand: self.parts.place,
            interface,
            records: self.parts.events,
            origins: self.parts.origins,
            follow,
        };
        let mut driver = Driver {
            incarnation: node.incarnation,
            era: Era::new(surroundings.inbox),
            locals: Locals::spawn(config, ground.events.clone()).map_err(MachineError::Thread)?,
            servers: Servers::new(config, now),
            canaries: Canaries::new(self.parts.origins, node.incarnation, now),
            ending: Ending::default(),
            requests: Requests::new(&ground, now),
            digest: Digest::new(now),
            twins: Twins::new(now),
            rejoins: Rejoins::new(now),
            snapshots: Snapshots::new(config, keeper, now),
            outside,
            lasting,
            dismissals: Dismissals::default(),
            standstill,
            moves: Moves::new(strays),
            sweep,
            handoffs,
            ground,
        };
        driver.take_up(inherited, now);
        Ok((driver, surroundings.inputs))
    }
}

impl Driver {
    /// Goes on with what an earlier agent left.
    fn take_up(&mut self, inherited: BTreeMap<ShareId, Generation>, now: MonoTime) {
        for (share, latest) in inherited {
            self.ground.node.handle_inherited_flows(share, latest, now);
        }
        self.handoffs.resume(&mut self.ground, now);
        self.servers.look_for_listeners(&mut self.ground, now);
    }
}

/// Loads the data path, over what an agent of another version has left if need be, and
/// says what this kernel does not do for it.
fn open_datapath(config: &Config, settings: &Settings) -> Result<(Datapath, Events), InstallError> {
    let name = pin_name(config)?;
    let (datapath, events) = match Datapath::open(settings, PinDir::open(&name)?) {
        Err(OpenError::OtherVersion { .. }) => {
            earlier::clear(config, settings.ifindex, PinDir::open(&name)?)?;
            Datapath::open(settings, PinDir::open(&name)?)?
        }
        opened => opened?,
    };
    if let Births::Unwatched(why) = &datapath.twins.births {
        tracing::warn!(
            error = why as &dyn std::error::Error,
            "twins may be born with Accurate ECN, and slow after a takeover"
        );
    }
    if let Err(why) = &datapath.locals {
        tracing::warn!(
            error = why as &dyn std::error::Error,
            "processes of this machine reach silent twins' servers by service addresses"
        );
    }
    Ok((datapath, events))
}

/// What killed agents have left where there is no network any more takes places that
/// this one needs.
fn clean_up() {
    match remove_stale_pins(netns_cookie) {
        Ok(0) => {}
        Ok(folders) => tracing::info!(folders, "pins of agents that are gone removed"),
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "pins of agents that are gone stay");
        }
    }
}

/// An error and what it came from.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The directors whose frames come in a tunnel.
fn tunnel(config: &Config) -> Option<TunnelEnd> {
    let vni = config.director.as_ref()?.vni;
    let directors = config.peers.iter();
    let directors = directors.filter(|peer| peer.role == PeerRole::Director);
    (config.own_peer().reach == Reach::Vxlan).then(|| TunnelEnd {
        at: config.own_peer().data,
        vni,
        directors: directors.map(|peer| peer.data).collect(),
        routers: config.own_peer().routers.clone(),
    })
}
