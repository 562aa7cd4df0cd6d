//! Why a running flow can, or can't yet, be protected again. Pure.

use std::net::Ipv6Addr;

use godwit_bpf::{FlowState, LogState, Phase};
use godwit_wire::{Generation, UnprotectedReason};

/// The most output that a twin is made to repeat: sequence numbers of the flow
/// must not come round meanwhile. `GW_LOG_OUTPUT_MAX` in `gw_log.h`.
pub(crate) const MAX_OUTPUT: u64 = 1 << 30;

/// What an owner's flow that is not protected waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A standby in sync.
    Standby,
    /// Its turn: a twin can be made.
    Turn,
    /// The standby is making its twin.
    Twin,
    /// The twin repeats what was said.
    CatchUp,
    /// `reprotect = "off"`, `gate = "off"`, or no log was kept.
    Off,
    /// The client said more than `reprotect_cap` since the log began, or since its
    /// server exported its state.
    OverCap,
    /// There was no memory for the log.
    NoMemory,
    /// A part of the client's input is not in the log.
    LogIncomplete,
    /// The service has said too much since the log began.
    TooMuchOutput,
    /// The connection is about to end.
    Ending,
    /// Our own twin has not caught up since the takeover.
    TakeoverUnfinished,
    /// The standby gave its twin up; another will be tried.
    GivenUp,
    /// Its twin said other things, and so would the next.
    Diverged,
    /// The client has said urgent data since the log began.
    Urgent,
    /// Its segments are signed: no twin has the key.
    Signed,
    /// Its client takes segments so small that no kernel makes a twin of it.
    SmallMss,
}

impl Obstacle {
    /// The stable name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "no_standby",
            Self::Turn => "waiting",
            Self::Twin => "restoring",
            Self::CatchUp => "catching_up",
            Self::Off => "off",
            Self::OverCap => "over_cap",
            Self::NoMemory => "no_memory",
            Self::LogIncomplete => "log_incomplete",
            Self::TooMuchOutput => "too_much_output",
            Self::Ending => "ending",
            Self::TakeoverUnfinished => "takeover_unfinished",
            Self::GivenUp => "given_up",
            Self::Diverged => "diverged",
            Self::Urgent => "urgent_data",
            Self::Signed => "signed",
            Self::SmallMss => "small_mss",
        }
    }
}

/// What stands between an owner's flow and its protection by the standby of
/// that generation; `None` if it is protected, over, or on the ordinary way to
/// its first twin. `kept`: a twin begins at a snapshot.
pub(crate) fn obstacle(flow: &FlowState, in_sync: Generation, kept: bool) -> Option<Obstacle> {
    let current = !in_sync.is_none() && flow.generation == in_sync;
    let gated = flow.gated;
    match flow.phase {
        Phase::Ended => None,
        Phase::Confirming | Phase::Protected if current => None,
        Phase::Rejoining if current && gated => Some(Obstacle::CatchUp),
        Phase::Rejoining if current => Some(Obstacle::Twin),
        _ if flow.client_fin && flow.own_fin => Some(Obstacle::Ending),
        Phase::Confirming
        | Phase::Protected
        | Phase::Rejoining
        | Phase::Unprotected
        | Phase::Twin
        | Phase::Closed
        | Phase::Unknown(_) => Some(log_obstacle(flow, kept).unwrap_or_else(|| match current {
            _ if in_sync.is_none() => Obstacle::Standby,
            true if is_wrong(flow) => Obstacle::Diverged,
            // Its twin was late and is served by nobody: it may have another.
            true if flow.why == Some(UnprotectedReason::NotConfirmed) => Obstacle::Turn,
            true => Obstacle::GivenUp,
            false => Obstacle::Turn,
        })),
    }
}

const fn is_wrong(flow: &FlowState) -> bool {
    matches!(
        flow.why,
        Some(UnprotectedReason::DivergedLength | UnprotectedReason::DivergedContent)
    )
}

fn log_obstacle(flow: &FlowState, kept: bool) -> Option<Obstacle> {
    if flow.why == Some(UnprotectedReason::SignedSegments) {
        return Some(Obstacle::Signed);
    }
    if is_small(flow.id.key.client.addr, flow.mss) {
        return Some(Obstacle::SmallMss);
    }
    match flow.log.state {
        LogState::None => return Some(Obstacle::Off),
        LogState::Over | LogState::Begun => return Some(Obstacle::OverCap),
        LogState::Failed => return Some(Obstacle::NoMemory),
        LogState::Urgent => return Some(Obstacle::Urgent),
        LogState::Kept => {}
    }
    if flow.own_fin {
        return Some(Obstacle::Ending);
    }
    if flow.twin && flow.snd_nxt.lt(flow.snd_una) {
        return Some(Obstacle::TakeoverUnfinished);
    }
    // How near a snapshot is, is looked at where one is chosen.
    if flow.log.answered > MAX_OUTPUT && !kept {
        return Some(Obstacle::TooMuchOutput);
    }
    let fin = u32::from(has_fin(flow));
    if (flow.log.end + fin).lt(flow.rcv_nxt) {
        return Some(Obstacle::LogIncomplete);
    }
    None
}

/// Whether the client has announced a smaller MSS than those of which the kernel makes a
/// socket without a SYN of its own (0: it is not known).
pub(crate) fn is_small(client: Ipv6Addr, mss: u16) -> bool {
    let least = match client.to_ipv4_mapped() {
        Some(_) => 536,
        None => 1220,
    };
    mss != 0 && mss < least
}

/// Whether the client has ended its side right behind the log.
pub(crate) fn has_fin(flow: &FlowState) -> bool {
    flow.client_fin && flow.client_end == flow.log.end + 1
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_least_mss_of_a_twin_is_the_familys() {
        for (client, least) in [
            (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 536),
            (Ipv6Addr::LOCALHOST, 1220),
        ] {
            let small = [0, 1, 400, least - 1, least, 1460].map(|mss| is_small(client, mss));
            assert_eq!(small, [false, true, true, true, false, false], "{client}");
        }
    }
}
