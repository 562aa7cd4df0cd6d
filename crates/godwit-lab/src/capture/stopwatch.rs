//! How long a frame really stays between the data path of a machine and the wire: a
//! null control for runs in which a late word of an old owner is a violation.
//!
//! A queue of the lab is as short as its rate says only while the kernel serves it in
//! time. A token bucket fills up to 1 ms of the rate (`links::Shape`); whenever it is
//! looked at later than that, because the machine has more to do than processors, its
//! frames leave more slowly, and stay for longer than the lab promises. So a thread
//! sends numbered frames of a type of their own through the same queue, and the check at
//! the switch takes down when each comes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow};
use godwit_wire::{EthernetHeader, MacAddr};

use crate::host::{Host, Network};
use crate::lab::{Lab, Node};
use crate::packet::PacketSocket;

/// IEEE 802 local experimental EtherType 1.
const TYPE: u16 = 0x88b5;

/// The shortest Ethernet frame, without its checksum.
const LENGTH: usize = 60;

/// Between two frames.
const EVERY: Duration = Duration::from_millis(5);

/// A frame stayed about as long as those did that came out no more than this before or
/// after it.
const NEAR: Duration = Duration::from_millis(25);

/// Sends until it is finished, or dropped.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    from: MacAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Vec<SystemTime>>>>,
}

/// A numbered frame that came out of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    from: MacAddr,
    number: u32,
    at: SystemTime,
}

/// How long frames stayed in the queue of one machine, and when they came out.
#[derive(Debug, Default)]
pub(crate) struct Stays {
    from: MacAddr,
    stays: Vec<(SystemTime, Duration)>,
}

impl Stopwatch {
    /// Starts sending from `host` on the data network.
    pub(crate) fn start(lab: &Lab, host: Host) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (node, ended) = (lab.node(host).clone(), Arc::clone(&stop));
        let from = host.mac(Network::Data);
        let builder = thread::Builder::new().name("stopwatch".to_owned());
        let thread = builder.spawn(move || send(&node, from, &ended));
        Ok(Self {
            from,
            stop,
            thread: Some(thread.context("starting a thread")?),
        })
    }

    /// Ends it. `ticks` are all that came out.
    ///
    /// # Errors
    /// Fails if frames could not be sent.
    pub(crate) fn finish(mut self, ticks: &[Tick]) -> Result<Stays> {
        let sent = self.end().context("it has not ended before")??;
        Ok(Stays::of(self.from, &sent, ticks))
    }

    fn end(&mut self) -> Option<Result<Vec<SystemTime>>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take()?.join();
        Some(ended.unwrap_or_else(|_| Err(anyhow!("the stopwatch panicked"))))
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        // Nobody wants to know any more.
        let _ = self.end();
    }
}

impl Tick {
    /// Reads a frame that came out at `at`, if it is one of ours.
    pub(super) fn parse(frame: &[u8], at: SystemTime) -> Option<Self> {
        let (header, rest) = EthernetHeader::parse(frame).ok()?;
        let number = rest.get(..4)?.try_into().ok()?;
        (header.ether_type == TYPE).then_some(Self {
            from: header.source,
            number: u32::from_be_bytes(number),
            at,
        })
    }
}

impl Stays {
    /// `sent` has the moment after which each frame was in the queue, by its number: it
    /// may have been there for a moment longer, never for a shorter time.
    fn of(from: MacAddr, sent: &[SystemTime], ticks: &[Tick]) -> Self {
        let ticks = ticks.iter().filter(|tick| tick.from == from);
        let stays = ticks.filter_map(|tick| {
            let sent = sent.get(usize::try_from(tick.number).ok()?)?;
            Some((tick.at, tick.at.duration_since(*sent).unwrap_or_default()))
        });
        Self {
            from,
            stays: stays.collect(),
        }
    }

    /// How many frames came out, and how long the last of them to do so had stayed.
    pub(crate) fn summary(&self) -> (usize, Duration) {
        let longest = self.stays.iter().map(|(_, stay)| *stay).max();
        (self.stays.len(), longest.unwrap_or_default())
    }

    /// Whether a frame of `from` that came out at `at` may have been in the queue
    /// since `since`, or longer.
    pub(crate) fn explain(&self, from: MacAddr, at: SystemTime, since: SystemTime) -> bool {
        let near = |out: SystemTime| out + NEAR >= at && out <= at + NEAR;
        let stays = self.stays.iter().filter(|(out, _)| near(*out));
        let longest = stays.map(|(_, stay)| *stay).max();
        let needed = at.duration_since(since).unwrap_or_default();
        // Between two of our frames one may have stayed for a little longer.
        from == self.from && longest.is_some_and(|stay| stay + EVERY >= needed)
    }
}

/// Returns when each frame was handed over.
fn send(node: &Node, from: MacAddr, stop: &AtomicBool) -> Result<Vec<SystemTime>> {
    let work = || -> Result<Vec<SystemTime>> {
        let socket = PacketSocket::open_deaf(Network::Data.interface())?;
        let mut sent = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            socket.send(&frame(from, u32::try_from(sent.len())?))?;
            sent.push(SystemTime::now());
            thread::sleep(EVERY);
        }
        Ok(sent)
    };
    node.enter(work)?
}

/// To the client, whose kernel knows no such type.
fn frame(from: MacAddr, number: u32) -> Vec<u8> {
    let header = EthernetHeader {
        destination: Host::Client.mac(Network::Data),
        source: from,
        ether_type: TYPE,
    };
    let mut frame = Vec::with_capacity(LENGTH);
    header.emit(&mut frame);
    frame.extend(number.to_be_bytes());
    frame.resize(LENGTH, 0);
    frame
}

#[cfg(test)]
impl Stays {
    /// Frames of `from` that came out at these moments after so long.
    pub(crate) fn seen(from: MacAddr, stays: &[(SystemTime, Duration)]) -> Self {
        Self {
            from,
            stays: stays.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = Host::A.mac(Network::Data);
    const B: MacAddr = Host::B.mac(Network::Data);

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn a_stay_is_from_the_queue_to_the_wire() {
        let tick = |from, number, millis| {
            Tick::parse(&frame(from, number), at(millis)).expect("one of ours")
        };
        // The second one was dropped, and b has a queue of its own.
        let ticks = [tick(A, 0, 120), tick(B, 1, 121), tick(A, 2, 180)];
        let stays = Stays::of(A, &[at(100), at(105), at(110)], &ticks);
        assert_eq!(stays.summary(), (2, Duration::from_millis(70)));
        assert!(Tick::parse(&[0; LENGTH], at(0)).is_none());
        assert!(Tick::parse(&frame(A, 1)[..17], at(0)).is_none());
    }

    #[test]
    fn a_queue_explains_what_came_out_beside_its_frames() {
        let stays = Stays::seen(A, &[(at(200), Duration::from_millis(60))]);
        assert!(stays.explain(A, at(201), at(141)));
        assert!(stays.explain(A, at(201), at(136)), "between two frames");
        assert!(!stays.explain(A, at(201), at(135)), "let out long before");
        assert!(!stays.explain(A, at(226), at(200)), "nothing known of then");
        assert!(!stays.explain(B, at(201), at(199)), "of another machine");
        assert!(!Stays::default().explain(A, at(201), at(200)));
    }
}
