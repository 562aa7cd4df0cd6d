//! What a socket snapshot consists of, part by part.

use alloc::vec::Vec;

use super::TcpSnapshot;
use crate::cursor::{Reader, verify};
use crate::{ParseError, SeqNumber};

/// RFC 7323 section 2.3.
const MAX_WSCALE: u8 = 14;
/// `TCP_CA_NAME_MAX` with its final zero.
const MAX_NAME: usize = 15;

const SACK: u8 = 1 << 0;
const TIME_STAMPS: u8 = 1 << 1;
const WSCALE: u8 = 1 << 2;
const ECN: u8 = 1 << 3;

const NODELAY: u8 = 1 << 0;
const KEEP_ALIVE: u8 = 1 << 1;
const IPV6: u8 = 1 << 2;
const CORK: u8 = 1 << 3;
const NONBLOCKING: u8 = 1 << 4;
const OOB_INLINE: u8 = 1 << 5;
const SNDBUF_LOCKED: u8 = 1 << 6;
const RCVBUF_LOCKED: u8 = 1 << 7;
/// No application lingers for 136 years.
const NO_LINGER: u32 = u32::MAX;

/// What the two sides agreed on in their handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Time stamps (RFC 7323 section 3).
    pub time_stamps: bool,
    /// Congestion is told by marks (RFC 3168).
    pub ecn: bool,
    /// Shifts of the windows that the client and we announce, 0 to 14;
    /// `None` without window scaling.
    pub wscale: Option<(u8, u8)>,
    /// Maximum segment size that the client announced, in bytes.
    pub mss_clamp: u16,
}

/// `struct tcp_repair_window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Segment of the client that last changed its window.
    pub snd_wl1: SeqNumber,
    /// Window that the client offers, in bytes.
    pub snd_wnd: u32,
    /// Largest window that it has offered, in bytes.
    pub max_window: u32,
    /// Window that we offer, in bytes, from `rcv_wup` on.
    pub rcv_wnd: u32,
    /// `rcv_nxt` when we last told the client our window.
    pub rcv_wup: SeqNumber,
}

/// What congestion control has learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Congestion {
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Slow start threshold, in segments; `u32::MAX >> 1` before any loss.
    pub snd_ssthresh: u32,
    /// Smoothed round-trip time, in microseconds; 0 if none was measured.
    pub srtt_us: u32,
    /// Name of the algorithm as `TCP_CONGESTION` has it, 1 to 15 bytes.
    pub name: Vec<u8>,
}

/// Socket options that its application, or the kernel for it, has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent options, as the kernel has them"
)]
pub struct Settings {
    /// Whether it is a socket of IPv6: one that listens to both families takes
    /// IPv4 clients too.
    pub ipv6: bool,
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `SO_KEEPALIVE`.
    pub keep_alive: bool,
    /// `TCP_KEEPIDLE` in seconds.
    pub keep_idle: u32,
    /// `TCP_KEEPINTVL` in seconds.
    pub keep_interval: u32,
    /// `TCP_KEEPCNT`.
    pub keep_count: u32,
    /// `TCP_USER_TIMEOUT` in milliseconds; 0 is the kernel's own.
    pub user_timeout: u32,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `O_NONBLOCK` of the file.
    pub nonblocking: bool,
    /// `SO_OOBINLINE`.
    pub oob_inline: bool,
    /// `TCP_NOTSENT_LOWAT` in bytes; 0 is the kernel's own.
    pub notsent_lowat: u32,
    /// `SO_LINGER` in seconds, if it is on.
    pub linger: Option<u32>,
    /// `IP_TOS`, `IPV6_TCLASS`.
    pub traffic_class: u8,
    /// `SO_SNDBUF` as it reads: twice what was asked for, in bytes.
    pub sndbuf: u32,
    /// `SO_RCVBUF` likewise.
    pub rcvbuf: u32,
    /// Whether the application has chosen `sndbuf` (`SO_BUF_LOCK`); the kernel
    /// tunes it otherwise.
    pub sndbuf_locked: bool,
    /// `rcvbuf` likewise.
    pub rcvbuf_locked: bool,
}

/// Bytes that the socket holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Received and not yet read by the application.
    pub recv: Vec<u8>,
    /// Written by the application and not yet acknowledged by the client.
    pub send: Vec<u8>,
    /// How many at the end of `send` have never been sent.
    pub unsent: u32,
}

impl Options {
    pub(super) fn emit(self, out: &mut Vec<u8>) {
        let (snd_wscale, rcv_wscale) = self.wscale.unwrap_or_default();
        out.push(bits(&[
            (self.sack, SACK),
            (self.time_stamps, TIME_STAMPS),
            (self.ecn, ECN),
            (self.wscale.is_some(), WSCALE),
        ]));
        out.extend(self.mss_clamp.to_be_bytes());
        out.extend([snd_wscale, rcv_wscale]);
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let set = flags(reader, "socket: options", SACK | TIME_STAMPS | WSCALE | ECN)?;
        let mss_clamp = reader.u16("socket: mss_clamp")?;
        let snd_wscale = wscale(reader, "socket: snd_wscale")?;
        let rcv_wscale = wscale(reader, "socket: rcv_wscale")?;
        Ok(Self {
            sack: set & SACK != 0,
            time_stamps: set & TIME_STAMPS != 0,
            ecn: set & ECN != 0,
            wscale: (set & WSCALE != 0).then_some((snd_wscale, rcv_wscale)),
            mss_clamp,
        })
    }
}

impl Window {
    pub(super) fn emit(self, out: &mut Vec<u8>) {
        let fields = [
            self.snd_wl1.0,
            self.snd_wnd,
            self.max_window,
            self.rcv_wnd,
            self.rcv_wup.0,
        ];
        out.extend(fields.map(u32::to_be_bytes).as_flattened());
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            snd_wl1: reader.seq("socket: snd_wl1")?,
            snd_wnd: reader.u32("socket: snd_wnd")?,
            max_window: reader.u32("socket: max_window")?,
            rcv_wnd: reader.u32("socket: rcv_wnd")?,
            rcv_wup: reader.seq("socket: rcv_wup")?,
        })
    }
}

impl Congestion {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        for field in [self.snd_cwnd, self.snd_ssthresh, self.srtt_us] {
            out.extend(field.to_be_bytes());
        }
        let name = self.name.get(..MAX_NAME).unwrap_or(&self.name);
        out.push(u8::try_from(name.len()).unwrap_or(0));
        out.extend(name);
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        const NAME: &str = "socket: congestion control";
        let (snd_cwnd, snd_ssthresh, srtt_us) = (
            reader.u32("socket: snd_cwnd")?,
            reader.u32("socket: snd_ssthresh")?,
            reader.u32("socket: srtt_us")?,
        );
        let at = reader.at();
        let length = reader.u8(NAME)?;
        verify(
            (1..=MAX_NAME).contains(&usize::from(length)),
            NAME,
            at,
            length,
        )?;
        let at = reader.at();
        let name = reader.bytes(length.into(), NAME)?;
        let odd = name.iter().find(|byte| !byte.is_ascii_graphic());
        verify(odd.is_none(), NAME, at, odd.copied().unwrap_or_default())?;
        Ok(Self {
            snd_cwnd,
            snd_ssthresh,
            srtt_us,
            name: name.to_vec(),
        })
    }
}

impl Settings {
    pub(super) fn emit(self, out: &mut Vec<u8>) {
        out.push(bits(&[
            (self.nodelay, NODELAY),
            (self.keep_alive, KEEP_ALIVE),
            (self.ipv6, IPV6),
            (self.cork, CORK),
            (self.nonblocking, NONBLOCKING),
            (self.oob_inline, OOB_INLINE),
            (self.sndbuf_locked, SNDBUF_LOCKED),
            (self.rcvbuf_locked, RCVBUF_LOCKED),
        ]));
        out.push(self.traffic_class);
        let fields = [
            self.keep_idle,
            self.keep_interval,
            self.keep_count,
            self.user_timeout,
            self.notsent_lowat,
            self.linger.unwrap_or(NO_LINGER),
            self.sndbuf,
            self.rcvbuf,
        ];
        out.extend(fields.map(u32::to_be_bytes).as_flattened());
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let set = reader.u8("socket: settings")?;
        Ok(Self {
            cork: set & CORK != 0,
            nonblocking: set & NONBLOCKING != 0,
            oob_inline: set & OOB_INLINE != 0,
            sndbuf_locked: set & SNDBUF_LOCKED != 0,
            rcvbuf_locked: set & RCVBUF_LOCKED != 0,
            ipv6: set & IPV6 != 0,
            nodelay: set & NODELAY != 0,
            keep_alive: set & KEEP_ALIVE != 0,
            traffic_class: reader.u8("socket: traffic class")?,
            keep_idle: reader.u32("socket: keep-alive idle time")?,
            keep_interval: reader.u32("socket: keep-alive interval")?,
            keep_count: reader.u32("socket: keep-alive count")?,
            user_timeout: reader.u32("socket: user time-out")?,
            notsent_lowat: reader.u32("socket: notsent_lowat")?,
            linger: Some(reader.u32("socket: linger")?).filter(|it| *it != NO_LINGER),
            sndbuf: reader.u32("socket: sndbuf")?,
            rcvbuf: reader.u32("socket: rcvbuf")?,
        })
    }
}

impl Queues {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        emit_queue(&self.recv, out);
        out.extend(self.unsent.to_be_bytes());
        emit_queue(&self.send, out);
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        const UNSENT: &str = "socket: unsent bytes";
        let recv = parse_queue(reader, "socket: receive queue")?;
        let at = reader.at();
        let unsent = reader.u32(UNSENT)?;
        let send = parse_queue(reader, "socket: send queue")?;
        verify(super::length(&send) >= unsent, UNSENT, at, unsent)?;
        Ok(Self { recv, send, unsent })
    }
}

fn emit_queue(queue: &[u8], out: &mut Vec<u8>) {
    out.extend(super::length(queue).to_be_bytes());
    out.extend(queue);
}

/// Nothing is allocated that is not there.
fn parse_queue(reader: &mut Reader<'_>, what: &'static str) -> Result<Vec<u8>, ParseError> {
    let at = reader.at();
    let length = reader.u32(what)?;
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    verify(bytes <= TcpSnapshot::MAX_QUEUE, what, at, length)?;
    reader.bytes(bytes, what).map(<[u8]>::to_vec)
}

fn bits(flags: &[(bool, u8)]) -> u8 {
    flags
        .iter()
        .filter(|(set, _)| *set)
        .fold(0, |bits, (_, bit)| bits | bit)
}

fn flags(reader: &mut Reader<'_>, what: &'static str, known: u8) -> Result<u8, ParseError> {
    let at = reader.at();
    let bits = reader.u8(what)?;
    verify(bits & !known == 0, what, at, bits)?;
    Ok(bits)
}

fn wscale(reader: &mut Reader<'_>, what: &'static str) -> Result<u8, ParseError> {
    let at = reader.at();
    let shift = reader.u8(what)?;
    verify(shift <= MAX_WSCALE, what, at, shift)?;
    Ok(shift)
}
