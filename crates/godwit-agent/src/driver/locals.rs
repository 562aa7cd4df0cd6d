//! Connections of this machine's own processes to services that it owns no more.
//!
//! They never pass an interface, so they have no twins: after a role change they would go on
//! with the server here, which is a silent twin's then. `connect()` is refused at once
//! (`gw_local.h`); those that are there already are ended, and their processes connect again,
//! when they may, or are told that they may not.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use godwit_sock::{Destroyer, addresses, served_at};
use godwit_wire::{Endpoint, FlowKey, Role, ShareId};

use super::ground::Ground;
use crate::config::Config;
use crate::events::EventLog;
use crate::realtime::be_ordinary;
use crate::wake::{self, Orders, Work};

/// When is looked, after a service has gone: a handshake may have been under way.
const LOOKS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_secs(1),
];

/// Without a change. The end of the driver is noticed at once.
const FOREVER: Duration = Duration::from_secs(3600);

const EVENT: &str = "local_clients_ended";

/// The way to the thread that ends them; it ends with this.
#[derive(Debug)]
pub(super) struct Locals {
    turns: Orders<BTreeMap<Endpoint, bool>>,
    /// Where the services are, and which share is there; several in a ring.
    services: Vec<(Endpoint, ShareId)>,
    /// Which of them this node owns, as the thread was told.
    told: BTreeMap<Endpoint, bool>,
}

impl Locals {
    pub(super) fn spawn(config: &Config, events: EventLog) -> io::Result<Self> {
        let (turns, heard) = wake::queue()?;
        thread::Builder::new()
            .name("gw-locals".into())
            .spawn(move || {
                be_ordinary();
                run(&heard, &events);
            })?;
        let services = config.own_shares().flat_map(|(share, service)| {
            let addresses = service.addresses.iter().copied().map(Endpoint::from);
            addresses.map(move |endpoint| (endpoint, share))
        });
        Ok(Self {
            turns,
            services: services.collect(),
            told: BTreeMap::new(),
        })
    }

    /// Who owns what now. Before anything is known of a service its clients are let be: this
    /// node may be about to own it.
    fn note(&mut self, role: impl Fn(ShareId) -> Role) {
        let mut owned = BTreeMap::new();
        for (endpoint, share) in &self.services {
            let role = role(*share);
            if role != Role::None || self.told.contains_key(endpoint) {
                *owned.entry(*endpoint).or_default() |= role == Role::Owner;
            }
        }
        if owned != self.told {
            // Without that thread they stay: nothing else depends on it.
            if self.turns.give(owned.clone()).is_err() {
                tracing::error!("local clients are not ended: their thread is gone");
            }
            self.told = owned;
        }
    }
}

impl Locals {
    /// A role has changed: those who may not stay are ended.
    pub(super) fn note_locals(&mut self, ground: &Ground) {
        let shares = &ground.shares;
        self.note(|share| shares.get(share).map_or(Role::None, |it| it.entry.role));
    }
}

/// Looks when a service has gone, until nobody tells of any.
fn run(heard: &Work<BTreeMap<Endpoint, bool>>, events: &EventLog) {
    let (mut foreign, mut since, mut looks) = (BTreeSet::new(), Instant::now(), LOOKS.len());
    loop {
        let due = LOOKS.get(looks).map(|after| since + *after);
        let patience = due.map_or(FOREVER, |due| due.saturating_duration_since(Instant::now()));
        match heard.next_within(patience) {
            Ok(owned) => {
                let gone = owned.iter().filter(|(_, is_owned)| !**is_owned);
                foreign = gone.map(|(endpoint, _)| *endpoint).collect();
                (since, looks) = (Instant::now(), 0);
            }
            Err(RecvTimeoutError::Timeout) if due.is_some() => {
                looks += 1;
                end(&foreign, events);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn end(foreign: &BTreeSet<Endpoint>, events: &EventLog) {
    if foreign.is_empty() {
        return;
    }
    match end_at(foreign) {
        Ok(ended) => {
            for (service, count) in ended {
                let (service, count) = (service.to_string(), count.to_string());
                let fields = [("service_address", service.as_str()), ("count", &count)];
                events.publish_own(EVENT, true, fields);
            }
        }
        Err(error) => tracing::warn!(%error, "local clients of a service are not ended"),
    }
}

/// How many were ended at each service.
fn end_at(foreign: &BTreeSet<Endpoint>) -> io::Result<BTreeMap<Endpoint, u64>> {
    // Not on any link: no segment of theirs has one.
    let destroyer = Destroyer::open(0)?;
    let own: BTreeSet<_> = addresses()?.into_iter().map(|(_, own)| own).collect();
    let mut ended = BTreeMap::new();
    for served in served_at(foreign)? {
        let FlowKey { client, service } = served.flow;
        let from = client.addr.to_canonical();
        if !own.contains(&from) && !from.is_loopback() {
            continue;
        }
        // Its other end is here, too: that one is ended, and tells the server of it.
        let other_end = FlowKey {
            client: service,
            service: client,
        };
        if destroyer.destroy(other_end)? {
            *ended.entry(service).or_default() += 1;
        }
    }
    Ok(ended)
}
