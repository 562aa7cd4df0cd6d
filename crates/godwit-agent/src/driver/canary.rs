//! Canaries: the proof that twins can be born at a standby (`gw_canary.h`).
//!
//! As the owner, the driver sends one along each path, which is a standby and an address
//! of a service, [`ROUND`] after [`ROUND`], and tells the core what came of the one
//! before. With many paths each round has its share of them, see [`PER_ROUND`].
//!
//! As a standby, a thread has the listeners where sockets are made of other nodes'
//! canaries. It ends them without a word that anybody hears: the gate drops their reset.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{
    CANARY_MAGIC, CANARY_NONCES, CANARY_PORTS, CANARY_SLOTS, CanaryAnswer, CanaryTable, Keepers,
};
use godwit_core::{MonoTime, PeerId, Proof};
use godwit_sock::Interface;
use godwit_wire::{
    Endpoint, MacAddr, Segment, SeqNumber, ShareId, TcpFlags, TcpOptions, TimeStamps,
};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};

use super::ground::Ground;
use super::segments;
use crate::config::ServiceConfig;
use crate::realtime::be_ordinary;

/// How often each path is asked.
const ROUND: Duration = Duration::from_millis(300);

/// As [`ROUND`], until a path is proved for the first time, or [`YOUTH`] canaries were
/// sent: a standby waits for that to be admitted.
const HASTE: Duration = Duration::from_millis(20);

/// How many canaries are sent in haste.
const YOUTH: u8 = 10;

/// Canaries in a round. More paths are asked in turn, each less often.
const PER_ROUND: usize = 32;

/// How long a socket that a canary made lives: it has to answer.
const LIFE: Duration = Duration::from_millis(100);

/// Canaries that may wait for the thread.
const BACKLOG: i32 = 64;

/// Sequence numbers of all canaries. Not drawn: to connection tracking a canary of an
/// earlier agent, from the same port, is the same connection.
const SEQ: SeqNumber = SeqNumber(0x6777_0000);
const ACK: SeqNumber = SeqNumber(0x6777_8000);

/// The addresses that this node's canaries come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origins {
    pub(super) v4: Option<Ipv4Addr>,
    pub(super) v6: Option<Ipv6Addr>,
}

impl Origins {
    /// One of the family of `service`.
    fn towards(self, service: SocketAddr) -> Option<IpAddr> {
        match service {
            SocketAddr::V4(_) => self.v4.map(IpAddr::V4),
            SocketAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }
}

type Key = (ShareId, PeerId, u8);

/// One path, from the first canary on.
#[derive(Debug)]
struct Path {
    slot: u32,
    mac: MacAddr,
    /// The latest first.
    nonces: [u32; CANARY_NONCES],
    /// What had come back when it was last looked.
    seen: CanaryAnswer,
    port: u16,
    /// How many are still sent in haste.
    youth: u8,
}

/// What is asked, and when next.
#[derive(Debug)]
pub(super) struct Canaries {
    origins: Origins,
    due: MonoTime,
    paths: BTreeMap<Key, Path>,
    /// Whose turn it is.
    turn: VecDeque<Key>,
    /// Peers that are not found on the link.
    unresolved: BTreeSet<(ShareId, PeerId)>,
    random: u64,
}

impl Canaries {
    /// A peer is found on the link: whether a share waited for that.
    pub(super) fn find(&mut self, peer: PeerId) -> bool {
        let before = self.unresolved.len();
        self.unresolved.retain(|(_, missing)| *missing != peer);
        self.unresolved.len() < before
    }

    pub(super) fn new(origins: Origins, seed: u64, now: MonoTime) -> Self {
        Self {
            origins,
            due: now,
            paths: BTreeMap::new(),
            turn: VecDeque::new(),
            unresolved: BTreeSet::new(),
            random: seed | 1,
        }
    }

    pub(super) const fn due(&self) -> MonoTime {
        self.due
    }

    /// xorshift64: a nonce has to differ from others, it is no secret.
    fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random >> 32).unwrap_or(1)
    }

    /// A nonce of a slot: its number is the lower part, and it is never 0.
    fn nonce(&mut self, slot: u32) -> u32 {
        let nonce = self.draw() / CANARY_SLOTS * CANARY_SLOTS + slot;
        if nonce == 0 { CANARY_SLOTS } else { nonce }
    }

    fn free_slot(&self) -> Option<u32> {
        let used: BTreeSet<_> = self.paths.values().map(|path| path.slot).collect();
        (1..CANARY_SLOTS).find(|slot| !used.contains(slot))
    }
}

impl Path {
    /// The nonce after the latest one, if there is one: an answer that was heard is none to
    /// another canary before all nonces of the slot have had their turn.
    fn next(&self, first: u32) -> u32 {
        match self.nonces {
            [0, ..] => first,
            [last, ..] => last.wrapping_add(CANARY_SLOTS),
        }
    }

    /// What came of the latest canaries: an answer to one of them that is new.
    fn judge(&mut self, answer: CanaryAnswer) -> Proof {
        let is_new = |now: u32, before: u32| now != before && self.nonces.contains(&now);
        let proof = if is_new(answer.born, self.seen.born) {
            Proof::Born
        } else if is_new(answer.heard, self.seen.heard) {
            Proof::NotBorn
        } else {
            Proof::NotHeard
        };
        self.seen = answer;
        if proof == Proof::Born {
            self.youth = 0;
        }
        proof
    }

    fn ask(&mut self, nonce: u32) {
        self.nonces.rotate_right(1);
        self.nonces[0] = nonce;
        self.youth = self.youth.saturating_sub(1);
        // Port 0 is none.
        self.port = self.port % (CANARY_PORTS - 1) + 1;
    }
}

impl Canaries {
    /// Looks at what came back, and sends the next ones.
    pub(super) fn send_canaries(&mut self, ground: &mut Ground, now: MonoTime) {
        let wanted: BTreeSet<Key> = self.wanted_paths(ground);
        self.paths.retain(|key, _| wanted.contains(key));
        self.turn.retain(|key| wanted.contains(key));
        for key in wanted {
            if !self.turn.contains(&key) {
                self.turn.push_back(key);
            }
        }
        for _ in 0..self.turn.len().min(PER_ROUND) {
            let Some(key) = self.turn.pop_front() else {
                break;
            };
            self.turn.push_back(key);
            match address_of(ground, key) {
                Some(address) if self.origins.towards(address).is_some() => {
                    self.judge_path(ground, key, now);
                    self.ask_path(ground, key, address);
                }
                // Without an address of its own in a family this node can ask nothing.
                _ => ground
                    .node
                    .handle_proof(key.0, key.1, key.2, Proof::Born, now),
            }
        }
        let mut paths = self.paths.values();
        let pause = if paths.any(|path| path.youth > 0) {
            HASTE
        } else {
            ROUND
        };
        self.due = now.saturating_add(pause);
    }

    /// The addresses that canaries come from may have changed.
    pub(super) fn follow_origins(&mut self, ground: &Ground) {
        let services: Vec<IpAddr> = ground
            .config
            .own_shares()
            .flat_map(|(_, service)| service.ips())
            .collect();
        if let Ok(interface) = Interface::by_name(ground.config.node.interface.as_str()) {
            self.origins = Origins {
                v4: interface.own_v4(&services),
                v6: interface.own_v6(&services),
            };
        }
    }

    fn wanted_paths(&self, ground: &Ground) -> BTreeSet<Key> {
        let asked = ground.node.to_prove();
        let paths = asked.flat_map(|(share, peer)| {
            let count = service_of(ground, share).map_or(0, ServiceConfig::paths);
            (0..count).map(move |path| (share, peer, path))
        });
        paths.collect()
    }

    fn judge_path(&mut self, ground: &mut Ground, key: Key, now: MonoTime) {
        let (share, peer, number) = key;
        if ground.shares.mac(peer).is_none() {
            if self.unresolved.insert((share, peer)) {
                let name = ground.name_of(share);
                ground.tell_peer_place("peer_unresolved", peer, &[("service", &name)]);
                ground.resolver.hurry();
            }
            return ground
                .node
                .handle_proof(share, peer, number, Proof::NotHeard, now);
        }
        self.unresolved.remove(&(share, peer));
        let Some(path) = self.paths.get_mut(&key) else {
            return;
        };
        let proof = match ground.datapath.twins.canaries.answer(path.slot) {
            Ok(answer) => path.judge(answer),
            Err(error) => return tracing::warn!(%error, "can't look for canaries"),
        };
        ground.node.handle_proof(share, peer, number, proof, now);
    }

    fn ask_path(&mut self, ground: &mut Ground, key: Key, address: SocketAddr) {
        let (share, peer, _) = key;
        let (Some(mac), Some(origin)) = (ground.shares.mac(peer), self.origins.towards(address))
        else {
            return;
        };
        // The network itself copies what clients say to the group.
        let group = service_of(ground, share).and_then(ServiceConfig::group);
        if !self.paths.contains_key(&key) && !self.open_path(ground, key, mac) {
            return;
        }
        let Some(slot) = self.paths.get(&key).map(|path| path.slot) else {
            return;
        };
        let first = self.nonce(slot);
        let Some(path) = self.paths.get_mut(&key) else {
            return;
        };
        let nonce = path.next(first);
        path.mac = mac;
        path.ask(nonce);
        let client = Endpoint::from(SocketAddr::new(origin, path.port));
        let to = group.unwrap_or(mac);
        let asked = ground
            .datapath
            .twins
            .canaries
            .ask(path.slot, mac, path.nonces);
        let packet = canary(client, address.into(), nonce).to_packet();
        let sent = packet.map(|packet| {
            ground
                .voice
                .canary_frames
                .send(&segments::frame(to, ground.voice.mac, &packet))
        });
        if let (Err(error), _) | (_, Ok(Err(error))) = (asked.map_err(io::Error::other), sent) {
            tracing::debug!(%error, share = share.0, "canary not sent");
        }
    }

    fn open_path(&mut self, ground: &Ground, key: Key, mac: MacAddr) -> bool {
        let Some(slot) = self.free_slot() else {
            return false;
        };
        let seen = ground
            .datapath
            .twins
            .canaries
            .answer(slot)
            .unwrap_or_default();
        let port = u16::try_from(self.draw() % u32::from(CANARY_PORTS)).unwrap_or(0);
        let path = Path {
            slot,
            mac,
            nonces: [0; CANARY_NONCES],
            seen,
            port,
            youth: YOUTH,
        };
        self.paths.insert(key, path);
        true
    }
}

fn service_of(ground: &Ground, share: ShareId) -> Option<&ServiceConfig> {
    let mut shares = ground.config.own_shares();
    shares.find_map(|(id, service)| (id == share).then_some(service))
}

fn address_of(ground: &Ground, (share, _, path): Key) -> Option<SocketAddr> {
    let service = service_of(ground, share)?;
    service.addresses.get(usize::from(path)).copied()
}

/// What looks like the third ACK of a handshake.
fn canary(client: Endpoint, service: Endpoint, nonce: u32) -> Segment<'static> {
    Segment {
        source: client,
        destination: service,
        seq: SEQ,
        ack: ACK,
        flags: TcpFlags::ACK,
        wnd: 512,
        options: TcpOptions {
            time_stamps: Some(TimeStamps {
                ts_val: nonce,
                ts_ecr: CANARY_MAGIC,
            }),
            ..TcpOptions::default()
        },
        payload: &[],
    }
}

/// Where sockets of other nodes' canaries are born.
#[derive(Debug)]
pub(super) struct Nest {
    listeners: Vec<TcpListener>,
    ports: Keepers,
}

impl Nest {
    pub(super) fn open() -> Self {
        let mut it = Self {
            listeners: Vec::new(),
            ports: Keepers::default(),
        };
        it.complete();
        it
    }

    /// Opens what is not open yet: the loopback may lack a family, and get it. Whether
    /// anything is new.
    fn complete(&mut self) -> bool {
        let before = self.ports;
        let homes = [
            (IpAddr::from(Ipv4Addr::LOCALHOST), &mut self.ports.v4),
            (IpAddr::from(Ipv6Addr::LOCALHOST), &mut self.ports.v6),
        ];
        for (home, port) in homes.into_iter().filter(|(_, port)| **port == 0) {
            match nest(SocketAddr::from((home, 0))) {
                Ok((listener, at)) => {
                    *port = at;
                    self.listeners.push(listener);
                }
                Err(error) => {
                    tracing::debug!(%error, %home, "no canary of this family is answered")
                }
            }
        }
        self.ports != before
    }

    const fn is_complete(&self) -> bool {
        self.ports.v4 != 0 && self.ports.v6 != 0
    }

    /// The data path hears of what is open now.
    fn try_again(&mut self, canaries: &CanaryTable) {
        if self.complete()
            && let Err(error) = canaries.set_home(self.ports)
        {
            tracing::error!(%error, "canaries of a family are not answered");
        }
    }

    pub(super) const fn ports(&self) -> Keepers {
        self.ports
    }

    /// The thread ends with the process.
    pub(super) fn spawn(mut self, canaries: Arc<CanaryTable>) -> io::Result<()> {
        let watch = move || {
            be_ordinary();
            self.watch(&canaries);
        };
        thread::Builder::new()
            .name("gw-canary".into())
            .spawn(watch)?;
        Ok(())
    }

    fn watch(&mut self, canaries: &CanaryTable) {
        let mut alive: VecDeque<(Instant, TcpStream)> = VecDeque::new();
        loop {
            let mut wanted: Vec<_> = self
                .listeners
                .iter()
                .map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN))
                .collect();
            let timeout = match (alive.is_empty(), self.is_complete()) {
                (false, _) => PollTimeout::from(100_u8),
                (true, false) => PollTimeout::from(1000_u16),
                (true, true) => PollTimeout::NONE,
            };
            if let Err(error) = poll(&mut wanted, timeout)
                && error != nix::errno::Errno::EINTR
            {
                return tracing::error!(%error, "canaries are not looked after any more");
            }
            drop(wanted);
            if !self.is_complete() {
                self.try_again(canaries);
            }
            for listener in &self.listeners {
                while let Ok((socket, _)) = listener.accept() {
                    alive.push_back((Instant::now(), socket));
                }
            }
            while alive
                .front()
                .is_some_and(|(born, _)| born.elapsed() >= LIFE)
            {
                if let Some((_, socket)) = alive.pop_front() {
                    end(&socket);
                }
            }
        }
    }
}

/// Its close is a reset, which the gate drops, and leaves nothing behind.
fn end(socket: &TcpStream) {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    if let Err(error) = setsockopt(socket, sockopt::Linger, &at_once) {
        tracing::debug!(%error, "the socket of a canary lingers");
    }
}

fn nest(at: SocketAddr) -> io::Result<(TcpListener, u16)> {
    let (family, address) = match at {
        SocketAddr::V4(v4) => (AddressFamily::Inet, SockaddrStorage::from(v4)),
        SocketAddr::V6(v6) => (AddressFamily::Inet6, SockaddrStorage::from(v6)),
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(family, SockType::Stream, flags, None)?;
    // Its sockets are bound to a service's port, where a server may begin to listen.
    setsockopt(&listener, sockopt::ReuseAddr, &true)?;
    bind(listener.as_raw_fd(), &address)?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    let listener = TcpListener::from(listener);
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Path {
        Path {
            slot: 1,
            mac: MacAddr::ZERO,
            nonces: [0; CANARY_NONCES],
            seen: CanaryAnswer::default(),
            port: 0,
            youth: YOUTH,
        }
    }

    fn answer(heard: u32, born: u32) -> CanaryAnswer {
        CanaryAnswer { heard, born }
    }

    #[test]
    fn an_answer_counts_once_and_for_the_latest_nonces_only() {
        let mut path = path();
        path.ask(101);
        assert_eq!(path.judge(answer(0, 0)), Proof::NotHeard);
        path.ask(102);
        assert_eq!(path.judge(answer(102, 0)), Proof::NotBorn);
        path.ask(103);
        assert_eq!(path.judge(answer(103, 103)), Proof::Born);
        path.ask(104);
        assert_eq!(path.judge(answer(103, 103)), Proof::NotHeard, "as before");
        path.ask(105);
        assert_eq!(path.judge(answer(104, 104)), Proof::Born, "a moment late");
        for nonce in 106..110 {
            path.ask(nonce);
        }
        assert_eq!(path.judge(answer(105, 105)), Proof::NotHeard, "too late");
    }

    #[test]
    fn each_canary_comes_from_another_port() {
        let mut path = path();
        let ports: BTreeSet<_> = (0..255)
            .map(|nonce| {
                path.ask(nonce);
                path.port
            })
            .collect();
        assert_eq!((ports.len(), ports.first()), (255, Some(&1)));
    }

    #[test]
    fn a_nonce_names_its_slot() {
        let origins = Origins { v4: None, v6: None };
        let mut canaries = Canaries::new(origins, 7, MonoTime::ZERO);
        for slot in [0, 1, 1023] {
            let nonce = canaries.nonce(slot);
            assert!(nonce != 0 && nonce % CANARY_SLOTS == slot);
        }
        assert_ne!(canaries.nonce(1), canaries.nonce(1));
    }
}
