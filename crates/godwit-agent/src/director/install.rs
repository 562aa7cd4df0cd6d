//! What can fail before a director looks at its first input.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::{fs, io};

use godwit_bpf::director::{Backend, BackendTable, Director, ServiceNumber, Settings, Via};
use godwit_bpf::{OF_DIRECTOR, PinDir};
use godwit_core::MonoTime;
use godwit_core::director::Roster;
use godwit_sock::{FrameSender, Interface, added_addresses};
use godwit_wire::Endpoint;

use super::backends::Backends;
use super::error::DirectError;
use super::extent::{has_fellows, others, room};
use super::shared::spawn_reader;
use crate::config::{Config, DirectorConfig, Hook};
use crate::driver::{DetachError, addresses, pin_name};
use crate::input::Inbox;
use crate::machine_error::MachineError;

/// A director whose program is in the path.
pub(super) struct Installed {
    pub(super) config: Arc<Config>,
    pub(super) own: DirectorConfig,
    pub(super) interface: Interface,
    pub(super) programs: Director,
    pub(super) frames: FrameSender,
    pub(super) backends: Backends,
    /// By which the data path knows the services, in the order of the file.
    pub(super) numbers: Vec<ServiceNumber>,
    /// Whether the services' addresses are on this machine.
    pub(super) holds: bool,
    /// What an earlier director has left, by the numbers of back-ends.
    left: Vec<(u16, Backend)>,
}

/// What a life hands on to the next one in the same process, which has no rights any more
/// to make it anew.
pub(super) struct Remains {
    pub(super) programs: Director,
    pub(super) frames: FrameSender,
}

/// What went wrong, and what is there still: the program is in the path.
pub(super) type Failed = (DirectError, Remains);

/// Back-ends that the program knows, by their numbers.
fn left(programs: &Director) -> Result<Vec<(u16, Backend)>, DirectError> {
    let mut left = Vec::new();
    for number in 0..BackendTable::MAX {
        let backend = programs.backends.get(number)?;
        left.extend(backend.map(|backend| (number, backend)));
    }
    Ok(left)
}

/// What the file says of this director, and its interface; whether that can be.
fn look_at(config: &Config) -> Result<(DirectorConfig, Interface), DirectError> {
    let own = config.director.clone();
    let own = own.ok_or(DirectError::NothingToDirect)?;
    if config.directed().next().is_none() {
        return Err(DirectError::NothingToDirect);
    }
    let interface = Interface::by_name(config.node.interface.as_str())?;
    let mut ips = config.directed().flat_map(|it| it.ips());
    if ips.any(|ip| ip.is_ipv4()) {
        may_answer(&interface.name)?;
    }
    Ok((own, interface))
}

impl Installed {
    /// Puts the program in the path, then the services' addresses on this machine: a
    /// frame to one never reaches this machine's kernel.
    pub(super) fn new(config: Arc<Config>) -> Result<Self, DirectError> {
        let (own, interface) = look_at(&config)?;
        let settings = Settings {
            ifindex: interface.index,
            mac: interface.mac,
            via: match own.hook {
                Hook::Xdp => Via::Xdp,
                Hook::Tcx => Via::Tcx,
            },
            table_size: own.table_size.get(),
            services: room(&config),
            max_entries: own.max_entries,
            seed: own.seed.0,
            shares: has_fellows(&config),
            trial_flows: None,
        };
        let frames = FrameSender::open(interface.index, 0).map_err(MachineError::Socket)?;
        let programs = Director::open(&settings, PinDir::open(&pins(&config)?)?)?;
        let made = Remains { programs, frames };
        Self::fill(config.clone(), (own, interface), made).map_err(|failed| {
            let (error, Remains { programs, .. }) = *failed;
            if left(&programs).is_ok_and(|left| left.is_empty()) {
                // The reason for the retreat is what people should read, not this.
                let _ = take_away(&config, programs);
            }
            error
        })
    }

    /// The same with another file, where the program is in the path already.
    ///
    /// # Errors
    /// With what there is, for another try.
    pub(super) fn again(config: Arc<Config>, remains: Remains) -> Result<Self, Box<Failed>> {
        match look_at(&config) {
            Ok(place) => Self::fill(config, place, remains),
            Err(error) => Err(Box::new((error, remains))),
        }
    }

    fn fill(
        config: Arc<Config>,
        (own, interface): (DirectorConfig, Interface),
        remains: Remains,
    ) -> Result<Self, Box<Failed>> {
        let read = || -> Result<_, DirectError> {
            let programs = &remains.programs;
            let endpoints = config.directed().map(|service| {
                let all = service.addresses.iter().copied();
                all.map(Endpoint::from).collect()
            });
            let endpoints: Vec<Vec<_>> = endpoints.collect();
            Ok((left(programs)?, programs.fronts.numbers(&endpoints)?))
        };
        let (left, numbers) = match read() {
            Ok(read) => read,
            Err(error) => return Err(Box::new((error, remains))),
        };
        let Remains { programs, frames } = remains;
        let mut installed = Self {
            numbers,
            holds: false,
            backends: Backends::new(&config, &left),
            frames,
            config,
            own,
            interface,
            programs,
            left,
        };
        match installed.introduce() {
            Ok(()) => Ok(installed),
            Err(error) => {
                let Self {
                    programs, frames, ..
                } = installed;
                Err(Box::new((error, Remains { programs, frames })))
            }
        }
    }

    fn introduce(&mut self) -> Result<(), DirectError> {
        let numbers = self.numbers.iter().map(|it| it.number);
        let numbered = numbers.zip(self.config.directed());
        let fronts: Vec<_> = numbered
            .flat_map(|(number, service)| {
                let endpoints = service.addresses.iter().copied().map(Endpoint::from);
                endpoints.map(move |endpoint| (endpoint, number))
            })
            .collect();
        self.programs.fronts.replace(&fronts)?;
        // Who is no back-end any more is not there, whatever entries say.
        for (number, backend) in &self.left {
            let known = self.backends.named(backend.name.as_str()).is_some();
            let there = backend.there && known;
            let left = Backend { there, ..*backend };
            self.programs.backends.set(*number, &left)?;
        }
        self.drop_strangers().map_err(DirectError::Addresses)?;
        // Where there are other directors one of them may have the addresses.
        let is_alone = others(&self.config).next().is_none();
        self.holds = is_alone || self.has_addresses().map_err(DirectError::Addresses)?;
        if self.holds {
            for service in self.config.directed() {
                addresses::add(self.interface.index, &service.ips())
                    .map_err(|(address, source)| MachineError::Address { address, source })?;
            }
        }
        Ok(())
    }

    /// Whether an earlier life has left the addresses here.
    fn has_addresses(&self) -> io::Result<bool> {
        let added = added_addresses()?;
        let is_here = |ip| added.iter().any(|(_, added)| *added == ip);
        Ok(self.config.directed().flat_map(|it| it.ips()).any(is_here))
    }

    /// Addresses of services that have no director any more: this machine must not go on
    /// answering for them.
    fn drop_strangers(&self) -> io::Result<()> {
        let wanted: Vec<_> = self.config.directed().flat_map(|it| it.ips()).collect();
        let mut added: Vec<_> = added_addresses()?.into_iter().map(|(_, ip)| ip).collect();
        added.retain(|ip| !wanted.contains(ip));
        addresses::remove(&added)
    }

    /// The core's part, which goes on where an earlier director has left it.
    pub(super) fn roster(&self, now: MonoTime) -> Result<Roster, DirectError> {
        let mut roster = Roster::new(self.backends.core_config(&self.config, &self.own), now);
        if self.left.is_empty() {
            return Ok(roster);
        }
        for (service, number) in self.numbers.iter().enumerate() {
            if !number.is_known {
                continue;
            }
            let slots = self.programs.slots.all(number.number)?;
            let slots = slots.into_iter().map(|slot| self.backends.core_slot(slot));
            roster.resume(service, slots.collect());
        }
        for (_, backend) in &self.left {
            let Some(id) = self.backends.named(backend.name.as_str()) else {
                continue;
            };
            if backend.there {
                roster.resume_backend(id, now);
            }
            if backend.drained {
                roster.handle_drain(id, true);
            }
        }
        Ok(roster)
    }

    /// From now on what the program writes down of connections comes to the director, if
    /// there are others that are to hear of it. The thread ends with the inbox.
    pub(super) fn read_exceptions(
        &self,
        inbox: &Inbox,
    ) -> Result<Option<JoinHandle<()>>, DirectError> {
        if !has_fellows(&self.config) {
            return Ok(None);
        }
        let exceptions = self.programs.exceptions()?;
        let reader = spawn_reader(exceptions, inbox.clone());
        Ok(Some(reader.map_err(MachineError::Thread)?))
    }

    /// Undoes [`Installed::new`], unless an earlier director's connections are in there.
    pub(super) fn remove(self) {
        if self.left.is_empty() {
            // The reason for the retreat is what people should read, not this.
            let _ = take_away(&self.config, self.programs);
        }
    }
}

/// Whether the kernel answers ARP requests that come in on an interface for an address of
/// another one. The greater of two settings holds.
fn may_answer(interface: &str) -> Result<(), DirectError> {
    for of in ["all", interface] {
        let path = format!("/proc/sys/net/ipv4/conf/{of}/arp_ignore");
        let value = fs::read_to_string(path).unwrap_or_default();
        let value = value.trim().parse().unwrap_or(0);
        if value != 0 {
            let setting = format!("net.ipv4.conf.{of}.arp_ignore");
            return Err(DirectError::Mute { setting, value });
        }
    }
    Ok(())
}

/// The addresses first: without the program this machine's kernel would reset what is
/// sent to them.
pub(super) fn take_away(config: &Config, programs: Director) -> Result<(), DetachError> {
    remove_addresses(config)?;
    Ok(programs.detach()?)
}

fn remove_addresses(config: &Config) -> Result<(), DetachError> {
    let ips: Vec<_> = config.directed().flat_map(|it| it.ips()).collect();
    addresses::remove(&ips).map_err(DetachError::Address)
}

/// The same where no director runs; whether there was anything.
pub(super) fn detach(config: &Config) -> Result<bool, InstallOrDetach> {
    let Some(pins) = PinDir::existing(&pins(config)?)? else {
        return Ok(false);
    };
    remove_addresses(config)?;
    Director::release(pins).map_err(DetachError::Pin)?;
    Ok(true)
}

/// Either kind of failure.
pub(super) type InstallOrDetach = crate::agent_error::AgentError;

/// The folder of this director's pins: no agent's, should the node have been a server.
fn pins(config: &Config) -> Result<String, MachineError> {
    Ok(format!("{}{OF_DIRECTOR}", pin_name(config)?))
}
