//! Connections that the kernel serves and no list of ours has.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{FlowTable, HandoffTable};
use godwit_core::fitness::Consequence;
use godwit_core::unlisted::Unlisted;
use godwit_sock::{Served, has_tcp_socket, served_at};
use godwit_wire::{Endpoint, FlowKey};

use super::follow::Place;
use crate::config::Config;
use crate::descriptors::Sight;
use crate::facts::Look;
use crate::input::{DriverGone, Inbox, Input};
use crate::realtime::be_ordinary;

/// How often is looked.
const PERIOD: Duration = Duration::from_secs(1);

/// After a look it rests at least so many times as long as that took.
const REST: u32 = 200;

const NAME: &str = "unlisted";

const ADVICE: &str = "they are older than the service here, or came by another way (`ip route get \
                      CLIENT`): a client that connects again by the service's interface is \
                      protected, unless it puts options into its IP headers (counter \
                      `ip_options`)";

/// How many of them each address of a service has, as was seen last.
#[derive(Debug, Default)]
pub(super) struct Strays(Mutex<BTreeMap<Endpoint, u32>>);

impl Strays {
    fn note(&self, unlisted: &BTreeSet<Served>) {
        let mut counts = BTreeMap::new();
        for served in unlisted {
            *counts.entry(served.flow.service).or_default() += 1;
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// At these addresses.
    pub(super) fn at(&self, addresses: &[SocketAddr]) -> u32 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = addresses.iter().map(|it| Endpoint::from(*it));
        addresses.filter_map(|it| counts.get(&it)).sum()
    }
}

/// What is compared with the kernel's table.
struct Lists {
    services: BTreeSet<Endpoint>,
    flows: Arc<FlowTable>,
    handoffs: Arc<HandoffTable>,
    place: Arc<Place>,
}

/// Looks until the driver is gone, off its thread: the kernel walks over all of its
/// sockets.
pub(super) fn spawn(
    config: &Config,
    (flows, handoffs): (Arc<FlowTable>, Arc<HandoffTable>),
    place: Arc<Place>,
    inbox: Inbox,
) -> io::Result<Arc<Strays>> {
    let strays = Arc::new(Strays::default());
    let noted = strays.clone();
    let shares = config.own_shares().map(|(_, service)| service);
    let lists = Lists {
        services: shares
            .flat_map(|service| service.addresses.iter().copied().map(Endpoint::from))
            .collect(),
        flows,
        handoffs,
        place,
    };
    let compare = move || {
        be_ordinary();
        let (mut unlisted, mut said) = (Unlisted::default(), None);
        let mut sight = Sight::new(NAME);
        loop {
            let began = Instant::now();
            match sight.sees(&inbox) {
                Ok(true) => {}
                Ok(false) => {
                    thread::sleep(PERIOD);
                    continue;
                }
                Err(DriverGone) => return,
            }
            match lists.missing() {
                Ok(missing) => {
                    let twice = unlisted.note(missing);
                    noted.note(&twice);
                    let look = look(&twice);
                    if sight.opens() || said.as_ref() != Some(&look) {
                        if inbox.send(Input::Facts(look.clone().into())).is_err() {
                            return;
                        }
                        said = Some(look);
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %error, "can't compare sockets with flows");
                }
            }
            if inbox.is_closed() {
                return;
            }
            thread::sleep(PERIOD.max(began.elapsed() * REST));
        }
    };
    thread::Builder::new()
        .name("gw-unlisted".into())
        .spawn(compare)
        .map(|_| strays)
}

impl Lists {
    /// Sockets that are in no list. They are looked up after they were seen: a list has a
    /// connection before its socket is there.
    fn missing(&self) -> io::Result<BTreeSet<Served>> {
        let mut missing = BTreeSet::new();
        for served in served_at(&self.services)? {
            if !self.have(served.flow)? && !self.is_local(served.flow)? {
                missing.insert(served);
            }
        }
        Ok(missing)
    }

    fn have(&self, flow: FlowKey) -> io::Result<bool> {
        let known = self.flows.get(flow).map_err(io::Error::other)?.is_some();
        Ok(known || self.handoffs.get(flow).map_err(io::Error::other)?.is_some())
    }

    /// Whether its client is a process of this network namespace, whose segments pass no
    /// interface.
    fn is_local(&self, flow: FlowKey) -> io::Result<bool> {
        let other_end = FlowKey {
            client: flow.service,
            service: flow.client,
        };
        has_tcp_socket(self.place.ifindex(), other_end)
    }
}

fn look(unlisted: &BTreeSet<Served>) -> Look {
    let found = unlisted.iter().min_by_key(|it| it.flow).map(|first| {
        let count = unlisted.len();
        match count {
            1 => format!("the connection {} is in no list", first.flow),
            _ => format!("{count} connections are in no list, such as {}", first.flow),
        }
    });
    Look::of_one(NAME, Consequence::Say, found, ADVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_counted_by_the_address_that_they_came_to() {
        let socket = |text: &str| text.parse::<SocketAddr>().expect("a literal");
        let (web, mail) = (socket("10.9.0.100:80"), socket("10.9.0.100:25"));
        let served = |port: u16, service: SocketAddr| Served {
            cookie: u64::from(port),
            flow: FlowKey {
                client: socket(&format!("10.9.0.50:{port}")).into(),
                service: service.into(),
            },
        };
        let strays = Strays::default();
        strays.note(&BTreeSet::from([
            served(1, web),
            served(2, web),
            served(3, mail),
        ]));
        let v6 = socket("[fd00::100]:80");
        assert_eq!(
            [strays.at(&[web, v6]), strays.at(&[mail]), strays.at(&[v6])],
            [2, 1, 0]
        );
        strays.note(&BTreeSet::new());
        assert_eq!(strays.at(&[web]), 0);
    }
}
