//! `gw_flows`: the flows that this node owns or shadows. Read-only here; what
//! the agent changes goes through [`crate::Orders`].

use std::sync::Arc;

use godwit_wire::{
    Endpoint, FlowId, FlowKey, Generation, MacAddr, SeqNumber, ShareId, UnprotectedReason,
};
use libbpf_rs::MapHandle;

use super::log::FlowLog;
use super::scan::Scan;
use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::{gw_flow_flags as Flag, gw_phase as Raw};

const _: () = assert!(size_of::<types::gw_flow>() == 368);

/// Life of a flow on this node (`enum gw_phase`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Owner: gated, no twin has answered yet.
    Confirming,
    /// Owner: a twin holds all that the client was told.
    Protected,
    /// Owner: not gated.
    Unprotected,
    /// Shadow: a silent twin.
    Twin,
    /// Shadow: the twin reset before the flow ended.
    Closed,
    /// Both FINs acknowledged, or reset.
    Ended,
    /// Owner: a twin is being made of it while it runs.
    Rejoining,
    /// A number that this version does not know.
    Unknown(u8),
}

impl Phase {
    const fn from_number(number: u8) -> Self {
        match Raw(number as u32) {
            Raw::GW_PHASE_CONFIRMING => Self::Confirming,
            Raw::GW_PHASE_PROTECTED => Self::Protected,
            Raw::GW_PHASE_UNPROTECTED => Self::Unprotected,
            Raw::GW_PHASE_TWIN => Self::Twin,
            Raw::GW_PHASE_CLOSED => Self::Closed,
            Raw::GW_PHASE_ENDED => Self::Ended,
            Raw::GW_PHASE_REJOINING => Self::Rejoining,
            _ => Self::Unknown(number),
        }
    }

    /// Name in outputs, stable.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirming => "confirming",
            Self::Protected => "protected",
            Self::Unprotected => "unprotected",
            Self::Twin => "twin",
            Self::Closed => "closed",
            Self::Ended => "ended",
            Self::Rejoining => "rejoining",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// One flow as the data path has it at this moment. Sequence fields are those
/// of RFC 9293, seen from the service.
///
/// It mirrors `struct gw_flow` and its flags, which are as flat: whoever reads one finds each
/// field in the other.
#[derive(Debug, Clone, Copy)]
pub struct FlowState {
    /// Which flow.
    pub id: FlowId,
    /// Of which share.
    pub share: ShareId,
    /// Of the standby that saw its handshake.
    pub generation: Generation,
    /// Where it stands.
    pub phase: Phase,
    /// Why it is not protected.
    pub why: Option<UnprotectedReason>,
    /// Whether the gate was closed for it; holds only for its generation.
    pub gated: bool,
    /// Whether its socket was materialised here.
    pub twin: bool,
    /// Whether that socket has spoken.
    pub twin_seen: bool,
    /// Shadow: must not be served at a takeover.
    pub not_in_sync: bool,
    /// Shadow: the kernel has closed the twin of a process that ended, and the
    /// owner has not closed, so the stream would end too early here.
    pub cut_short: bool,
    /// Shadow: client and owner have both closed, and the client has heard the
    /// owner out.
    pub parted: bool,
    /// Owner: whether its process has died, and its segments are held back.
    pub orphaned: bool,
    /// Whether the owner is held back for the twin's application.
    pub leashed: bool,
    /// Whether the client has sent its FIN.
    pub client_fin: bool,
    /// Whether the service has sent its FIN.
    pub own_fin: bool,
    /// Whether each side has the other's FIN, though the client may not have been told.
    pub through: bool,
    /// Initial sequence number of the service.
    pub iss: SeqNumber,
    /// First byte of the client that the socket here was to have: `irs` + 1, or
    /// later if it was made while the flow ran.
    pub birth: SeqNumber,
    /// First byte that it was to say.
    pub birth_ack: SeqNumber,
    /// First byte that the client has not acknowledged.
    pub snd_una: SeqNumber,
    /// First byte that has not been sent (owner) or reflected (twin).
    pub snd_nxt: SeqNumber,
    /// Twin: end of the output that its kernel has shown, sent or not.
    pub shown_end: SeqNumber,
    /// Next byte that our own kernel expects.
    pub rcv_nxt: SeqNumber,
    /// Next byte that the client knows to be expected.
    pub told_ack: SeqNumber,
    /// Right edge of the window that the client knows.
    pub told_edge: SeqNumber,
    /// Right edge that the client was told of while its owner had no twin of the
    /// flow, as long as not every kernel offers that.
    pub floor: Option<SeqNumber>,
    /// Next byte that the twin expects, as the owner knows it.
    pub twin_ack: SeqNumber,
    /// How far the twin's application has answered, as the owner knows it.
    pub twin_snd_nxt: SeqNumber,
    /// End of what the client has sent.
    pub client_end: SeqNumber,
    /// Right edge of the window that the client offers.
    pub snd_edge: SeqNumber,
    /// Right edge of the window that our kernel offers.
    pub rcv_edge: SeqNumber,
    /// Window field to announce now.
    pub wnd: u16,
    /// MSS that the client announced.
    pub mss: u16,
    /// MSS that the service announced.
    pub syn_ack_mss: u16,
    /// Shift of the client's windows.
    pub snd_wscale: u8,
    /// Shift of the service's windows.
    pub rcv_wscale: u8,
    /// Whether both sides scale windows.
    pub wscale: bool,
    /// Whether both sides do selective acknowledgements.
    pub sack: bool,
    /// Whether client and service agreed on ECN.
    pub ecn: bool,
    /// Time stamps, if both sides use them.
    pub ts: Option<FlowTimestamps>,
    /// Next hop towards the client.
    pub client_mac: MacAddr,
    /// Bytes received from the client.
    pub bytes_in: u64,
    /// Bytes sent (owner) or reflected (twin).
    pub bytes_out: u64,
    /// When the handshake ended, CLOCK_BOOTTIME nanoseconds.
    pub born_ns: u64,
    /// When the client last spoke.
    pub heard_ns: u64,
    /// Since when an ACK is held back; 0: none is.
    pub held_ns: u64,
    /// Round-trip time of its handshake, in nanoseconds.
    pub rtt_ns: u64,
    /// When it became protected again while it ran; 0: never.
    pub rejoined_ns: u64,
    /// What is kept of the client's input.
    pub log: FlowLog,
}

/// RFC 7323 time stamps of a flow.
#[derive(Debug, Clone, Copy)]
pub struct FlowTimestamps {
    /// Latest TSval of the client.
    pub client_val: u32,
    /// Latest TSecr of the client.
    pub client_ecr: u32,
    /// The least that the owner's clock said at `base_ns`.
    pub base: u32,
    /// When, CLOCK_BOOTTIME nanoseconds.
    pub base_ns: u64,
    /// Latest TSval of our own kernel, before the offset.
    pub own_val: u32,
    /// Added to it on the way out.
    pub offset: u32,
    /// Whether `base` is our own clock with that, and not the last owner's.
    pub own: bool,
}

impl FlowState {
    /// Whether a takeover would keep it now: gated and confirmed, by a standby
    /// of the generation that is in sync.
    pub fn is_protected(&self, in_sync: Generation) -> bool {
        self.gated
            && self.phase == Phase::Protected
            && !in_sync.is_none()
            && self.generation == in_sync
    }

    /// Owner: whether it was a twin at a takeover, and has had no other twin since.
    pub fn is_taken_over(&self) -> bool {
        self.phase == Phase::Unprotected && self.why == Some(UnprotectedReason::AfterTakeover)
    }

    /// Sequence number of a segment without data now. A twin that lags speaks
    /// from where the client is: what lies before is old to it.
    pub fn send_next(&self) -> SeqNumber {
        self.snd_nxt.max(self.snd_una)
    }

    /// Shadow: whether a new twin of `flow` may take its place. It is the same
    /// connection, and nobody would serve it. Another may be a later one, which its
    /// owner counts on; if that is over, the wish for the earlier one came late all
    /// the same, and while its entry lingers there is none.
    pub fn gives_way_to(&self, flow: FlowId) -> bool {
        let is_served = !self.not_in_sync && self.phase != Phase::Closed;
        self.id == flow && (self.phase == Phase::Ended || !is_served)
    }

    /// Whether an acknowledgement or a window of our kernel is withheld from
    /// the client.
    pub fn is_held(&self) -> bool {
        self.told_ack.lt(self.rcv_nxt) || self.told_edge.lt(self.rcv_edge)
    }
}

/// Typed access to `gw_flows`.
#[derive(Debug)]
pub struct FlowTable(TypedMap<types::gw_flow_key, types::gw_flow>, Arc<Slots>);

impl FlowTable {
    pub(crate) fn new(handle: MapHandle, slots: Arc<Slots>) -> Self {
        Self(TypedMap::new(handle, "gw_flows"), slots)
    }

    /// One flow.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn get(&self, key: FlowKey) -> Result<Option<FlowState>, MapError> {
        let raw_key = types::gw_flow_key::from(key);
        Ok(self
            .0
            .lookup(&raw_key)?
            .map(|raw| flow_state(raw_key, &raw, self.1.share_at(raw.share))))
    }

    /// How many flows there is room for.
    pub fn room(&self) -> u32 {
        self.0.max_entries()
    }

    /// Some flows, at most `most`; which is not said.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn some(&self, most: usize) -> Result<Vec<FlowKey>, MapError> {
        let keys = self.0.some_keys(most)?;
        Ok(keys.into_iter().map(FlowKey::from).collect())
    }

    /// Calls `each` for every flow; those that come or go meanwhile may be
    /// missed or seen.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn for_each(&self, mut each: impl FnMut(FlowState)) -> Result<(), MapError> {
        self.0
            .for_each(|key, raw| each(flow_state(key, &raw, self.1.share_at(raw.share))))
    }

    /// As [`FlowTable::for_each`], for the next thousand flows or so of a look that goes on in
    /// steps; whether these were the last ones.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read; the next step begins anew.
    pub fn step(&self, scan: &mut Scan, mut each: impl FnMut(FlowState)) -> Result<bool, MapError> {
        let each = |key, raw: types::gw_flow| {
            each(flow_state(key, &raw, self.1.share_at(raw.share)));
        };
        self.0.step(scan, each)
    }
}

/// As the data path judges it (`gw_is_cut_short`), before it has served.
fn is_cut_short(raw: &types::gw_flow) -> bool {
    let (own, any) = (
        Flag::GW_FLOW_TWIN.0 | Flag::GW_FLOW_OWN_FIN.0 | Flag::GW_FLOW_EXITED.0,
        Flag::GW_FLOW_OWNER_FIN.0 | Flag::GW_FLOW_CLIENT_FIN.0 | Flag::GW_FLOW_ADOPTED.0,
    );
    raw.flags & (own | any) == own && SeqNumber(raw.client.ack).lt(SeqNumber(raw.own.fin))
}

fn is_parted(raw: &types::gw_flow) -> bool {
    let fins = Flag::GW_FLOW_CLIENT_FIN.0 | Flag::GW_FLOW_OWNER_FIN.0;
    raw.flags & fins == fins && SeqNumber(raw.client.ack).ge(SeqNumber(raw.own.fin))
}

/// What to announce, rounded up as the kernel does. As `gw_floored`: a window
/// that is shut stays shut.
fn window(raw: &types::gw_flow) -> u32 {
    let ack = raw.own.ack;
    let room = raw.own.edge.wrapping_sub(ack);
    let edge = SeqNumber(raw.own.edge);
    let floor = floor(raw).filter(|floor| room > 0 && floor.gt(edge));
    let told = floor.map_or(room, |floor| floor.0.wrapping_sub(ack));
    told.div_ceil(1 << (raw.rcv_wscale & 15))
}

fn floor(raw: &types::gw_flow) -> Option<SeqNumber> {
    (raw.flags & Flag::GW_FLOW_FLOOR.0 != 0).then_some(SeqNumber(raw.floor))
}

/// A twin that is made of a running flow has tried nothing at first.
fn shown_end(raw: &types::gw_flow) -> SeqNumber {
    let sent = SeqNumber(raw.own.snd_nxt);
    match raw.own.tried {
        0 => sent,
        tried => sent.max(SeqNumber(tried)),
    }
}

fn time_stamps(raw: &types::gw_flow) -> FlowTimestamps {
    let has = |flag: Flag| raw.flags & flag.0 != 0;
    FlowTimestamps {
        client_val: raw.client.ts_val,
        client_ecr: raw.client.ts_ecr,
        base: raw.client.ts_base,
        base_ns: raw.client.ts_base_ns,
        own_val: raw.own.ts_val,
        offset: raw.own.ts_off,
        own: !has(Flag::GW_FLOW_TWIN) || has(Flag::GW_FLOW_TS_MOVED),
    }
}

/// Earlier versions left a flow that was taken over in the phase of a twin.
fn phase(raw: &types::gw_flow) -> Phase {
    if raw.flags & Flag::GW_FLOW_OVER.0 != 0 {
        return Phase::Ended;
    }
    let phase = Phase::from_number(raw.phase);
    if phase == Phase::Twin && raw.flags & Flag::GW_FLOW_ADOPTED.0 != 0 {
        return Phase::Unprotected;
    }
    phase
}

fn flow_state(raw_key: types::gw_flow_key, raw: &types::gw_flow, share: ShareId) -> FlowState {
    let key = FlowKey {
        client: Endpoint::from(raw_key.client),
        service: Endpoint::from(raw_key.service),
    };
    let has = |flag: Flag| raw.flags & flag.0 != 0;
    let wnd = window(raw);
    FlowState {
        id: FlowId {
            key,
            irs: SeqNumber(raw.irs),
        },
        share,
        generation: Generation(raw.generation),
        phase: phase(raw),
        why: UnprotectedReason::ALL
            .iter()
            .copied()
            .find(|reason| reason.number() == raw.why),
        gated: has(Flag::GW_FLOW_GATED),
        twin: has(Flag::GW_FLOW_TWIN),
        twin_seen: has(Flag::GW_FLOW_TWIN_SEEN),
        not_in_sync: has(Flag::GW_FLOW_NOT_IN_SYNC),
        cut_short: is_cut_short(raw),
        parted: is_parted(raw),
        orphaned: has(Flag::GW_FLOW_ORPHANED),
        leashed: has(Flag::GW_FLOW_LEASHED),
        client_fin: has(Flag::GW_FLOW_CLIENT_FIN),
        own_fin: has(Flag::GW_FLOW_OWN_FIN),
        through: has(Flag::GW_FLOW_CLIENT_FIN)
            && has(Flag::GW_FLOW_OWN_FIN)
            && SeqNumber(raw.own.fin).le(SeqNumber(raw.client.ack))
            && SeqNumber(raw.client.fin).le(SeqNumber(raw.own.ack)),
        iss: SeqNumber(raw.iss),
        birth: SeqNumber(raw.birth),
        birth_ack: SeqNumber(raw.birth_ack),
        snd_una: SeqNumber(raw.client.ack),
        snd_nxt: SeqNumber(raw.own.snd_nxt),
        shown_end: shown_end(raw),
        rcv_nxt: SeqNumber(raw.own.ack),
        told_ack: SeqNumber(raw.gated.told_ack),
        told_edge: SeqNumber(raw.gated.told_edge),
        floor: floor(raw),
        twin_ack: SeqNumber(raw.gated.twin_ack),
        twin_snd_nxt: SeqNumber(raw.gated.twin_snd_nxt),
        client_end: SeqNumber(raw.client.end),
        snd_edge: SeqNumber(raw.client.edge),
        rcv_edge: SeqNumber(raw.own.edge),
        wnd: u16::try_from(wnd).unwrap_or(u16::MAX),
        mss: raw.mss,
        syn_ack_mss: raw.syn_ack_mss,
        snd_wscale: raw.snd_wscale,
        rcv_wscale: raw.rcv_wscale,
        wscale: has(Flag::GW_FLOW_WSCALE),
        sack: has(Flag::GW_FLOW_SACK),
        ecn: has(Flag::GW_FLOW_ECN),
        ts: has(Flag::GW_FLOW_TS).then(|| time_stamps(raw)),
        client_mac: MacAddr(raw.client.mac),
        bytes_in: raw.bytes_in,
        bytes_out: raw.bytes_out,
        born_ns: raw.born_ns,
        heard_ns: raw.client.heard_ns,
        held_ns: raw.gated.held_ns,
        rtt_ns: raw.rtt_ns,
        rejoined_ns: raw.rejoined_ns,
        log: FlowLog::new(raw),
    }
}
