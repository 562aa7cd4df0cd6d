//! Hearing who says on the link that an address is his: ARP (packet(7)), and neighbour
//! advertisements (RFC 3542 section 3.2). Both sockets get nothing else, so that other
//! packets cost nothing.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use godwit_wire::{ArpOperation, ArpPacket, MacAddr};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6,
    bind, recv, recvmsg, setsockopt, socket, sockopt,
};

use crate::raw::link_address;

const ADVERTISEMENT: u8 = 136;
const TARGET_LINK_LAYER: [u8; 2] = [2, 1];
/// include/uapi/linux/icmpv6.h
const ICMPV6_FILTER: libc::c_int = 1;
/// RFC 4861 section 7.1.2: proves that the packet has not been routed.
const HOP_LIMIT: i32 = 255;
/// Longer than either.
const PACKET: usize = 256;
/// Most that are taken at once.
const BATCH: usize = 256;

/// What somebody says on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// That an address is there.
    Claim(IpAddr, MacAddr),
    /// That he looks for an address, by ARP. Who asks by neighbour discovery asks those alone
    /// who have the address.
    Question(IpAddr, MacAddr),
}

/// Hears claims on one interface.
#[derive(Debug)]
pub struct ClaimWatch {
    arp: OwnedFd,
    /// `None` where there is no IPv6.
    nd: Option<OwnedFd>,
    either: Epoll,
}

impl ClaimWatch {
    /// Listens on interface `ifindex`, called `name`. One that is made anew needs a new
    /// watch.
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW, or without the interface.
    pub fn open(ifindex: u32, name: &str) -> io::Result<Self> {
        let arp = arp(ifindex)?;
        let nd = advertisements(name).ok();
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for fd in [Some(&arp), nd.as_ref()].into_iter().flatten() {
            either.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self { arp, nd, either })
    }

    /// Takes what has been heard. A probe (RFC 5227 section 2.1.1), which comes from no
    /// address, says nothing.
    pub fn take(&self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut packet = [0; PACKET];
        for _ in 0..BATCH {
            match recv(self.arp.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => heard.extend(by_arp(&packet[..len])),
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        for _ in 0..BATCH {
            match self.nd.as_ref().map(receive) {
                Some(Ok(claim)) => heard.extend(claim),
                Some(Err(Errno::EINTR)) => {}
                Some(Err(_)) | None => break,
            }
        }
        heard
    }
}

impl AsFd for ClaimWatch {
    /// Readable when there is something to take.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }
}

/// Bound to its protocol it sees neither other packets nor those that leave.
fn arp(ifindex: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Packet, SockType::Datagram, flags, None)?;
    let protocol = u16::try_from(libc::ETH_P_ARP).map_err(io::Error::other)?;
    bind(fd.as_raw_fd(), &link_address(ifindex, protocol.to_be())?)?;
    Ok(fd)
}

fn advertisements(name: &str) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(
        AddressFamily::Inet6,
        SockType::Raw,
        flags,
        SockProtocol::IcmpV6,
    )?;
    setsockopt(&fd, sockopt::BindToDevice, &name.into())?;
    setsockopt(&fd, sockopt::Ipv6RecvHopLimit, &true)?;
    // A bit for each type that is not wanted.
    let mut filter = [u32::MAX; 8];
    filter[usize::from(ADVERTISEMENT) / 32] &= !(1 << (ADVERTISEMENT % 32));
    let size = libc::socklen_t::try_from(size_of_val(&filter)).map_err(io::Error::other)?;
    // SAFETY: the value outlives the call, and its length is given.
    let err = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_ICMPV6,
            ICMPV6_FILTER,
            filter.as_ptr().cast(),
            size,
        )
    };
    if err != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

fn by_arp(packet: &[u8]) -> impl Iterator<Item = Heard> {
    let arp = ArpPacket::parse(packet).ok();
    let arp = arp.filter(|arp| !arp.sender.is_unspecified());
    let claim = arp.map(|arp| Heard::Claim(arp.sender.into(), arp.sender_mac));
    let asks = |arp: &ArpPacket| arp.operation == ArpOperation::Request && arp.sender != arp.target;
    let question = arp.filter(asks);
    let question = question.map(|arp| Heard::Question(arp.target.into(), arp.sender_mac));
    claim.into_iter().chain(question)
}

/// One packet; `None` if it claims nothing.
fn receive(fd: &OwnedFd) -> Result<Option<Heard>, Errno> {
    let mut packet = [0; PACKET];
    let mut control = nix::cmsg_space!(libc::c_int);
    let (len, is_near) = {
        let mut parts = [IoSliceMut::new(&mut packet)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let received =
            recvmsg::<SockaddrIn6>(fd.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        let near = ControlMessageOwned::Ipv6HopLimit(HOP_LIMIT);
        let is_near = received.cmsgs()?.any(|message| message == near);
        (received.bytes, is_near)
    };
    Ok(by_advertisement(&packet[..len]).filter(|_| is_near))
}

/// Reads an ICMPv6 message, whose checksum the kernel has checked.
fn by_advertisement(message: &[u8]) -> Option<Heard> {
    let target: [u8; 16] = message.get(8..24)?.try_into().ok()?;
    let mac: [u8; 6] = message.get(26..32)?.try_into().ok()?;
    let is_one = message.first() == Some(&ADVERTISEMENT)
        && message.get(24..26) == Some(&TARGET_LINK_LAYER[..]);
    is_one.then(|| Heard::Claim(Ipv6Addr::from(target).into(), MacAddr(mac)))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use godwit_wire::NeighbourAdvertisement;

    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn said(packet: &[u8]) -> Vec<Heard> {
        by_arp(packet).collect()
    }

    #[test]
    fn what_says_where_an_address_is_is_a_claim() {
        let address = Ipv4Addr::new(10, 9, 0, 100);
        for operation in [ArpOperation::Request, ArpOperation::Reply] {
            let mut packet = Vec::new();
            ArpPacket::gratuitous(operation, address, MAC).emit(&mut packet);
            assert_eq!(said(&packet), [Heard::Claim(address.into(), MAC)]);
            for cut in 0..packet.len() {
                assert_eq!(said(&packet[..cut]), []);
            }
        }
        let question = |sender| ArpPacket {
            sender,
            target: address,
            ..ArpPacket::gratuitous(ArpOperation::Request, address, MAC)
        };
        let mut packet = Vec::new();
        question(Ipv4Addr::UNSPECIFIED).emit(&mut packet);
        assert_eq!(said(&packet), [], "a probe");
        packet.clear();
        let asker = Ipv4Addr::new(10, 9, 0, 10);
        question(asker).emit(&mut packet);
        let both = [
            Heard::Claim(asker.into(), MAC),
            Heard::Question(address.into(), MAC),
        ];
        assert_eq!(said(&packet), both);
    }

    #[test]
    fn an_advertisement_is_a_claim_and_nothing_else_of_icmp() {
        let target = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x100);
        let mut packet = Vec::new();
        NeighbourAdvertisement { target, mac: MAC }.emit(&mut packet);
        let mut message = packet.split_off(40);
        let claim = Heard::Claim(target.into(), MAC);
        assert_eq!(by_advertisement(&message), Some(claim));
        for cut in 0..message.len() {
            assert_eq!(by_advertisement(&message[..cut]), None);
        }
        message[0] = 135;
        assert_eq!(by_advertisement(&message), None);
    }
}
