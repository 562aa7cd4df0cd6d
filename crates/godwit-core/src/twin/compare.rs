//! A standby's twins, compared with what their owners have said.
//!
//! Lengths are compared while nothing is under way, and a difference counts
//! when it lasts: servers do not answer at the same instant. Other bytes are
//! other bytes: that is looked at twice, for the books may change while they
//! are read, and then believed.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::{FlowId, OutputEntry, Said, SeqNumber, ShareId, UnprotectedReason};

use crate::MonoTime;

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
pub struct Comparisons {
    open: BTreeMap<Subject, Open>,
    /// Flows that were found to differ and go on all the same.
    reported: BTreeMap<FlowId, MonoTime>,
    /// Whether a server of this node is stopped: what its twins have said is no answer.
    stands: bool,
    due: MonoTime,
}

/// What a look at a twin shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
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
    /// Of nothing.
    #[must_use]
    pub fn new(now: MonoTime) -> Self {
        Self {
            open: BTreeMap::new(),
            reported: BTreeMap::new(),
            stands: false,
            due: now,
        }
    }

    /// When to look again; far away if nothing is open.
    #[must_use]
    pub fn due(&self, now: MonoTime) -> MonoTime {
        if self.open.is_empty() {
            now.saturating_add(PATIENCE)
        } else {
            self.due
        }
    }

    /// While one of this node's servers stands, none of its twins is called diverged: those
    /// that lag too long are given up for that.
    pub fn note_standstill(&mut self, stands: bool) {
        self.stands = stands;
    }

    /// The owner has said something. What it said before of the same is void.
    pub fn expect(&mut self, share: ShareId, entry: OutputEntry, now: MonoTime) {
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

    /// Whether a look at twins is due.
    #[must_use]
    pub fn is_due(&self, now: MonoTime) -> bool {
        !self.open.is_empty() && self.due <= now
    }

    /// What the owner says can't be compared any more.
    pub fn forget_all(&mut self) {
        self.open.clear();
    }

    /// Twins that say something else. `look` looks at one: what its owner has said is given
    /// to it. `limits` has the `divergence_limit` of each share.
    pub fn judge(
        &mut self,
        look: impl Fn(FlowId, Said) -> Finding,
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
            let finding = look(subject.flow(), open.said);
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

/// How far a twin has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What it has read.
    pub rcv_nxt: SeqNumber,
    /// What the client has acknowledged.
    pub snd_una: SeqNumber,
    /// Where the longest answer ends that it has shown.
    pub shown_end: SeqNumber,
}

impl Answer {
    /// The twin's answer to everything before `rcv_nxt` should end at `end`.
    #[must_use]
    pub fn compare(self, rcv_nxt: SeqNumber, end: SeqNumber) -> Finding {
        if rcv_nxt.lt(self.rcv_nxt) || end.lt(self.snd_una) {
            // The client, or the owner, went on.
            return Finding::Gone;
        }
        if self.rcv_nxt != rcv_nxt || self.snd_una != end {
            return Finding::Behind;
        }
        if self.shown_end == end {
            Finding::Agrees
        } else {
            Finding::Differs(self.shown_end)
        }
    }
}

/// Of the sum over what a flow has said up to a position: `own` is the twin's, if it has one
/// for that, and `latest` the position of the latest that it has.
#[must_use]
pub const fn compare_sums(upto: u32, sum: u32, own: Option<u32>, latest: Option<u32>) -> Finding {
    match (own, latest) {
        (Some(own), _) if own == sum => Finding::Agrees,
        (Some(own), _) => Finding::Differs(SeqNumber(own)),
        (None, Some(latest)) if SeqNumber(upto).lt(SeqNumber(latest)) => Finding::Gone,
        (None, Some(_) | None) => Finding::Behind,
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

    #[test]
    fn an_answer_is_compared_at_one_position_only() {
        let answer = Answer {
            rcv_nxt: SeqNumber(50),
            snd_una: SeqNumber(u32::MAX),
            shown_end: SeqNumber(u32::MAX),
        };
        let compare = |rcv_nxt, end| answer.compare(SeqNumber(rcv_nxt), SeqNumber(end));
        assert_eq!(compare(50, u32::MAX), Finding::Agrees);
        assert_eq!(compare(49, u32::MAX), Finding::Gone, "the client went on");
        assert_eq!(compare(50, u32::MAX - 1), Finding::Gone, "the owner did");
        assert_eq!(compare(51, u32::MAX), Finding::Behind);
        assert_eq!(compare(50, 3), Finding::Behind, "beyond the wrap");
        let longer = Answer {
            shown_end: SeqNumber(4),
            ..answer
        };
        let found = longer.compare(SeqNumber(50), SeqNumber(u32::MAX));
        assert_eq!(found, Finding::Differs(SeqNumber(4)));
    }

    #[test]
    fn a_sum_is_compared_while_the_twin_has_it() {
        assert_eq!(compare_sums(9, 1, Some(1), Some(20)), Finding::Agrees);
        let differs = Finding::Differs(SeqNumber(2));
        assert_eq!(compare_sums(9, 1, Some(2), Some(20)), differs);
        assert_eq!(compare_sums(9, 1, None, Some(20)), Finding::Gone);
        assert_eq!(compare_sums(9, 1, None, Some(8)), Finding::Behind);
        assert_eq!(compare_sums(9, 1, None, None), Finding::Behind);
    }

    /// A flow that was found to differ is not looked at again for a while.
    #[test]
    fn a_difference_is_said_once() {
        let client = std::net::SocketAddr::from(([10, 9, 0, 10], 4000)).into();
        let service = std::net::SocketAddr::from(([10, 9, 0, 100], 80)).into();
        let flow = FlowId {
            key: godwit_wire::FlowKey { client, service },
            irs: SeqNumber(7),
        };
        let mut comparisons = Comparisons::new(START);
        let mut found = Vec::new();
        for look in 0..6 {
            let now = after(50 * look);
            for upto in [9, 18] {
                // What is said again of the same is looked at from the beginning.
                if look == 0 || look == 3 {
                    let said = Said::Content { upto, sum: 1 };
                    comparisons.expect(ShareId(3), OutputEntry { flow, said }, now);
                }
            }
            let other = |_, _| Finding::Differs(SeqNumber(2));
            found.extend(comparisons.judge(other, |_| Some(LIMIT), now));
        }
        let reason = UnprotectedReason::DivergedContent;
        assert_eq!(found, [(ShareId(3), flow, reason)]);
        assert!(!comparisons.is_due(after(1000)));
    }
}
