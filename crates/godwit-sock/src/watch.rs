//! Hearing of what changes in the network of this namespace (rtnetlink(7)): interfaces,
//! addresses, neighbours, queueing disciplines.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use godwit_wire::MacAddr;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::neighbour;
use crate::netlink::messages;

// RTMGRP_LINK, RTMGRP_NEIGH, RTMGRP_TC, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR.
const GROUPS: u32 = 0x1 | 0x4 | 0x8 | 0x10 | 0x100;

// include/uapi/linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWNEIGH: u16 = 28;
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;

/// A datagram of the kernel's is no longer.
const DATAGRAM: usize = 16 * 1024;

/// Most datagrams that are told together.
const BATCH: usize = 256;

/// What has changed since the last look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Interfaces, addresses or queueing disciplines: to be read anew.
    pub place: bool,
    /// Neighbours that are somewhere now: interface, address, and where.
    pub neighbours: BTreeSet<(u32, IpAddr, MacAddr)>,
    /// More has changed than there was room for: neighbours, too.
    pub lost: bool,
}

impl Changes {
    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        !self.place && !self.lost && self.neighbours.is_empty()
    }

    fn note(&mut self, datagram: &[u8]) {
        for (kind, body) in messages(datagram) {
            match kind {
                RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR | RTM_NEWQDISC
                | RTM_DELQDISC => self.place = true,
                RTM_NEWNEIGH => self.neighbours.extend(neighbour::change(body)),
                _ => {}
            }
        }
    }
}

/// Tells of changes from its opening on.
#[derive(Debug)]
pub struct NetworkWatch(OwnedFd);

impl NetworkWatch {
    /// Listens in the calling thread's namespace. Changes from here on are
    /// heard; what there is, is to be read after this.
    ///
    /// # Errors
    /// Fails without netlink.
    pub fn open() -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        Ok(Self(fd))
    }

    /// Waits until something has changed, at most for `patience`. What is queued is told
    /// at once.
    ///
    /// # Errors
    /// Fails if the socket does; a queue that was full is a change.
    pub fn wait(&self, patience: Duration) -> io::Result<Changes> {
        // 0 would be for ever.
        let micros = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
        let patience = TimeVal::microseconds(micros.clamp(1000, 3_600_000_000));
        setsockopt(&self.0, sockopt::ReceiveTimeout, &patience)?;
        let mut changes = Changes::default();
        let mut flags = MsgFlags::empty();
        for _ in 0..BATCH {
            if !self.receive(flags, &mut changes)? {
                break;
            }
            flags = MsgFlags::MSG_DONTWAIT;
        }
        Ok(changes)
    }

    /// Whether there was a datagram.
    fn receive(&self, flags: MsgFlags, changes: &mut Changes) -> io::Result<bool> {
        let mut datagram = [0; DATAGRAM];
        match recv(self.0.as_raw_fd(), &mut datagram, flags) {
            Ok(len) => {
                changes.note(&datagram[..len]);
                Ok(true)
            }
            Err(Errno::ENOBUFS) => {
                (changes.place, changes.lost) = (true, true);
                Ok(true)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(16 + body.len()).expect("short");
        let head = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10]];
        [&head.concat(), body].concat()
    }

    fn told(datagram: &[u8]) -> Changes {
        let mut changes = Changes::default();
        changes.note(datagram);
        changes
    }

    #[test]
    fn what_has_changed_is_told_apart() {
        for kind in [RTM_NEWLINK, RTM_DELADDR, RTM_DELQDISC] {
            assert!(told(&message(kind, &[])).place, "{kind}");
        }
        assert!(told(&message(24, &[])).is_empty(), "a route");
        assert!(told(&[]).is_empty());
    }

    #[test]
    fn a_neighbour_that_is_somewhere_else_is_told_with_its_place() {
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        // struct ndmsg: NUD_REACHABLE on interface 3; NDA_DST; NDA_LLADDR.
        let mut body = vec![2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0];
        crate::netlink::push_attribute(&mut body, 1, &[10, 9, 0, 11]);
        crate::netlink::push_attribute(&mut body, 2, &mac.0);
        let link = message(RTM_NEWLINK, &[]);
        let datagram = [message(RTM_NEWNEIGH, &body), link].concat();
        let changes = told(&datagram);
        assert!(changes.place);
        let there = (3, IpAddr::from([10, 9, 0, 11]), mac);
        assert_eq!(changes.neighbours, BTreeSet::from([there]));
        // NUD_FAILED: it is nowhere.
        body[8] = 0x20;
        assert!(told(&message(RTM_NEWNEIGH, &body)).is_empty());
        for cut in 0..body.len() {
            let _ = told(&message(RTM_NEWNEIGH, &body[..cut]));
        }
    }
}
