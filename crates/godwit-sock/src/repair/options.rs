//! What was negotiated, and what the application has set.

use std::os::fd::BorrowedFd;

use godwit_wire::snapshot::{Options, Settings};

use super::sys::{self, SockOptError};

/// include/uapi/linux/tcp.h: offsets in `struct tcp_info`.
const OPTIONS_AT: usize = 5;
const WSCALES_AT: usize = 6;
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;

/// include/net/tcp.h: kinds of TCP options.
const TCPOPT_MSS: u32 = 2;
const TCPOPT_WINDOW: u32 = 3;
const TCPOPT_SACK_PERM: u32 = 4;
const TCPOPT_TIMESTAMP: u32 = 8;

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

pub(super) fn dump_settings(fd: BorrowedFd<'_>, ipv6: bool) -> Result<Settings, SockOptError> {
    Ok(Settings {
        ipv6,
        nodelay: sys::TCP_NODELAY.get(fd)? != 0,
        keep_alive: sys::SO_KEEPALIVE.get(fd)? != 0,
        keep_idle: sys::TCP_KEEPIDLE.get(fd)?,
        keep_interval: sys::TCP_KEEPINTVL.get(fd)?,
        keep_count: sys::TCP_KEEPCNT.get(fd)?,
        user_timeout: sys::TCP_USER_TIMEOUT.get(fd)?,
        sndbuf: sys::SO_SNDBUF.get(fd)?,
        rcvbuf: sys::SO_RCVBUF.get(fd)?,
    })
}

/// All but the buffers, whose sizes depend on what is in them.
pub(super) fn restore_settings(
    fd: BorrowedFd<'_>,
    settings: &Settings,
) -> Result<(), SockOptError> {
    sys::TCP_NODELAY.set(fd, settings.nodelay.into())?;
    sys::TCP_KEEPIDLE.set(fd, settings.keep_idle)?;
    sys::TCP_KEEPINTVL.set(fd, settings.keep_interval)?;
    sys::TCP_KEEPCNT.set(fd, settings.keep_count)?;
    sys::TCP_USER_TIMEOUT.set(fd, settings.user_timeout)?;
    sys::SO_KEEPALIVE.set(fd, settings.keep_alive.into())
}

pub(super) fn congestion_name(fd: BorrowedFd<'_>) -> Result<Vec<u8>, SockOptError> {
    let mut name = [0; CONGESTION_NAME];
    let filled = sys::TCP_CONGESTION.get_bytes(fd, &mut name)?;
    let name = name[..filled].split(|byte| *byte == 0).next();
    Ok(name.unwrap_or_default().to_vec())
}
