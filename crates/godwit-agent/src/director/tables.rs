//! The data path's tables, as the core wants them. What could not be written is written
//! again, all of it.

use std::error::Error;
use std::time::Duration;

use godwit_bpf::MapError;
use godwit_bpf::director::{Backend, Director, ServiceNumber};
use godwit_core::MonoTime;
use godwit_core::director::{BackendId, Roster, Slot};
use godwit_wire::MacAddr;

use super::backends::Backends;
use crate::clock;

/// How soon what could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) struct Tables {
    pub(super) programs: Director,
    /// By which the programs know the services.
    numbers: Vec<ServiceNumber>,
    /// When to write everything again, if something is missing.
    behind: Option<MonoTime>,
}

impl Tables {
    pub(super) const fn new(programs: Director, numbers: Vec<ServiceNumber>) -> Self {
        Self {
            programs,
            numbers,
            behind: None,
        }
    }

    /// Whether the data path does not know all yet.
    pub(super) const fn is_behind(&self) -> bool {
        self.behind.is_some()
    }

    pub(super) const fn poll_timeout(&self) -> Option<MonoTime> {
        self.behind
    }

    pub(super) fn handle_timeout(&mut self, backends: &Backends, roster: &Roster, now: MonoTime) {
        if self.behind.is_none_or(|again| again > now) {
            return;
        }
        self.behind = None;
        for (id, _) in backends.iter() {
            self.write_backend((backends, roster), id);
        }
        for (service, id, owner) in roster.owners() {
            self.write_owner(backends, service, (id, owner));
        }
        for service in 0..roster.services() {
            let slots = (0..).zip(roster.slots(service).iter().copied());
            self.write_slots(backends, service, slots);
        }
    }

    pub(super) fn write_backend(
        &mut self,
        (backends, roster): (&Backends, &Roster),
        id: BackendId,
    ) {
        let Some(known) = backends.get(id) else {
            return;
        };
        let backend = Backend {
            name: known.name,
            mac: known.mac.unwrap_or(MacAddr::ZERO),
            tunnel: known.tunnel,
            there: roster.is_there(id),
            drained: roster.is_drained(id),
            followed: known.followed,
            gone: known.followed && !roster.lives(id),
            tells: known.is_asked,
        };
        let written = self.programs.backends.set(known.number, &backend);
        self.note(known.name.as_str(), written);
    }

    /// Who has what a back-end had of a service.
    pub(super) fn write_owner(
        &mut self,
        backends: &Backends,
        service: usize,
        (id, owner): (BackendId, BackendId),
    ) {
        let (Some(of), Some(owner)) = (backends.get(id), backends.get(owner)) else {
            return;
        };
        let Some(service) = self.number_of(service) else {
            return;
        };
        let written = self.programs.posts.set(service, of.number, owner.number);
        self.note(of.name.as_str(), written);
    }

    pub(super) fn write_slots(
        &mut self,
        backends: &Backends,
        service: usize,
        slots: impl Iterator<Item = (u32, Slot)>,
    ) {
        let Some(number) = self.number_of(service) else {
            return;
        };
        let slots = slots.map(|(at, slot)| (at, backends.slot(slot)));
        let written = self.programs.slots.set(number, slots);
        self.note("slots", written);
    }

    /// The number of a service by its place in the file.
    pub(super) fn number_of(&self, service: usize) -> Option<u32> {
        self.numbers.get(service).map(|it| it.number)
    }

    fn note(&mut self, what: &str, written: Result<(), MapError>) {
        if let Err(error) = written {
            tracing::error!(
                error = &error as &dyn Error,
                what,
                "not told to the data path; once more in a second"
            );
            self.behind = Some(clock::now().saturating_add(AGAIN));
        }
    }
}
