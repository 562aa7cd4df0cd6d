//! What expressions of nftables load: of the packet, of connection tracking, of routes
//! (net/netfilter/nft_meta.c, nft_ct.c, nft_payload.c, nft_fib.c).
//!
//! What is not known here is either a client's own, or unclear ([`Looked`]): a rule that looks
//! at the former is meant for some clients, one that looks at the latter may be for all.

use std::net::SocketAddr;

use crate::netlink::attribute;

use super::probe::{INVALID, Kind, Looked, Probe, SYN, UNTRACKED};
use super::rule::Known;
use super::{ARP, big_endian};

/// NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

/// Room for the name of an interface (IFNAMSIZ).
const NAME: usize = 16;

/// NFT_FIB_RESULT_ADDRTYPE
const ADDRESS_TYPE: u32 = 3;
/// NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR, NFTA_FIB_F_IIF, NFTA_FIB_F_OIF
const SOURCE: u32 = 1;
const DESTINATION: u32 = 2;
const BY_INTERFACE: u32 = 8 | 16;
/// RTN_LOCAL, RTN_MULTICAST
const LOCAL: u32 = 2;
const MULTICAST: u32 = 5;

/// PACKET_HOST, PACKET_BROADCAST, PACKET_MULTICAST
const TO_HOST: u8 = 0;
const TO_ALL: u8 = 1;
const TO_GROUP: u8 = 2;

/// What an expression loads into a register.
pub(super) enum Value {
    Is(Vec<u8>),
    /// It differs from client to client.
    OfClients,
    /// It is not known here.
    Unclear,
    /// There is none, and the rule does not match (NFT_BREAK).
    Breaks,
}

impl Value {
    fn number(value: u32) -> Self {
        Self::Is(value.to_ne_bytes().to_vec())
    }
}

/// NFTA_META_KEY
pub(super) fn meta(data: &[u8], probe: Probe<'_>, known: Known) -> Value {
    let (name, index) = probe.interface;
    let is_v4 = probe.service.is_ipv4();
    let named = |name: &str| {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(NAME, 0);
        Value::Is(bytes)
    };
    let Some(key) = attribute(data, 2).and_then(big_endian) else {
        return Value::Unclear;
    };
    match (key, probe.comes) {
        // NFT_META_PROTOCOL
        (1, _) if probe.kind == Kind::Arp => Value::Is(vec![8, 6]),
        (1, _) => Value::Is(if is_v4 { vec![8, 0] } else { vec![0x86, 0xdd] }),
        // NFT_META_MARK: a server may give its packets one.
        (3, true) if known.is_unmarked => Value::number(0),
        // NFT_META_IIF, NFT_META_OIF: a packet has one of both where it is asked for.
        (4, true) | (5, false) => Value::number(index),
        (4 | 5, _) => Value::number(0),
        // NFT_META_IIFNAME, NFT_META_OIFNAME
        (6, true) | (7, false) => named(name),
        (6 | 7, _) => named(""),
        // NFT_META_SKUID, NFT_META_SKGID: only what has a socket has an owner.
        (10 | 11, true) if probe.kind != Kind::Segment || probe.flags == SYN => Value::Breaks,
        // NFT_META_NFPROTO
        (15, _) if probe.kind == Kind::Arp => Value::Is(vec![ARP]),
        (15, _) => Value::Is(vec![if is_v4 { 2 } else { 10 }]),
        // NFT_META_L4PROTO
        (16, _) => Value::Is(vec![probe.protocol()]),
        // NFT_META_PKTTYPE
        (19, true) => Value::Is(vec![match probe.kind {
            Kind::Segment => TO_HOST,
            Kind::Arp => TO_ALL,
            Kind::Neighbour => TO_GROUP,
        }]),
        // NFT_META_IIFGROUP, NFT_META_OIFGROUP
        (21, true) | (22, false) => known.group.map_or(Value::Unclear, Value::number),
        (21 | 22, _) => Value::Breaks,
        // NFT_META_PRANDOM
        (24, _) => Value::OfClients,
        _ => Value::Unclear,
    }
}

/// NFTA_CT_KEY
pub(super) fn tracked(data: &[u8], probe: Probe<'_>, known: Known, looked: &mut Looked) -> Value {
    let key = attribute(data, 2).and_then(big_endian);
    // NFT_CT_STATE
    if key == Some(0) {
        looked.state = true;
        return if known.is_tracked {
            Value::number(probe.state)
        } else {
            Value::OfClients
        };
    }
    if !known.is_tracked || probe.state == INVALID || probe.state == UNTRACKED {
        // It belongs to no connection.
        return Value::Breaks;
    }
    match key {
        // NFT_CT_DIRECTION: IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY
        Some(1) => Value::Is(vec![u8::from(!probe.comes)]),
        // NFT_CT_MARK
        Some(3) if known.is_unmarked => Value::number(0),
        // NFT_CT_L3PROTOCOL
        Some(7) => Value::Is(vec![if probe.service.is_ipv4() { 2 } else { 10 }]),
        // NFT_CT_PROTOCOL
        Some(10) => Value::Is(vec![probe.protocol()]),
        // When it expires; addresses and ports; how much was sent; its number.
        Some(5 | 8 | 9 | 11 | 12 | 14..=16 | 19..=23) => Value::OfClients,
        _ => Value::Unclear,
    }
}

/// NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN
pub(super) fn payload(data: &[u8], probe: Probe<'_>, looked: &mut Looked) -> Value {
    let number = |kind| attribute(data, kind).and_then(big_endian);
    let size = |kind| usize::try_from(number(kind)?).ok();
    let (Some(base), Some(offset), Some(len)) = (number(2), size(3), size(4)) else {
        return Value::Unclear;
    };
    let range = offset..offset.saturating_add(len);
    match base {
        NETWORK => {
            let length_at = if probe.service.is_ipv4() { 2 } else { 4 };
            let is_length = probe.kind != Kind::Arp && range.contains(&length_at);
            match probe.network(offset, len) {
                Some(bytes) => Value::Is(bytes),
                // A server's segments have all lengths.
                None if is_length => Value::Unclear,
                None => Value::OfClients,
            }
        }
        TRANSPORT => {
            looked.flags |= range.contains(&13);
            let bytes = probe.transport(offset, len);
            bytes.map_or(Value::OfClients, Value::Is)
        }
        _ => Value::Unclear,
    }
}

/// NFTA_FIB_RESULT, NFTA_FIB_FLAGS: what the kernel thinks of an address.
pub(super) fn route(data: &[u8], probe: Probe<'_>) -> Value {
    let number = |kind| attribute(data, kind).and_then(big_endian);
    let (Some(result), Some(flags)) = (number(2), number(3)) else {
        return Value::Unclear;
    };
    let own = if probe.comes { DESTINATION } else { SOURCE };
    if probe.kind == Kind::Arp {
        return Value::Unclear;
    }
    if flags & own == 0 {
        // Of the other end.
        return Value::OfClients;
    }
    if result != ADDRESS_TYPE || flags & BY_INTERFACE != 0 || is_any(probe.service) {
        return Value::Unclear;
    }
    let is_solicitation = probe.kind == Kind::Neighbour && probe.comes;
    Value::number(if is_solicitation { MULTICAST } else { LOCAL })
}

/// Some service that the doctor asks for.
fn is_any(service: SocketAddr) -> bool {
    service.ip().is_unspecified()
}
