//! Where the programs are: on which interfaces, and before whom. Apart from the
//! [`Datapath`](crate::Datapath), so that another thread than its owner's may follow the
//! interfaces: whenever a chain changes, the kernel waits for frames under way.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use godwit_wire::MacAddr;
use libbpf_rs::{MapHandle, ProgramMut};
use nix::time::{ClockId, clock_gettime};

use crate::attach::{AttachError, release};
use crate::convert::{Plain, addr_words};
use crate::maps::{MapError, TypedMap};
use crate::pin::PinDir;
use crate::skel::types;
use crate::tcx::{self, Chain, Way};

/// Places in [`Hooks::others`].
const GUARD: usize = 0;
const BESIDE: usize = 1;

/// Longer no program moves.
const MOVE: Duration = Duration::from_secs(1);

/// Where agents have their folders.
const FOLDER: &str = "/sys/fs/bpf/godwit";

/// Pins on other interfaces are called after their program, this and the interface's index.
const ON: char = '-';

// SAFETY: integers, arrays of integers, and pointers that nobody follows.
unsafe impl Plain for types::bss {}
// SAFETY: two integers.
unsafe impl Plain for types::gw_stray {}

/// What this node is on the link. It may change while the programs are in the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The service interface's MAC address.
    pub mac: MacAddr,
    /// An IPv4 address of this node that is no service address.
    pub v4: Option<Ipv4Addr>,
    /// An IPv6 address of this node that is no service address; link-local will do.
    pub v6: Option<Ipv6Addr>,
}

/// A program of ours.
#[derive(Debug)]
struct Program {
    /// Of its pin, too.
    name: &'static str,
    fd: OwnedFd,
    id: u32,
    way: Way,
    /// What has its old place while it moves; of programs that never do, itself.
    closed: OwnedFd,
}

/// The places of one node's programs.
#[derive(Debug)]
pub struct Hooks {
    /// In the order in which they are attached: the gate first, as a twin that a segment
    /// makes must find it closed; what is to see frames before `tap` after it.
    service: Vec<Program>,
    /// On every other interface: `guard`, and `beside`.
    others: [Program; 2],
    /// Where this object's are, by their place in `others`; an earlier agent's are replaced.
    guarded: BTreeSet<(usize, u32)>,
    /// What stands in a place for a moment, see [`Hooks::come_first`].
    vacant: OwnedFd,
    settings: TypedMap<u32, types::bss>,
    strays: TypedMap<u32, types::gw_stray>,
    pins: PinDir,
    /// Of other people's programs.
    names: BTreeMap<u32, String>,
}

/// Segments of a service that left by another interface than the service's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stray {
    /// Index of the interface.
    pub ifindex: u32,
    /// When the last one of a connection that Godwit does not know did; such ones pass.
    /// Nanoseconds of CLOCK_BOOTTIME; 0: none did.
    pub passed_ns: u64,
    /// When the last one of a flow, or of a service that is owned elsewhere, tried to.
    pub dropped_ns: u64,
}

/// Who sees a frame of the service interface before Godwit does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fronting {
    /// `ingress` or `egress`.
    pub way: &'static str,
    /// Number of the program (`bpftool prog show id`).
    pub id: u32,
    /// Its name, if it was there when the agent started: later the agent may not ask.
    pub name: Option<String>,
}

/// Who stands where on an interface, as anybody may see it who is root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whether Godwit's programs are there.
    pub is_attached: bool,
    /// Who is before them; all, if they are not there.
    pub before: Vec<Fronting>,
}

impl Standing {
    /// Looks at the chains of interface `ifindex`, and at the links that the agent of that
    /// name has pinned.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn look(pins: &str, ifindex: u32) -> io::Result<Self> {
        let links = Path::new(FOLDER).join(pins).join("links");
        let places = [
            ("tap", Way::Ingress),
            (UNTUNNEL, Way::Ingress),
            ("gate", Way::Egress),
        ];
        let mut found = Self::default();
        for way in [Way::Ingress, Way::Egress] {
            let own = places.iter().filter(|(_, of)| *of == way);
            let own = own.filter_map(|(name, _)| {
                let link = tcx::pinned(&links.join(name)).ok()?;
                let is_here = tcx::interface_of(link.as_fd()) == Some(ifindex);
                tcx::program_of(link.as_fd()).filter(|_| is_here)
            });
            let own: Vec<_> = own.collect();
            found.is_attached |= !own.is_empty();
            for id in Chain::read(ifindex, way)?.before(&own) {
                let name = tcx::name_of(id).ok();
                let way = way.as_str();
                found.before.push(Fronting { way, id, name });
            }
        }
        Ok(found)
    }
}

impl Program {
    fn new(
        name: &'static str,
        way: Way,
        program: &ProgramMut<'_>,
        closed: &ProgramMut<'_>,
    ) -> io::Result<Self> {
        let fd = program.as_fd().try_clone_to_owned()?;
        Ok(Self {
            name,
            id: tcx::id_of(fd.as_fd())?,
            fd,
            way,
            closed: closed.as_fd().try_clone_to_owned()?,
        })
    }

    /// Of a pin of this program on an other interface: that interface.
    fn index_of(&self, pin: &str) -> Option<u32> {
        let index = pin.strip_prefix(self.name)?.strip_prefix(ON)?;
        index.parse().ok()
    }
}

/// The programs that have a place, and the map of what may change.
pub(crate) struct Loaded<'a> {
    pub(crate) tap: &'a ProgramMut<'static>,
    pub(crate) gate: &'a ProgramMut<'static>,
    pub(crate) guard: &'a ProgramMut<'static>,
    pub(crate) beside: &'a ProgramMut<'static>,
    pub(crate) untunnel: Option<&'a ProgramMut<'static>>,
    pub(crate) vacant: &'a ProgramMut<'static>,
    /// Of `tap`, `gate` and `untunnel`.
    pub(crate) closed: [&'a ProgramMut<'static>; 3],
    pub(crate) settings: MapHandle,
    pub(crate) strays: MapHandle,
}

impl Hooks {
    pub(crate) fn new(loaded: Loaded<'_>, pins: PinDir) -> io::Result<Self> {
        let [tap, gate, closed_untunnel] = loaded.closed;
        let mut service = vec![
            Program::new("gate", Way::Egress, loaded.gate, gate)?,
            Program::new("tap", Way::Ingress, loaded.tap, tap)?,
        ];
        if let Some(it) = loaded.untunnel {
            service.push(Program::new(UNTUNNEL, Way::Ingress, it, closed_untunnel)?);
        }
        Ok(Self {
            service,
            others: [
                Program::new("guard", Way::Egress, loaded.guard, loaded.guard)?,
                Program::new("beside", Way::Ingress, loaded.beside, loaded.beside)?,
            ],
            guarded: BTreeSet::new(),
            settings: TypedMap::new(loaded.settings, "settings"),
            strays: TypedMap::new(loaded.strays, "gw_strays"),
            pins,
            names: BTreeMap::new(),
            vacant: loaded.vacant.as_fd().try_clone_to_owned()?,
        })
    }

    /// Makes the programs be on interface `ifindex`. A link that an earlier agent has
    /// left there gets the new program in place of the old one, with no frame in between
    /// that sees neither.
    ///
    /// # Errors
    /// If the kernel refuses a link, or the interface is gone.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), AttachError> {
        if self.service.len() == 2 {
            forget(&self.pins.link(UNTUNNEL));
        }
        for program in &self.service {
            attach_or_replace(program, ifindex, &self.pins.link(program.name))?;
        }
        Ok(())
    }

    /// Whether all programs are on interface `ifindex`.
    pub fn is_attached(&self, ifindex: u32) -> bool {
        self.service.iter().all(|program| {
            let link = tcx::pinned(&self.pins.link(program.name));
            link.is_ok_and(|link| tcx::interface_of(link.as_fd()) == Some(ifindex))
        })
    }

    /// What this node is from now on.
    ///
    /// # Errors
    /// If the map can't be written.
    pub fn identify(&self, identity: &Identity) -> Result<(), MapError> {
        self.change(|settings| {
            let [a, b, c, d, e, f] = identity.mac.0;
            settings.gw_self_mac = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
            let v4 = identity.v4.map_or(0, |at| u32::from_ne_bytes(at.octets()));
            settings.gw_node_v4 = v4;
            settings.gw_node_v6 = [0; 4];
        })?;
        let Some(v6) = identity.v6 else {
            return Ok(());
        };
        // Nobody is to see half of it: the first word comes last.
        let [first, rest @ ..] = addr_words(v6);
        self.change(|settings| settings.gw_node_v6[1..].copy_from_slice(&rest))?;
        self.change(|settings| settings.gw_node_v6[0] = first)
    }

    fn change(&self, change: impl FnOnce(&mut types::bss)) -> Result<(), MapError> {
        // An array of one: it is always there.
        let Some(mut settings) = self.settings.lookup(&0)? else {
            return Ok(());
        };
        change(&mut settings);
        self.settings.update(&0, &settings)
    }

    /// The programs before Godwit's on interface `ifindex`, in the order in which they see
    /// a frame. What stands behind `tap` or `gate` is nobody's concern.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn fronting(&mut self, ifindex: u32) -> io::Result<Vec<Fronting>> {
        let mut found = Vec::new();
        for way in [Way::Ingress, Way::Egress] {
            for id in Chain::read(ifindex, way)?.before(&self.own(way)) {
                let name = self.names.get(&id).cloned();
                let way = way.as_str();
                found.push(Fronting { way, id, name });
            }
        }
        Ok(found)
    }

    /// Remembers the names of the programs that are on interface `ifindex` now.
    pub(crate) fn learn_names(&mut self, ifindex: u32) {
        for way in [Way::Ingress, Way::Egress] {
            let chain = Chain::read(ifindex, way).unwrap_or_default();
            for id in chain.before(&[]) {
                if let Ok(name) = tcx::name_of(id) {
                    self.names.insert(id, name);
                }
            }
        }
    }

    /// Moves the programs to the head of their chains on interface `ifindex`, if others
    /// are before them. No frame passes without them: some microseconds of traffic are
    /// dropped (`moving`). If this process is killed meanwhile, they stay where they were,
    /// after [`MOVE`] at most.
    ///
    /// # Errors
    /// If the kernel refuses a link.
    pub fn come_first(&self, ifindex: u32) -> Result<(), AttachError> {
        for way in [Way::Ingress, Way::Egress] {
            let chain = Chain::read(ifindex, way).unwrap_or_default();
            if chain.before(&self.own(way)).is_empty() {
                continue;
            }
            for program in self.service.iter().filter(|program| program.way == way) {
                let moved = self.set_moving(MOVE).and_then(|()| {
                    let moved = self.move_first(program, ifindex);
                    let over = self.set_moving(Duration::ZERO);
                    moved.and(over)
                });
                moved.map_err(|source| AttachError::attach(program.name, ifindex, source))?;
            }
        }
        Ok(())
    }

    /// From now on, or 0: no longer.
    fn set_moving(&self, span: Duration) -> io::Result<()> {
        let until = if span.is_zero() {
            0
        } else {
            let now = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
            let until = Duration::from(now).saturating_add(span);
            u64::try_from(until.as_nanos()).unwrap_or(u64::MAX)
        };
        let change = self.change(|settings| settings.gw_moving_until = until);
        change.map_err(io::Error::other)
    }

    fn move_first(&self, program: &Program, ifindex: u32) -> io::Result<()> {
        let pin = self.pins.link(program.name);
        let old = tcx::pinned(&pin)?;
        let first = tcx::link_first(self.vacant.as_fd(), ifindex, program.way)?;
        tcx::replace(old.as_fd(), program.closed.as_fd())?;
        if let Err(error) = tcx::replace(first.as_fd(), program.fd.as_fd()) {
            // Back to where it was; the place at the head goes with its descriptor.
            return tcx::replace(old.as_fd(), program.fd.as_fd()).and(Err(error));
        }
        tcx::detach(old.as_fd())?;
        std::fs::remove_file(&pin)?;
        tcx::pin(first.as_fd(), &pin)
    }

    fn own(&self, way: Way) -> Vec<u32> {
        let own = self.service.iter().filter(|program| program.way == way);
        own.map(|program| program.id).collect()
    }

    /// Where segments of services have left, or tried to, around the gate.
    ///
    /// # Errors
    /// If the map can't be read.
    pub fn strays(&self) -> Result<Vec<Stray>, MapError> {
        let mut found = Vec::new();
        self.strays.for_each(|ifindex, stray| {
            found.push(Stray {
                ifindex,
                passed_ns: stray.passed_ns,
                dropped_ns: stray.dropped_ns,
            });
        })?;
        Ok(found)
    }

    /// Makes `guard` be on these interfaces: the ways out of this machine that do not lead
    /// through the gate. Call it again when interfaces have come or changed; those that
    /// have gone meanwhile are no error. [`Hooks::watch`] follows, when there is time.
    ///
    /// # Errors
    /// Fails if the kernel refuses a link; all others are in place.
    pub fn guard(&mut self, others: &BTreeSet<u32>) -> Result<(), AttachError> {
        self.put_all(GUARD, others)
    }

    /// Makes `beside` be on these interfaces, and neither that nor `guard` on others.
    ///
    /// # Errors
    /// As [`Hooks::guard`].
    pub fn watch(&mut self, others: &BTreeSet<u32>) -> Result<(), AttachError> {
        for pin in self.pins.link_names() {
            let index = self.others.iter().find_map(|it| it.index_of(&pin));
            if index.is_some_and(|index| !others.contains(&index)) {
                release(&self.pins.link(&pin));
            }
        }
        self.guarded.retain(|(_, index)| others.contains(index));
        self.put_all(BESIDE, others)
    }

    fn put_all(&mut self, which: usize, others: &BTreeSet<u32>) -> Result<(), AttachError> {
        let mut result = Ok(());
        for index in others {
            match self.put_beside(which, *index) {
                Ok(()) => {
                    self.guarded.insert((which, *index));
                }
                Err(error) if error.is_gone() => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    fn put_beside(&self, which: usize, ifindex: u32) -> Result<(), AttachError> {
        let program = &self.others[which];
        let pin = self.pins.link(&format!("{}{ON}{ifindex}", program.name));
        let is_live = || {
            let link = tcx::pinned(&pin);
            link.is_ok_and(|link| tcx::interface_of(link.as_fd()).is_some())
        };
        if self.guarded.contains(&(which, ifindex)) && is_live() {
            return Ok(());
        }
        attach_or_replace(program, ifindex, &pin)
    }
}

/// The pin of the program at the end of a tunnel.
const UNTUNNEL: &str = "untunnel";

fn attach_or_replace(program: &Program, ifindex: u32, pin: &Path) -> Result<(), AttachError> {
    if let Ok(link) = tcx::pinned(pin)
        && tcx::interface_of(link.as_fd()) == Some(ifindex)
        && tcx::replace(link.as_fd(), program.fd.as_fd()).is_ok()
    {
        return Ok(());
    }
    // The interface of that link is gone, or another one is wanted now.
    forget(pin);
    let link = link_first(program, ifindex)?;
    keep(program, link.as_fd(), pin)
}

fn link_first(program: &Program, ifindex: u32) -> Result<OwnedFd, AttachError> {
    tcx::link_first(program.fd.as_fd(), ifindex, program.way)
        .map_err(|source| AttachError::attach(program.name, ifindex, source))
}

fn keep(program: &Program, link: BorrowedFd<'_>, pin: &Path) -> Result<(), AttachError> {
    tcx::pin(link, pin).map_err(|source| AttachError::Pin {
        program: program.name.to_owned(),
        source: source.into(),
    })
}

fn forget(pin: &Path) {
    if pin.exists() {
        release(pin);
    }
}
