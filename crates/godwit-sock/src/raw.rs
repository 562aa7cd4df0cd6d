//! Segments and frames that the agent itself puts on the wire. All carry a
//! mark that the data path knows (`SO_MARK`, needs CAP_NET_ADMIN).

use std::io;
use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, bind, send,
    sendto, setsockopt, socket, sockopt,
};

/// Bytes of SO_SNDBUF of a socket for segments. The kernel keeps up to 208 KiB for each
/// neighbour that it looks for (`unres_qlen_bytes`), and counts them here: clients that are
/// gone must not use up the room of those that are there.
const SEND_BUFFER: usize = 8 << 20;

/// Sends whole IP packets; the kernel finds route and next hop.
#[derive(Debug)]
pub struct SegmentSender {
    v4: OwnedFd,
    v6: OwnedFd,
    /// Where link-local addresses are: they mean nothing without their link.
    ifindex: AtomicU32,
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
            // Less room is no reason not to start.
            let _ = setsockopt(&fd, sockopt::SndBufForce, &SEND_BUFFER);
            Ok(fd)
        };
        Ok(Self {
            v4: raw(AddressFamily::Inet)?,
            v6: raw(AddressFamily::Inet6)?,
            ifindex: ifindex.into(),
        })
    }

    /// Link-local addresses are those on the link of another interface from here on.
    pub fn follow(&self, ifindex: u32) {
        self.ifindex.store(ifindex, Ordering::Relaxed);
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
                let link = self.ifindex.load(Ordering::Relaxed);
                let to = SockaddrIn6::from(SocketAddrV6::new(v6, 0, 0, link));
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
        bind(fd.as_raw_fd(), &link_address(ifindex, 0)?)?;
        Ok(Self(fd))
    }

    /// Sends out of another interface from here on.
    ///
    /// # Errors
    /// Fails without the interface.
    pub fn follow(&self, ifindex: u32) -> io::Result<()> {
        bind(self.0.as_raw_fd(), &link_address(ifindex, 0)?)?;
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

/// Of a packet socket: an interface, and a protocol in network order; 0: none.
pub(crate) fn link_address(ifindex: u32, protocol: u16) -> io::Result<nix::sys::socket::LinkAddr> {
    use nix::sys::socket::SockaddrLike as _;

    let raw = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).expect("address families are small"),
        sll_protocol: protocol,
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::process::Command;
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// A datagram of UDP, without a checksum and with nothing in it.
    fn packet(to: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 9, 1];
        packet.extend(to.octets());
        packet.extend([0, 9, 0, 9, 0, 8, 0, 0]);
        packet
    }

    /// Ten clients that are gone had filled the buffer, and nobody else was spoken to.
    #[test]
    fn clients_that_are_gone_do_not_silence_us() {
        let alone = thread::spawn(|| {
            if unshare(CloneFlags::CLONE_NEWNET).is_err() {
                return println!("skipped: network namespaces need root");
            }
            for words in [
                "link set lo up",
                "link add one type veth peer name other",
                "link set one up",
                "link set other up",
                "addr add 10.9.9.1/24 dev one",
            ] {
                let run = Command::new("ip").args(words.split(' ')).status();
                assert!(run.expect("ip runs").success(), "{words}");
            }
            let sender = SegmentSender::open(1, 0).expect("root may");
            for _ in 0..400 {
                for gone in 10..20 {
                    let gone = Ipv4Addr::new(10, 9, 9, gone);
                    sender.send(gone.into(), &packet(gone)).expect("it is kept");
                }
            }
            let here = Ipv4Addr::new(10, 9, 9, 1);
            sender.send(here.into(), &packet(here)).expect("it leaves");
        });
        alone.join().expect("no panic");
    }
}
