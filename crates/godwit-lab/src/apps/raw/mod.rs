//! A small TCP client of our own that speaks in frames.
//!
//! It chooses what a kernel does not let one choose: its initial sequence
//! number, its time stamps, its options, and the moment of each step of the
//! handshake. It has an address, a MAC and ARP or neighbour discovery of its own
//! on the client's wire, so that no kernel answers for it.
//!
//! As a receiver it is stricter than a kernel: it takes bytes only in order,
//! and it counts what a peer may never do ([`Complaints`]). As a sender it is
//! simple: at most [`IN_FLIGHT`] bytes, go-back-N after [`RETRANSMIT`]. RFC 9293
//! and RFC 7323 §5 (PAWS) are followed as far as a test needs them.

mod wire;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use godwit_wire::{Endpoint, MacAddr, SeqNumber, TcpFlags};

use crate::host::Network;
use crate::lab::Node;
use crate::meter::Meter;
use crate::packet::PacketSocket;

/// Most bytes that are sent and not acknowledged.
const IN_FLIGHT: u32 = 32 * 1024;

/// Unacknowledged bytes, a SYN too, are sent again after this long.
const RETRANSMIT: Duration = Duration::from_millis(200);

/// What a [`RawClient`] says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOptions {
    /// Its address; no machine of the lab may have it.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its initial sequence number.
    pub iss: SeqNumber,
    /// Its TSval at the first SYN, one per millisecond; `None` has no time stamps.
    pub ts_val: Option<u32>,
    /// The MSS that it announces.
    pub mss: u16,
    /// The window scale that it announces.
    pub wscale: Option<u8>,
    /// Whether it asks for ECN (RFC 3168 §6.1.1).
    pub ecn: bool,
}

/// What the service did and may not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Complaints {
    /// Segments with RST.
    pub resets: u32,
    /// Segments with something new and a TSval before the latest one: PAWS would
    /// drop them.
    pub old_stamps: u32,
    /// Segments with a TSecr that was never a TSval of the client.
    pub bad_echoes: u32,
    /// Acknowledgements of what was never sent.
    pub acks_beyond: u32,
}

/// One connection, or an attempt at one.
#[derive(Debug)]
pub struct RawClient {
    meter: Arc<Meter>,
    /// What the service did wrong until now.
    pub complaints: Complaints,
    options: RawOptions,
    socket: PacketSocket,
    mac: MacAddr,
    local: Endpoint,
    service: Endpoint,
    service_mac: Option<MacAddr>,
    started: Instant,
    ts_recent: u32,
    snd: Sending,
    /// RCV.NXT; `None` until the SYN-ACK.
    rcv_nxt: Option<SeqNumber>,
    irs: SeqNumber,
    /// Shift of the windows that the client announces.
    rcv_wscale: u8,
    received: Vec<u8>,
    ended: bool,
    /// What becomes of each packet on its way out.
    disguise: fn(Vec<u8>) -> Vec<Vec<u8>>,
}

/// The sender's half.
#[derive(Debug)]
struct Sending {
    una: SeqNumber,
    nxt: SeqNumber,
    /// End of what was ever sent.
    max: SeqNumber,
    window: u32,
    wscale: u8,
    mss: usize,
    /// From `una` on.
    queue: Vec<u8>,
    moved: Instant,
}

impl RawClient {
    /// A client on `node`'s wire that has not sent anything yet.
    ///
    /// # Errors
    /// Fails if the machine is gone.
    pub fn open(node: &Node, service: SocketAddr, options: RawOptions) -> Result<Self> {
        let interface = Network::Data.interface();
        let socket = node.enter(|| PacketSocket::open(interface))??;
        let local = Endpoint::from(SocketAddr::new(options.address, options.port));
        let [.., number] = local.addr.octets();
        let now = Instant::now();
        Ok(Self {
            meter: Arc::default(),
            complaints: Complaints::default(),
            options,
            socket,
            mac: MacAddr([2, 0, 0, 0, 0x7a, number]),
            local,
            service: Endpoint::from(service),
            service_mac: None,
            started: now,
            ts_recent: 0,
            snd: Sending {
                una: options.iss,
                nxt: options.iss,
                max: options.iss,
                window: 0,
                wscale: 0,
                mss: 536,
                queue: Vec::new(),
                moved: now,
            },
            rcv_nxt: None,
            irs: SeqNumber(0),
            rcv_wscale: 0,
            received: Vec::new(),
            ended: false,
            disguise: |packet| vec![packet],
        })
    }

    /// From now on sends, for each IP packet, what `disguise` makes of it: for
    /// options and fragments, which this client knows nothing of.
    pub fn disguise(&mut self, disguise: fn(Vec<u8>) -> Vec<Vec<u8>>) {
        self.disguise = disguise;
    }

    /// Progress: bytes received, and bytes that the service acknowledged.
    pub fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Begins anew from another port, with nothing remembered but the MAC.
    pub fn redial(&mut self, port: u16) {
        self.options.port = port;
        self.local.port = port;
        self.rcv_nxt = None;
        self.snd.una = self.options.iss;
        self.snd.nxt = self.options.iss;
        self.snd.max = self.options.iss;
    }

    /// Sends a SYN until the SYN-ACK comes, and does not answer that yet;
    /// returns the service's initial sequence number.
    ///
    /// # Errors
    /// Fails after `deadline`, or if the service resets.
    pub fn half_open(&mut self, deadline: Duration) -> Result<SeqNumber> {
        let end = Instant::now() + deadline;
        while self.rcv_nxt.is_none() {
            match self.service_mac {
                Some(_) => self.send_syn()?,
                None => self.ask_for_mac()?,
            }
            let patience = Instant::now() + RETRANSMIT;
            let before = self.service_mac;
            while self.rcv_nxt.is_none() && before == self.service_mac {
                if !self.step(patience)? {
                    break;
                }
            }
            ensure!(Instant::now() < end, "no SYN-ACK within {deadline:?}");
            ensure!(self.complaints.resets == 0, "the service refused");
        }
        Ok(self.irs)
    }

    /// Ends the handshake that [`half_open`](Self::half_open) began.
    ///
    /// # Errors
    /// Fails if the wire is gone.
    pub fn acknowledge(&mut self) -> Result<()> {
        self.send_segment(TcpFlags::ACK, self.snd.nxt, &[])
    }

    /// Resets the connection.
    ///
    /// # Errors
    /// Fails if the wire is gone.
    pub fn reset(&mut self) -> Result<()> {
        self.send_segment(TcpFlags::RST.with(TcpFlags::ACK), self.snd.nxt, &[])
    }

    /// Sends `bytes` and waits until all of them are acknowledged.
    ///
    /// # Errors
    /// Fails after `deadline` without progress, or at a RST.
    pub fn send(&mut self, bytes: &[u8], deadline: Duration) -> Result<()> {
        self.snd.queue.extend_from_slice(bytes);
        self.progress("an acknowledgement", deadline, |client| {
            client.snd.queue.is_empty()
        })
    }

    /// Receives exactly `length` bytes.
    ///
    /// # Errors
    /// Fails after `deadline` without progress, at a RST, or at an early end.
    pub fn receive(&mut self, length: usize, deadline: Duration) -> Result<Vec<u8>> {
        self.progress("data", deadline, |client| {
            client.received.len() >= length || client.ended
        })?;
        ensure!(self.received.len() >= length, "the service ended early");
        let was = self.window();
        let rest = self.received.split_off(length);
        let taken = std::mem::replace(&mut self.received, rest);
        if was < self.options.mss {
            // The service may be waiting for the window to open.
            self.acknowledge()?;
        }
        Ok(taken)
    }

    /// Answers as a kernel does, while its application waits for `moment`.
    ///
    /// # Errors
    /// Fails if the wire is gone.
    pub fn wait_until(&mut self, moment: Instant) -> Result<()> {
        while Instant::now() < moment {
            self.step(moment)?;
        }
        Ok(())
    }

    /// What the client can still take: bytes, before scaling.
    fn window(&self) -> u16 {
        let held = u16::try_from(self.received.len()).unwrap_or(u16::MAX);
        u16::MAX - held
    }

    /// Waits for the service's FIN, before which nothing else may come, and
    /// answers it with the client's own.
    ///
    /// # Errors
    /// Fails after `deadline`, or if data comes.
    pub fn finish(&mut self, deadline: Duration) -> Result<()> {
        self.progress("the end", deadline, |client| client.ended)?;
        ensure!(self.received.is_empty(), "data after the end");
        let fin = TcpFlags::FIN.with(TcpFlags::ACK);
        self.send_segment(fin, self.snd.nxt, &[])?;
        self.snd.max = self.snd.nxt + 1;
        Ok(())
    }

    fn progress(
        &mut self,
        what: &str,
        deadline: Duration,
        done: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let mut mark = (self.meter.bytes(), Instant::now());
        while !done(self) {
            self.pump()?;
            self.step(Instant::now() + Duration::from_millis(5))?;
            ensure!(self.complaints.resets == 0, "reset, waiting for {what}");
            if self.meter.bytes() > mark.0 {
                mark = (self.meter.bytes(), Instant::now());
            }
            ensure!(mark.1.elapsed() < deadline, "waited too long for {what}");
        }
        Ok(())
    }

    /// Sends what the window allows, from the start again if nothing moved.
    fn pump(&mut self) -> Result<()> {
        let waiting = self.snd.nxt != self.snd.una;
        if waiting && self.snd.moved.elapsed() > RETRANSMIT {
            self.snd.nxt = self.snd.una;
            self.snd.moved = Instant::now();
        }
        let limit = self.snd.window.min(IN_FLIGHT);
        loop {
            let flying = self.snd.nxt.checked_distance(self.snd.una).unwrap_or(0);
            let at = usize::try_from(flying)?;
            let room = usize::try_from(limit.saturating_sub(flying))?;
            let left = self.snd.queue.len().saturating_sub(at);
            let length = left.min(room).min(self.snd.mss);
            if length == 0 {
                return Ok(());
            }
            if !waiting && at == 0 {
                self.snd.moved = Instant::now();
            }
            let payload = self.snd.queue[at..at + length].to_vec();
            let flags = TcpFlags::ACK.with(TcpFlags::PSH);
            self.send_segment(flags, self.snd.nxt, &payload)?;
            self.snd.nxt += u32::try_from(length)?;
            self.snd.max = self.snd.max.max(self.snd.nxt);
        }
    }
}
