//! The way to one peer: a socket of its own that never blocks.
//!
//! The kernel keeps datagrams for a neighbour that it looks for, and counts them
//! against the send buffer of the socket that they came from. With one socket for
//! all peers a machine that is gone fills that buffer within seconds, and then
//! nothing leaves for the living ones. Here it fills its own.
//!
//! The socket is not connected: each datagram looks its route up, so a changed route
//! needs no care, and no ICMP error of an earlier datagram costs the next one. Its
//! port is any; peers know each other by address and signature.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};

use godwit_wire::NodeName;
use nix::sys::socket::{setsockopt, sockopt};

use super::keys::Signer;

/// SO_PRIORITY of heartbeats: the highest an ordinary queue knows, so that
/// they do not wait behind a mirror's bulk.
const SOCKET_PRIORITY: i32 = 6;

/// Bytes of SO_SNDBUF, some twenty datagrams with what the kernel adds to each. What
/// has waited for longer than that is not worth sending.
const SEND_BUFFER: usize = 32 << 10;

/// Nothing is read from this socket.
const RECEIVE_BUFFER: usize = 1;

/// One peer, and how to reach it.
#[derive(Debug)]
pub(super) struct Way {
    socket: UdpSocket,
    target: SocketAddr,
    signer: Signer,
    counts: WayCounts,
}

/// What became of the datagrams for one peer, heartbeats and leases.
#[derive(Debug)]
struct WayCounts {
    peer: NodeName,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// Of the datagrams for one peer: how many the kernel took, and how many it did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WayReport {
    /// Whom they were for.
    pub peer: String,
    /// Those that the kernel took.
    pub sent: u64,
    /// Those that it refused: no route, no address.
    pub failed: u64,
    /// Those that found the send buffer full: the peer's link-layer address is not
    /// known, or the interface does not keep up.
    pub dropped: u64,
}

impl Way {
    /// A way from `own`, an address of this node, whose port does not matter.
    pub(super) fn open(
        own: SocketAddr,
        (peer, target): (NodeName, SocketAddr),
        signer: Signer,
    ) -> io::Result<Self> {
        let mut from = own;
        from.set_port(0);
        let socket = UdpSocket::bind(from)?;
        socket.set_nonblocking(true)?;
        // Without these heartbeats are ordinary traffic, and more of them wait.
        let _ = setsockopt(&socket, sockopt::Priority, &SOCKET_PRIORITY);
        let _ = setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER);
        let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER);
        Ok(Self {
            socket,
            target,
            signer,
            counts: WayCounts {
                peer,
                sent: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
            },
        })
    }

    /// Signs a datagram and sends it, or drops and counts it; never waits.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub(super) fn send(&self, datagram: &mut [u8]) -> io::Result<()> {
        self.signer.sign(datagram);
        let sent = self.socket.send_to(datagram, self.target).map(drop);
        let count = match &sent {
            Ok(()) => &self.counts.sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => &self.counts.dropped,
            // No route yet: the next one may get through.
            Err(_) => &self.counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        sent
    }

    /// What became of all that was sent.
    pub(super) fn report(&self) -> WayReport {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WayReport {
            peer: self.counts.peer.to_string(),
            sent: read(&self.counts.sent),
            failed: read(&self.counts.failed),
            dropped: read(&self.counts.dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::testing::node;

    /// More than the kernel keeps for a neighbour that it looks for.
    const DATAGRAMS: u64 = 1000;

    /// As a heartbeat with many shares is.
    const LEN: usize = 1000;

    /// A network of its own with a link on which nobody answers.
    fn enter_lonely_link() -> bool {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            println!("skipped: network namespaces need root");
            return false;
        }
        let commands = [
            "link set lo up",
            "link add one type veth peer name other",
            "link set one up",
            "link set other up",
            "addr add 10.9.9.1/24 dev one",
            "addr add fd99::1/64 dev one nodad",
        ];
        commands.iter().all(|words| {
            let run = Command::new("ip").args(words.split(' ')).status();
            run.is_ok_and(|status| status.success())
        })
    }

    /// One socket for all peers: what it sent waited for the dead one's neighbour entry,
    /// seconds at a time, and so did what was meant for the living one.
    fn a_dead_neighbour_costs_its_own_datagrams(own: &str, dead: &str) {
        let own: SocketAddr = own.parse().expect("an address");
        let ear = UdpSocket::bind(own).expect("the address is there");
        ear.set_read_timeout(Some(Duration::from_secs(5)))
            .expect("it may be set");
        let way = |name, target| {
            Way::open(own, (node(name), target), Signer::new(&[1; 32])).expect("a way")
        };
        let dead = way("b", dead.parse().expect("an address"));
        let living = way("w", own);
        let (mut datagram, mut heard) = (vec![0; LEN], vec![0; LEN]);
        let begun = Instant::now();
        for _ in 0..DATAGRAMS {
            // Some are taken: they wait in the kernel.
            let _ = dead.send(&mut datagram);
            living.send(&mut datagram).expect("it is taken");
            assert_eq!(ear.recv(&mut heard).expect("it comes"), LEN);
        }
        // The kernel gives up after three questions, a second each.
        assert!(
            begun.elapsed() < Duration::from_millis(900),
            "it has waited"
        );
        let report = dead.report();
        assert!(report.dropped > DATAGRAMS / 2, "{report:?}");
        assert_eq!(report.sent + report.dropped, DATAGRAMS, "{report:?}");
        assert_eq!(living.report().sent, DATAGRAMS);
    }

    #[test]
    fn the_living_do_not_wait_for_a_dead_neighbour() {
        // A thread of its own: the namespace is the thread's.
        let alone = thread::spawn(|| {
            if enter_lonely_link() {
                a_dead_neighbour_costs_its_own_datagrams("10.9.9.1:7400", "10.9.9.2:7400");
                a_dead_neighbour_costs_its_own_datagrams("[fd99::1]:7400", "[fd99::2]:7400");
            }
        });
        alone.join().expect("no panic");
    }

    #[test]
    fn without_a_route_datagrams_are_counted_as_refused() {
        let own = "127.0.0.1:0".parse().expect("an address");
        let nowhere = "255.255.255.255:9".parse().expect("an address");
        let way = Way::open(own, (node("b"), nowhere), Signer::new(&[1; 32])).expect("a way");
        assert!(way.send(&mut [0; 100]).is_err());
        let report = way.report();
        assert_eq!((report.sent, report.failed, report.dropped), (0, 1, 0));
    }
}
