//! What a stranger sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_wire::{
    Endpoint, EthernetHeader, FlowKey, MacAddr, Segment, SeqNumber, TcpFlags, TcpOptions,
};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;

use super::keys::Keys;
use super::server::{self, Seen};
use crate::Unknown;
use crate::chaos::plan::Random;
use crate::chaos::world::PORT;
use crate::host::{Host, Network, SERVICE};
use crate::lab::Lab;

/// Frames of one burst, and the pause behind it.
const BURST: usize = 500;
const PAUSE: Duration = Duration::from_millis(2);

/// Connections of his own that he keeps open at once.
const CALLERS: usize = 40;

/// EtherTypes of what servers and directors say to each other.
pub(super) const OWN_TYPES: [[u8; 2]; 2] = [[0x88, 0xb5], [0x88, 0xb6]];

/// One kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attack {
    /// SYNs with the addresses and ports of others' connections.
    Syn,
    /// Bare ACKs of theirs.
    Ack,
    /// Data of theirs.
    Data,
    /// Their end, by RST and by FIN.
    End,
    /// What the service, or its twin, would say: to the owner and the standby.
    Service,
    /// Segments of theirs with what looks like a server's word behind them, and frames with
    /// the EtherTypes of such words.
    Slip,
    /// SYNs from addresses that nobody has.
    Flood,
    /// Connections of his own: he says nothing, or resets them.
    Callers,
    /// As the standby, to the owner: ACKs of a twin, with SACK, ahead of what it can have, RST.
    Twin,
    /// As the owner, to the standby: its word, SYN-ACK, RST.
    Owner,
    /// As either: notes, loads, probes, questions and answers.
    Notes,
    /// As either: what that one has just said, again.
    Replay,
    /// As either: what that one has just said in a frame of an own kind, with other bytes.
    Twist,
    /// As either: where a connection is, as that one has just said it, with its tag, of another
    /// connection or another server.
    Words,
    /// As the owner, to the standby: data, FIN and RST in a client's name, with the right
    /// numbers. A twin takes them (SECURITY.md), so only some connections are attacked.
    Mirror,
    /// From a machine of the control network: connections that say nothing, and datagrams.
    Control,
    /// From there: with keys that are real, of nodes that have nothing to say.
    Keys,
}

const ALL: [(&str, Attack); 17] = [
    ("syn", Attack::Syn),
    ("ack", Attack::Ack),
    ("data", Attack::Data),
    ("end", Attack::End),
    ("service", Attack::Service),
    ("slip", Attack::Slip),
    ("flood", Attack::Flood),
    ("callers", Attack::Callers),
    ("twin", Attack::Twin),
    ("owner", Attack::Owner),
    ("notes", Attack::Notes),
    ("replay", Attack::Replay),
    ("twist", Attack::Twist),
    ("words", Attack::Words),
    ("mirror", Attack::Mirror),
    ("control", Attack::Control),
    ("keys", Attack::Keys),
];

/// Whom he attacks.
pub(super) struct Scene<'a> {
    pub(super) lab: &'a Lab,
    pub(super) owner: Host,
    pub(super) standby: Host,
    pub(super) flows: &'a [FlowKey],
    pub(super) seen: &'a Seen,
    pub(super) keys: &'a Keys,
}

impl Attack {
    /// Those whose names begin with one of `only`, which have commas between them.
    pub(super) fn named(only: Option<&str>) -> Result<Vec<Self>> {
        let wanted = |name: &str| {
            only.is_none_or(|only| only.split(',').any(|prefix| name.starts_with(prefix)))
        };
        let all = ALL.into_iter().filter(|(name, _)| wanted(name));
        let chosen: Vec<_> = all.map(|(_, attack)| attack).collect();
        let names = ALL.map(|(name, _)| name).join(", ");
        ensure!(
            !chosen.is_empty(),
            Unknown::new(format!(
                "no attack is called {:?}; there are: {names}",
                only.unwrap_or("")
            ))
        );
        Ok(chosen)
    }

    pub(super) fn name(self) -> &'static str {
        let found = ALL.into_iter().find(|(_, attack)| *attack == self);
        found.map_or("unnamed", |(name, _)| name)
    }

    /// Does he have the MAC address of a server, and has he heard what it says?
    pub(super) fn is_of_a_server(self) -> bool {
        matches!(
            self,
            Self::Twin
                | Self::Owner
                | Self::Notes
                | Self::Replay
                | Self::Twist
                | Self::Words
                | Self::Mirror
        )
    }

    /// Goes on for so long. How many frames, or connections, it took.
    pub(super) fn wage(
        self,
        scene: &Scene<'_>,
        random: &mut Random,
        lasts: Duration,
    ) -> Result<u64> {
        if self == Self::Callers {
            return call(scene, lasts);
        }
        if self == Self::Control {
            return server::besiege(scene, random, lasts);
        }
        if self == Self::Keys {
            return scene.keys.show(scene, lasts);
        }
        let attacker = scene.lab.node(Host::Attacker);
        let end = Instant::now() + lasts;
        let mut count = 0;
        while Instant::now() < end && !scene.flows.is_empty() {
            let frames: Vec<_> = (0..BURST).map(|_| self.frame(scene, random)).collect();
            attacker.send_frames(&frames)?;
            count += BURST as u64;
            thread::sleep(PAUSE);
        }
        Ok(count)
    }

    fn frame(self, scene: &Scene<'_>, random: &mut Random) -> Vec<u8> {
        let flow = scene.flows[random.index(scene.flows.len())];
        let owner = scene.owner.mac(Network::Data);
        let from_client = |flags: TcpFlags, payload: &[u8], random: &mut Random| {
            frame(owner, (flow.client, flow.service), flags, payload, random)
        };
        let ack = TcpFlags::ACK;
        match self {
            Self::Syn => from_client(TcpFlags::SYN, b"", random),
            Self::Ack | Self::Callers | Self::Control | Self::Keys => from_client(ack, b"", random),
            Self::Twin => server::as_twin(scene, flow, random),
            Self::Owner => server::as_owner(scene, flow, random),
            Self::Notes => server::note(scene, flow, random),
            Self::Replay => server::again(scene, random),
            Self::Twist => server::twisted(scene, random),
            Self::Words => server::reworded(scene, flow, random),
            Self::Mirror => server::mirrored(scene, flow, random),
            Self::Data => from_client(ack.with(TcpFlags::PSH), &[0x5a; 100], random),
            Self::End => {
                let last = [TcpFlags::RST, TcpFlags::FIN][random.index(2)];
                from_client(ack.with(last), b"", random)
            }
            Self::Service => {
                let more = [ack, TcpFlags::SYN, TcpFlags::RST, TcpFlags::FIN][random.index(4)];
                let to = [owner, scene.standby.mac(Network::Data)][random.index(2)];
                frame(to, (flow.service, flow.client), ack.with(more), b"", random)
            }
            Self::Slip => slip(&from_client(ack, b"", random), random),
            Self::Flood => {
                let client = stranger(flow.service, random);
                frame(owner, (client, flow.service), TcpFlags::SYN, b"", random)
            }
        }
    }
}

/// A segment of nobody, with numbers of nobody.
fn frame(
    to: MacAddr,
    (source, destination): (Endpoint, Endpoint),
    flags: TcpFlags,
    payload: &[u8],
    random: &mut Random,
) -> Vec<u8> {
    let [seq, ack] = [0; 2].map(|_: u32| SeqNumber(low(random.next())));
    let segment = Segment {
        source,
        destination,
        seq,
        ack,
        flags,
        wnd: 1000,
        options: TcpOptions::default(),
        payload,
    };
    let packet = segment.to_packet().unwrap_or_default();
    EthernetHeader::frame_ip(to, Host::Attacker.mac(Network::Data), &packet)
}

/// Behind a segment, or as a frame of its own.
fn slip(segment: &[u8], random: &mut Random) -> Vec<u8> {
    let noise: Vec<_> = (0..7).flat_map(|_| random.next().to_be_bytes()).collect();
    let mut frame = segment.to_vec();
    if random.index(2) == 0 {
        frame.extend(noise);
        return frame;
    }
    let kind = OWN_TYPES[random.index(2)];
    frame[12..14].copy_from_slice(&kind);
    if random.index(2) == 0 {
        frame.truncate(14);
        frame.extend(noise);
    }
    frame
}

/// An address of the link that no machine has.
fn stranger(service: Endpoint, random: &mut Random) -> Endpoint {
    let [.., last] = random.next().to_be_bytes();
    let address: IpAddr = match (SERVICE, service.ip()) {
        ([_, IpAddr::V6(own)], IpAddr::V6(_)) => {
            let [a, b, c, d, ..] = own.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0xbad, last.into()).into()
        }
        ([IpAddr::V4(own), _], _) => {
            let [a, b, c, _] = own.octets();
            Ipv4Addr::new(a, b, c, 128 | last).into()
        }
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    let [high, low] = [last, last.rotate_left(3)];
    SocketAddr::new(address, u16::from_be_bytes([high | 0x40, low])).into()
}

pub(super) fn low(word: u64) -> u32 {
    let [.., a, b, c, d] = word.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Connections from his own address, to both addresses of the service.
fn call(scene: &Scene<'_>, lasts: Duration) -> Result<u64> {
    let work = || {
        let end = Instant::now() + lasts;
        let (mut count, mut open) = (0, Vec::new());
        while Instant::now() < end {
            let service = SocketAddr::new(SERVICE[usize::from(count % 2 == 1)], PORT);
            let Ok(stream) = TcpStream::connect_timeout(&service, lasts) else {
                continue;
            };
            count += 1_u64;
            // Closed, it is reset.
            let at_once = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            let _ = setsockopt(&stream, Linger, &at_once);
            if open.len() < CALLERS {
                open.push(stream);
            }
        }
        count
    };
    let attacker = scene.lab.node(Host::Attacker);
    attacker.enter(work).context("the attacker's machine")
}
