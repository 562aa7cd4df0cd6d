//! Whether the kernel finds a way back to clients.
//!
//! Routes and rules are lost and made by many: a link that goes down, a lease of DHCP that
//! ends, somebody who bans an address. The kernel tells only of some of that, so it is asked
//! for a sample of the clients that have connections here, twins included. A router to them
//! that does not answer (ARP, RFC 826; neighbour discovery, RFC 4861) is said: it may be as
//! silent to the other node.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_bpf::FlowTable;
use godwit_core::fitness::Consequence;
use godwit_sock::{Way, is_unanswered, way};
use godwit_wire::FlowKey;
use nix::net::if_::if_indextoname;

use super::follow::Place;
use crate::descriptors::Sight;
use crate::facts::Look;
use crate::input::{DriverGone, Inbox, Input};
use crate::realtime::be_ordinary;

/// How often the kernel is asked.
const PERIOD: Duration = Duration::from_millis(500);

/// Flows among which clients are chosen, and clients at most.
const FLOWS: usize = 64;
const CLIENTS: usize = 16;

/// So many clients are not banned all at once.
const MANY: usize = 3;

/// Who is no client (RFC 2544, RFC 5180): what is dropped on the way there, too, bans nobody.
const NOBODY: (IpAddr, IpAddr) = (
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1)),
);

/// LOOPBACK_IFINDEX of include/net/flow.h: clients of this machine.
const LOOPBACK: u32 = 1;

const NAME: &str = "client_routes";

const ADVICE: &str = "see `ip route get CLIENT from SERVICE`, `ip rule`, the default route and \
                      `ip neigh`";

/// A client, and the address of the service that it speaks to.
type Pair = (IpAddr, IpAddr);

/// Looks until the driver is gone.
pub(super) fn spawn(flows: Arc<FlowTable>, place: Arc<Place>, inbox: Inbox) -> io::Result<()> {
    let look = move || {
        be_ordinary();
        let (mut pairs, mut said) = (BTreeSet::new(), None);
        let mut silence = Silence::default();
        let mut sight = Sight::new(NAME);
        loop {
            match sight.sees(&inbox) {
                Ok(true) => {}
                Ok(false) => {
                    thread::sleep(PERIOD);
                    continue;
                }
                Err(DriverGone) => return,
            }
            match flows.some(FLOWS) {
                // Connections may have ended, and twins left, because of what is wrong.
                Ok(found) if found.is_empty() && said.as_ref().is_some_and(is_wrong) => {}
                Ok(found) => pairs = sample(&found),
                Err(error) => tracing::warn!(%error, "can't see to whom routes are needed"),
            }
            let ifindex = place.ifindex();
            let ask = |(client, service)| way(service, client).ok();
            let ways = ways(&pairs, ask);
            let silent = silence.judge(&ways, |router| {
                is_unanswered(ifindex, router).unwrap_or_default()
            });
            let look = judge(&ways, ifindex, is_for_all(&ways, ask), silent);
            if sight.opens() || said.as_ref() != Some(&look) {
                if inbox.send(Input::Facts(look.clone().into())).is_err() {
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

/// Why a client hears nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Somebody's will, perhaps: clients are banned like that.
    Refused(&'static str),
    /// It would leave by that interface, where the data path lets nothing out.
    Elsewhere(u32),
    Nowhere,
}

impl Loss {
    fn of(way: Way, ifindex: u32) -> Option<Self> {
        match way {
            Way::Leads { ifindex: out, .. } if out == ifindex || out == LOOPBACK => None,
            Way::Leads { ifindex: out, .. } => Some(Self::Elsewhere(out)),
            Way::Nowhere => Some(Self::Nowhere),
            Way::Refused(kind) => Some(Self::Refused(kind)),
        }
    }

    const fn is_ban(self) -> bool {
        matches!(self, Self::Refused(_))
    }

    fn why(self) -> String {
        match self {
            Self::Refused(kind) => format!("a route or rule of type {kind} drops it"),
            Self::Elsewhere(out) => {
                let name = if_indextoname(out).ok();
                let name = name.and_then(|name| name.into_string().ok());
                let name = name.unwrap_or_else(|| out.to_string());
                format!("the route leads by {name}, where nothing of a service is let out")
            }
            Self::Nowhere => "no route leads there".to_owned(),
        }
    }
}

/// What becomes of what is said to each client, if the kernel says.
fn ways(pairs: &BTreeSet<Pair>, ask: impl Fn(Pair) -> Option<Way>) -> Vec<(Pair, Way)> {
    let asked = pairs.iter().filter_map(|pair| Some((*pair, ask(*pair)?)));
    asked.collect()
}

/// A client, and the router before it that does not answer.
type Silent = (Pair, IpAddr);

/// Routers that were asked for in vain.
#[derive(Debug, Default)]
struct Silence(BTreeSet<IpAddr>);

impl Silence {
    /// One that did not answer at the look before either: an answer may take a moment.
    fn judge(
        &mut self,
        ways: &[(Pair, Way)],
        is_unanswered: impl Fn(IpAddr) -> bool,
    ) -> Option<Silent> {
        let routed = ways.iter().filter_map(|(pair, way)| match way {
            Way::Leads { router, .. } => Some((*pair, (*router)?)),
            Way::Nowhere | Way::Refused(_) => None,
        });
        let silent: Vec<_> = routed
            .filter(|(_, router)| is_unanswered(*router))
            .collect();
        let now = silent.iter().map(|(_, router)| *router).collect();
        let before = std::mem::replace(&mut self.0, now);
        silent
            .into_iter()
            .find(|(_, router)| before.contains(router))
    }
}

/// Whether a route or rule drops what is said to a client and would drop it for others.
fn is_for_all(ways: &[(Pair, Way)], ask: impl Fn(Pair) -> Option<Way>) -> bool {
    let is_refused = |way: Way| matches!(way, Way::Refused(_));
    let mut refused = ways.iter().filter(|(_, way)| is_refused(*way));
    refused.any(|((client, service), _)| {
        let nobody = if client.is_ipv4() { NOBODY.0 } else { NOBODY.1 };
        ask((nobody, *service)).is_some_and(is_refused)
    })
}

/// Where no client has a route others won't have one either. Where some have none, those are
/// better served elsewhere. Clients that are refused may have been banned, as long as they
/// are few.
fn judge(ways: &[(Pair, Way)], ifindex: u32, for_all: bool, silent: Option<Silent>) -> Look {
    let lost = ways
        .iter()
        .filter_map(|(pair, way)| Some((*pair, Loss::of(*way, ifindex)?)));
    let lost: Vec<_> = lost.collect();
    let is_ban = |loss: Loss| loss.is_ban() && !for_all;
    let banned = lost.iter().filter(|(_, loss)| is_ban(*loss)).count();
    let consequence = if !lost.is_empty() && lost.len() == ways.len() && banned == 0 {
        Consequence::NoService
    } else if lost.len() > banned || banned >= MANY {
        Consequence::HandOver
    } else {
        Consequence::Say
    };
    let worst = lost.iter().min_by_key(|(_, loss)| loss.is_ban());
    let lost = worst.map(|((client, service), loss)| {
        let why = loss.why();
        format!("what {service} says to clients such as {client} goes nowhere: {why}")
    });
    let silent = silent.map(|((client, _), router)| {
        format!("router {router} does not answer, and clients such as {client} are behind it")
    });
    Look::of_one(NAME, consequence, lost.or(silent), ADVICE)
}

fn is_wrong(look: &Look) -> bool {
    !look.wrong.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(host: u8) -> Pair {
        ([192, 0, 2, host].into(), [10, 0, 0, 100].into())
    }

    const HERE: u32 = 7;

    fn leads(ifindex: u32) -> Option<Way> {
        let router = None;
        Some(Way::Leads { ifindex, router })
    }

    #[test]
    fn who_has_no_route_is_better_served_elsewhere() {
        use Consequence::{HandOver, NoService, Say};
        let pairs: BTreeSet<_> = (1..=3).map(pair).collect();
        let (nowhere, banned) = (Some(Way::Nowhere), Some(Way::Refused("blackhole")));
        let table = [
            (leads(HERE), leads(HERE), None),
            (leads(LOOPBACK), leads(HERE), None),
            (nowhere, nowhere, Some(NoService)),
            (nowhere, leads(8), Some(NoService)),
            (leads(HERE), nowhere, Some(HandOver)),
            (nowhere, leads(HERE), Some(HandOver)),
            (leads(8), leads(HERE), Some(HandOver)),
            (nowhere, banned, Some(HandOver)),
            (banned, leads(HERE), Some(Say)),
            (leads(HERE), banned, Some(Say)),
            (banned, banned, Some(HandOver)),
            (None, None, None),
        ];
        for (first, others, wanted) in table {
            let ask = |it| if it == pair(1) { first } else { others };
            let look = judge(&ways(&pairs, ask), HERE, false, None);
            let found = look.wrong.first().map(|wrong| wrong.consequence);
            assert_eq!(found, wanted, "{first:?}, {others:?}");
        }
        assert!(judge(&[], HERE, false, None).wrong.is_empty());
    }

    #[test]
    fn a_router_that_does_not_answer_twice_is_said() {
        let router = IpAddr::from([10, 0, 0, 254]);
        let routed = Way::Leads {
            ifindex: HERE,
            router: Some(router),
        };
        let known = [(pair(1), leads(HERE).expect("a way")), (pair(2), routed)];
        let mut silence = Silence::default();
        let mut look = |unanswered: bool| {
            let silent = silence.judge(&known, |_| unanswered);
            let wrong = judge(&known, HERE, false, silent).wrong;
            wrong
                .first()
                .map(|wrong| (wrong.consequence, wrong.found.clone()))
        };
        assert_eq!(look(true), None, "it may yet answer");
        let (consequence, found) = look(true).expect("it does not");
        assert_eq!(consequence, Consequence::Say);
        assert!(found.contains("router 10.0.0.254 does"), "{found}");
        assert!(found.contains("192.0.2.2"), "{found}");
        assert_eq!(look(false), None);
        assert_eq!(look(true), None);
    }

    #[test]
    fn what_is_dropped_for_all_bans_nobody() {
        let ban = Way::Refused("prohibit");
        let ways = [(pair(1), ban), (pair(2), leads(HERE).expect("a way"))];
        assert!(is_for_all(&ways, |_| Some(ban)));
        assert!(!is_for_all(&ways, |_| leads(HERE)));
        assert!(
            !is_for_all(&ways[1..], |_| Some(ban)),
            "no client is concerned"
        );
        let consequence = |ways, all| {
            let look = judge(ways, HERE, all, None);
            look.wrong.first().map(|wrong| wrong.consequence)
        };
        assert_eq!(consequence(&ways, false), Some(Consequence::Say));
        assert_eq!(consequence(&ways, true), Some(Consequence::HandOver));
        assert_eq!(consequence(&ways[..1], true), Some(Consequence::NoService));
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
