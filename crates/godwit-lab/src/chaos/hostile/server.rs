//! A stranger with a server's MAC address. He has heard what servers say to each other, so he
//! knows sequence numbers, and no key.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use godwit_wire::{EthernetHeader, FlowKey, Segment, SeqNumber, TcpFlags};

use super::attack::{OWN_TYPES, Scene, low};
use crate::chaos::plan::Random;
use crate::host::{Host, Network};
use crate::lab::Lab;
use crate::packet::PacketSocket;

/// How long he listens, and how much he remembers of each server.
const LISTENS: Duration = Duration::from_millis(250);
const REMEMBERS: usize = 3000;

/// Of those of an own kind he alters so many.
const OWN: usize = 200;

/// A note of where a connection is, with a tag: how it begins behind the addresses, and its length.
const TAGGED_LEARN: [u8; 4] = [0x88, 0xb5, 1, 2];
const NOTE: usize = EthernetHeader::LEN + 80;

/// The longest frame that he can send.
const LONGEST: usize = 1514;

/// Connections to control ports that he keeps open at once, and datagrams between two of them.
const SILENT: usize = 32;
const DATAGRAMS: usize = 200;

/// Port of the agents' control links.
pub(super) const CONTROL: u16 = 7400;

const ACK: TcpFlags = TcpFlags::ACK;

/// Frames from one server to the other, as they were.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The standby's to the owner.
    of_twins: Vec<Vec<u8>>,
    /// The owner's to the standby.
    of_owner: Vec<Vec<u8>>,
}

impl Seen {
    /// Listens at both.
    pub(super) fn listen(lab: &Lab, owner: Host, standby: Host) -> Result<Self> {
        thread::scope(|scope| {
            let of_twins = scope.spawn(|| heard(lab, owner, standby));
            let of_owner = heard(lab, standby, owner)?;
            let of_twins = of_twins.join();
            Ok(Self {
                of_twins: of_twins.map_err(|_| anyhow::anyhow!("a listener panicked"))??,
                of_owner,
            })
        })
    }

    /// The last segment of a connection among frames, in its service's name or its client's.
    fn last(frames: &[Vec<u8>], flow: FlowKey, of_service: bool) -> Option<Segment<'_>> {
        let ends = if of_service {
            (flow.service, flow.client)
        } else {
            (flow.client, flow.service)
        };
        let segments = frames.iter().rev().filter_map(|frame| {
            let segment = Segment::parse(frame.get(EthernetHeader::LEN..)?).ok()?;
            let is_plain = !segment.flags.contains(TcpFlags::SYN);
            (is_plain && (segment.source, segment.destination) == ends).then_some(segment)
        });
        segments.max_by(|a, b| {
            // The one that is further.
            if a.seq.gt(b.seq) || (a.seq == b.seq && a.ack.gt(b.ack)) {
                std::cmp::Ordering::Greater
            } else {
                std::cmp::Ordering::Less
            }
        })
    }
}

/// What comes to `at` from another server for a while.
fn heard(lab: &Lab, at: Host, from: Host) -> Result<Vec<Vec<u8>>> {
    let from = from.mac(Network::Data);
    lab.node(at).enter(|| {
        let socket = PacketSocket::open(Network::Data.interface())?;
        let (end, mut frames) = (Instant::now() + LISTENS, Vec::new());
        let mut buffer = vec![0; 1 << 16];
        while Instant::now() < end {
            let Some(length) = socket.receive(&mut buffer)? else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let frame = buffer.get(..length.min(LONGEST + 1)).unwrap_or_default();
            let is_from = frame.get(6..12) == Some(&from.0);
            if is_from && frame.len() <= LONGEST && frames.len() < REMEMBERS {
                frames.push(frame.to_vec());
            }
        }
        Ok(frames)
    })?
}

/// A frame of one server to the other.
fn frame(to: Host, from: Host, segment: &Segment<'_>) -> Vec<u8> {
    let packet = segment.to_packet().unwrap_or_default();
    EthernetHeader::frame_ip(to.mac(Network::Data), from.mac(Network::Data), &packet)
}

/// So much further than the last one, often not at all.
fn further(random: &mut Random) -> u32 {
    match random.index(4) {
        0 => low(random.next()),
        1 => low(random.next()) % 100_000,
        _ => 0,
    }
}

/// In the service's name, by the numbers that a twin has said last. Without its tag.
fn in_service_name<'a>(
    scene: &'a Scene<'_>,
    flow: FlowKey,
    flags: TcpFlags,
    random: &mut Random,
) -> Segment<'a> {
    let last = Seen::last(&scene.seen.of_twins, flow, true);
    let (seq, ack) = last.as_ref().map_or_else(
        || [0; 2].map(|_: u32| SeqNumber(low(random.next()))).into(),
        |last| (last.seq, last.ack),
    );
    Segment {
        source: flow.service,
        destination: flow.client,
        seq: seq + further(random),
        ack: ack + further(random),
        flags,
        wnd: 1000,
        options: last.map(|last| last.options).unwrap_or_default(),
        payload: b"",
    }
}

/// The standby says so to the owner.
pub(super) fn as_twin(scene: &Scene<'_>, flow: FlowKey, random: &mut Random) -> Vec<u8> {
    let flags = [ACK, ACK, ACK, TcpFlags::RST, ACK.with(TcpFlags::RST)][random.index(5)];
    let segment = in_service_name(scene, flow, flags, random);
    let beyond = segment.ack + 1;
    let plain = frame(scene.owner, scene.standby, &segment);
    if random.index(3) > 0 {
        return plain;
    }
    with_sack(plain, beyond, beyond + low(random.next()) % 10_000)
}

/// The owner says so to the standby.
pub(super) fn as_owner(scene: &Scene<'_>, flow: FlowKey, random: &mut Random) -> Vec<u8> {
    let more = [ACK, TcpFlags::PSH, TcpFlags::SYN, TcpFlags::RST][random.index(4)];
    let segment = in_service_name(scene, flow, ACK.with(more), random);
    frame(scene.standby, scene.owner, &segment)
}

/// In a client's name, behind what that one has said last.
pub(super) fn mirrored(scene: &Scene<'_>, flow: FlowKey, random: &mut Random) -> Vec<u8> {
    let last = Seen::last(&scene.seen.of_owner, flow, false);
    let Some(last) = last else {
        return as_owner(scene, flow, random);
    };
    let more = match random.index(16) {
        0 => TcpFlags::RST,
        1 => TcpFlags::FIN,
        _ => TcpFlags::PSH,
    };
    let said = u32::try_from(last.payload.len()).unwrap_or_default();
    let segment = Segment {
        seq: last.seq + said + low(random.next()) % 3000,
        flags: ACK.with(more),
        payload: &[0x5a; 100],
        ..last
    };
    frame(scene.standby, scene.owner, &segment)
}

/// What was heard, once more.
pub(super) fn again(scene: &Scene<'_>, random: &mut Random) -> Vec<u8> {
    let all = [&scene.seen.of_twins, &scene.seen.of_owner];
    let frames = all[random.index(2)];
    if frames.is_empty() {
        return vec![0; EthernetHeader::LEN + 46];
    }
    summed(frames[random.index(frames.len())].clone())
}

/// What was heard in a frame of an own kind, with some bytes behind its type that are others.
pub(super) fn twisted(scene: &Scene<'_>, random: &mut Random) -> Vec<u8> {
    let all = [&scene.seen.of_twins, &scene.seen.of_owner];
    let is_own = |frame: &&Vec<u8>| OWN_TYPES.iter().any(|it| frame.get(12..14) == Some(it));
    let own: Vec<_> = all.into_iter().flatten().filter(is_own).take(OWN).collect();
    if own.is_empty() {
        return again(scene, random);
    }
    let mut frame = own[random.index(own.len())].clone();
    for _ in 0..=random.index(3) {
        let at = EthernetHeader::LEN + random.index(frame.len() - EthernetHeader::LEN);
        frame[at] ^= 1 << random.index(8);
    }
    frame
}

/// A note that was heard of where a connection is, with its tag: of another connection, or of
/// another server, or both. What else has such a tag is [`twisted`].
pub(super) fn reworded(scene: &Scene<'_>, flow: FlowKey, random: &mut Random) -> Vec<u8> {
    let all = [&scene.seen.of_twins, &scene.seen.of_owner];
    let is_note =
        |frame: &&Vec<u8>| frame.len() >= NOTE && frame.get(12..16) == Some(&TAGGED_LEARN[..]);
    let notes: Vec<_> = all.into_iter().flatten().filter(is_note).collect();
    if notes.is_empty() {
        return twisted(scene, random);
    }
    let mut frame = notes[random.index(notes.len())].clone();
    let what = random.index(3);
    if what != 0 {
        let at = [Host::A, Host::B, Host::C][random.index(3)];
        frame[16..22].copy_from_slice(&at.mac(Network::Data).0);
    }
    if what != 1 {
        frame[30..46].copy_from_slice(&flow.client.addr.octets());
        frame[46..48].copy_from_slice(&flow.client.port.to_be_bytes());
        frame[48..50].copy_from_slice(&flow.service.port.to_be_bytes());
        frame[54..70].copy_from_slice(&flow.service.addr.octets());
    }
    frame
}

/// What servers and directors say to each other besides, about a client's connection.
pub(super) fn note(scene: &Scene<'_>, flow: FlowKey, random: &mut Random) -> Vec<u8> {
    let both = [(scene.owner, scene.standby), (scene.standby, scene.owner)];
    let (to, from) = both[random.index(2)];
    let mut frame = [to.mac(Network::Data).0, from.mac(Network::Data).0].concat();
    let [a, b, c, d, ..] = random.next().to_be_bytes();
    match random.index(5) {
        0 => {
            frame.extend([0x88, 0xb5, 1, 1]);
            frame.extend(from.mac(Network::Data).0);
            frame.extend([a, b, c, d, 0, 0, 0, 0]);
            frame.extend(flow.client.addr.octets());
            frame.extend(flow.client.port.to_be_bytes());
            frame.extend(flow.service.port.to_be_bytes());
            frame.extend([0; 4]);
            frame.extend(flow.service.addr.octets());
            frame.extend([0; 8]);
        }
        1 => {
            frame.extend([0x88, 0xb5, 2, 1, a % 101, 0, 0, 0, 0, 0]);
            frame.extend(flow.service.addr.octets());
            frame.extend(flow.service.port.to_be_bytes());
            frame.extend([0; 2]);
        }
        2 => {
            frame.extend([0x88, 0xb6, 1 + (a & 1), 1, 0, 0, 0, 0, c, d]);
            frame.resize(200, 0);
        }
        _ => return slip(scene, flow, (to, from), random),
    }
    frame
}

/// A question about a connection, or the answer to one, with what may be the numbers of it.
fn slip(
    scene: &Scene<'_>,
    flow: FlowKey,
    (to, from): (Host, Host),
    random: &mut Random,
) -> Vec<u8> {
    let segment = Segment {
        source: flow.client,
        destination: flow.service,
        flags: ACK.with(TcpFlags::PSH),
        payload: b"GET / HTTP/1.1\r\nHost: s\r\n\r\n",
        ..in_service_name(scene, flow, ACK, random)
    };
    let mut frame = frame(to, from, &segment);
    frame[12..14].copy_from_slice(&[0x88, 0xb6]);
    let [version, kind, number] = [2, 1, 1].map(|least: u8| {
        let [.., more] = random.next().to_be_bytes();
        least + more % 3
    });
    frame.extend(*b"gwsp");
    frame.extend([version, kind, 0, 0, 0, 0, 0, number]);
    let noise = (0..6).flat_map(|_| random.next().to_be_bytes());
    frame.extend(noise);
    frame
}

/// The same with a block that has come, and one is missing before it.
fn with_sack(mut frame: Vec<u8>, start: SeqNumber, end: SeqNumber) -> Vec<u8> {
    let Some((ip, tcp)) = places(&frame) else {
        return frame;
    };
    frame.extend([1, 1, 5, 10]);
    frame.extend(start.0.to_be_bytes());
    frame.extend(end.0.to_be_bytes());
    frame[tcp + 12] += 3 << 4;
    let (at, from) = if tcp - ip == 40 {
        (ip + 4, tcp)
    } else {
        (ip + 2, ip)
    };
    let length = u16::try_from(frame.len() - from).unwrap_or_default();
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
    summed(frame)
}

/// Where IP and TCP begin in a frame with a usual header.
fn places(frame: &[u8]) -> Option<(usize, usize)> {
    let ip = EthernetHeader::LEN;
    let header = match frame.get(12..15)? {
        [0x08, 0x00, 0x45] => 20,
        [0x86, 0xdd, _] => 40,
        _ => return None,
    };
    (frame.len() >= ip + header + 20).then_some((ip, ip + header))
}

/// The same frame with right checksums: what a veth has brought need not have any.
fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    let Some((ip, tcp)) = places(&frame) else {
        return frame;
    };
    let is_v6 = tcp - ip == 40;
    let length = |at: usize| usize::from(frame[at]) << 8 | usize::from(frame[at + 1]);
    let end = if is_v6 {
        tcp + length(ip + 4)
    } else {
        ip + length(ip + 2)
    };
    if end > frame.len() || end < tcp + 20 {
        return frame;
    }
    if !is_v6 {
        frame[ip + 10..ip + 12].fill(0);
        let sum = !folded(&[&frame[ip..tcp]]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame[tcp + 16..tcp + 18].fill(0);
    let addresses = if is_v6 {
        ip + 8..ip + 40
    } else {
        ip + 12..ip + 20
    };
    let length = u32::try_from(end - tcp).unwrap_or_default();
    let parts = [
        &frame[addresses],
        &length.to_be_bytes(),
        &[0, 0, 0, 6],
        &frame[tcp..end],
    ];
    let sum = !folded(&parts);
    frame[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The Internet checksum, not complemented; all parts but the last have an even length.
fn folded(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or_default()
}

/// The switch goes on to send what is for a server to that server, though the attacker has its
/// address: his port teaches it nothing. Else he would cut it off, whatever it runs.
pub(super) fn keep_addresses(lab: &Lab) -> Result<()> {
    let off = |port: &str| {
        let arguments = ["link", "set", "dev", port, "learning", "off"];
        crate::tool::run("bridge", &arguments)
    };
    lab.at_port(Host::Attacker, Network::Data, off)??;
    Ok(())
}

/// From the witness's machine, whose address is a peer's.
pub(super) fn besiege(scene: &Scene<'_>, random: &mut Random, lasts: Duration) -> Result<u64> {
    let noise: Vec<u8> = (0..16).flat_map(|_| random.next().to_be_bytes()).collect();
    let work = || -> Result<u64> {
        let end = Instant::now() + lasts;
        let (mut count, mut open) = (0, Vec::new());
        let socket = UdpSocket::bind("0.0.0.0:0").context("a socket")?;
        while Instant::now() < end {
            for host in [scene.owner, scene.standby] {
                let at = SocketAddr::from((host.control_v4(), CONTROL));
                if open.len() < SILENT {
                    open.extend(TcpStream::connect_timeout(&at, lasts).ok());
                }
                for length in 0..DATAGRAMS {
                    // A full buffer is as good.
                    let _ = socket.send_to(&noise[..length % noise.len()], at);
                }
                count += DATAGRAMS as u64;
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(count)
    };
    let witness = scene.lab.node(Host::Witness);
    witness.enter(work).context("the witness's machine")?
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_wire::TcpOptions;

    /// What he forges is sound to the bit: a checksum that is wrong would prove nothing.
    #[test]
    fn what_is_forged_is_sound() {
        for v6 in [false, true] {
            let ends = if v6 {
                (Host::Client.v6().into(), crate::host::SERVICE_V6.into())
            } else {
                (Host::Client.v4().into(), crate::host::SERVICE_V4.into())
            };
            let ends: (std::net::IpAddr, std::net::IpAddr) = ends;
            let segment = Segment {
                source: SocketAddr::new(ends.0, 40_000).into(),
                destination: SocketAddr::new(ends.1, 80).into(),
                seq: SeqNumber(1),
                ack: SeqNumber(2),
                flags: ACK,
                wnd: 1000,
                options: TcpOptions::default(),
                payload: b"",
            };
            let plain = frame(Host::A, Host::B, &segment);
            let mut spoilt = plain.clone();
            spoilt[EthernetHeader::LEN + 39 + if v6 { 20 } else { 0 }] = 7;
            let last = spoilt.len() - 1;
            spoilt[last] ^= 1;
            assert!(Segment::verify(&spoilt[14..]).is_err(), "v6 {v6}");
            let sacked = with_sack(plain, SeqNumber(10), SeqNumber(20));
            for mended in [summed(spoilt), sacked] {
                assert_eq!(Segment::verify(&mended[14..]), Ok(()), "v6 {v6}");
            }
        }
    }
}
