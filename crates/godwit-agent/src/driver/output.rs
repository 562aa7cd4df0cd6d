//! What the applications of an owner's flows have said, for the standby to
//! compare (`compare.rs`): how long an answer is, and sums of what it says.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::{Datapath, FlowState, OutputSum, Phase};
use godwit_core::MonoTime;
use godwit_sock::waiting_bytes;
use godwit_wire::{FlowId, FlowKey, OutputEntry, Said, SeqNumber, ShareId};

use super::shares::Shares;

/// A client that is silent for this long has its whole answer.
const QUIET_NS: u64 = 10_000_000;

/// Answers told of in one round of 10 ms: what a standby can look at with a few
/// percent of a processor. The others follow in later rounds.
const LENGTHS_PER_ROUND: usize = 16;

/// As [`LENGTHS_PER_ROUND`], of sums: as many as a message holds.
const SUMS_PER_ROUND: usize = 512;

/// Sockets that the kernel is asked about in one round, some 10 us each.
const LOOKS_PER_ROUND: usize = 16;

/// A server that has not read all is looked at again after so long, then after twice as
/// long, and so on.
const FIRST_REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_secs(2);

/// What was told of flows' lengths.
///
/// A server that has not read what the client has said has no answer yet: one that is
/// stopped (SIGSTOP) or hangs says as much as one whose answer is empty. Its twin, which
/// has answered, is not the one that is wrong. So nothing is told of it until it has read
/// all. The same holds while its kernel can't send what it has said: a route is missing, or
/// a rule drops it. Nor is one that stands in the middle of an answer a measure for its twin,
/// which goes on: what was told of it is taken back (`standstill.rs`).
#[derive(Debug)]
pub(super) struct Lengths {
    told: BTreeMap<FlowKey, Length>,
    /// Whether a server is stopped, or may be: nobody has looked since the agent began.
    stands: bool,
    /// Flows whose servers have not read all.
    unread: BTreeMap<FlowKey, Rest>,
    looks: usize,
    pub(super) entries: Vec<(ShareId, OutputEntry)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Length {
    share: ShareId,
    flow: FlowId,
    rcv_nxt: SeqNumber,
    end: SeqNumber,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    until: MonoTime,
    length: Duration,
}

/// What was told of flows' sums.
#[derive(Debug, Default)]
pub(super) struct Sums {
    told: BTreeMap<FlowKey, Told>,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    irs: SeqNumber,
    upto: u32,
}

impl Length {
    const fn entry(self) -> (ShareId, OutputEntry) {
        let Self { rcv_nxt, end, .. } = self;
        let said = Said::Length { rcv_nxt, end };
        let flow = self.flow;
        (self.share, OutputEntry { flow, said })
    }

    /// An end that the owner has gone on from long ago: nobody compares that any more.
    const fn void(self) -> Self {
        let end = SeqNumber(self.end.0.wrapping_sub(1 << 30));
        Self { end, ..self }
    }
}

impl Default for Lengths {
    fn default() -> Self {
        Self {
            told: BTreeMap::new(),
            stands: true,
            unread: BTreeMap::new(),
            looks: 0,
            entries: Vec::new(),
        }
    }
}

impl Lengths {
    /// Begins a round.
    pub(super) fn begin(&mut self) {
        self.looks = 0;
    }

    /// Looks at a protected flow whose client is silent; `ifindex` is that of the service
    /// interface.
    pub(super) fn look_at(&mut self, flow: &FlowState, ifindex: u32, now: MonoTime) {
        let said = Length {
            share: flow.share,
            flow: flow.id,
            rcv_nxt: flow.rcv_nxt,
            end: flow.snd_nxt,
        };
        if self.entries.len() >= LENGTHS_PER_ROUND
            || !is_answered(flow)
            || self.stands
            || self.told.get(&flow.id.key) == Some(&said)
            || !self.has_read_all(flow, ifindex, now)
        {
            return;
        }
        self.told.insert(flow.id.key, said);
        self.entries.push(said.entry());
    }

    /// While one stands nothing is told, and what was told is void.
    pub(super) fn note_standstill(&mut self, stands: bool) {
        self.stands = stands;
        if stands {
            let told = std::mem::take(&mut self.told).into_values();
            self.entries.extend(told.map(|said| said.void().entry()));
        }
    }

    /// Whether the flow's server has read what its client has said, and its kernel has sent
    /// what it says, as far as it may be asked for now.
    fn has_read_all(&mut self, flow: &FlowState, ifindex: u32, now: MonoTime) -> bool {
        let key = flow.id.key;
        let rest = self.unread.get(&key).copied();
        if self.looks >= LOOKS_PER_ROUND || rest.is_some_and(|rest| now < rest.until) {
            return false;
        }
        self.looks += 1;
        // Nobody reads a FIN before the bytes in front of it.
        let fin = u32::from(flow.client_fin);
        // Without an answer of the kernel it is as if it had.
        let waits = waiting_bytes(ifindex, key)
            .ok()
            .flatten()
            .unwrap_or_default();
        if waits.unread <= fin && waits.unacked == 0 {
            self.unread.remove(&key);
            return true;
        }
        let length = rest.map_or(FIRST_REST, |rest| (2 * rest.length).min(LONGEST_REST));
        let until = now.saturating_add(length);
        self.unread.insert(key, Rest { until, length });
        false
    }

    pub(super) fn forget(&mut self, flow: FlowKey) {
        self.told.remove(&flow);
        self.unread.remove(&flow);
    }

    pub(super) fn forget_all(&mut self) {
        self.told.clear();
        self.unread.clear();
        self.entries.clear();
    }
}

/// Whether the client has said nothing that is not received, and has
/// acknowledged all that was said to it, and could take more: nothing waits.
fn is_answered(flow: &FlowState) -> bool {
    let room = flow.snd_edge.checked_distance(flow.snd_una).unwrap_or(0);
    flow.snd_una == flow.snd_nxt
        && flow.rcv_nxt == flow.client_end
        && !flow.leashed
        && room >= u32::from(flow.mss)
}

impl Sums {
    /// The sums that the standby should have by now and was not told.
    pub(super) fn collect(
        &mut self,
        datapath: &Datapath,
        shares: &Shares,
        now: MonoTime,
    ) -> Vec<(ShareId, OutputEntry)> {
        let mut entries = Vec::new();
        let scanned = datapath.twins.outputs.for_each(|output| {
            let told = self.told.get(&output.key).copied();
            let told = told.filter(|told| told.irs == output.irs);
            let fresh = |sum: &OutputSum| told.is_none_or(|told| is_behind(told.upto, sum.upto));
            if entries.len() >= SUMS_PER_ROUND || !output.sums().any(|sum| fresh(&sum)) {
                return;
            }
            let Ok(Some(flow)) = datapath.flows.get(output.key) else {
                return;
            };
            let in_sync = shares.get(flow.share).map(|share| share.entry.generation);
            if flow.id.irs != output.irs || !in_sync.is_some_and(|g| flow.is_protected(g)) {
                return;
            }
            let mut latest = None;
            for sum in output.sums().filter(fresh) {
                if is_ready(&flow, sum, now) {
                    let OutputSum { upto, sum } = sum;
                    let said = Said::Content { upto, sum };
                    entries.push((
                        flow.share,
                        OutputEntry {
                            flow: flow.id,
                            said,
                        },
                    ));
                    latest = match latest {
                        Some(before) if !is_behind(before, upto) => latest,
                        Some(_) | None => Some(upto),
                    };
                }
            }
            if let Some(upto) = latest {
                let irs = output.irs;
                self.told.insert(output.key, Told { irs, upto });
            }
        });
        if let Err(error) = scanned {
            tracing::warn!(error = %error, "can't read what flows have said");
        }
        entries
    }

    pub(super) fn forget(&mut self, flow: FlowKey) {
        self.told.remove(&flow);
    }

    pub(super) fn forget_all(&mut self) {
        self.told.clear();
    }
}

/// Whether position `a` of a stream is before `b`, modulo 2^32.
pub(super) fn is_behind(a: u32, b: u32) -> bool {
    SeqNumber(a).lt(SeqNumber(b))
}

/// Whether both sides have this sum for a while: that of a whole block once the
/// twin has said that much, another one while nothing more is said.
fn is_ready(flow: &FlowState, sum: OutputSum, now: MonoTime) -> bool {
    let end = flow.iss + 1 + sum.upto;
    if flow.phase != Phase::Protected {
        return false;
    }
    if sum.is_whole_block() {
        return flow.twin_snd_nxt.ge(end);
    }
    let said = if flow.own_fin { end + 1 } else { end };
    flow.snd_nxt == said && now.0.saturating_sub(flow.heard_ns) >= QUIET_NS
}
