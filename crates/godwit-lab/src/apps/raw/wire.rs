//! Frames of a [`RawClient`]: those that come, and those that it makes.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use godwit_wire::{
    ArpOperation, ArpPacket, EthernetHeader, MacAddr, NeighbourAdvertisement,
    NeighbourSolicitation, Segment, SeqNumber, TcpFlags, TcpOptions, TimeStamps,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{RETRANSMIT, RawClient};

/// Longest frame that a veth hands over: an offloaded segment.
const FRAME_LIMIT: usize = 66_000;

impl RawClient {
    /// Takes one frame; false if none came before `end`.
    pub(super) fn step(&mut self, end: Instant) -> Result<bool> {
        let mut frame = vec![0; FRAME_LIMIT];
        loop {
            if let Some(length) = self.socket.receive(&mut frame)? {
                self.take_frame(&frame[..length])?;
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let mut fds = [PollFd::new(self.socket.fd().as_fd(), PollFlags::POLLIN)];
            let left = PollTimeout::try_from(left.min(RETRANSMIT)).unwrap_or(PollTimeout::ZERO);
            // Interrupted or not, the socket is looked at again.
            let _ = poll(&mut fds, left);
        }
    }

    fn take_frame(&mut self, frame: &[u8]) -> Result<()> {
        let Ok((ethernet, packet)) = EthernetHeader::parse(frame) else {
            return Ok(());
        };
        match ethernet.ether_type {
            EthernetHeader::ARP => self.take_arp(packet),
            EthernetHeader::IPV4 | EthernetHeader::IPV6 if ethernet.destination == self.mac => {
                match Segment::parse(packet) {
                    Ok(s) if s.destination == self.local && s.source == self.service => {
                        self.take_segment(&s)
                    }
                    Ok(_) | Err(_) => self.take_discovery(packet),
                }
            }
            EthernetHeader::IPV6 if ethernet.destination.is_multicast() => {
                self.take_discovery(packet)
            }
            _ => Ok(()),
        }
    }

    /// Learns as a kernel does, and answers for its own address.
    fn take_arp(&mut self, packet: &[u8]) -> Result<()> {
        let Ok(arp) = ArpPacket::parse(packet) else {
            return Ok(());
        };
        let addresses = (self.local.ip(), self.service.ip());
        let (IpAddr::V4(own), IpAddr::V4(service)) = addresses else {
            return Ok(());
        };
        if arp.sender == service {
            self.service_mac = Some(arp.sender_mac);
        }
        if arp.operation == ArpOperation::Request && arp.target == own {
            let reply = ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: self.mac,
                sender: own,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            return self.socket.send(&reply.broadcast_frame());
        }
        Ok(())
    }

    /// The same with neighbour discovery.
    fn take_discovery(&mut self, packet: &[u8]) -> Result<()> {
        if let Ok(advertisement) = NeighbourAdvertisement::parse(packet)
            && advertisement.target == self.service.addr
        {
            self.service_mac = Some(advertisement.mac);
        }
        match NeighbourSolicitation::parse(packet) {
            Ok(asked) if asked.target == self.local.addr => {
                let answer = NeighbourAdvertisement {
                    target: asked.target,
                    mac: self.mac,
                };
                self.socket.send(&answer.answer_frame(&asked))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    pub(super) fn ask_for_mac(&mut self) -> Result<()> {
        let frame = match (self.local.ip(), self.service.ip()) {
            (IpAddr::V4(sender), IpAddr::V4(target)) => ArpPacket {
                operation: ArpOperation::Request,
                sender_mac: self.mac,
                sender,
                target_mac: MacAddr::ZERO,
                target,
            }
            .broadcast_frame(),
            (IpAddr::V4(_) | IpAddr::V6(_), _) => NeighbourSolicitation {
                source: self.local.addr,
                mac: self.mac,
                target: self.service.addr,
            }
            .multicast_frame(),
        };
        self.socket.send(&frame)
    }

    fn take_segment(&mut self, segment: &Segment<'_>) -> Result<()> {
        if segment.flags.contains(TcpFlags::RST) {
            self.complaints.resets += 1;
            return Ok(());
        }
        let Some(rcv_nxt) = self.rcv_nxt else {
            self.take_syn_ack(segment);
            return Ok(());
        };
        if segment.flags.contains(TcpFlags::SYN) {
            // Our ACK was lost, or has not been sent yet.
            return Ok(());
        }
        if !self.stamps_are_good(segment, rcv_nxt) {
            return self.acknowledge();
        }
        self.take_ack(segment)?;
        if segment.is_empty() {
            // A probe from before RCV.NXT wants an answer.
            return if segment.seq == rcv_nxt {
                Ok(())
            } else {
                self.acknowledge()
            };
        }
        let known = rcv_nxt.checked_distance(segment.seq);
        let fresh = known
            .and_then(|known| usize::try_from(known).ok())
            .and_then(|known| segment.payload.get(known..));
        if let Some(fresh) = fresh.filter(|_| !self.ended) {
            let fin = segment.flags.contains(TcpFlags::FIN);
            self.received.extend_from_slice(fresh);
            self.meter.record(fresh.len());
            let length = u32::try_from(fresh.len())? + u32::from(fin);
            self.rcv_nxt = Some(rcv_nxt + length);
            self.ended = fin;
        }
        self.acknowledge()
    }

    fn take_syn_ack(&mut self, segment: &Segment<'_>) {
        let wanted = TcpFlags::SYN.with(TcpFlags::ACK);
        let ours = segment.ack == self.options.iss + 1;
        if !segment.flags.contains(wanted) || !ours {
            return;
        }
        self.irs = segment.seq;
        self.rcv_nxt = Some(segment.seq + 1);
        (self.snd.una, self.snd.nxt, self.snd.max) = (segment.ack, segment.ack, segment.ack);
        self.snd.window = u32::from(segment.wnd);
        let both = self.options.wscale.and(segment.options.wscale);
        self.snd.wscale = both.unwrap_or(0).min(14);
        self.rcv_wscale = both.and(self.options.wscale).unwrap_or(0);
        let stamps = if self.options.ts_val.is_some() { 12 } else { 0 };
        let mss = segment.options.mss.unwrap_or(536).min(self.options.mss);
        self.snd.mss = usize::from(mss) - stamps;
        if let Some(stamps) = segment.options.time_stamps {
            self.ts_recent = stamps.ts_val;
        }
    }

    /// PAWS (RFC 7323 §5.2), and whether the echo is one of ours. Packets that
    /// overtake each other are no fault of the service: a segment from beyond
    /// RCV.NXT is not remembered (§4.3), and one with nothing new may be old.
    fn stamps_are_good(&mut self, segment: &Segment<'_>, rcv_nxt: SeqNumber) -> bool {
        let (Some(first), Some(stamps)) = (self.options.ts_val, segment.options.time_stamps) else {
            return true;
        };
        let echoed = stamps.ts_ecr.wrapping_sub(first);
        let latest = self.ts_now().wrapping_sub(first);
        self.complaints.bad_echoes += u32::from(echoed > latest);
        if SeqNumber(stamps.ts_val).lt(SeqNumber(self.ts_recent)) {
            let news = (segment.seq + segment.len()).gt(rcv_nxt) || segment.ack.gt(self.snd.una);
            self.complaints.old_stamps += u32::from(news);
            return false;
        }
        if !segment.seq.gt(rcv_nxt) {
            self.ts_recent = stamps.ts_val;
        }
        true
    }

    fn take_ack(&mut self, segment: &Segment<'_>) -> Result<()> {
        if segment.ack.gt(self.snd.max) {
            self.complaints.acks_beyond += 1;
            return Ok(());
        }
        self.snd.window = u32::from(segment.wnd) << self.snd.wscale;
        let moved = segment.ack.checked_distance(self.snd.una).unwrap_or(0);
        let moved = usize::try_from(moved)?;
        if moved > 0 {
            // The ACK of our FIN covers one number more than there are bytes.
            self.snd.queue.drain(..moved.min(self.snd.queue.len()));
            self.snd.una = segment.ack;
            self.snd.nxt = self.snd.nxt.max(segment.ack);
            self.snd.moved = Instant::now();
            self.meter.record(moved);
        }
        Ok(())
    }

    fn ts_now(&self) -> u32 {
        let elapsed = u32::try_from(self.started.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.options.ts_val.unwrap_or(0).wrapping_add(elapsed)
    }

    pub(super) fn send_syn(&mut self) -> Result<()> {
        let mut flags = TcpFlags::SYN;
        if self.options.ecn {
            flags = flags.with(TcpFlags::ECE).with(TcpFlags::CWR);
        }
        let options = TcpOptions {
            mss: Some(self.options.mss),
            wscale: self.options.wscale,
            sack_permitted: false,
            time_stamps: self.stamps(0),
        };
        self.send_with(flags, self.options.iss, SeqNumber(0), options, &[])
    }

    pub(super) fn send_segment(
        &mut self,
        flags: TcpFlags,
        seq: SeqNumber,
        payload: &[u8],
    ) -> Result<()> {
        let Some(ack) = self.rcv_nxt else {
            bail!("there is no connection yet");
        };
        let options = TcpOptions {
            time_stamps: self.stamps(self.ts_recent),
            ..TcpOptions::default()
        };
        self.send_with(flags, seq, ack, options, payload)
    }

    fn stamps(&self, ts_ecr: u32) -> Option<TimeStamps> {
        self.options.ts_val.map(|_| TimeStamps {
            ts_val: self.ts_now(),
            ts_ecr,
        })
    }

    fn send_with(
        &mut self,
        flags: TcpFlags,
        seq: SeqNumber,
        ack: SeqNumber,
        options: TcpOptions,
        payload: &[u8],
    ) -> Result<()> {
        // The window of a SYN is never scaled (RFC 7323 §2.2).
        let syn = flags.contains(TcpFlags::SYN);
        let segment = Segment {
            source: self.local,
            destination: self.service,
            seq,
            ack,
            flags,
            wnd: if syn {
                self.window()
            } else {
                self.window() >> self.rcv_wscale
            },
            options,
            payload,
        };
        let packet = segment.to_packet().context("writing a segment")?;
        let mac = self.service_mac.context("the service's MAC is unknown")?;
        (self.disguise)(packet)
            .iter()
            .map(|packet| EthernetHeader::frame_ip(mac, self.mac, packet))
            .try_for_each(|frame| self.socket.send(&frame))
    }
}
