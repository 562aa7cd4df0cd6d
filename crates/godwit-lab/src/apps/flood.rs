//! Clients that cost next to nothing: handshakes by the ten thousand, without sockets.
//!
//! One thread writes SYNs as frames of its own making. Of *real* clients it answers each
//! SYN-ACK with the ACK, and resets the connection [`STAY`] later. SYN-ACKs to *spoofed*
//! ones are counted, and nobody answers them. The clients are in [`NETWORKS`], which the
//! servers reach by way of the client's machine ([`route`]): its kernel has none of these
//! addresses and forwards nothing, so it says nothing to what comes for them.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use godwit_wire::{
    Endpoint, EthernetHeader, MacAddr, Segment, SeqNumber, TcpFlags, TcpOptions, TimeStamps,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use super::command;
use crate::host::{Host, Network, SERVICE};
use crate::lab::Lab;
use crate::packet::PacketSocket;
use crate::process::Output;

/// The command's name.
pub(super) const VERB: &str = "flood";

/// Where its clients are.
const NETWORKS: [&str; 2] = ["10.77.0.0/16", "2001:db8:77::/48"];

/// A connection is as old when its client resets it: both servers have accepted it by then.
const STAY: Duration = Duration::from_millis(10);

/// SYNs in one go, and answers that are taken in one.
const BATCH: u32 = 32;

/// Who gets no answer for so long counts what is under way as lost.
const LOST: Duration = Duration::from_millis(50);

/// A flood that has fallen behind does not catch up with more than this.
const DEBT: Duration = Duration::from_millis(10);

/// A frame of the data network; a SYN-ACK is much shorter.
const FRAME: usize = 2048;

/// How long a flood may take to begin and to end.
const AROUND: Duration = Duration::from_secs(10);

/// Whether anybody answers a SYN-ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clients {
    Real,
    Spoofed,
}

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) clients: Clients,
    /// SYNs per second.
    pub(crate) rate: u32,
    /// Handshakes under way at once, at most.
    pub(crate) window: u32,
    pub(crate) lasts: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) seconds: f64,
    /// SYNs.
    pub(crate) sent: u64,
    /// SYN-ACKs; one that was said twice counts twice.
    pub(crate) answered: u64,
    /// RSTs of the service.
    pub(crate) refused: u64,
}

/// Tells both servers that the clients are behind the client's machine.
pub(crate) fn route(lab: &Lab) -> Result<()> {
    let gateways = [Host::Client.v4().to_string(), Host::Client.v6().to_string()];
    let lines = NETWORKS.iter().zip(gateways).map(|(network, gateway)| {
        let interface = Network::Data.interface();
        format!("route add {network} via {gateway} dev {interface}")
    });
    let lines: Vec<_> = lines.collect();
    let mut servers = Host::SERVERS.into_iter();
    servers.try_for_each(|host| lab.node(host).netns().ip(&lines))
}

/// Has them begin at `server`, on the client's machine, and waits for the end.
///
/// # Errors
/// Fails if the program does.
pub(crate) fn wage(lab: &Lab, server: Host, port: u16, plan: Plan) -> Result<Told> {
    let args = [
        VERB.to_owned(),
        plan.clients.name().to_owned(),
        plan.rate.to_string(),
        plan.window.to_string(),
        plan.lasts.as_millis().to_string(),
        port.to_string(),
        server.mac(Network::Data).to_string(),
    ];
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let program = command::program(&args)?;
    let output: Output = lab.client().run(program, plan.lasts + AROUND)?;
    if !output.status.success() {
        bail!("the flood failed: {}", output.stderr.trim());
    }
    serde_json::from_str(&output.stdout).context("reading what a flood says")
}

/// `flood real|spoofed RATE WINDOW MILLISECONDS PORT MAC`
pub(super) fn run(args: &[String]) -> Result<()> {
    let [clients, rate, window, lasts, port, mac] = args else {
        bail!(command::USAGE);
    };
    let plan = Plan {
        clients: clients.parse()?,
        rate: rate.parse().context(command::USAGE)?,
        window: window.parse().context(command::USAGE)?,
        lasts: Duration::from_millis(lasts.parse().context(command::USAGE)?),
    };
    let port = port.parse().context(command::USAGE)?;
    let told = Flood::new(plan, port, mac.parse()?)?.run()?;
    let line = serde_json::to_string(&told).context("writing the report")?;
    writeln!(std::io::stdout(), "{line}").context("writing the report")
}

impl Clients {
    const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Spoofed => "spoofed",
        }
    }
}

impl FromStr for Clients {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let mut all = [Self::Real, Self::Spoofed].into_iter();
        let found = all.find(|clients| clients.name() == name);
        found.context(command::USAGE)
    }
}

/// The flood while it runs.
struct Flood {
    plan: Plan,
    port: u16,
    macs: [MacAddr; 2],
    socket: PacketSocket,
    began: Instant,
    told: Told,
    /// SYNs that are no longer waited for.
    forgotten: u64,
    heard: Instant,
    /// RSTs, and when each is due.
    ends: VecDeque<(Instant, Vec<u8>)>,
}

impl Flood {
    fn new(plan: Plan, port: u16, server: MacAddr) -> Result<Self> {
        let now = Instant::now();
        Ok(Self {
            plan,
            port,
            macs: [server, Host::Client.mac(Network::Data)],
            socket: PacketSocket::open(Network::Data.interface())?,
            began: now,
            told: Told::default(),
            forgotten: 0,
            heard: now,
            ends: VecDeque::new(),
        })
    }

    /// Until its time is over, and behind that until its last connection has ended.
    fn run(mut self) -> Result<Told> {
        let (mut buffer, mut next) = ([0; FRAME], 0.0);
        while self.began.elapsed() < self.plan.lasts {
            let now = Instant::now();
            let due = (now - self.began).as_secs_f64() * f64::from(self.plan.rate);
            let debt = DEBT.as_secs_f64() * f64::from(self.plan.rate);
            next = f64::max(next, due - debt);
            let mut busy = false;
            for _ in 0..BATCH {
                if next >= due || !self.has_room(now) {
                    break;
                }
                self.begin()?;
                next += 1.0;
                busy = true;
            }
            busy |= self.hear(&mut buffer, now)?;
            busy |= self.end(now)?;
            if !busy {
                self.wait()?;
            }
        }
        self.told.seconds = self.began.elapsed().as_secs_f64();
        let end = Instant::now() + 2 * STAY;
        while Instant::now() < end {
            self.hear(&mut buffer, Instant::now())?;
            self.end(Instant::now())?;
            self.wait()?;
        }
        Ok(self.told)
    }

    /// Whether one more handshake may be under way.
    fn has_room(&mut self, now: Instant) -> bool {
        let over = self.told.answered + self.forgotten;
        if self.told.sent.saturating_sub(over) < u64::from(self.plan.window) {
            return true;
        }
        if now - self.heard > LOST {
            self.forgotten = self.told.sent.saturating_sub(self.told.answered);
            self.heard = now;
        }
        false
    }

    fn begin(&mut self) -> Result<()> {
        let number = self.told.sent;
        let syn = Segment {
            source: client(number),
            destination: service(number, self.port),
            seq: first_number(number),
            ack: SeqNumber(0),
            flags: TcpFlags::SYN,
            wnd: 64_240,
            options: TcpOptions {
                mss: Some(1440),
                wscale: Some(7),
                sack_permitted: true,
                time_stamps: Some(TimeStamps {
                    ts_val: self.clock(),
                    ts_ecr: 0,
                }),
            },
            payload: &[],
        };
        self.told.sent += 1;
        self.socket.send(&self.frame(&syn)?)
    }

    /// Takes what has come; whether there was anything.
    fn hear(&mut self, buffer: &mut [u8], now: Instant) -> Result<bool> {
        for taken in 0..BATCH {
            let Some(length) = self.socket.receive(buffer)? else {
                return Ok(taken > 0);
            };
            let Some(frame) = buffer.get(..length) else {
                continue;
            };
            let Ok((_, packet)) = EthernetHeader::parse(frame) else {
                continue;
            };
            match Segment::parse(packet) {
                Ok(heard) if is_client(heard.destination) => self.take(&heard, now)?,
                Ok(_) | Err(_) => {}
            }
        }
        Ok(true)
    }

    fn take(&mut self, heard: &Segment<'_>, now: Instant) -> Result<()> {
        if heard.flags.contains(TcpFlags::RST) {
            self.told.refused += 1;
            return Ok(());
        }
        if !heard.flags.contains(TcpFlags::SYN.with(TcpFlags::ACK)) {
            return Ok(());
        }
        self.told.answered += 1;
        self.heard = now;
        if self.plan.clients == Clients::Spoofed {
            return Ok(());
        }
        let stamps = heard.options.time_stamps.map(|stamps| TimeStamps {
            ts_val: self.clock(),
            ts_ecr: stamps.ts_val,
        });
        let ack = Segment {
            source: heard.destination,
            destination: heard.source,
            seq: heard.ack,
            ack: heard.seq + 1,
            flags: TcpFlags::ACK,
            wnd: 502,
            options: TcpOptions {
                time_stamps: stamps,
                ..TcpOptions::default()
            },
            payload: &[],
        };
        let rst = Segment {
            flags: TcpFlags::RST.with(TcpFlags::ACK),
            ..ack
        };
        self.socket.send(&self.frame(&ack)?)?;
        self.ends.push_back((now + STAY, self.frame(&rst)?));
        Ok(())
    }

    /// Resets connections that are old enough; whether there were any.
    fn end(&mut self, now: Instant) -> Result<bool> {
        let mut any = false;
        while let Some((_, rst)) = self.ends.pop_front_if(|(due, _)| *due <= now) {
            self.socket.send(&rst)?;
            any = true;
        }
        Ok(any)
    }

    /// For something to hear, or a millisecond.
    fn wait(&self) -> Result<()> {
        let mut watched = [PollFd::new(self.socket.fd().as_fd(), PollFlags::POLLIN)];
        poll(&mut watched, PollTimeout::from(1_u8)).context("waiting for frames")?;
        Ok(())
    }

    fn frame(&self, segment: &Segment<'_>) -> Result<Vec<u8>> {
        let packet = segment.to_packet().context("writing a segment")?;
        let [to, from] = self.macs;
        Ok(EthernetHeader::frame_ip(to, from, &packet))
    }

    /// The clients' time stamps: milliseconds.
    fn clock(&self) -> u32 {
        u32::try_from(self.began.elapsed().as_millis()).map_or(1, |elapsed| elapsed + 1)
    }
}

/// The client with that number. Even ones have IPv4. 65 536 of each family follow one another,
/// and then the next port.
fn client(number: u64) -> Endpoint {
    let each = number / 2;
    let [low, high] = [each, each >> 8].map(|part| (part & 0xff) as u8);
    let port = 1024 + u16::try_from((each >> 16) % 60_000).unwrap_or(0);
    let address = if number.is_multiple_of(2) {
        Ipv4Addr::new(10, 77, high, low).to_ipv6_mapped()
    } else {
        let last = u16::from_be_bytes([high, low]);
        // A /64 each has 256 of them, as a /24 has.
        Ipv6Addr::new(0x2001, 0xdb8, 0x77, last >> 8, 0, 0, 0, last & 0xff)
    };
    Endpoint::new(address, port)
}

fn is_client(endpoint: Endpoint) -> bool {
    match endpoint.ip() {
        IpAddr::V4(address) => address.octets()[..2] == [10, 77],
        IpAddr::V6(address) => address.segments()[..3] == [0x2001, 0xdb8, 0x77],
    }
}

/// Which of its addresses that client talks to.
fn service(number: u64, port: u16) -> Endpoint {
    let [v4, v6] = SERVICE;
    let address = if number.is_multiple_of(2) { v4 } else { v6 };
    SocketAddr::new(address, port).into()
}

/// Another one for each connection of the same addresses and ports.
fn first_number(number: u64) -> SeqNumber {
    SeqNumber((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn clients_have_the_family_of_their_service_and_none_comes_twice() {
        let mut seen = BTreeSet::new();
        for number in 0..300_000 {
            let source = client(number);
            assert!(is_client(source), "{source}");
            assert_eq!(source.is_ipv4(), service(number, 80).is_ipv4());
            assert!(seen.insert(SocketAddr::from(source)), "{source} again");
        }
        let other = SocketAddr::from((Host::Client.v4(), 1024));
        assert!(!is_client(other.into()));
    }

    #[test]
    fn a_flood_of_no_kind_is_refused() {
        for clients in [Clients::Real, Clients::Spoofed] {
            assert_eq!(clients.name().parse::<Clients>().ok(), Some(clients));
        }
        assert!("".parse::<Clients>().is_err());
    }
}
