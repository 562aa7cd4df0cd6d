//! The thread that has the sockets of kept twins.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use godwit_bpf::Phase;
use godwit_core::MonoTime;
use godwit_core::snapshot::parcel::Parcel;
use godwit_sock::destroy_tcp;
use godwit_wire::app::Carried;
use godwit_wire::{Endpoint, FlowId, FlowKey, HandoffRefusal, ShareId};

use super::super::twins::note;
use super::kept::{Kept, Progress, is_origin, origin};
use super::perch::Perches;
use super::{Job, Means};
use crate::clock;
use crate::input::Input;
use crate::wake::Work;

/// How often twins are looked at that have not come to their snapshots.
const LOOK: Duration = Duration::from_millis(2);

/// The same, of those that have not got rid of a byte by the last look: their clients
/// do not listen.
const STUCK: Duration = Duration::from_millis(50);

/// How often is looked for twins whose connections are over.
const SWEEP: Duration = Duration::from_secs(1);

/// How long a snapshot waits for its twin; the owner does not wait longer.
const EARLY: Duration = Duration::from_secs(1);
/// How long a twin may take to be born.
const UNBORN: Duration = Duration::from_secs(10);

/// How long a server may take to be there for a connection that can be served.
const PATIENCE: Duration = Duration::from_secs(2);

/// The thread's share of the world.
pub(super) struct Worker {
    perches: Perches,
    shares: BTreeMap<Endpoint, ShareId>,
    means: Means,
    kept: BTreeMap<FlowKey, Kept>,
    /// Those that have something left to do.
    busy: BTreeSet<FlowKey>,
    /// Those that could not do any of it.
    stuck: BTreeSet<FlowKey>,
    /// What has come for twins that were not there.
    early: BTreeMap<FlowKey, Early>,
    /// Twins that are about to be born.
    births: BTreeMap<FlowId, Birth>,
    /// Those that no server here takes: the driver resets them, whose RST alone is where the
    /// client is.
    unserved: BTreeMap<FlowKey, Kept>,
    /// Shares that this node owns, and since when.
    served: BTreeMap<ShareId, MonoTime>,
    buffer: Vec<u8>,
    swept: MonoTime,
    /// When those that are stuck were looked at.
    tried: MonoTime,
}

/// A snapshot whose twin has yet to be taken in.
struct Early {
    flow: FlowId,
    snapshot: Parcel,
    since: MonoTime,
}

/// A twin that is to be born at a snapshot.
struct Birth {
    snapshot: Parcel,
    /// A later one, which it is to go to.
    next: Option<Parcel>,
    since: MonoTime,
}

impl Worker {
    pub(super) fn new(perches: Perches, shares: BTreeMap<Endpoint, ShareId>, means: Means) -> Self {
        Self {
            perches,
            shares,
            means,
            kept: BTreeMap::new(),
            busy: BTreeSet::new(),
            stuck: BTreeSet::new(),
            early: BTreeMap::new(),
            births: BTreeMap::new(),
            unserved: BTreeMap::new(),
            served: BTreeMap::new(),
            buffer: Vec::new(),
            swept: clock::now(),
            tried: clock::now(),
        }
    }

    /// Until the driver is gone.
    pub(super) fn run(mut self, jobs: &Work<Job>) {
        loop {
            self.wait(jobs);
            // What such a twin is to be born at has been said before there was one.
            let born = self.perches.born();
            let (mut rest, mut goes_on) = (Vec::new(), true);
            while goes_on {
                match jobs.next() {
                    Ok(Job::Bear(flow, snapshot)) => self.await_birth(flow, snapshot),
                    Ok(job) => rest.push(job),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => goes_on = false,
                }
            }
            self.take_in(born);
            rest.into_iter().for_each(|job| self.carry_out(job));
            if !goes_on {
                let unserved = std::mem::take(&mut self.unserved).into_values();
                return std::mem::take(&mut self.kept)
                    .into_values()
                    .chain(unserved)
                    .for_each(Kept::end);
            }
            let now = clock::now();
            self.look_at_early(now);
            if now.since(self.tried) >= STUCK {
                self.tried = now;
                self.busy.append(&mut self.stuck);
            }
            self.go_on(now);
            self.sweep(now);
        }
    }

    fn wait(&self, jobs: &Work<Job>) {
        let pause = match (self.busy.is_empty(), self.stuck.is_empty()) {
            (false, _) => LOOK,
            (true, false) => STUCK,
            (true, true) => SWEEP,
        };
        let listeners = self.perches.listeners().iter().map(AsFd::as_fd);
        jobs.sleep(Some(pause), &listeners.collect::<Vec<_>>());
        jobs.was_rung();
    }

    /// New twins.
    fn take_in(&mut self, born: Vec<TcpStream>) {
        for twin in born {
            let Some((flow, share, origin)) = self.identify(&twin) else {
                continue;
            };
            let birth = self.births.remove(&flow);
            // What another twin of the flow was to be born at is none of this one's.
            let birth = birth.filter(|birth| is_origin(&birth.snapshot.exported.place, origin));
            let lost = birth.is_none() && origin != Kept::START;
            let mut kept = Kept::new(flow, share, twin, origin);
            let next = birth.and_then(|birth| {
                kept.begin_at(birth.snapshot);
                birth.next
            });
            if lost || self.kept.len() >= self.perches.room() {
                // Its connection is unprotected, and says so: `twin_closed`.
                kept.end();
                continue;
            }
            if let Some(old) = self.kept.insert(flow.key, kept) {
                old.end();
            }
            // It may be served at once, or stand at a commit already.
            self.busy.insert(flow.key);
            if let Some(next) = next {
                self.expect(flow, next);
            }
        }
    }

    fn await_birth(&mut self, flow: FlowId, snapshot: Parcel) {
        let (next, since) = (None, clock::now());
        let birth = Birth {
            snapshot,
            next,
            since,
        };
        self.births.insert(flow, birth);
    }

    /// Which connection a twin is of, and where in it it begins; `None` if that has
    /// ended already.
    fn identify(&self, twin: &TcpStream) -> Option<(FlowId, ShareId, (u32, u32))> {
        let key = FlowKey {
            client: twin.peer_addr().ok()?.into(),
            service: twin.local_addr().ok()?.into(),
        };
        let share = self.shares.get(&key.service)?;
        let flow = self.means.flows.get(key).ok().flatten()?;
        Some((flow.id, *share, origin(&flow)))
    }

    fn carry_out(&mut self, job: Job) {
        match job {
            Job::Keep(flow, snapshot) => self.expect(flow, snapshot),
            Job::Bear(flow, snapshot) => self.await_birth(flow, snapshot),
            Job::Serve(share, false) => {
                self.served.remove(&share);
                let unserved = &mut self.unserved;
                let given_up = unserved.extract_if(.., |_, kept| kept.share == share);
                given_up.for_each(|(_, kept)| kept.end());
            }
            Job::Serve(share, true) => {
                self.served.entry(share).or_insert_with(clock::now);
                let kept = self.kept.values().filter(|kept| kept.share == share);
                self.busy.extend(kept.map(|kept| kept.flow.key));
            }
        }
    }

    /// One that comes when somebody serves the connection comes too late.
    fn expect(&mut self, flow: FlowId, snapshot: Parcel) {
        if let Some(birth) = self.births.get_mut(&flow) {
            birth.next = Some(snapshot);
            return;
        }
        let kept = self.kept.get_mut(&flow.key);
        let Some(kept) = kept.filter(|kept| kept.flow == flow) else {
            // Any other is as good if it comes later.
            if snapshot.commit.is_some() {
                self.note_early(flow, snapshot);
            }
            return;
        };
        if !self.served.contains_key(&kept.share) {
            kept.expect(snapshot);
            self.busy.insert(flow.key);
        }
    }

    /// Its twin may wait to be taken in. But if a server here has the connection since
    /// the share moved away, that is the twin: it would not say from here on what the
    /// owner says. So it ends, and the owner hears of that.
    fn note_early(&mut self, flow: FlowId, snapshot: Parcel) {
        if self.means.apps.serves(flow.key) {
            return note(flow.key, destroy_tcp(self.means.place.ifindex(), flow.key));
        }
        let early = Early {
            flow,
            snapshot,
            since: clock::now(),
        };
        self.early.insert(flow.key, early);
    }

    /// Snapshots whose twins have been taken in by now.
    fn look_at_early(&mut self, now: MonoTime) {
        let kept = &self.kept;
        let settled = self.early.extract_if(.., |key, early| {
            let is_here = kept.get(key).is_some_and(|kept| kept.flow == early.flow);
            is_here || now.since(early.since) >= EARLY
        });
        for (_, Early { flow, snapshot, .. }) in settled.collect::<Vec<_>>() {
            if self
                .kept
                .get(&flow.key)
                .is_some_and(|kept| kept.flow == flow)
            {
                self.expect(flow, snapshot);
            }
        }
    }

    fn go_on(&mut self, now: MonoTime) {
        for key in std::mem::take(&mut self.busy) {
            let Some(kept) = self.kept.get_mut(&key) else {
                continue;
            };
            let owed = kept.owes();
            let progress = kept.go_on(&mut self.buffer);
            let is_stuck = kept.owes() == owed;
            // One that has ended right there is nowhere.
            if let (Some(number), Ok(_)) = (kept.take_reached(), &progress) {
                let (share, flow) = (kept.share, kept.flow);
                let held = Input::CommitHeld {
                    share,
                    flow,
                    number,
                };
                // The driver has ended: there is nobody to tell.
                let _ = self.means.inbox.offer(held);
            }
            let since = self.served.get(&kept.share);
            let again = match (progress, since) {
                (Err(_), _) => {
                    self.end(key);
                    false
                }
                (Ok(Progress::Stands), None) => false,
                (Ok(Progress::Owes), None) if is_stuck => {
                    self.stuck.insert(key);
                    false
                }
                (Ok(Progress::Hears | Progress::Owes), None) => true,
                (Ok(Progress::Stands), Some(_)) => {
                    let until = kept.waits_since(now).saturating_add(PATIENCE);
                    !self.serve(key, now < until)
                }
                (Ok(Progress::Hears), Some(_)) => {
                    kept.expect_no_more();
                    true
                }
                (Ok(Progress::Owes), Some(since)) if is_stuck && now.since(*since) > PATIENCE => {
                    self.stuck.insert(key);
                    false
                }
                (Ok(Progress::Owes), Some(_)) => true,
            };
            if again {
                self.busy.insert(key);
            }
        }
    }

    fn end(&mut self, key: FlowKey) {
        if let Some(kept) = self.kept.remove(&key) {
            kept.end();
        }
    }

    /// Gives a twin to a server; `false` if there is none yet, and it may come.
    fn serve(&mut self, key: FlowKey, may_wait: bool) -> bool {
        let Some(kept) = self.kept.remove(&key) else {
            return true;
        };
        if !self.may_be_served(kept.flow) {
            kept.end();
            return true;
        }
        let flow = kept.flow;
        let (socket, snapshot) = kept.parts();
        match self.give(flow, socket, snapshot.cloned()) {
            Ok(()) => true,
            Err(HandoffRefusal::NoServer) if may_wait => {
                self.kept.insert(key, kept);
                false
            }
            Err(reason) => {
                let name = flow.key.to_string();
                let fields = [("flow", name.as_str()), ("reason", reason.as_str())];
                self.means.events.publish_own("flow_closed", true, fields);
                self.say_unserved(&kept);
                self.unserved.insert(key, kept);
                true
            }
        }
    }

    fn say_unserved(&self, kept: &Kept) {
        let (share, flow) = (kept.share, kept.flow);
        // The driver has ended: this is about to.
        let _ = self.means.inbox.offer(Input::Unserved { share, flow });
    }

    fn give(
        &self,
        flow: FlowId,
        socket: &TcpStream,
        snapshot: Option<Carried>,
    ) -> Result<(), HandoffRefusal> {
        let copy = socket.try_clone().map_err(|_| HandoffRefusal::NoCapacity)?;
        self.means.apps.give(flow.key, copy.into(), snapshot)
    }

    /// Others are reset by the driver.
    fn may_be_served(&self, flow: FlowId) -> bool {
        let state = self.means.flows.get(flow.key).ok().flatten();
        state.is_some_and(|state| {
            let lost = matches!(state.phase, Phase::Closed | Phase::Ended);
            state.id == flow && !state.not_in_sync && !state.cut_short && !lost
        })
    }

    fn sweep(&mut self, now: MonoTime) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.births
            .retain(|_, birth| now.since(birth.since) < UNBORN);
        let unserved = &mut self.unserved;
        let over = unserved.extract_if(.., |_, kept| kept.is_over());
        over.for_each(|(_, kept)| kept.end());
        self.unserved
            .values()
            .for_each(|kept| self.say_unserved(kept));
        let over = self.kept.iter().filter(|(_, kept)| kept.is_over());
        let over: Vec<_> = over.map(|(key, _)| *key).collect();
        for key in over {
            self.end(key);
        }
    }
}
