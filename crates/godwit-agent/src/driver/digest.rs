//! Repair of what the tap lost and no retransmission brings back: that a
//! connection is over, and a client's last acknowledgement. Whoever looks at all
//! flows for that sees twins whose applications lag, too ([`godwit_core::twin::lag`]).
//!
//! With very many flows a look takes longer than a heartbeat: it goes on in steps.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::{Datapath, FlowState, Phase, Scan};
use godwit_core::remembered::Remembered;
use godwit_core::twin::lag::{Behind, Finding, Progress};
use godwit_core::{FlowEvent, FlowEventKind, MonoTime};
use godwit_wire::{DigestEntry, Generation, OutputEntry, Role, SeqNumber, ShareId};

use super::ground::Ground;
use super::output::{Lengths, Sums};
use super::shares::Shares;
use crate::clock;

/// Shortest time between two digests.
const INTERVAL: Duration = Duration::from_millis(10);

/// The same while there are no flows: reading an empty table takes as long as reading one
/// with a thousand.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// Looks may take at most this part of the driver's time.
const SHARE_OF_TIME: u32 = 20;

/// When a step of a look ends, at the next thousand flows: a heartbeat waits for no longer.
const STEP: Duration = Duration::from_millis(1);

/// A client that is quiet for this long has said its last word for now.
const QUIET_NS: u64 = 10_000_000;

/// When a report of the data path counts as lost, and how often it is made up
/// for.
const REMINDER: Duration = Duration::from_millis(150);

/// A flow may be configured to be held so long; one that is held longer was
/// not reported, whatever the configuration.
const LONGEST_LAG: Duration = Duration::from_secs(60);

/// What the standby was told, and what is due.
#[derive(Debug)]
pub(super) struct Digest {
    due: MonoTime,
    /// Flows at the last whole look; `None` where nothing was looked at.
    flows: Option<u64>,
    /// The look that is under way, and what it has seen.
    look: Option<(Scan, u64)>,
    behind: Remembered<Behind>,
    ended: Vec<FlowEvent>,
    /// Flows whose twins lag, and flows that the data path's watchdog should have
    /// reported by now: its records can be lost when the ring buffer is full.
    overdue: Vec<FlowEvent>,
    reminded: Remembered<MonoTime>,
    lengths: Lengths,
    sums: Sums,
}

impl Digest {
    pub(super) fn new(now: MonoTime) -> Self {
        Self {
            due: now,
            flows: None,
            look: None,
            behind: Remembered::new(),
            ended: Vec::new(),
            overdue: Vec::new(),
            reminded: Remembered::new(),
            lengths: Lengths::default(),
            sums: Sums::default(),
        }
    }

    pub(super) fn due(&self) -> MonoTime {
        self.due
    }

    /// Tells the core what its standbys should know by now, if it is due.
    pub(super) fn tick(&mut self, ground: &mut Ground, now: MonoTime) {
        if self.due > now {
            return;
        }
        let ifindex = ground.voice.ifindex;
        for (share, changes) in self.collect(&ground.datapath, &ground.shares, ifindex, now) {
            ground.node.handle_changes(share, &changes, now);
        }
        for (share, entries) in self.output(&ground.datapath, &ground.shares, now) {
            ground.node.handle_output(share, &entries, now);
        }
        for event in std::mem::take(&mut self.overdue) {
            tracing::debug!(flow = %event.flow.key, kind = ?event.kind, "not reported by the data path");
            ground.node.handle_flow_event(event, now);
        }
    }

    /// Whether there were no flows at the last look.
    pub(super) fn is_idle(&self) -> bool {
        self.flows == Some(0)
    }

    /// The data path reports an end.
    pub(super) fn note_end(&mut self, event: FlowEvent) {
        self.behind.remove(&event.flow.key);
        self.reminded.remove(&event.flow.key);
        self.lengths.forget(event.flow.key);
        self.sums.forget(event.flow.key);
        self.ended.push(event);
    }

    /// Whether a server is stopped: how far its answers have come is no measure. What was
    /// told of that is taken back.
    pub(super) fn note_standstill(&mut self, stands: bool) {
        self.lengths.note_standstill(stands);
    }

    /// Nobody was told anything: a link has changed.
    pub(super) fn forget(&mut self) {
        self.behind.clear();
        self.lengths.forget_all();
        self.sums.forget_all();
    }

    /// What the applications of flows have said; after [`Digest::collect`],
    /// whose scan of the flows it shares.
    fn output(
        &mut self,
        datapath: &Datapath,
        shares: &Shares,
        now: MonoTime,
    ) -> BTreeMap<ShareId, Vec<OutputEntry>> {
        let mut said = std::mem::take(&mut self.lengths.entries);
        let guarded = shares.iter().any(|(share, _)| is_guarded(shares, share));
        if guarded && !self.is_idle() {
            said.extend(self.sums.collect(datapath, shares, now));
        }
        let mut entries: BTreeMap<ShareId, Vec<OutputEntry>> = BTreeMap::new();
        for (share, entry) in said {
            entries.entry(share).or_default().push(entry);
        }
        let took = clock::now().since(now);
        self.due = self.due.max(now.saturating_add(took * SHARE_OF_TIME));
        entries
    }

    /// What the standby of each share should know by now; `ifindex` is that of the service
    /// interface.
    fn collect(
        &mut self,
        datapath: &Datapath,
        shares: &Shares,
        ifindex: u32,
        now: MonoTime,
    ) -> BTreeMap<ShareId, Vec<DigestEntry>> {
        let mut entries: BTreeMap<ShareId, Vec<DigestEntry>> = BTreeMap::new();
        for event in std::mem::take(&mut self.ended) {
            if is_guarded(shares, event.share) {
                entries.entry(event.share).or_default().push(ended(event));
            }
        }
        if shares.iter().any(|(share, _)| is_guarded(shares, share)) {
            self.scan(datapath, shares, ifindex, now, &mut entries);
        } else {
            (self.flows, self.look) = (None, None);
            self.behind.clear();
            self.lengths.forget_all();
            self.sums.forget_all();
        }
        let took = clock::now().since(now);
        let interval = if self.is_idle() {
            IDLE_INTERVAL
        } else {
            INTERVAL
        };
        self.due = now.saturating_add(interval.max(took * SHARE_OF_TIME));
        entries
    }

    /// A step of a look at all flows, or the whole of it if there are few.
    fn scan(
        &mut self,
        datapath: &Datapath,
        shares: &Shares,
        ifindex: u32,
        now: MonoTime,
        entries: &mut BTreeMap<ShareId, Vec<DigestEntry>>,
    ) {
        let (mut scan, mut count) = self.look.take().unwrap_or_else(|| {
            self.behind.begin();
            self.reminded.begin();
            (Scan::default(), 0)
        });
        self.lengths.begin();
        loop {
            let stepped = datapath.flows.step(&mut scan, |flow| {
                count += 1;
                self.look_at(&flow, (shares, ifindex), now, entries);
            });
            match stepped {
                Ok(false) if clock::now().since(now) < STEP => continue,
                Ok(false) => self.look = Some((scan, count)),
                Ok(true) => self.end_look(Some(count)),
                Err(error) => {
                    self.end_look(None);
                    tracing::warn!(error = %error, "can't read the flows for a digest");
                }
            }
            return;
        }
    }

    /// All flows were looked at, or the table can't be read.
    fn end_look(&mut self, flows: Option<u64>) {
        self.flows = flows;
        self.behind.end(flows.is_some());
        self.reminded.end(flows.is_some());
    }

    fn look_at(
        &mut self,
        flow: &FlowState,
        (shares, ifindex): (&Shares, u32),
        now: MonoTime,
        entries: &mut BTreeMap<ShareId, Vec<DigestEntry>>,
    ) {
        self.behind.saw(flow.id.key);
        self.reminded.saw(flow.id.key);
        let Some(share) = shares.get(flow.share) else {
            return;
        };
        let generation = share.entry.generation;
        if let Some(kind) = complaint(flow, generation, now) {
            self.complain(flow, kind, now);
        }
        let protected = flow.is_protected(generation);
        let quiet = now.0.saturating_sub(flow.heard_ns) >= QUIET_NS;
        if protected && quiet && !share.kept {
            self.lengths.look_at(flow, ifindex, now);
        }
        if protected || is_rejoining(flow, generation) {
            let found = self.look_behind(flow, quiet, share.entry.lag_limit, now);
            if found.ask {
                entries.entry(flow.share).or_default().push(entry(flow));
            }
            // One that is kept says what follows its snapshot when it is served.
            if found.lags && protected && !share.kept {
                self.complain(flow, FlowEventKind::Stalled, now);
            }
        }
    }

    /// Says of a flow what the data path has not, now and then while it lasts.
    fn complain(&mut self, flow: &FlowState, kind: FlowEventKind, now: MonoTime) {
        let last = self.reminded.get(&flow.id.key);
        if last.is_none_or(|last| now.since(*last) >= REMINDER) {
            self.reminded.insert(flow.id.key, now);
            self.overdue.push(FlowEvent {
                share: flow.share,
                flow: flow.id,
                generation: flow.generation,
                kind,
            });
        }
    }

    /// Whether the standby is to hear of a flow, and whether its twin lags.
    fn look_behind(
        &mut self,
        flow: &FlowState,
        quiet: bool,
        lag_limit: Duration,
        now: MonoTime,
    ) -> Finding {
        let nothing = Finding {
            ask: false,
            lags: false,
        };
        let progress = Progress {
            snd_una: flow.snd_una,
            twin_snd_nxt: flow.twin_snd_nxt,
        };
        let Some(new) = Behind::new(progress, now) else {
            // The twin's application has said it all: nothing waits for an ACK.
            self.behind.remove(&flow.id.key);
            return nothing;
        };
        let mut behind = self.behind.get(&flow.id.key).copied().unwrap_or(new);
        let found = behind.look(progress, quiet, lag_limit, now);
        self.behind.insert(flow.id.key, behind);
        found
    }
}

/// Whether a new twin of the flow repeats what was said.
fn is_rejoining(flow: &FlowState, in_sync: Generation) -> bool {
    flow.phase == Phase::Rejoining && flow.gated && !in_sync.is_none() && flow.generation == in_sync
}

/// What the watchdog should have said of a flow that is held back for so long
/// that it must have.
fn complaint(flow: &FlowState, in_sync: Generation, now: MonoTime) -> Option<FlowEventKind> {
    if !flow.gated || in_sync.is_none() || flow.generation != in_sync {
        return None;
    }
    let since = |ns: u64| now.since(MonoTime::from_nanos(ns));
    match flow.phase {
        Phase::Confirming if since(flow.born_ns) >= REMINDER => Some(FlowEventKind::NotConfirmed),
        Phase::Protected
            if flow.held_ns != 0 && since(flow.held_ns) >= 2 * REMINDER + LONGEST_LAG =>
        {
            Some(FlowEventKind::Stalled)
        }
        Phase::Confirming
        | Phase::Protected
        | Phase::Unprotected
        | Phase::Twin
        | Phase::Closed
        | Phase::Ended
        | Phase::Rejoining
        | Phase::Unknown(_) => None,
    }
}

fn is_guarded(shares: &Shares, share: ShareId) -> bool {
    shares
        .get(share)
        .is_some_and(|share| share.entry.role == Role::Owner && !share.entry.generation.is_none())
}

fn ended(event: FlowEvent) -> DigestEntry {
    let unknown = SeqNumber(0);
    DigestEntry {
        flow: event.flow,
        snd_una: unknown,
        snd_nxt: unknown,
        rcv_nxt: unknown,
        ended: true,
    }
}

fn entry(flow: &FlowState) -> DigestEntry {
    DigestEntry {
        flow: flow.id,
        snd_una: flow.snd_una,
        snd_nxt: flow.snd_nxt,
        rcv_nxt: flow.rcv_nxt,
        ended: false,
    }
}
