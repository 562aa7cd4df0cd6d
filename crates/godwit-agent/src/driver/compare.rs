//! A standby's twins, compared with what their owners have said (`output.rs`).
//!
//! Lengths are compared while nothing is under way, and a difference counts
//! when it lasts: servers do not answer at the same instant. Other bytes are
//! other bytes: that is looked at twice, for the books may change while they
//! are read, and then believed.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_bpf::{Datapath, FlowState, Phase};
use godwit_core::MonoTime;
use godwit_wire::{FlowId, OutputEntry, Role, Said, SeqNumber, ShareId, UnprotectedReason};

use super::Driver;
use super::output::is_behind;

/// How often an open comparison is looked at again.
const LOOK: Duration = Duration::from_millis(50);

/// Open comparisons; what comes on top is let be.
const MAX_OPEN: usize = 16_384;

/// A comparison that can't be made for so long is let be. A twin that lags has
/// this long to come to the position.
const PATIENCE: Duration = Duration::from_secs(60);

/// One position of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Length(FlowId),
    Content(FlowId, u32),
}

#[derive(Debug, Clone, Copy)]
struct Open {
    share: ShareId,
    said: Said,
    since: MonoTime,
    /// What the twin had shown when it was first seen to differ, and when.
    differs: Option<(SeqNumber, MonoTime)>,
    due: MonoTime,
}

/// Comparisons under way.
#[derive(Debug)]
pub(super) struct Comparisons {
    open: BTreeMap<Subject, Open>,
    /// Flows that were found to differ and go on all the same.
    reported: BTreeMap<FlowId, MonoTime>,
    /// Whether a server of this node is stopped: what its twins have said is no answer.
    stands: bool,
    due: MonoTime,
}

/// What a look at a twin shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// It says the same so far.
    Agrees,
    /// Something else; what it has shown.
    Differs(SeqNumber),
    /// It has not come that far.
    Behind,
    /// The moment has passed, or the flow.
    Gone,
}

impl Comparisons {
    pub(super) fn new(now: MonoTime) -> Self {
        Self {
            open: BTreeMap::new(),
            reported: BTreeMap::new(),
            stands: false,
            due: now,
        }
    }

    /// When to look again; far away if nothing is open.
    pub(super) fn due(&self, now: MonoTime) -> MonoTime {
        if self.open.is_empty() {
            now.saturating_add(PATIENCE)
        } else {
            self.due
        }
    }

    /// While one of this node's servers stands, none of its twins is called diverged: those
    /// that lag too long are given up for that.
    pub(super) fn note_standstill(&mut self, stands: bool) {
        self.stands = stands;
    }

    /// The owner has said something. What it said before of the same is void.
    pub(super) fn expect(&mut self, share: ShareId, entry: OutputEntry, now: MonoTime) {
        let subject = match entry.said {
            Said::Length { .. } => Subject::Length(entry.flow),
            Said::Content { upto, .. } => Subject::Content(entry.flow, upto),
        };
        if self.reported.contains_key(&entry.flow)
            || self.open.len() >= MAX_OPEN && !self.open.contains_key(&subject)
        {
            return;
        }
        let open = Open {
            share,
            said: entry.said,
            since: now,
            differs: None,
            due: now,
        };
        self.open.insert(subject, open);
        self.due = self.due.min(now);
    }

    /// Twins that say something else; `limits` has the `divergence_limit` of
    /// each share.
    fn judge(
        &mut self,
        datapath: &Datapath,
        limits: impl Fn(ShareId) -> Option<Duration>,
        now: MonoTime,
    ) -> Vec<(ShareId, FlowId, UnprotectedReason)> {
        let mut found = Vec::new();
        self.due = now.saturating_add(LOOK);
        self.open.retain(|subject, open| {
            if open.due > now {
                return true;
            }
            open.due = now.saturating_add(LOOK);
            if self.stands {
                open.differs = None;
                return now.since(open.since) < PATIENCE;
            }
            let Some(limit) = limits(open.share) else {
                return false;
            };
            let finding = match (subject, open.said) {
                (Subject::Length(flow), Said::Length { rcv_nxt, end }) => {
                    twin(datapath, *flow).map_or(Finding::Gone, |f| length(&f, rcv_nxt, end))
                }
                (Subject::Content(flow, _), Said::Content { upto, sum }) => {
                    content(datapath, *flow, upto, sum)
                }
                (Subject::Length(_) | Subject::Content(..), _) => Finding::Gone,
            };
            let verdict = open.follow(finding, limit, now);
            if verdict == Verdict::Diverged {
                found.push((open.share, subject.flow(), subject.reason()));
            }
            verdict == Verdict::Open
        });
        self.reported
            .retain(|_, since| now.since(*since) < 10 * PATIENCE);
        for (_, flow, _) in &found {
            self.reported.insert(*flow, now);
        }
        let reported = &self.reported;
        self.open
            .retain(|subject, _| !reported.contains_key(&subject.flow()));
        // One word for a flow: the first.
        found.dedup_by_key(|(_, flow, _)| *flow);
        found
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Open,
    Closed,
    Diverged,
}

impl Open {
    fn follow(&mut self, finding: Finding, limit: Duration, now: MonoTime) -> Verdict {
        match finding {
            Finding::Gone => return Verdict::Closed,
            Finding::Behind => self.differs = None,
            Finding::Agrees => {
                self.differs = None;
                // A twin shows a longer answer only when its kernel tries again.
                let settled = matches!(self.said, Said::Content { .. });
                if settled || now.since(self.since) >= limit {
                    return Verdict::Closed;
                }
            }
            Finding::Differs(shown) => match self.differs {
                Some((before, since)) if before == shown => {
                    let enough = match self.said {
                        Said::Content { .. } => Duration::ZERO,
                        Said::Length { .. } => limit,
                    };
                    if now.since(since) >= enough {
                        return Verdict::Diverged;
                    }
                }
                Some(_) | None => self.differs = Some((shown, now)),
            },
        }
        if now.since(self.since) >= PATIENCE.max(2 * limit) {
            return Verdict::Closed;
        }
        Verdict::Open
    }
}

impl Subject {
    const fn flow(self) -> FlowId {
        match self {
            Self::Length(flow) | Self::Content(flow, _) => flow,
        }
    }

    const fn reason(self) -> UnprotectedReason {
        match self {
            Self::Length(_) => UnprotectedReason::DivergedLength,
            Self::Content(..) => UnprotectedReason::DivergedContent,
        }
    }
}

impl Driver {
    /// Looks at the twins that a comparison is due for.
    pub(super) fn compare(&mut self, now: MonoTime) {
        if self.comparisons.open.is_empty() || self.comparisons.due > now {
            return;
        }
        if self.node.peer_status().any(|peer| peer.config_differs) {
            // With other masks there are other sums.
            self.comparisons.open.clear();
            return;
        }
        let (shares, config) = (&self.shares, &self.config);
        let limits = |id: ShareId| {
            let shadow = shares.get(id)?.entry.role == Role::Shadow;
            let (_, service) = config.shares().find(|(share, _)| *share == id)?;
            shadow.then_some(service.divergence_limit)
        };
        for (share, flow, reason) in self.comparisons.judge(&self.datapath, limits, now) {
            self.node.handle_divergence(share, flow, reason, now);
        }
    }
}

fn twin(datapath: &Datapath, flow: FlowId) -> Option<FlowState> {
    let state = datapath.flows.get(flow.key).ok().flatten()?;
    let serves = state.phase == Phase::Twin && !state.not_in_sync;
    (state.id.irs == flow.irs && serves).then_some(state)
}

/// The twin's answer to everything before `rcv_nxt` should end at `end`.
fn length(flow: &FlowState, rcv_nxt: SeqNumber, end: SeqNumber) -> Finding {
    if rcv_nxt.lt(flow.rcv_nxt) || end.lt(flow.snd_una) {
        // The client, or the owner, went on.
        return Finding::Gone;
    }
    if flow.rcv_nxt != rcv_nxt || flow.snd_una != end {
        return Finding::Behind;
    }
    if flow.shown_end == end {
        Finding::Agrees
    } else {
        Finding::Differs(flow.shown_end)
    }
}

fn content(datapath: &Datapath, flow: FlowId, upto: u32, sum: u32) -> Finding {
    if twin(datapath, flow).is_none() {
        return Finding::Gone;
    }
    let output = match datapath.outputs.get(flow.key) {
        Ok(Some(output)) if output.irs == flow.irs => output,
        Ok(_) => return Finding::Behind,
        Err(_) => return Finding::Gone,
    };
    match output.sum_at(upto) {
        Some(own) if own == sum => Finding::Agrees,
        Some(own) => Finding::Differs(SeqNumber(own)),
        None => match output.latest() {
            Some(latest) if is_behind(upto, latest.upto) => Finding::Gone,
            Some(_) | None => Finding::Behind,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);
    const START: MonoTime = MonoTime::from_nanos(1_000_000_000);

    fn open(said: Said) -> Open {
        Open {
            share: ShareId(0),
            said,
            since: START,
            differs: None,
            due: START,
        }
    }

    fn length_of(end: u32) -> Said {
        Said::Length {
            rcv_nxt: SeqNumber(1),
            end: SeqNumber(end),
        }
    }

    fn after(ms: u64) -> MonoTime {
        START.saturating_add(Duration::from_millis(ms))
    }

    #[test]
    fn a_length_counts_when_it_stays_different() {
        let mut open = open(length_of(100));
        let short = Finding::Differs(SeqNumber(90));
        assert_eq!(open.follow(short, LIMIT, after(0)), Verdict::Open);
        assert_eq!(open.follow(short, LIMIT, after(1999)), Verdict::Open);
        assert_eq!(open.follow(short, LIMIT, after(2000)), Verdict::Diverged);
    }

    #[test]
    fn a_twin_that_still_speaks_is_only_slow() {
        let mut open = open(length_of(100));
        for step in 0..9 {
            let shown = Finding::Differs(SeqNumber(90 + step));
            let at = after(u64::from(step) * 1900);
            assert_eq!(open.follow(shown, LIMIT, at), Verdict::Open, "{step}");
        }
        let agrees = open.follow(Finding::Agrees, LIMIT, after(18_000));
        assert_eq!(agrees, Verdict::Closed);
    }

    #[test]
    fn a_longer_answer_shows_late() {
        let mut open = open(length_of(100));
        assert_eq!(open.follow(Finding::Agrees, LIMIT, after(0)), Verdict::Open);
        let long = Finding::Differs(SeqNumber(110));
        assert_eq!(open.follow(long, LIMIT, after(400)), Verdict::Open);
        assert_eq!(open.follow(long, LIMIT, after(2400)), Verdict::Diverged);
    }

    #[test]
    fn other_bytes_are_looked_at_twice() {
        let said = Said::Content { upto: 9, sum: 1 };
        let other = Finding::Differs(SeqNumber(2));
        let mut torn = open(said);
        assert_eq!(torn.follow(other, LIMIT, after(0)), Verdict::Open);
        assert_eq!(
            torn.follow(Finding::Agrees, LIMIT, after(50)),
            Verdict::Closed
        );
        let mut other_bytes = open(said);
        assert_eq!(other_bytes.follow(other, LIMIT, after(0)), Verdict::Open);
        assert_eq!(
            other_bytes.follow(other, LIMIT, after(50)),
            Verdict::Diverged
        );
    }

    #[test]
    fn what_never_can_be_compared_is_let_be() {
        let mut open = open(length_of(100));
        assert_eq!(
            open.follow(Finding::Behind, LIMIT, after(59_999)),
            Verdict::Open
        );
        assert_eq!(
            open.follow(Finding::Behind, LIMIT, after(60_000)),
            Verdict::Closed
        );
    }
}
