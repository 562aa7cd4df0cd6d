//! Three queues with one reader: what must not be late waits behind nothing else.
//!
//! | queue | has | taken |
//! |---|---|---|
//! | urgent | heartbeats, lease datagrams | first, and all of it before time passes |
//! | links | links and their messages | by turns with the next one |
//! | common | all else | by turns with the one before |
//!
//! A flood of flow events, which any client can cause, keeps the common queue full, and a peer
//! that talks much the second one. Neither makes a healthy peer look dead, or a link end.
//!
//! The reader sleeps at the common queue: who writes into another one leaves a note there, and
//! none if it is full, as the reader does not sleep then.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::time::{Duration, Instant};

use super::{DriverGone, Input};

/// Inputs that may wait in each; half a second of a busy node.
const CAPACITY: usize = 8192;

/// Heartbeats and leases: half a second of twenty peers.
const URGENT: usize = 1024;

/// Where an input waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Urgent,
    Links,
    Common,
}

/// What is in the common queue.
#[derive(Debug)]
enum Slip {
    Input(Input),
    /// There is something in another queue.
    Look,
}

/// The writing end, cheap to clone.
#[derive(Debug, Clone)]
pub struct Inbox {
    urgent: SyncSender<Input>,
    links: SyncSender<Input>,
    common: SyncSender<Slip>,
    dropped: Arc<AtomicU64>,
    closed: Arc<AtomicBool>,
}

/// The driver's end.
#[derive(Debug)]
pub struct Inputs {
    urgent: Receiver<Input>,
    links: Receiver<Input>,
    common: Receiver<Slip>,
    /// Whether it is the turn of the links.
    turn: Cell<bool>,
}

impl Place {
    fn of(input: &Input) -> Self {
        if let Input::Several(inputs) = input {
            return inputs.first().map_or(Self::Common, Self::of);
        }
        if matches!(input, Input::Heartbeat { .. } | Input::Lease { .. }) {
            Self::Urgent
        } else if matches!(input, Input::Link { .. } | Input::Message { .. }) {
            Self::Links
        } else {
            Self::Common
        }
    }
}

impl Inbox {
    /// Makes the queues; the driver keeps the other end.
    pub fn new() -> (Self, Inputs) {
        let (urgent, first) = sync_channel(URGENT);
        let (links, second) = sync_channel(CAPACITY);
        let (common, third) = sync_channel(CAPACITY);
        let inbox = Self {
            urgent,
            links,
            common,
            dropped: Arc::default(),
            closed: Arc::default(),
        };
        let inputs = Inputs {
            urgent: first,
            links: second,
            common: third,
            turn: Cell::new(false),
        };
        (inbox, inputs)
    }

    /// Queues an input that must not be lost; blocks while its queue is full.
    ///
    /// # Errors
    /// If the driver has ended.
    pub fn send(&self, input: Input) -> Result<(), DriverGone> {
        let place = Place::of(&input);
        let sent = match place {
            Place::Urgent => self.urgent.send(input).is_ok(),
            Place::Links => self.links.send(input).is_ok(),
            Place::Common => self.common.send(Slip::Input(input)).is_ok(),
        };
        self.call(place);
        if sent { Ok(()) } else { Err(DriverGone) }
    }

    /// As [`Self::send`], of messages or reports that follow each other.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_all(&self, mut inputs: Vec<Input>) -> Result<(), DriverGone> {
        match inputs.len() {
            0 => Ok(()),
            1 => inputs.pop().map_or(Ok(()), |only| self.send(only)),
            _ => self.send(Input::Several(inputs)),
        }
    }

    /// Queues an input that will be repeated anyway; never blocks.
    ///
    /// # Errors
    /// If the driver has ended. A full queue is no error, but counted.
    pub fn offer(&self, input: Input) -> Result<(), DriverGone> {
        let place = Place::of(&input);
        let refused = match place {
            Place::Urgent => self.urgent.try_send(input).err().map(is_full),
            Place::Links => self.links.try_send(input).err().map(is_full),
            Place::Common => {
                let sent = self.common.try_send(Slip::Input(input));
                sent.err().map(is_full)
            }
        };
        match refused {
            None => self.call(place),
            Some(true) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Some(false) => return Err(DriverGone),
        }
        Ok(())
    }

    /// Wakes the reader up, should it sleep.
    fn call(&self, place: Place) {
        if place != Place::Common {
            // Full: it does not sleep.
            let _ = self.common.try_send(Slip::Look);
        }
    }

    /// The driver ends: whoever waits for something to send should, too.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Whether the driver has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// How many inputs were dropped because their queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn is_full<T>(error: TrySendError<T>) -> bool {
    matches!(error, TrySendError::Full(_))
}

impl Inputs {
    /// The next input, if one comes in time.
    ///
    /// # Errors
    /// If none does, or there is nobody left who could send one.
    pub fn recv_timeout(&self, patience: Duration) -> Result<Input, RecvTimeoutError> {
        let begun = Instant::now();
        loop {
            match self.try_recv() {
                Ok(input) => return Ok(input),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let left = patience.saturating_sub(begun.elapsed());
            if let Slip::Input(input) = self.common.recv_timeout(left)? {
                return Ok(input);
            }
        }
    }

    /// The next input, if one is there.
    ///
    /// # Errors
    /// If none is, or there is nobody left who could send one.
    pub fn try_recv(&self) -> Result<Input, TryRecvError> {
        if let Some(input) = self.try_urgent() {
            return Ok(input);
        }
        let turn = self.turn.replace(!self.turn.get());
        if turn && let Ok(input) = self.links.try_recv() {
            return Ok(input);
        }
        let last = loop {
            match self.common.try_recv() {
                Ok(Slip::Input(input)) => return Ok(input),
                Ok(Slip::Look) => {}
                Err(why) => break why,
            }
        };
        // What came after the looks above has left a note: they were all taken.
        self.try_urgent()
            .or_else(|| self.links.try_recv().ok())
            .ok_or(last)
    }

    /// The next heartbeat or lease datagram that is there: whoever lets time pass takes all of
    /// them before.
    pub fn try_urgent(&self) -> Option<Input> {
        self.urgent.try_recv().ok()
    }
}

#[cfg(test)]
impl Iterator for &Inputs {
    type Item = Input;

    /// Waits for as long as somebody can send.
    fn next(&mut self) -> Option<Input> {
        loop {
            match self.recv_timeout(Duration::from_secs(3600)) {
                Ok(input) => return Some(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use godwit_core::{Beat, Link, MonoTime, PeerId};

    use super::*;

    fn beat(sequence: u64) -> Input {
        let beat = Beat {
            incarnation: 1,
            sequence,
            sent: None,
            shares: Vec::new(),
        };
        Input::Heartbeat {
            peer: PeerId(0),
            beat,
            at: MonoTime::ZERO,
        }
    }

    fn down(peer: u16) -> Input {
        Input::Link {
            peer: PeerId(peer),
            link: Link::Down,
        }
    }

    /// The driver stands, and clients make more events than there is room for.
    #[test]
    fn heartbeats_are_heard_while_flow_events_fill_the_queue() {
        let (inbox, inputs) = Inbox::new();
        let reader = inbox.clone();
        let flood = thread::spawn(move || {
            // As the ring buffer's reader: it waits while the queue is full.
            while reader.send(Input::ListenerClosed).is_ok() {}
        });
        while inbox.common.try_send(Slip::Look).is_ok() {
            thread::yield_now();
        }
        for sequence in 0..100 {
            inbox.offer(beat(sequence)).expect("the driver is there");
        }
        assert_eq!(inbox.dropped(), 0);
        inbox.send(down(3)).expect("the driver is there");
        for wanted in 0..100 {
            let Ok(Input::Heartbeat { beat, .. }) = inputs.try_recv() else {
                panic!("something is before it");
            };
            assert_eq!(beat.sequence, wanted);
        }
        let next = [inputs.try_recv(), inputs.try_recv()];
        let is_link = |input: &Result<_, _>| matches!(input, Ok(Input::Link { .. }));
        assert_eq!(next.iter().filter(|it| is_link(it)).count(), 1, "{next:?}");
        drop(inputs);
        flood.join().expect("no panic");
    }

    #[test]
    fn who_sleeps_is_woken_up_whatever_comes() {
        for input in [beat(1), down(1), Input::ListenerClosed] {
            let (inbox, inputs) = Inbox::new();
            let late = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                inbox.send(input).expect("the driver is there");
                inbox
            });
            let begun = Instant::now();
            assert!(inputs.recv_timeout(Duration::from_secs(20)).is_ok());
            assert!(begun.elapsed() < Duration::from_secs(10));
            let inbox = late.join().expect("no panic");
            let brief = Duration::from_millis(1);
            let nothing = inputs.recv_timeout(brief);
            assert_eq!(nothing.err(), Some(RecvTimeoutError::Timeout));
            drop(inbox);
            let gone = inputs.recv_timeout(brief);
            assert_eq!(gone.err(), Some(RecvTimeoutError::Disconnected));
        }
    }

    #[test]
    fn links_and_all_else_take_turns() {
        let (inbox, inputs) = Inbox::new();
        for peer in 0..4 {
            inbox.send(down(peer)).expect("the driver is there");
            inbox
                .send(Input::ListenerClosed)
                .expect("the driver is there");
        }
        let all: Vec<_> = std::iter::from_fn(|| inputs.try_recv().ok()).collect();
        let links = all.iter().map(|it| matches!(it, Input::Link { .. }));
        let links: Vec<_> = links.collect();
        assert_eq!(links.iter().filter(|it| **it).count(), 4);
        assert!(
            links
                .windows(3)
                .all(|three| three.contains(&true) && three.contains(&false))
        );
    }
}
