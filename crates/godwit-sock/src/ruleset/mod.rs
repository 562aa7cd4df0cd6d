//! Firewall rules that drop what a service, its twins or connections after a takeover
//! consist of. Packets that stand for those are walked through the rules as the kernel
//! would: of nftables (NETLINK_NETFILTER, include/uapi/linux/netfilter/nf_tables.h), which
//! iptables-nft makes, too, and of iptables-legacy. Nothing is changed here.
//!
//! | file | has |
//! |---|---|
//! | `probe` | the packets, and what becomes of one in a chain |
//! | `rule` | a rule of nftables |
//! | `expression` | what its expressions look at |
//! | `xtables` | matches of iptables |
//! | `legacy` | tables of iptables-legacy |

mod expression;
mod legacy;
mod probe;
mod rule;
#[cfg(test)]
mod tests;
mod xtables;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use crate::device::Devices;
use crate::netlink::{NLM_F_DUMP, Netlink, attribute, attributes, push_attribute};

pub use legacy::legacy_refusals;
pub use probe::{Drops, Refusal};
use probe::{Fate, Hook, Kind, Probe, walk};
use rule::{Element, Known, Rule, verdict_of};

const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const GET_SET_ELEMENTS: u16 = SUBSYSTEM | 13;
/// 1 << (NFNLGRP_NFTABLES - 1)
const GROUP: u32 = 1 << 6;
/// struct nfgenmsg
const NFGENMSG: usize = 4;

// Families: NFPROTO_INET, NFPROTO_IPV4, NFPROTO_ARP, NFPROTO_NETDEV, NFPROTO_IPV6.
const INET: u8 = 1;
const IPV4: u8 = 2;
const ARP: u8 = 3;
const NETDEV: u8 = 5;
const IPV6: u8 = 10;

/// NF_IP_PRI_CONNTRACK: chains before it don't know the state of a connection.
const CONNTRACK: i32 = -200;

/// The chain of a rule: family, table, name.
type ChainId = (u8, String, String);

/// Where a chain begins.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Base {
    hook: Hook,
    priority: i32,
    /// Of chains that belong to interfaces.
    devices: Vec<String>,
    drops: bool,
}

impl Base {
    /// Whether a chain of that family may see a packet at all.
    fn sees(&self, family: u8, probe: Probe<'_>) -> bool {
        let (is_arp, service) = (probe.kind == Kind::Arp, probe.service);
        let is_here = || self.devices.iter().any(|name| name == probe.interface.0);
        match family {
            INET => !is_arp && (self.hook != Hook::Ingress || is_here()),
            IPV4 => !is_arp && service.is_ipv4(),
            IPV6 => service.is_ipv6(),
            ARP => is_arp,
            NETDEV => is_here(),
            _ => false,
        }
    }

    /// Whether connection tracking has seen what comes here.
    fn knows_connections(&self, family: u8) -> bool {
        match self.hook {
            Hook::Ingress => false,
            Hook::Egress => true,
            Hook::PreRouting | Hook::LocalIn | Hook::LocalOut | Hook::PostRouting => {
                family != ARP && self.priority > CONNTRACK
            }
        }
    }
}

/// All rules of nftables at one moment.
struct Ruleset<'a> {
    bases: BTreeMap<ChainId, Base>,
    rules: Vec<Rule<'a>>,
    sets: BTreeMap<(u8, String, String), Vec<Element>>,
    /// Of the service interface.
    group: Option<u32>,
    /// Whether no rule gives packets or connections a mark.
    is_unmarked: bool,
}

/// Reads the rules of nftables in the calling thread's namespace, and asks them about
/// `services` on the interface of that name and index. Of each kind of packet and service
/// the first rule that drops it for every client is named.
///
/// # Errors
/// If the kernel has no nftables, or the caller no CAP_NET_ADMIN.
pub fn refusals(interface: (&str, u32), services: &[SocketAddr]) -> io::Result<Vec<Refusal>> {
    let netlink = Netlink::open(SockProtocol::NetlinkNetFilter)?;
    let dump = |kind| netlink.request(kind, NLM_F_DUMP, &[0; NFGENMSG]);
    let tables = dump(GET_TABLE)?;
    let dormant: Vec<_> = tables.iter().filter_map(|it| dormant(it)).collect();
    let chains = dump(GET_CHAIN)?;
    let bases = chains.iter().filter_map(|chain| read_chain(chain));
    let bases = bases.filter(|((family, table, _), _)| {
        let table = (*family, table.clone());
        !dormant.contains(&table)
    });
    let messages = dump(GET_RULE)?;
    let mut ruleset = Ruleset {
        bases: bases.collect(),
        rules: messages
            .iter()
            .filter_map(|rule| Rule::read(rule))
            .collect(),
        sets: BTreeMap::new(),
        group: Devices::read()
            .ok()
            .and_then(|all| Some(all.named(interface.0)?.group)),
        is_unmarked: false,
    };
    ruleset.is_unmarked = !legacy::has_tables() && !ruleset.rules.iter().any(Rule::marks);
    for rule in &ruleset.rules {
        let (family, table, _) = &rule.chain;
        for set in rule.sets() {
            let id = (*family, table.clone(), set);
            if let Entry::Vacant(place) = ruleset.sets.entry(id) {
                let elements = read_set(&netlink, place.key())?;
                place.insert(elements);
            }
        }
    }
    Ok(ruleset.refusals(interface, services))
}

impl Ruleset<'_> {
    fn refusals(&self, interface: (&str, u32), services: &[SocketAddr]) -> Vec<Refusal> {
        let probes = services
            .iter()
            .flat_map(|service| Probe::all(*service, interface));
        let mut found: Vec<Refusal> = Vec::new();
        for probe in probes {
            if !probe.is_answered(&found) {
                found.extend(self.refusal(probe));
            }
        }
        without_old_doubts(found)
    }

    /// The rule that drops it, or else the first one that may.
    fn refusal(&self, probe: Probe<'_>) -> Option<Refusal> {
        let mut doubts = None;
        let certain = self.bases.iter().find_map(|(id, base)| {
            let (family, table, name) = id;
            if !base.sees(*family, probe) || !probe.passes(base.hook) {
                return None;
            }
            let known = Known {
                is_tracked: base.knows_connections(*family),
                group: self.group,
                is_unmarked: self.is_unmarked,
            };
            let rules = |chain: &str| {
                let of_it = (self.rules.iter()).filter(|rule| {
                    (rule.chain.0, &*rule.chain.1, &*rule.chain.2) == (*family, table, chain)
                });
                let answers = of_it.map(|rule| {
                    rule.ask(probe, known, |set| {
                        let id = (*family, table.clone(), set.to_owned());
                        self.sets.get(&id).cloned().unwrap_or_default()
                    })
                });
                answers.collect()
            };
            let refusal = |chain: &str, handle, is_certain| Refusal {
                chain: format!("{table} {chain}"),
                handle,
                drops: probe.means,
                service: probe.service,
                is_certain,
            };
            let mut doubt = None;
            let fate = walk(name, &rules, 0, &mut doubt);
            if let (None, Some((chain, handle))) = (&doubts, doubt) {
                doubts = Some(refusal(&chain, Some(handle), false));
            }
            match fate {
                Fate::Dropped(chain, handle) => Some(refusal(&chain, Some(handle), true)),
                Fate::Through if base.drops => Some(refusal(name, None, true)),
                Fate::Through | Fate::Other => None,
            }
        });
        certain.or(doubts)
    }
}

/// Of each kind and service one doubt, and none where something is certain.
fn without_old_doubts(found: Vec<Refusal>) -> Vec<Refusal> {
    let is_about = |one: &Refusal, other: &Refusal| {
        one.service == other.service && [Drops::Service, other.drops].contains(&one.drops)
    };
    let mut kept: Vec<Refusal> = Vec::new();
    for refusal in &found {
        let is_known = |it: &Refusal| is_about(it, refusal) && (it.is_certain || kept.contains(it));
        if refusal.is_certain || !found.iter().any(is_known) {
            kept.push(refusal.clone());
        }
    }
    kept
}

/// A table whose chains see nothing (NFT_TABLE_F_DORMANT).
fn dormant(message: &[u8]) -> Option<(u8, String)> {
    let family = *message.first()?;
    let all = message.get(NFGENMSG..)?;
    let flags = big_endian(attribute(all, 2)?)?;
    (flags & 1 != 0).then_some((family, text(attribute(all, 1)?)))
}

/// A chain that packets begin in.
fn read_chain(message: &[u8]) -> Option<(ChainId, Base)> {
    let family = *message.first()?;
    let all = message.get(NFGENMSG..)?;
    let place = nested(all, 4)?;
    let hook = match (family, big_endian(attribute(place, 1)?)?) {
        (NETDEV, 0) | (INET, 5) => Hook::Ingress,
        (NETDEV, 1) => Hook::Egress,
        (ARP, 0) => Hook::LocalIn,
        (ARP, 1) => Hook::LocalOut,
        (NETDEV | ARP, _) => return None,
        (_, 0) => Hook::PreRouting,
        (_, 1) => Hook::LocalIn,
        (_, 3) => Hook::LocalOut,
        (_, 4) => Hook::PostRouting,
        _ => return None,
    };
    let base = Base {
        hook,
        priority: big_endian(attribute(place, 2)?)?.cast_signed(),
        devices: devices(place),
        drops: attribute(all, 5).and_then(big_endian) == Some(0),
    };
    let id = (family, text(attribute(all, 1)?), text(attribute(all, 3)?));
    Some((id, base))
}

/// NFTA_HOOK_DEV, or NFTA_HOOK_DEVS with an NFTA_DEVICE_NAME each.
fn devices(place: &[u8]) -> Vec<String> {
    let all = nested(place, 4).map(|all| attributes(all).map(|(_, name)| text(name)).collect());
    all.unwrap_or_else(|| attribute(place, 3).map(text).into_iter().collect())
}

fn read_set(netlink: &Netlink, id: &(u8, String, String)) -> io::Result<Vec<Element>> {
    let (family, table, set) = id;
    let mut request = vec![*family, 0, 0, 0];
    push_attribute(&mut request, 1, format!("{table}\0").as_bytes());
    push_attribute(&mut request, 2, format!("{set}\0").as_bytes());
    let mut elements = Vec::new();
    for message in netlink.request(GET_SET_ELEMENTS, NLM_F_DUMP, &request)? {
        let Some(list) = message.get(NFGENMSG..).and_then(|all| nested(all, 3)) else {
            continue;
        };
        elements.extend(attributes(list).filter_map(|(_, element)| read_element(element)));
    }
    Ok(elements)
}

/// NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_KEY_END
fn read_element(element: &[u8]) -> Option<Element> {
    let flags = attribute(element, 3).and_then(big_endian).unwrap_or(0);
    Some(Element {
        key: attribute(nested(element, 1)?, 1)?.to_vec(),
        last: nested(element, 10).and_then(|key| Some(attribute(key, 1)?.to_vec())),
        is_end: flags & 1 != 0,
        verdict: nested(element, 2).and_then(|data| Some(verdict_of(nested(data, 2)?))),
    })
}

/// Nested attributes, whose kind may have NLA_F_NESTED.
fn nested(all: &[u8], wanted: u16) -> Option<&[u8]> {
    const NLA_F_NESTED: u16 = 1 << 15;
    let mut all = attributes(all);
    all.find_map(|(kind, value)| (kind & !NLA_F_NESTED == wanted).then_some(value))
}

fn big_endian(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

fn text(value: &[u8]) -> String {
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

/// Hears of changes of the rules.
#[derive(Debug)]
pub struct RulesetWatch(OwnedFd);

impl RulesetWatch {
    /// Listens in the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel has no nfnetlink, or the caller no CAP_NET_ADMIN.
    pub fn open() -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkNetFilter,
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUP))?;
        Ok(Self(fd))
    }

    /// Takes what has been heard; whether there was anything.
    pub fn take(&self) -> bool {
        let (mut rest, mut any) = ([0; 16], false);
        loop {
            match recv(self.0.as_raw_fd(), &mut rest, MsgFlags::MSG_DONTWAIT) {
                // A queue that was full is a change.
                Ok(_) | Err(Errno::ENOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for RulesetWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
