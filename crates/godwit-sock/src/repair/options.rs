//! What was negotiated, and what the application has set.

use std::os::fd::BorrowedFd;

use godwit_wire::TcpSnapshot;
use godwit_wire::snapshot::{Options, Settings};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::sys::{self, SockOptError};

/// include/uapi/linux/tcp.h: offsets in `struct tcp_info`.
const OPTIONS_AT: usize = 5;
const WSCALES_AT: usize = 6;
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
const TCPI_OPT_ECN: u8 = 8;

/// include/net/tcp.h: kinds of TCP options.
const TCPOPT_MSS: u32 = 2;
const TCPOPT_WINDOW: u32 = 3;
const TCPOPT_SACK_PERM: u32 = 4;
const TCPOPT_TIMESTAMP: u32 = 8;

/// include/net/sock.h: bits of `SO_BUF_LOCK`.
const SOCK_SNDBUF_LOCK: u32 = 1;
const SOCK_RCVBUF_LOCK: u32 = 2;

/// `TCP_CA_NAME_MAX`.
const CONGESTION_NAME: usize = 16;

pub(super) fn dump(fd: BorrowedFd<'_>) -> Result<Options, SockOptError> {
    let mut info = [0; WSCALES_AT + 1];
    sys::TCP_INFO.get_bytes(fd, &mut info)?;
    let (set, wscales) = (info[OPTIONS_AT], info[WSCALES_AT]);
    // In repair mode this is what the client announced (`mss_clamp`).
    let mss_clamp = sys::TCP_MAXSEG.get(fd)?;
    Ok(Options {
        sack: set & TCPI_OPT_SACK != 0,
        time_stamps: set & TCPI_OPT_TIMESTAMPS != 0,
        ecn: set & TCPI_OPT_ECN != 0,
        wscale: (set & TCPI_OPT_WSCALE != 0).then_some((wscales & 15, wscales >> 4)),
        mss_clamp: u16::try_from(mss_clamp).unwrap_or(u16::MAX),
    })
}

/// Of a socket that is connected and has nothing in its queues.
pub(super) fn restore(fd: BorrowedFd<'_>, options: Options) -> Result<(), SockOptError> {
    let mut told = vec![[TCPOPT_MSS, options.mss_clamp.into()]];
    if options.sack {
        told.push([TCPOPT_SACK_PERM, 0]);
    }
    if let Some((snd_wscale, rcv_wscale)) = options.wscale {
        let both = u32::from(snd_wscale) | u32::from(rcv_wscale) << 16;
        told.push([TCPOPT_WINDOW, both]);
    }
    if options.time_stamps {
        told.push([TCPOPT_TIMESTAMP, 0]);
    }
    // struct tcp_repair_opt
    let told = told.as_flattened().iter().copied().map(u32::to_ne_bytes);
    let bytes: Vec<u8> = told.flatten().collect();
    sys::TCP_REPAIR_OPTIONS.set_bytes(fd, &bytes)
}

/// Has the kernel count again how long segments may be. It did so when it
/// connected, before it was told what the client takes, and would not think of it
/// again; both of these options, set to nothing, make it (`icsk_sync_mss`).
pub(super) fn count_mss(fd: BorrowedFd<'_>, v6_flow: bool) -> Result<(), SockOptError> {
    if !v6_flow {
        return sys::IP_OPTIONS.set_bytes(fd, &[]);
    }
    // struct cmsghdr: one control message for IPv4, which IPv6 ignores. Without
    // any the call would do nothing.
    let length = size_of::<libc::cmsghdr>();
    let mut ignored = length.to_ne_bytes().to_vec();
    ignored.resize(length, 0);
    sys::IPV6_2292PKTOPTIONS.set_bytes(fd, &ignored)?;
    sys::IPV6_2292PKTOPTIONS.set_bytes(fd, &[])
}

/// `ipv6`: of which kind the socket is; `v6_flow`: and its segments.
pub(super) fn dump_settings(
    fd: BorrowedFd<'_>,
    ipv6: bool,
    v6_flow: bool,
) -> Result<Settings, SockOptError> {
    let locked = sys::SO_BUF_LOCK.get(fd)?;
    Ok(Settings {
        ipv6,
        nodelay: sys::TCP_NODELAY.get(fd)? != 0,
        cork: sys::TCP_CORK.get(fd)? != 0,
        keep_alive: sys::SO_KEEPALIVE.get(fd)? != 0,
        keep_idle: sys::TCP_KEEPIDLE.get(fd)?,
        keep_interval: sys::TCP_KEEPINTVL.get(fd)?,
        keep_count: sys::TCP_KEEPCNT.get(fd)?,
        user_timeout: sys::TCP_USER_TIMEOUT.get(fd)?,
        nonblocking: flags_of(fd)?.contains(OFlag::O_NONBLOCK),
        oob_inline: sys::SO_OOBINLINE.get(fd)? != 0,
        notsent_lowat: sys::TCP_NOTSENT_LOWAT.get(fd)?,
        linger: dump_linger(fd)?,
        traffic_class: u8::try_from(traffic_class(v6_flow).get(fd)?).unwrap_or(0),
        sndbuf: sys::SO_SNDBUF.get(fd)?,
        rcvbuf: sys::SO_RCVBUF.get(fd)?,
        sndbuf_locked: locked & SOCK_SNDBUF_LOCK != 0,
        rcvbuf_locked: locked & SOCK_RCVBUF_LOCK != 0,
    })
}

/// All but those that depend on what is in the queues.
pub(super) fn restore_settings(
    fd: BorrowedFd<'_>,
    settings: &Settings,
    v6_flow: bool,
) -> Result<(), SockOptError> {
    sys::TCP_NODELAY.set(fd, settings.nodelay.into())?;
    sys::TCP_KEEPIDLE.set(fd, settings.keep_idle)?;
    sys::TCP_KEEPINTVL.set(fd, settings.keep_interval)?;
    sys::TCP_KEEPCNT.set(fd, settings.keep_count)?;
    sys::TCP_USER_TIMEOUT.set(fd, settings.user_timeout)?;
    sys::SO_KEEPALIVE.set(fd, settings.keep_alive.into())?;
    sys::SO_OOBINLINE.set(fd, settings.oob_inline.into())?;
    traffic_class(v6_flow).set(fd, settings.traffic_class.into())?;
    if let Some(seconds) = settings.linger {
        // struct linger
        let bytes = [1, seconds].map(u32::to_ne_bytes);
        sys::SO_LINGER.set_bytes(fd, bytes.as_flattened())?;
    }
    if settings.nonblocking {
        let flags = flags_of(fd)? | OFlag::O_NONBLOCK;
        fcntl(fd, FcntlArg::F_SETFL(flags)).map_err(|e| sys::refused("fcntl", e))?;
    }
    Ok(())
}

/// Room for queues that hold more than they may.
pub(super) fn make_room(fd: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> Result<(), SockOptError> {
    let (settings, queues) = (&snapshot.settings, &snapshot.queues);
    // A queue of a snapshot is far shorter than 4 GiB.
    let size = |queue: &[u8]| u32::try_from(queue.len()).unwrap_or(u32::MAX);
    // Twice this is what the kernel makes of it.
    sys::SO_RCVBUFFORCE.set(fd, settings.rcvbuf / 2 + size(&queues.recv))?;
    sys::SO_SNDBUFFORCE.set(fd, settings.sndbuf / 2 + size(&queues.send))?;
    sys::TCP_NOTSENT_LOWAT.set(fd, i32::MAX.cast_unsigned())
}

/// The limits that the socket had, once its queues are full: or they would grow
/// with each move.
pub(super) fn restore_limits(fd: BorrowedFd<'_>, settings: &Settings) -> Result<(), SockOptError> {
    sys::TCP_NOTSENT_LOWAT.set(fd, settings.notsent_lowat)?;
    sys::SO_SNDBUFFORCE.set(fd, settings.sndbuf / 2)?;
    sys::SO_RCVBUFFORCE.set(fd, settings.rcvbuf / 2)?;
    // To ask for a size has switched the kernel's own tuning off.
    let locks = [
        (settings.sndbuf_locked, SOCK_SNDBUF_LOCK),
        (settings.rcvbuf_locked, SOCK_RCVBUF_LOCK),
    ];
    let locked = locks.iter().filter(|(set, _)| *set).map(|(_, bit)| bit);
    sys::SO_BUF_LOCK.set(fd, locked.sum())?;
    sys::TCP_CORK.set(fd, settings.cork.into())
}

const fn traffic_class(v6_flow: bool) -> sys::Opt {
    if v6_flow {
        sys::IPV6_TCLASS
    } else {
        sys::IP_TOS
    }
}

fn dump_linger(fd: BorrowedFd<'_>) -> Result<Option<u32>, SockOptError> {
    let mut linger = [0; 8];
    sys::SO_LINGER.get_bytes(fd, &mut linger)?;
    let [on, seconds] =
        [0, 4].map(|at| linger[at..].first_chunk().copied().map(u32::from_ne_bytes));
    Ok(seconds.filter(|_| on.is_some_and(|on| on != 0)))
}

fn flags_of(fd: BorrowedFd<'_>) -> Result<OFlag, SockOptError> {
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|e| sys::refused("fcntl", e))?;
    Ok(OFlag::from_bits_retain(flags))
}

pub(super) fn congestion_name(fd: BorrowedFd<'_>) -> Result<Vec<u8>, SockOptError> {
    let mut name = [0; CONGESTION_NAME];
    let filled = sys::TCP_CONGESTION.get_bytes(fd, &mut name)?;
    let name = name[..filled].split(|byte| *byte == 0).next();
    Ok(name.unwrap_or_default().to_vec())
}
