//! A socket that reads and writes whole frames of one interface (packet(7)).

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use godwit_sock::{ignore_outgoing, keep_offload};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind,
    recvmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{read, write};

/// Bytes the kernel may hold for us: 300 ms at a gigabit per second.
const RECEIVE_BUFFER: usize = 64 << 20;

/// Raw access to one interface; sees only what it receives.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens `interface` of the namespace that the calling thread is in.
    pub(crate) fn open(interface: &str) -> Result<Self> {
        Self::open_with(interface, |_| Ok(()))
    }

    /// The same for frames with an [`OFFLOAD_HEADER`](godwit_sock::OFFLOAD_HEADER)
    /// in front, which need not be cut to the MTU.
    pub(crate) fn open_uncut(interface: &str) -> Result<Self> {
        Self::open_with(interface, keep_offload)
    }

    /// The same for sending only: what comes in is not kept for it.
    pub(crate) fn open_deaf(interface: &str) -> Result<Self> {
        let address = link_address(interface)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Packet, SockType::Raw, flags, None)
            .context("opening a packet socket")?;
        bind(fd.as_raw_fd(), &address)
            .with_context(|| format!("binding a packet socket to {interface}"))?;
        Ok(Self { fd })
    }

    /// All interfaces of the namespace that the calling thread is in, also those
    /// that come later; in the order in which the kernel looks at what they have
    /// received, see [`receive_at`](Self::receive_at).
    pub(crate) fn open_everywhere() -> Result<Self> {
        let fd = Self::unbound()?;
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true).context("asking for time stamps")?;
        Ok(Self { fd })
    }

    fn open_with(interface: &str, prepare: fn(&OwnedFd) -> io::Result<()>) -> Result<Self> {
        let address = link_address(interface)?;
        let fd = Self::unbound()?;
        prepare(&fd).context("preparing a packet socket")?;
        bind(fd.as_raw_fd(), &address)
            .with_context(|| format!("binding a packet socket to {interface}"))?;
        Ok(Self { fd })
    }

    fn unbound() -> Result<OwnedFd> {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        )
        .context("opening a packet socket")?;
        setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).context("sizing a packet socket")?;
        ignore_outgoing(&fd).context("preparing a packet socket")?;
        Ok(fd)
    }

    /// The next frame's length, or `None` if there is none yet.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match read(&self.fd, buffer) {
            Ok(n) => Ok(Some(n)),
            // ENETDOWN is reported once when the interface goes down.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => Ok(None),
            Err(e) => Err(e).context("reading a frame"),
        }
    }

    /// As [`receive`](Self::receive), of a socket for
    /// [all interfaces](Self::open_everywhere), with the moment at which the frame
    /// came to its interface. The kernel may look at it much later than that, and two
    /// processors at two frames in another order.
    pub(crate) fn receive_at(&self, buffer: &mut [u8]) -> Result<Option<(usize, SystemTime)>> {
        let mut control = cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.fd.as_raw_fd();
        let flags = MsgFlags::empty();
        let message = match recvmsg::<()>(fd, &mut parts, Some(&mut control), flags) {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => return Ok(None),
            Err(e) => return Err(e).context("reading a frame"),
        };
        let mut notes = message.cmsgs().context("reading a frame's time stamp")?;
        let stamp = notes.find_map(|note| {
            let ControlMessageOwned::ScmTimestampns(stamp) = note else {
                return None;
            };
            Some(Duration::from(stamp))
        });
        let stamp = stamp.context("the kernel gives frames no time stamps")?;
        Ok(Some((message.bytes, UNIX_EPOCH + stamp)))
    }

    /// Sends one frame; a full queue or a link that is down drops it.
    pub(crate) fn send(&self, frame: &[u8]) -> Result<()> {
        match write(&self.fd, frame) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENETDOWN) => Ok(()),
            Err(e) => Err(e).context("writing a frame"),
        }
    }

    pub(crate) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

/// The interface's own packet(7) address, which carries its index.
fn link_address(interface: &str) -> Result<LinkAddr> {
    let mut all = getifaddrs().context("listing interfaces")?;
    all.find(|i| {
        i.interface_name == interface && i.address.is_some_and(|a| a.as_link_addr().is_some())
    })
    .and_then(|i| i.address?.as_link_addr().copied())
    .with_context(|| format!("no interface {interface}"))
}
