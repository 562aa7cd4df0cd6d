//! What the agent must know of its service interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use godwit_wire::MacAddr;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd as _;
use thiserror::Error;

/// Why an interface can't serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// No interface of that name in this network namespace.
    #[error("there is no interface {0}")]
    Missing(String),
    /// Not an Ethernet interface.
    #[error("interface {0} has no Ethernet address")]
    NotEthernet(String),
    /// The list of addresses can't be read.
    #[error("can't list addresses")]
    List(#[source] nix::Error),
}

/// An Ethernet interface and its addresses.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index in this network namespace.
    pub index: u32,
    /// Link-layer address.
    pub mac: MacAddr,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
    /// Whether it is up and has a carrier.
    pub running: bool,
}

/// include/uapi/linux/sockios.h
const SIOCADDMULTI: libc::Ioctl = 0x8931;

/// Has the interface accept frames to a group address (`SIOCADDMULTI`,
/// netdevice(7)), until it is removed.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, or if the device keeps no list.
pub fn join_group(name: &str, group: MacAddr) -> io::Result<()> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: all zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let len = name.len().min(request.ifr_name.len() - 1);
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(len)) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let mut address = libc::sockaddr {
        sa_family: libc::sa_family_t::try_from(libc::AF_UNSPEC).unwrap_or(0),
        sa_data: [0; 14],
    };
    for (to, from) in address.sa_data.iter_mut().zip(group.0) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_hwaddr = address;
    // SAFETY: the request is whole and outlives the call.
    let err = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCADDMULTI, &raw const request) };
    if err == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Interface {
    /// Reads the interface called `name`.
    ///
    /// # Errors
    /// Fails if there is none, or if it is not Ethernet.
    pub fn by_name(name: &str) -> Result<Self, InterfaceError> {
        let index = if_nametoindex(name).map_err(|_| InterfaceError::Missing(name.to_owned()))?;
        let (mut mac, mut running) = (None, false);
        let mut addresses = Vec::new();
        for entry in getifaddrs().map_err(InterfaceError::List)? {
            let Some(address) = entry.address.filter(|_| entry.interface_name == name) else {
                continue;
            };
            if let Some(link) = address.as_link_addr() {
                running = entry.flags.contains(InterfaceFlags::IFF_RUNNING);
                mac = link.addr().map(MacAddr);
            } else if let Some(v4) = address.as_sockaddr_in() {
                addresses.push(IpAddr::V4(v4.ip()));
            } else if let Some(v6) = address.as_sockaddr_in6() {
                addresses.push(IpAddr::V6(v6.ip()));
            }
        }
        let mac = mac
            .filter(|mac| !mac.is_zero())
            .ok_or_else(|| InterfaceError::NotEthernet(name.to_owned()))?;
        Ok(Self {
            name: name.to_owned(),
            index,
            mac,
            addresses,
            running,
        })
    }

    /// An IPv4 address that is not one of `services`.
    pub fn own_v4(&self, services: &[IpAddr]) -> Option<Ipv4Addr> {
        self.addresses
            .iter()
            .filter(|addr| !services.contains(addr))
            .find_map(|addr| match addr {
                IpAddr::V4(v4) => Some(*v4),
                IpAddr::V6(_) => None,
            })
    }

    /// An IPv6 address that is not one of `services`, a global one if there is.
    pub fn own_v6(&self, services: &[IpAddr]) -> Option<Ipv6Addr> {
        let own = || {
            self.addresses
                .iter()
                .filter(|addr| !services.contains(addr))
                .filter_map(|addr| match addr {
                    IpAddr::V4(_) => None,
                    IpAddr::V6(v6) => Some(*v6),
                })
        };
        own()
            .find(|v6| !v6.is_unicast_link_local())
            .or_else(|| own().next())
    }
}
