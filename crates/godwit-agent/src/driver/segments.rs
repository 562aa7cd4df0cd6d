//! The few segments that the agent itself sends, from what the data path knows
//! of a flow. Pure.

use godwit_bpf::{FlowState, HalfOpen};
use godwit_core::MonoTime;
use godwit_wire::{
    Endpoint, EthernetHeader, MacAddr, Segment, SeqNumber, TcpFlags, TcpOptions, TimeStamps,
};

/// Lead of TSval after a takeover: what pacing may have put ahead.
const TS_MARGIN_MS: u64 = 2;

/// Segments that may be under way before a client has answered (RFC 6928).
const INITIAL_WINDOW: u32 = 10;

/// An ACK that says all that our kernel has.
pub(super) fn ack(flow: &FlowState, now: MonoTime) -> Option<Vec<u8>> {
    to_client(flow, flow.send_next(), &[], now)
}

/// One byte that the client has already acknowledged: it answers with its true
/// acknowledgement and window, or with RST if the connection is gone. Without
/// the byte, today's clients answer at most twice a second.
pub(super) fn probe(flow: &FlowState, now: MonoTime) -> Option<Vec<u8>> {
    to_client(flow, SeqNumber(flow.snd_una.0.wrapping_sub(1)), &[0], now)
}

/// As [`probe`], of a client that knows more than we do: also of a right edge that
/// must not retreat, so there is no limit to it. Nobody serves the connection.
pub(super) fn last_probe(flow: &FlowState, now: MonoTime) -> Option<Vec<u8>> {
    let seq = SeqNumber(flow.snd_una.0.wrapping_sub(1));
    let segment = Segment {
        wnd: u16::MAX,
        ..client_segment(flow, seq, &[0], now)
    };
    segment.to_packet().ok()
}

/// Ends a connection that nobody can serve. A client that has not got all that
/// was sent asks back (RFC 5961 section 3.2), and the kernel answers.
pub(super) fn reset(flow: &FlowState) -> Option<Vec<u8>> {
    let segment = Segment {
        seq: flow.send_next(),
        ack: flow.rcv_nxt,
        flags: TcpFlags::RST.with(TcpFlags::ACK),
        ..bare(flow.id.key.service, flow.id.key.client)
    };
    segment.to_packet().ok()
}

/// The client's last word to an owner's kernel, with its true window: the leash
/// had kept that from it.
pub(super) fn client_window(flow: &FlowState) -> Option<Vec<u8>> {
    let room = flow.snd_edge.checked_distance(flow.snd_una).unwrap_or(0);
    let segment = Segment {
        seq: flow.rcv_nxt,
        ack: flow.snd_una,
        wnd: u16::try_from(room >> (flow.snd_wscale & 15)).unwrap_or(u16::MAX),
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val: ts.client_val,
            ts_ecr: ts.client_ecr,
        })),
        ..bare(flow.id.key.client, flow.id.key.service)
    };
    segment.to_packet().ok()
}

/// What the client would say to a twin: it has everything before `snd_una`.
/// Already gated as the tap would do it.
pub(super) fn client_ack(flow: &FlowState, snd_una: SeqNumber) -> Option<Vec<u8>> {
    let room = snd_una.checked_distance(flow.snd_nxt).unwrap_or(0);
    let wnd = u16::try_from(room >> (flow.snd_wscale & 15)).unwrap_or(u16::MAX);
    let segment = Segment {
        seq: flow.rcv_nxt,
        ack: flow.snd_nxt,
        // Less than a unit is offered as one: the gate holds what is too much.
        wnd: if room > 0 { wnd.max(1) } else { 0 },
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val: ts.client_val,
            ts_ecr: ts.own_val,
        })),
        ..bare(flow.id.key.client, flow.id.key.service)
    };
    segment.to_packet().ok()
}

/// What an idle client has said last, to a twin that serves it now: until the
/// takeover its window was shut. Opened as slowly as by the data path
/// (`gw_ramp_edge`).
pub(super) fn client_offer(flow: &FlowState) -> Option<Vec<u8>> {
    let ramp = flow.snd_una + INITIAL_WINDOW * u32::from(flow.mss);
    let edge = flow.snd_edge.min(ramp);
    let ack = flow.snd_nxt.min(flow.snd_una);
    let room = edge.checked_distance(ack).unwrap_or(0) >> (flow.snd_wscale & 15);
    let segment = Segment {
        seq: flow.rcv_nxt,
        ack,
        wnd: u16::try_from(room).unwrap_or(u16::MAX),
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val: ts.client_val,
            ts_ecr: ts.own_val,
        })),
        ..bare(flow.id.key.client, flow.id.key.service)
    };
    segment.to_packet().ok()
}

/// What an owner has of a flow, for the standby that is to own it: nobody else
/// is to see it.
pub(super) fn owner_word(flow: &FlowState) -> Option<Vec<u8>> {
    let room = flow.rcv_edge.checked_distance(flow.rcv_nxt).unwrap_or(0);
    // Rounded up: an edge that the client knows must not retreat.
    let unit = 1_u32 << (flow.rcv_wscale & 15);
    let segment = Segment {
        seq: flow.snd_nxt,
        ack: flow.rcv_nxt,
        wnd: u16::try_from(room.div_ceil(unit)).unwrap_or(u16::MAX),
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val: ts.own_val.wrapping_add(ts.offset),
            ts_ecr: ts.client_val,
        })),
        ..bare(flow.id.key.service, flow.id.key.client)
    };
    segment.to_packet().ok()
}

/// How far the client was told that it may send before the standby had a twin of
/// the flow: it need not offer that yet, and must not offer less if it is to
/// serve it. With PSH, or it would be an [`owner_word`]. The acknowledgement is
/// such that the edge is exact.
pub(super) fn floor_word(flow: &FlowState) -> Option<Vec<u8>> {
    let floor = flow.floor?;
    let room = floor.checked_distance(flow.rcv_nxt)?;
    let unit = 1_u32 << (flow.rcv_wscale & 15);
    let wnd = u16::try_from(room.div_ceil(unit)).unwrap_or(u16::MAX);
    let segment = Segment {
        seq: flow.snd_nxt,
        ack: SeqNumber(floor.0.wrapping_sub(u32::from(wnd) * unit)),
        flags: TcpFlags::ACK.with(TcpFlags::PSH),
        wnd,
        ..bare(flow.id.key.service, flow.id.key.client)
    };
    segment.to_packet().ok()
}

/// What opens the window of a twin that is ours now: the client's last word, and
/// as much room as the last owner had under way, or a new connection has.
pub(super) fn opened_window(flow: &FlowState) -> Option<Vec<u8>> {
    let ack = flow.snd_nxt.min(flow.snd_una);
    let under_way = flow
        .twin_snd_nxt
        .checked_distance(flow.snd_una)
        .unwrap_or(0);
    let start = under_way.max(INITIAL_WINDOW * u32::from(flow.mss));
    let edge = flow.snd_edge.min(flow.snd_una + start);
    let room = edge.checked_distance(ack).unwrap_or(0);
    let segment = Segment {
        seq: flow.rcv_nxt,
        ack,
        wnd: u16::try_from(room >> (flow.snd_wscale & 15)).unwrap_or(u16::MAX),
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val: ts.client_val,
            ts_ecr: ts.own_val,
        })),
        ..bare(flow.id.key.client, flow.id.key.service)
    };
    segment.to_packet().ok()
}

/// What a client would ask to hear whether a twin is there: it answers with an
/// ACK at once (RFC 9293 section 3.8.4), which its gate sends to the owner.
pub(super) fn client_keep_alive(flow: &FlowState) -> Option<Vec<u8>> {
    let segment = Segment {
        seq: SeqNumber(flow.rcv_nxt.0.wrapping_sub(1)),
        ack: flow.snd_nxt,
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val: ts.client_val,
            ts_ecr: ts.own_val,
        })),
        ..bare(flow.id.key.client, flow.id.key.service)
    };
    segment.to_packet().ok()
}

/// The three segments of the flow's handshake, for a standby that missed some.
pub(super) fn handshake(flow: &FlowState) -> Option<[Vec<u8>; 3]> {
    let key = flow.id.key;
    let (irs, iss) = (flow.id.irs, flow.iss);
    let ecn = if flow.ecn { TcpFlags::ECE } else { TcpFlags(0) };
    let options = |mss, wscale, ts_val, ts_ecr| TcpOptions {
        mss: Some(mss),
        wscale: flow.wscale.then_some(wscale),
        sack_permitted: flow.sack,
        time_stamps: flow.ts.map(|_| TimeStamps { ts_val, ts_ecr }),
    };
    let ts = flow.ts.map_or((0, 0), |ts| (ts.client_val, ts.own_val));
    let syn = Segment {
        seq: irs,
        ack: SeqNumber(0),
        flags: if flow.ecn {
            TcpFlags::SYN.with(ecn).with(TcpFlags::CWR)
        } else {
            TcpFlags::SYN
        },
        options: options(flow.mss, flow.snd_wscale, ts.0, 0),
        ..bare(key.client, key.service)
    };
    let syn_ack = Segment {
        seq: iss,
        ack: irs + 1,
        flags: TcpFlags::SYN.with(TcpFlags::ACK).with(ecn),
        wnd: u16::MAX,
        options: options(flow.syn_ack_mss, flow.rcv_wscale, ts.1, ts.0),
        ..bare(key.service, key.client)
    };
    // Window 0: the twin sees only what the client has acknowledged anyway.
    let third = Segment {
        seq: irs + 1,
        ack: iss + 1,
        options: stamped(flow.ts.map(|_| TimeStamps {
            ts_val: ts.0,
            ts_ecr: ts.1,
        })),
        ..bare(key.client, key.service)
    };
    Some([
        syn.to_packet().ok()?,
        syn_ack.to_packet().ok()?,
        third.to_packet().ok()?,
    ])
}

/// The SYN-ACK of a handshake that the failed owner had answered. A client that
/// has it already answers with an ACK, from which the twin is made. Of a connection
/// that was given up some of it is not known, and its client answers all the same.
pub(super) fn syn_ack(half: &HalfOpen) -> Option<Vec<u8>> {
    let segment = Segment {
        seq: half.iss,
        ack: half.irs + 1,
        flags: TcpFlags::SYN.with(TcpFlags::ACK),
        wnd: half.wnd,
        options: TcpOptions {
            mss: (half.mss != 0).then_some(half.mss),
            wscale: half.rcv_wscale,
            sack_permitted: half.sack,
            time_stamps: half
                .ts
                .map(|(ts_val, ts_ecr)| TimeStamps { ts_val, ts_ecr }),
        },
        ..bare(half.key.service, half.key.client)
    };
    segment.to_packet().ok()
}

/// A part of a client's input, for a twin that is born late: sequence and
/// acknowledgement number, and a TSval that the twin can't take for old.
pub(super) fn replay(
    flow: &FlowState,
    (seq, ack): (SeqNumber, SeqNumber),
    ts_val: u32,
    payload: &[u8],
    fin: bool,
) -> Option<Vec<u8>> {
    let flags = TcpFlags::ACK.with(TcpFlags::PSH);
    let segment = Segment {
        seq,
        ack,
        flags: if fin {
            flags.with(TcpFlags::FIN)
        } else {
            flags
        },
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val,
            ts_ecr: ts.base,
        })),
        payload,
        ..bare(flow.id.key.client, flow.id.key.service)
    };
    segment.to_packet().ok()
}

/// What the owner's time stamp clock says now, as the client sees it.
pub(super) fn clock_of(flow: &FlowState, now: MonoTime) -> u32 {
    let Some(ts) = flow.ts else { return 0 };
    let since_ms = now.0.saturating_sub(ts.base_ns) / 1_000_000;
    let heard = SeqNumber(ts.base.wrapping_add(low_word(since_ms)));
    heard.max(SeqNumber(ts.own_val.wrapping_add(ts.offset))).0
}

/// A packet in an Ethernet frame.
pub(super) fn frame(destination: MacAddr, source: MacAddr, packet: &[u8]) -> Vec<u8> {
    EthernetHeader::frame_ip(destination, source, packet)
}

fn to_client(flow: &FlowState, seq: SeqNumber, payload: &[u8], now: MonoTime) -> Option<Vec<u8>> {
    client_segment(flow, seq, payload, now).to_packet().ok()
}

fn client_segment<'a>(
    flow: &FlowState,
    seq: SeqNumber,
    payload: &'a [u8],
    now: MonoTime,
) -> Segment<'a> {
    Segment {
        seq,
        ack: flow.rcv_nxt,
        wnd: flow.wnd,
        options: stamped(flow.ts.map(|ts| TimeStamps {
            ts_val: ts_val(flow, now),
            ts_ecr: ts.client_val,
        })),
        payload,
        ..bare(flow.id.key.service, flow.id.key.client)
    }
}

/// A TSval that the client can't take for old: our kernel's last one, or, for a
/// twin, what the owner's clock must say by now (RFC 7323 section 5.4).
/// The data path reckons in the same way (`gw_move_ts`).
fn ts_val(flow: &FlowState, now: MonoTime) -> u32 {
    let Some(ts) = flow.ts else { return 0 };
    if ts.own {
        return ts.own_val.wrapping_add(ts.offset);
    }
    let since_ms = now.0.saturating_sub(ts.base_ns) / 1_000_000;
    let age_ms = now.0.saturating_sub(flow.born_ns) / 1_000_000;
    let ahead = since_ms + TS_MARGIN_MS + age_ms / 1000;
    let owner = SeqNumber(ts.base.wrapping_add(low_word(ahead)));
    // Once the twin speaks for itself its clock may be ahead.
    owner.max(SeqNumber(ts.own_val.wrapping_add(ts.offset))).0
}

/// Time stamps wrap, so the lower half is all that counts.
fn low_word(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits")
}

fn stamped(time_stamps: Option<TimeStamps>) -> TcpOptions {
    TcpOptions {
        time_stamps,
        ..TcpOptions::default()
    }
}

fn bare(source: Endpoint, destination: Endpoint) -> Segment<'static> {
    Segment {
        source,
        destination,
        seq: SeqNumber(0),
        ack: SeqNumber(0),
        flags: TcpFlags::ACK,
        wnd: 0,
        options: TcpOptions::default(),
        payload: &[],
    }
}
