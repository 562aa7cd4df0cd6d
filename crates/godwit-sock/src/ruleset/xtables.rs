//! Matches of iptables (include/uapi/linux/netfilter/x_tables.h), in rules of iptables-nft
//! and of iptables-legacy.

use super::probe::{Looked, Matches, Probe};

/// XT_CONNTRACK_STATE
const STATE: u16 = 1;

/// Whether a match of that name holds; `state` is what connection tracking says, if it has
/// seen the packet yet.
pub(super) fn matches(
    name: &str,
    info: &[u8],
    probe: Probe<'_>,
    state: Option<u32>,
    looked: &mut Looked,
) -> Matches {
    match name {
        "conntrack" => {
            looked.state = true;
            tracked(info, state).unwrap_or(Matches::Perhaps)
        }
        "state" => {
            looked.state = true;
            let mask = half(info, 0).map(u32::from);
            let holds = mask.zip(state).map(|(mask, state)| mask & state != 0);
            holds.map_or(Matches::Perhaps, Matches::of)
        }
        "tcp" => tcp(info, probe, looked).unwrap_or(Matches::Perhaps),
        "multiport" => multiport(info, probe).unwrap_or(Matches::Perhaps),
        "comment" => Matches::Yes,
        // What clients are or send, and how much of it.
        "connlimit" | "dscp" | "ecn" | "geoip" | "hashlimit" | "hl" | "iprange" | "limit"
        | "mac" | "quota" | "recent" | "rpfilter" | "set" | "statistic" | "string" | "tcpmss"
        | "tos" | "ttl" | "u32" => Matches::Perhaps,
        _ => {
            looked.unclear = true;
            Matches::Perhaps
        }
    }
}

/// struct xt_conntrack_mtinfo3: match_flags, invert_flags and state_mask stand behind four
/// pairs of addresses, what expires, and ports.
fn tracked(info: &[u8], state: Option<u32>) -> Option<Matches> {
    let [flags, inverted, mask] = [146, 148, 150].map(|at| half(info, at));
    let (flags, inverted, mask) = (flags?, inverted?, mask?);
    if flags & STATE == 0 {
        return None;
    }
    let holds = u32::from(mask) & state? != 0;
    let matches = Matches::of(holds).inverted(inverted & STATE != 0);
    // It looks at other things besides.
    Some(matches.and(if flags == STATE {
        Matches::Yes
    } else {
        Matches::Perhaps
    }))
}

/// struct xt_tcp
fn tcp(info: &[u8], probe: Probe<'_>, looked: &mut Looked) -> Option<Matches> {
    let source = (half(info, 0)?, half(info, 2)?);
    let destination = (half(info, 4)?, half(info, 6)?);
    let [option, mask, wanted, inverted] = *info.get(8..12)? else {
        return None;
    };
    let (own, other) = if probe.comes {
        ((destination, 2), (source, 1))
    } else {
        ((source, 1), (destination, 2))
    };
    let is_inverted = |bit: u8| inverted & bit != 0;
    let ((first, last), bit) = own;
    let own = Matches::of((first..=last).contains(&probe.service.port()));
    let (range, other_bit) = other;
    let other = match range {
        (0, u16::MAX) => Matches::Yes,
        _ => Matches::Perhaps,
    };
    looked.flags |= mask != 0;
    let flags = Matches::of(probe.flags & mask == wanted).inverted(is_inverted(4));
    let option = if option == 0 {
        Matches::Yes
    } else {
        Matches::Perhaps
    };
    let ports = own
        .inverted(is_inverted(bit))
        .and(other.inverted(is_inverted(other_bit)));
    Some(ports.and(flags).and(option))
}

/// struct xt_multiport_v1: flags, count, 15 ports, as many marks of ranges, invert.
fn multiport(info: &[u8], probe: Probe<'_>) -> Option<Matches> {
    const SOURCE: u8 = 0;
    const DESTINATION: u8 = 1;
    let (flags, count) = (*info.first()?, usize::from(*info.get(1)?));
    let is_own = match flags {
        SOURCE => !probe.comes,
        DESTINATION => probe.comes,
        _ => return None,
    };
    if !is_own {
        return None;
    }
    let is_inverted = *info.get(47)? != 0;
    let (mut at, mut holds) = (0, false);
    while at < count.min(15) {
        let first = half(info, 2 + 2 * at)?;
        let is_range = *info.get(32 + at)? != 0;
        at += usize::from(is_range);
        let last = half(info, 2 + 2 * at)?;
        holds |= (first..=last).contains(&probe.service.port());
        at += 1;
    }
    Some(Matches::of(holds).inverted(is_inverted))
}

fn half(info: &[u8], at: usize) -> Option<u16> {
    let bytes = info.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}
