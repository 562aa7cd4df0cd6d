//! Client programs at work: mixed traffic over both families.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use super::phase::Phase;
use super::seat::{Connection, Seat};
use super::talk::{self, Pace, Work};
use super::world::{self, Program};
use crate::host::SERVICE;
use crate::lab::Lab;

/// What runs in every round against the lab's own server.
const WORKS: [Work; 12] = [
    Work::Ask,
    Work::Ask,
    Work::Upload,
    Work::Upload,
    Work::Echo,
    Work::Shut,
    Work::Shut,
    Work::HalfClose,
    Work::HalfClose,
    Work::Dial,
    Work::Dial,
    Work::Dial,
];

/// First bytes must have passed by then.
const BEGUN: Duration = Duration::from_secs(5);

/// How often a phase is looked at; a handshake takes a few of these.
const LOOK: Duration = Duration::from_micros(100);

/// Client programs at work.
#[derive(Debug)]
pub(super) struct Crowd {
    seats: Vec<Arc<Seat>>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// What all of them did.
#[derive(Debug)]
pub(super) struct Report {
    /// The connections of each client.
    pub(super) seats: Vec<Vec<Connection>>,
    pub(super) bytes: u64,
}

impl Report {
    /// How many connections there were.
    pub(super) fn streams(&self) -> u64 {
        self.seats.iter().map(|seat| seat.len() as u64).sum()
    }
}

impl Crowd {
    /// Starts the clients of one round; `seed` chooses their bytes.
    pub(super) fn start(lab: &Lab, programs: &[Program], seed: u64) -> Result<Self> {
        let mut works = WORKS.map(|work| (work, world::PORT)).to_vec();
        for program in programs {
            works.extend(match program {
                Program::Own => None,
                Program::Nginx => Some((Work::Web, program.port())),
                Program::Redis => Some((Work::Cache, program.port())),
            });
        }
        let works = works.into_iter();
        let paced = works.map(|(work, port)| (work, port, Pace::busy(work)));
        Self::seated(lab, paced, seed)
    }

    /// Starts those of `works`, with their ports, on the client's machine.
    pub(super) fn seated(
        lab: &Lab,
        works: impl Iterator<Item = (Work, u16, Pace)>,
        seed: u64,
    ) -> Result<Self> {
        let clients = works.enumerate().map(|(index, (work, port, pace))| {
            // Seeds are odd as often as even: both families get every kind.
            let seed = seed.wrapping_add(index as u64 * 1_000_003);
            let family = usize::try_from(seed % 2).unwrap_or(0);
            let service = SocketAddr::new(SERVICE[family], port);
            let run = move |seat: &Seat| talk::perform(work, service, seed, pace, seat);
            (work.name(), run)
        });
        Self::of(lab, clients)
    }

    /// Starts clients by their names on the client's machine: each of them sits at a seat of
    /// its own until it is dismissed.
    pub(super) fn of<F>(lab: &Lab, clients: impl Iterator<Item = (&'static str, F)>) -> Result<Self>
    where
        F: FnOnce(&Seat) + Send + 'static,
    {
        let mut crowd = Self {
            seats: Vec::new(),
            threads: Vec::new(),
        };
        for (name, perform) in clients {
            let (seat, client) = (Arc::new(Seat::default()), lab.client().clone());
            crowd.seats.push(Arc::clone(&seat));
            let run = move || client.enter(|| perform(&seat));
            let builder = thread::Builder::new().name(name.to_owned());
            let thread = builder.spawn(run).context("starting a client")?;
            crowd.threads.push(thread);
        }
        crowd.wait_begun().inspect_err(|_| crowd.dismiss())?;
        Ok(crowd)
    }

    /// All connections until now, seat by seat.
    pub(super) fn connections(&self) -> Vec<Vec<Connection>> {
        self.seats.iter().map(|seat| seat.connections()).collect()
    }

    /// Waits until one of them is in `phase`, but not for long; says whether.
    pub(super) fn wait_for(&self, phase: Phase, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if self.seats.iter().any(|seat| seat.phase() == phase) {
                return true;
            }
            thread::sleep(LOOK);
        }
        false
    }

    /// How many are in which phase at this moment.
    pub(super) fn phases(&self) -> BTreeMap<Phase, u64> {
        let mut counts = BTreeMap::new();
        for seat in &self.seats {
            *counts.entry(seat.phase()).or_default() += 1;
        }
        counts
    }

    /// Lets all come to an orderly end; that is bounded by their patience.
    pub(super) fn finish(mut self) -> Result<Report> {
        self.dismiss();
        let mut broken = None;
        for thread in mem::take(&mut self.threads) {
            let ended = thread.join().map_err(|_| anyhow!("a client panicked"));
            broken = broken.or_else(|| ended.and_then(|ended| ended).err());
        }
        if let Some(error) = broken {
            return Err(error);
        }
        Ok(Report {
            seats: self.connections(),
            bytes: self.seats.iter().map(|seat| seat.bytes()).sum(),
        })
    }

    fn dismiss(&self) {
        self.seats.iter().for_each(|seat| seat.dismiss());
    }

    /// Until each has said or heard something; [`Work::Shut`] hears nothing yet.
    fn wait_begun(&self) -> Result<()> {
        let end = Instant::now() + BEGUN;
        let begun = |seat: &Arc<Seat>| seat.bytes() > 0 || seat.phase() == Phase::ZeroWindow;
        while !self.seats.iter().all(begun) {
            if Instant::now() > end {
                let phases = self.phases();
                bail!("not all clients came to work within {BEGUN:?}: {phases:?}");
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
