//! Segments and frames that the agent itself puts on the wire. All carry a
//! mark that the data path knows (`SO_MARK`, needs CAP_NET_ADMIN).

use std::io;
use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, bind, send,
    sendto, setsockopt, socket, sockopt,
};

/// Sends whole IP packets; the kernel finds route and next hop.
#[derive(Debug)]
pub struct SegmentSender {
    v4: OwnedFd,
    v6: OwnedFd,
    /// Where link-local addresses are: they mean nothing without their link.
    ifindex: u32,
}

impl SegmentSender {
    /// Opens a raw socket per family whose packets carry `mark`. Link-local
    /// addresses are those on the link of `ifindex`.
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn open(ifindex: u32, mark: u32) -> io::Result<Self> {
        let raw = |family| -> io::Result<OwnedFd> {
            let fd = socket(
                family,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
                SockProtocol::Raw,
            )?;
            setsockopt(&fd, sockopt::Mark, &mark)?;
            Ok(fd)
        };
        Ok(Self {
            v4: raw(AddressFamily::Inet)?,
            v6: raw(AddressFamily::Inet6)?,
            ifindex,
        })
    }

    /// Sends `packet`, which begins with its IP header, to `to`.
    ///
    /// # Errors
    /// Fails if there is no route, or the send buffer is full.
    pub fn send(&self, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        match to {
            IpAddr::V4(v4) => {
                let to = SockaddrIn::from(SocketAddrV4::new(v4, 0));
                sendto(self.v4.as_raw_fd(), packet, &to, MsgFlags::empty())?;
            }
            IpAddr::V6(v6) => {
                let to = SockaddrIn6::from(SocketAddrV6::new(v6, 0, 0, self.ifindex));
                sendto(self.v6.as_raw_fd(), packet, &to, MsgFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Sends whole Ethernet frames out of one interface.
#[derive(Debug)]
pub struct FrameSender(OwnedFd);

impl FrameSender {
    /// Opens a packet socket on interface `ifindex` whose frames carry `mark`.
    /// It receives nothing (protocol 0, packet(7)).
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW and CAP_NET_ADMIN, or without the interface.
    pub fn open(ifindex: u32, mark: u32) -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?;
        setsockopt(&fd, sockopt::Mark, &mark)?;
        bind(fd.as_raw_fd(), &link_address(ifindex)?)?;
        Ok(Self(fd))
    }

    /// Sends out of another interface from here on.
    ///
    /// # Errors
    /// Fails without the interface.
    pub fn follow(&self, ifindex: u32) -> io::Result<()> {
        bind(self.0.as_raw_fd(), &link_address(ifindex)?)?;
        Ok(())
    }

    /// Sends one frame, which begins with its Ethernet header.
    ///
    /// # Errors
    /// Fails if the interface is down, or the send buffer is full.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }
}

fn link_address(ifindex: u32) -> io::Result<nix::sys::socket::LinkAddr> {
    use nix::sys::socket::SockaddrLike as _;

    let raw = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).expect("address families are small"),
        sll_protocol: 0,
        sll_ifindex: i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = libc::socklen_t::try_from(size_of_val(&raw)).expect("a few bytes");
    // SAFETY: a whole sockaddr_ll of the family that the type expects.
    let address =
        unsafe { nix::sys::socket::LinkAddr::from_raw((&raw const raw).cast(), Some(len)) };
    address.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
