//! Whether the kernel finds a way back to clients.
//!
//! Routes and rules are lost and made by many: a link that goes down, a lease of DHCP that
//! ends, somebody who bans an address. The kernel tells only of some of that, so it is asked
//! for a sample of the clients that have connections here, twins included.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_bpf::FlowTable;
use godwit_core::fitness::Consequence;
use godwit_sock::{Way, way};
use godwit_wire::FlowKey;

use crate::input::{Inbox, Input};
use crate::realtime::be_ordinary;
use crate::surroundings::Look;

/// How often the kernel is asked.
const PERIOD: Duration = Duration::from_millis(500);

/// Flows among which clients are chosen, and clients at most.
const FLOWS: usize = 64;
const CLIENTS: usize = 16;

const NAME: &str = "client_routes";

const ADVICE: &str = "see `ip route get CLIENT from SERVICE`, `ip rule` and the default route";

/// A client, and the address of the service that it speaks to.
type Pair = (IpAddr, IpAddr);

/// Looks until the driver is gone.
pub(super) fn spawn(flows: Arc<FlowTable>, inbox: Inbox) -> io::Result<()> {
    let look = move || {
        be_ordinary();
        let (mut pairs, mut said) = (BTreeSet::new(), None);
        loop {
            match flows.some(FLOWS) {
                // Where nobody has a route, connections may have ended because of that.
                Ok(found) if found.is_empty() && said.as_ref().is_some_and(serves_nobody) => {}
                Ok(found) => pairs = sample(&found),
                Err(error) => tracing::warn!(%error, "can't see to whom routes are needed"),
            }
            let look = judge(&pairs, |(client, service)| way(service, client).ok());
            if said.as_ref() != Some(&look) {
                if inbox.send(Input::Facts(look.clone())).is_err() {
                    return;
                }
                said = Some(look);
            }
            if inbox.is_closed() {
                return;
            }
            thread::sleep(PERIOD);
        }
    };
    thread::Builder::new()
        .name("gw-routes".into())
        .spawn(look)
        .map(drop)
}

/// The clients of some flows. A link-local one is on the link, and has no route of its own.
fn sample(flows: &[FlowKey]) -> BTreeSet<Pair> {
    let pairs = flows
        .iter()
        .map(|flow| (flow.client.ip(), flow.service.ip()));
    let routed = pairs.filter(|(client, _)| match client {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    });
    let pairs: BTreeSet<_> = routed.collect();
    pairs.into_iter().take(CLIENTS).collect()
}

/// Somebody may have banned some clients, or all that happen to be here, on purpose: then it is
/// said. Where no client has a route at all, others won't have one either.
fn judge(pairs: &BTreeSet<Pair>, ask: impl Fn(Pair) -> Option<Way>) -> Look {
    let ways = pairs
        .iter()
        .filter_map(|pair| ask(*pair).map(|way| (*pair, way)));
    let ways: Vec<_> = ways.collect();
    let nowhere = !ways.is_empty() && ways.iter().all(|(_, way)| *way == Way::Nowhere);
    let lost = ways.iter().find_map(|((client, service), way)| {
        let why = match way {
            Way::Leads => return None,
            Way::Nowhere => "no route leads there".to_owned(),
            Way::Refused(kind) => format!("a route or rule of type {kind} drops it"),
        };
        Some(format!(
            "what {service} says to clients such as {client} goes nowhere: {why}"
        ))
    });
    let consequence = if nowhere {
        Consequence::NoService
    } else {
        Consequence::Say
    };
    Look::of_one(NAME, consequence, lost, ADVICE)
}

fn serves_nobody(look: &Look) -> bool {
    let mut wrong = look.wrong.iter();
    wrong.any(|it| it.consequence == Consequence::NoService)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(host: u8) -> Pair {
        ([192, 0, 2, host].into(), [10, 0, 0, 100].into())
    }

    #[test]
    fn only_where_no_client_has_a_route_nobody_is_served() {
        let pairs: BTreeSet<_> = (1..=3).map(pair).collect();
        let table = [
            (Some(Way::Leads), Some(Way::Leads), None),
            (
                Some(Way::Nowhere),
                Some(Way::Nowhere),
                Some(Consequence::NoService),
            ),
            (Some(Way::Leads), Some(Way::Nowhere), Some(Consequence::Say)),
            (
                Some(Way::Refused("blackhole")),
                Some(Way::Refused("blackhole")),
                Some(Consequence::Say),
            ),
            (None, None, None),
        ];
        for (first, others, wanted) in table {
            let look = judge(&pairs, |it| if it == pair(1) { first } else { others });
            let found = look.wrong.first().map(|wrong| wrong.consequence);
            assert_eq!(found, wanted, "{first:?}, {others:?}");
        }
        assert!(judge(&BTreeSet::new(), |_| None).wrong.is_empty());
    }

    #[test]
    fn a_client_is_asked_for_once() {
        let flow = |port: u16, client: &str| FlowKey {
            client: format!("{client}:{port}").parse().expect("an endpoint"),
            service: "10.0.0.100:80".parse().expect("an endpoint"),
        };
        let flows = [
            flow(1, "192.0.2.1"),
            flow(2, "192.0.2.1"),
            flow(1, "169.254.0.9"),
        ];
        assert_eq!(sample(&flows), BTreeSet::from([pair(1)]));
    }
}
