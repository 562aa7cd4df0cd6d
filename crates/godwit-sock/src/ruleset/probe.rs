//! The packets that rules are asked about, and what a chain makes of one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// NF_CT_STATE_INVALID_BIT
pub(super) const INVALID: u32 = 1;
/// NF_CT_STATE_BIT(IP_CT_ESTABLISHED)
pub(super) const ESTABLISHED: u32 = 2;
/// NF_CT_STATE_BIT(IP_CT_NEW)
pub(super) const NEW: u32 = 8;
/// NF_CT_STATE_UNTRACKED_BIT
pub(super) const UNTRACKED: u32 = 64;

/// ND_NEIGHBOR_SOLICIT, ND_NEIGHBOR_ADVERT (RFC 4861 sections 4.3 and 4.4)
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

pub(super) const SYN: u8 = 0x02;
pub(super) const ACK: u8 = 0x10;

/// Where rules see packets (include/uapi/linux/netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// NF_INET_PRE_ROUTING
    PreRouting,
    /// NF_INET_LOCAL_IN
    LocalIn,
    /// NF_INET_LOCAL_OUT
    LocalOut,
    /// NF_INET_POST_ROUTING
    PostRouting,
    /// NF_INET_INGRESS, and that of the family `netdev`.
    Ingress,
    /// NF_NETDEV_EGRESS
    Egress,
}

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A segment of TCP.
    Segment,
    /// Somebody asks for the service's address with ARP, or is answered.
    Arp,
    /// The same with ICMPv6.
    Neighbour,
}

/// Which packets a rule drops that a service, its twins, or connections after a takeover
/// consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drops {
    /// What clients and the service say to each other.
    Service,
    /// What connection tracking does not understand.
    Invalid,
    /// What begins a connection for connection tracking, though it is no SYN.
    NewWithoutSyn,
    /// Questions for the address of the service, or answers: ARP, neighbour discovery.
    Neighbours,
}

/// A rule that drops such packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// `table chain`
    pub chain: String,
    /// Number of the rule, as `nft -a list ruleset` shows it, or its place in the chain of
    /// iptables, from 1; `None`: the chain's policy.
    pub handle: Option<u64>,
    /// What it drops.
    pub drops: Drops,
    /// Of which service.
    pub service: SocketAddr,
    /// Whether it does. Else it may: it looks at what is not known here, which is no client's
    /// own (a mark, a length, a route).
    pub is_certain: bool,
}

/// One packet of a service, as far as rules may look at it and it is the same for all
/// clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'a> {
    pub(super) kind: Kind,
    pub(super) service: SocketAddr,
    /// Name and index of the service interface.
    pub(super) interface: (&'a str, u32),
    /// Whether it is a client's.
    pub(super) comes: bool,
    /// What connection tracking says of it.
    pub(super) state: u32,
    /// The flags of TCP.
    pub(super) flags: u8,
    /// What it means if it is dropped.
    pub(super) means: Drops,
}

impl Probe<'_> {
    /// All packets that rules are asked about.
    pub(super) fn all<'a>(
        service: SocketAddr,
        interface: (&'a str, u32),
    ) -> impl Iterator<Item = Probe<'a>> {
        let kind = if service.is_ipv4() {
            Kind::Arp
        } else {
            Kind::Neighbour
        };
        let neighbours = [true, false].map(|comes| Probe {
            kind,
            service,
            interface,
            comes,
            state: UNTRACKED,
            flags: 0,
            means: Drops::Neighbours,
        });
        let segments = Self::segments(service, interface);
        segments.into_iter().chain(neighbours)
    }

    /// Those of TCP.
    pub(super) fn segments<'a>(service: SocketAddr, interface: (&'a str, u32)) -> [Probe<'a>; 7] {
        let probe = |means, comes, state, flags| Probe {
            kind: Kind::Segment,
            service,
            interface,
            comes,
            state,
            flags,
            means,
        };
        [
            probe(Drops::Service, true, NEW, SYN),
            probe(Drops::Service, false, ESTABLISHED, SYN | ACK),
            probe(Drops::Service, true, ESTABLISHED, ACK),
            probe(Drops::Service, false, ESTABLISHED, ACK),
            probe(Drops::Invalid, true, INVALID, ACK),
            probe(Drops::Invalid, false, INVALID, ACK),
            probe(Drops::NewWithoutSyn, true, NEW, ACK),
        ]
    }

    /// Whether there is nothing more to learn: what drops the service's packets drops all.
    pub(super) fn is_answered(&self, found: &[Refusal]) -> bool {
        found.iter().any(|it| {
            it.is_certain
                && it.service == self.service
                && [Drops::Service, self.means].contains(&it.drops)
        })
    }

    /// Whether it passes that hook.
    pub(super) const fn passes(self, hook: Hook) -> bool {
        match hook {
            Hook::PreRouting | Hook::LocalIn | Hook::Ingress => self.comes,
            Hook::LocalOut | Hook::PostRouting | Hook::Egress => !self.comes,
        }
    }

    /// Whether a rule that has looked at those things is about such packets, even if it drops
    /// those of some clients only.
    pub(super) const fn is_meant(self, looked: Looked) -> bool {
        match self.means {
            Drops::Service | Drops::Neighbours => false,
            Drops::Invalid => looked.state,
            Drops::NewWithoutSyn => looked.state && looked.flags,
        }
    }

    /// The protocol that its IP header names; zero for ARP, which has none.
    pub(super) const fn protocol(&self) -> u8 {
        match self.kind {
            Kind::Segment => 6,
            Kind::Arp => 0,
            Kind::Neighbour => 58,
        }
    }

    /// Bytes of its IP header, or of ARP (RFC 826); `None`: they differ from client to client.
    pub(super) fn network(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        let own = match (self.service.ip(), self.kind) {
            (IpAddr::V4(v4), _) => v4.octets().to_vec(),
            (IpAddr::V6(v6), Kind::Neighbour) if self.comes => solicited(v6).octets().to_vec(),
            (IpAddr::V6(v6), _) => v6.octets().to_vec(),
        };
        // An address of the source stands before that of the destination.
        let (fixed, first, next) = match (self.kind, self.service.ip()) {
            (Kind::Arp, _) => {
                let question = if self.comes { 1 } else { 2 };
                ((0, vec![0, 1, 8, 0, 6, 4, 0, question]), 14, 10)
            }
            (_, IpAddr::V4(_)) => ((9, vec![self.protocol()]), 12, 4),
            // RFC 4861 section 7.1: such a message has not passed a router.
            (Kind::Neighbour, _) => ((6, vec![self.protocol(), 255]), 8, 16),
            (_, IpAddr::V6(_)) => ((6, vec![self.protocol()]), 8, 16),
        };
        let own_at = first + if self.comes { next } else { 0 };
        part(&[fixed, (own_at, own)], offset, len)
    }

    /// Bytes of its TCP or ICMPv6 header.
    pub(super) fn transport(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        let known = match self.kind {
            Kind::Segment => {
                let port = self.service.port().to_be_bytes().to_vec();
                let port = (if self.comes { 2 } else { 0 }, port);
                vec![port, (13, vec![self.flags])]
            }
            Kind::Arp => vec![],
            Kind::Neighbour if self.comes => vec![(0, vec![SOLICITATION, 0])],
            Kind::Neighbour => vec![(0, vec![ADVERTISEMENT, 0])],
        };
        part(&known, offset, len)
    }
}

/// The group in which the owner of an address is asked for it (RFC 4291 section 2.7.1).
fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

/// What lies within one of the parts that are known.
fn part(known: &[(usize, Vec<u8>)], offset: usize, len: usize) -> Option<Vec<u8>> {
    known.iter().find_map(|(at, bytes)| {
        let from = offset.checked_sub(*at)?;
        bytes.get(from..from.checked_add(len)?).map(<[u8]>::to_vec)
    })
}

/// What a rule looks at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// What connection tracking says.
    pub(super) state: bool,
    /// The flags of TCP.
    pub(super) flags: bool,
    /// What is not known here, and is the same for all clients.
    pub(super) unclear: bool,
}

/// What is known of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matches {
    /// For every client.
    Yes,
    /// For no client.
    No,
    /// It depends on what is not known here.
    Perhaps,
}

impl Matches {
    pub(super) const fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    pub(super) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            (Self::Yes | Self::Perhaps, Self::Yes | Self::Perhaps) => Self::Perhaps,
        }
    }

    pub(super) const fn inverted(self, is_inverted: bool) -> Self {
        match (self, is_inverted) {
            (Self::Yes, true) => Self::No,
            (Self::No, true) => Self::Yes,
            (kept, _) => kept,
        }
    }
}

/// What a rule does with a packet that it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To the next rule.
    Continue,
    Accept,
    Drop,
    /// Back to the chain that it came from.
    Return,
    /// On in another chain, and perhaps back.
    Jump(String),
    /// On in another chain, and not back here.
    Goto(String),
}

/// A rule asked about one packet.
pub(super) struct Answer {
    /// As in [`Refusal::handle`].
    pub(super) handle: u64,
    pub(super) matches: Matches,
    pub(super) verdict: Verdict,
    /// See [`Probe::is_meant`].
    pub(super) is_meant: bool,
    /// Whether it has looked at something that is unclear ([`Looked`]).
    pub(super) is_unclear: bool,
}

/// What becomes of a packet in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// Dropped for every client, by that rule of that chain.
    Dropped(String, u64),
    /// Accepted, or it depends.
    Other,
    /// It comes out at the end.
    Through,
}

/// Deeper than NFT_JUMP_STACK_SIZE no packet goes.
const DEEPEST: usize = 16;

/// The first rule that may drop a packet of every client: its chain and handle.
pub(super) type Doubt = Option<(String, u64)>;

/// Walks through a chain. A rule that may accept makes it uncertain what rules after it do.
pub(super) fn walk(
    chain: &str,
    rules: &impl Fn(&str) -> Vec<Answer>,
    depth: usize,
    doubt: &mut Doubt,
) -> Fate {
    if depth == DEEPEST {
        return Fate::Other;
    }
    for answer in rules(chain) {
        let is_unclear = answer.is_unclear;
        match (answer.matches, answer.verdict) {
            (Matches::No, _) | (_, Verdict::Continue) => {}
            (Matches::Perhaps, Verdict::Drop) if !answer.is_meant => {
                if is_unclear {
                    doubt.get_or_insert((chain.to_owned(), answer.handle));
                }
            }
            (Matches::Yes | Matches::Perhaps, Verdict::Drop) => {
                return Fate::Dropped(chain.to_owned(), answer.handle);
            }
            (Matches::Yes, Verdict::Return) => return Fate::Through,
            (Matches::Yes, Verdict::Goto(to)) => return walk(&to, rules, depth + 1, doubt),
            (Matches::Yes, Verdict::Jump(to)) => match walk(&to, rules, depth + 1, doubt) {
                Fate::Through => {}
                end @ (Fate::Dropped(..) | Fate::Other) => return end,
            },
            (Matches::Perhaps, Verdict::Jump(to)) => match walk(&to, rules, depth + 1, doubt) {
                // At worst it comes back, or is dropped for some.
                Fate::Dropped(chain, handle) if is_unclear => {
                    doubt.get_or_insert((chain, handle));
                }
                Fate::Through | Fate::Dropped(..) => {}
                Fate::Other => return Fate::Other,
            },
            (Matches::Perhaps, Verdict::Goto(to)) if is_unclear => {
                if let Fate::Dropped(chain, handle) = walk(&to, rules, depth + 1, doubt) {
                    doubt.get_or_insert((chain, handle));
                }
                return Fate::Other;
            }
            (Matches::Yes, Verdict::Accept)
            | (Matches::Perhaps, Verdict::Accept | Verdict::Return | Verdict::Goto(_)) => {
                return Fate::Other;
            }
        }
    }
    Fate::Through
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(comes: bool, service: &str) -> Probe<'static> {
        let service = service.parse().expect("a literal");
        Probe {
            kind: Kind::Segment,
            service,
            interface: ("eth0", 2),
            comes,
            state: NEW,
            flags: SYN,
            means: Drops::Service,
        }
    }

    #[test]
    fn only_what_all_clients_have_in_common_is_known() {
        let comes = probe(true, "10.9.0.100:80");
        assert_eq!(comes.transport(2, 2), Some(vec![0, 80]));
        assert_eq!(comes.transport(0, 2), None, "the client's port");
        assert_eq!(comes.transport(13, 1), Some(vec![SYN]));
        assert_eq!(comes.network(16, 4), Some(vec![10, 9, 0, 100]));
        assert_eq!(comes.network(17, 2), Some(vec![9, 0]));
        assert_eq!(comes.network(12, 4), None, "the client's address");
        assert_eq!(comes.network(9, 1), Some(vec![6]));
        let leaves = probe(false, "[fd00::1]:443");
        assert_eq!(leaves.transport(0, 2), Some(443_u16.to_be_bytes().to_vec()));
        assert_eq!(leaves.network(8, 2), Some(vec![0xfd, 0]));
        assert_eq!(leaves.network(24, 16), None);
        assert_eq!(leaves.network(6, usize::MAX), None);
    }

    fn fate(rules: &[(&str, Matches, Verdict)]) -> Fate {
        let all = |chain: &str| {
            let of_it = (1..).zip(rules).filter(|(_, (of, ..))| *of == chain);
            let answers = of_it.map(|(handle, (_, matches, verdict))| Answer {
                handle,
                matches: *matches,
                verdict: verdict.clone(),
                is_meant: false,
                is_unclear: false,
            });
            answers.collect()
        };
        walk("in", &all, 0, &mut None)
    }

    #[test]
    fn a_packet_is_dropped_if_it_is_for_every_client() {
        use Matches::{No, Perhaps, Yes};
        let dropped = |chain: &str, handle| Fate::Dropped(chain.into(), handle);
        let (drop, accept) = (Verdict::Drop, Verdict::Accept);
        let to = |name: &str| Verdict::Jump(name.into());
        let table = [
            (vec![("in", Yes, drop.clone())], dropped("in", 1)),
            (vec![("in", No, drop.clone())], Fate::Through),
            (vec![("in", Perhaps, drop.clone())], Fate::Through),
            (
                vec![("in", Yes, accept.clone()), ("in", Yes, drop.clone())],
                Fate::Other,
            ),
            (
                vec![("in", Perhaps, accept.clone()), ("in", Yes, drop.clone())],
                Fate::Other,
            ),
            (
                vec![
                    ("in", Yes, to("sub")),
                    ("sub", Yes, Verdict::Return),
                    ("sub", Yes, drop.clone()),
                    ("in", Yes, drop.clone()),
                ],
                dropped("in", 4),
            ),
            (
                vec![("in", Yes, to("sub")), ("sub", Yes, drop.clone())],
                dropped("sub", 2),
            ),
            (
                vec![("in", Perhaps, to("sub")), ("sub", Yes, drop.clone())],
                Fate::Through,
            ),
            (
                vec![
                    ("in", Perhaps, to("sub")),
                    ("sub", Yes, accept),
                    ("in", Yes, drop),
                ],
                Fate::Other,
            ),
            (vec![("in", Yes, to("in"))], Fate::Other),
        ];
        for (number, (rules, expected)) in table.into_iter().enumerate() {
            assert_eq!(fate(&rules), expected, "{number}: {rules:?}");
        }
    }
}
