//! What the applications of an owner's flows have said, for the standby to
//! compare (`compare.rs`): how long an answer is, and sums of what it says.

use std::collections::BTreeMap;

use godwit_bpf::{Datapath, FlowState, OutputSum, Phase};
use godwit_core::MonoTime;
use godwit_wire::{FlowKey, OutputEntry, Said, SeqNumber, ShareId};

use super::shares::Shares;

/// A client that is silent for this long has its whole answer.
const QUIET_NS: u64 = 10_000_000;

/// Answers told of in one round of 10 ms: what a standby can look at with a few
/// percent of a processor. The others follow in later rounds.
const LENGTHS_PER_ROUND: usize = 16;

/// As [`LENGTHS_PER_ROUND`], of sums: as many as a message holds.
const SUMS_PER_ROUND: usize = 512;

/// What was told of flows' lengths.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    told: BTreeMap<FlowKey, (SeqNumber, SeqNumber)>,
    pub(super) entries: Vec<(ShareId, OutputEntry)>,
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

impl Lengths {
    /// Looks at a protected flow whose client is silent.
    pub(super) fn look_at(&mut self, flow: &FlowState) {
        let said = (flow.rcv_nxt, flow.snd_nxt);
        if self.entries.len() >= LENGTHS_PER_ROUND
            || !is_answered(flow)
            || self.told.get(&flow.id.key) == Some(&said)
        {
            return;
        }
        self.told.insert(flow.id.key, said);
        let (rcv_nxt, end) = said;
        let entry = OutputEntry {
            flow: flow.id,
            said: Said::Length { rcv_nxt, end },
        };
        self.entries.push((flow.share, entry));
    }

    pub(super) fn forget(&mut self, flow: FlowKey) {
        self.told.remove(&flow);
    }

    pub(super) fn forget_all(&mut self) {
        self.told.clear();
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
        let scanned = datapath.outputs.for_each(|output| {
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
