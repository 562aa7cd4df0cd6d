//! A device that keeps packets back while their connection is on its way here.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Mutex, PoisonError};

use godwit_wire::{Segment, TcpFlags, TcpSnapshot};
use nix::sys::socket::SockProtocol;

use crate::netlink::{NLM_F_ACK, NLM_F_CREATE, Netlink, push_attribute};

/// Longest packet of IP without jumbograms.
const MOST_PACKET: usize = 65_536;

// include/uapi/linux/if_tun.h
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const IFF_TUN: i16 = 0x0001;
const IFF_NO_PI: i16 = 0x1000;
// rtnetlink(7), include/uapi/linux/if_link.h
const RTM_SETLINK: u16 = 19;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
/// include/uapi/linux/ip.h
const IPV4_DEVCONF_RP_FILTER: u16 = 8;
/// A client's packet comes from a device that does not lead to it: any route
/// back will do. Off would be overruled by `net.ipv4.conf.all.rp_filter`.
const RP_FILTER_LOOSE: u32 = 2;
// rtnetlink(7), include/uapi/linux/if_addr.h
const RTM_NEWADDR: u16 = 20;
const IFA_LOCAL: u16 = 2;
const RT_SCOPE_HOST: u8 = 254;
/// The dummy address (RFC 7600 section 4.8): a device without any takes nothing
/// that its own routes do not lead to, whatever its filter.
const DUMMY: [u8; 4] = [192, 0, 0, 8];

/// A tun device. What the data path redirects to it waits here, and what is put
/// back enters this machine's stack as if it had just arrived.
///
/// The device is gone when this is dropped, and what waits with it.
#[derive(Debug)]
pub struct HoldTun {
    file: File,
    index: u32,
    /// Room for a packet: to make it anew for each look takes longer than the look.
    room: Mutex<Vec<u8>>,
}

impl HoldTun {
    /// Packets that the device holds for its reader; each is at most a segment.
    pub const QUEUE: u32 = 10_000;

    /// Makes the device and brings it up, in the network namespace of the calling
    /// thread. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// If /dev/net/tun is missing, the name (at most 15 bytes) is taken, or the
    /// kernel refuses.
    pub fn open(name: &str) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        claim(&file, name)?;
        let index = nix::net::if_::if_nametoindex(name)?;
        let netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
        netlink.request(RTM_SETLINK, NLM_F_ACK, &configuration(index))?;
        // Not in one: the kernel would bring it up first, with an IPv6 address.
        netlink.request(RTM_SETLINK, NLM_F_ACK, &link(index, libc::IFF_UP))?;
        netlink.request(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE, &address(index))?;
        Ok(Self {
            file,
            index,
            room: Mutex::new(vec![0; MOST_PACKET]),
        })
    }

    /// Its index in this network namespace.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The packet that has waited longest; `None` if none waits.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn take(&self) -> io::Result<Option<Vec<u8>>> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.file).read(&mut room) {
            Ok(length) => Ok(room.get(..length).map(<[u8]>::to_vec)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Hands a packet to this machine's stack; when this returns it has been
    /// taken in or dropped.
    ///
    /// # Errors
    /// If it is no IP packet, or the device is gone.
    pub fn put_back(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write_all(packet)
    }
}

/// Whether a packet that was held says nothing that the restored socket does not
/// know: no data, no new acknowledgement (plain or selective), no other window. Put
/// back, it would count as a duplicate acknowledgement, of which three stand for a
/// loss.
pub fn only_repeats(packet: &[u8], snapshot: &TcpSnapshot) -> bool {
    let Ok(segment) = Segment::parse(packet) else {
        return false;
    };
    let is_bare = segment.payload.is_empty() && segment.flags == TcpFlags::ACK;
    let shift = snapshot.options.wscale.map_or(0, |(snd, _)| snd);
    let window = u32::from(segment.wnd) << shift;
    // What is longer than what was understood has other options: SACK blocks.
    let is_understood = segment
        .to_packet()
        .is_ok_and(|again| again.len() == packet.len());
    is_bare
        && is_understood
        && segment.ack.le(snapshot.snd_una())
        && window == snapshot.window.snd_wnd
}

/// `TUNSETIFF`.
fn claim(file: &File, name: &str) -> io::Result<()> {
    // struct ifreq: the name, then flags in a union.
    let mut request = [0u8; 40];
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[libc::IFNAMSIZ..][..2].copy_from_slice(&(IFF_TUN | IFF_NO_PI).to_ne_bytes());
    // SAFETY: the request is as large as struct ifreq and outlives the call.
    let err = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) };
    if err == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `struct ifinfomsg` with flags that are to be set.
fn link(index: u32, flags: libc::c_int) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [index, flags.cast_unsigned(), flags.cast_unsigned()] {
        body.extend(word.to_ne_bytes());
    }
    body
}

/// Packets of any length, no IPv6 address of its own (it would announce it), and
/// no wrong way to come.
fn configuration(index: u32) -> Vec<u8> {
    let mut body = link(index, 0);
    // 65535: the kernel's limit for a tun.
    push_attribute(&mut body, IFLA_MTU, &65_535u32.to_ne_bytes());
    push_attribute(&mut body, IFLA_TXQLEN, &HoldTun::QUEUE.to_ne_bytes());
    let nest = |kind, value: &[u8]| {
        let mut nested = Vec::new();
        push_attribute(&mut nested, kind, value);
        nested
    };
    let family = |family: libc::c_int| u16::try_from(family).expect("address families are small");
    let loose = nest(IPV4_DEVCONF_RP_FILTER, &RP_FILTER_LOOSE.to_ne_bytes());
    let mut families = nest(family(libc::AF_INET), &nest(IFLA_INET_CONF, &loose));
    let silent = nest(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
    push_attribute(&mut families, family(libc::AF_INET6), &silent);
    push_attribute(&mut body, IFLA_AF_SPEC, &families);
    body
}

/// `struct ifaddrmsg` and the dummy address, for this machine alone.
fn address(index: u32) -> Vec<u8> {
    let v4 = u8::try_from(libc::AF_INET).expect("address families are small");
    let mut body = vec![v4, 32, 0, RT_SCOPE_HOST];
    body.extend(index.to_ne_bytes());
    push_attribute(&mut body, IFA_LOCAL, &DUMMY);
    body
}

#[cfg(test)]
mod tests {
    use godwit_wire::TcpOptions;

    use super::*;

    /// A bare segment that acknowledges what was acknowledged and offers the
    /// window that was offered says nothing; every other says something.
    #[test]
    fn only_what_is_known_repeats() {
        let snapshot = TcpSnapshot::parse(&golden()).expect("as in godwit-wire");
        let segment = Segment {
            source: snapshot.key.client,
            destination: snapshot.key.service,
            seq: snapshot.rcv_nxt,
            ack: snapshot.snd_una(),
            flags: TcpFlags::ACK,
            wnd: 0,
            options: TcpOptions::default(),
            payload: &[],
        };
        let mut snapshot = snapshot;
        snapshot.window.snd_wnd = 0;
        let repeats = |segment: Segment<'_>| {
            only_repeats(&segment.to_packet().expect("it is short"), &snapshot)
        };
        assert!(repeats(segment));
        let ack = segment.ack;
        assert!(repeats(Segment {
            ack: ack - 5,
            ..segment
        }));
        assert!(!repeats(Segment {
            ack: ack + 1,
            ..segment
        }));
        assert!(!repeats(Segment { wnd: 1, ..segment }));
        assert!(!repeats(Segment {
            payload: b"!",
            ..segment
        }));
        let flags = TcpFlags::ACK.with(TcpFlags::FIN);
        assert!(!repeats(Segment { flags, ..segment }));
        assert!(!only_repeats(b"no packet", &snapshot));
    }

    fn golden() -> Vec<u8> {
        let hex = include_str!("../../godwit-wire/src/snapshot/golden.txt").trim_end();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        (0..hex.len()).step_by(2).map(byte).collect()
    }
}
