//! Clients that stay from one fault to the next: what has been protected again
//! must outlive the next one, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use godwit_wire::Endpoint;

use super::crowd::{Crowd, Report};
use super::judge::{Said, Verdict, client_of};
use super::seat::{Connection, Fate, PATIENCE};
use super::talk::{Pace, Work};
use super::world::Program;
use crate::cluster::FlowReport;
use crate::lab::Lab;

/// Between two requests: a person at a keyboard.
const PAUSE: Duration = Duration::from_millis(25);

/// Until those whose turn has come are protected again, or not.
const AGAIN: Duration = Duration::from_secs(3);

/// A client whose server is gone hears so when it says something again: by its
/// kernel's fourth retransmission.
const UNNOTICED: Duration = Duration::from_secs(4);

/// As many faults as a client can fail to notice, and more.
const REMEMBERED: usize = 32;

/// Clients of a whole run.
#[derive(Debug)]
pub(super) struct Regulars {
    crowd: Crowd,
    /// How many connections of each seat have been judged.
    judged: Vec<usize>,
    /// The latest faults, and what was said of flows then.
    past: VecDeque<(Instant, Said)>,
    /// Sum over all faults of those that were there and of those that were
    /// protected.
    pub(super) present: u64,
    pub(super) protected: u64,
}

impl Regulars {
    /// Two of each kind, one per family.
    pub(super) fn start(lab: &Lab, programs: &[Program], seed: u64) -> Result<Self> {
        let works = programs.iter().flat_map(|program| {
            // Lives that differ: they do not all end at once.
            let works = match program {
                Program::Own => vec![(Work::Ask, 17), (Work::Echo, 19)],
                Program::Nginx => vec![(Work::Web, 23)],
                Program::Redis => vec![(Work::Cache, 29)],
            };
            works.into_iter().map(|(work, seconds)| {
                let life = Duration::from_secs(seconds);
                (work, program.port(), Pace { pause: PAUSE, life })
            })
        });
        let crowd = Crowd::seated(lab, works.flat_map(|work| [work; 2]), seed)?;
        Ok(Self::of(crowd))
    }

    /// These clients.
    pub(super) fn of(crowd: Crowd) -> Self {
        Self {
            judged: vec![0; crowd.connections().len()],
            crowd,
            past: VecDeque::new(),
            present: 0,
            protected: 0,
        }
    }

    /// Gives those that are about to be protected again the time for it. `look` asks for
    /// all flows.
    pub(super) fn wait_protected(&self, look: impl Fn() -> Vec<FlowReport>) {
        let end = Instant::now() + AGAIN;
        while Instant::now() < end {
            let flows = look();
            if !self.among(&flows).any(is_pending) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Counts who is protected, of flows that were reported just before a fault;
    /// says for a person why the others are not, and what they wait for.
    pub(super) fn count(&mut self, flows: &[FlowReport]) -> String {
        let (mut present, mut protected) = (0, 0);
        let mut alone = BTreeMap::<_, u64>::new();
        for flow in self.among(flows) {
            present += 1;
            protected += u64::from(flow.protected);
            if !flow.protected {
                let why = flow.reason.as_deref().unwrap_or(&flow.state);
                let until = flow.reprotect.as_deref().unwrap_or("-");
                *alone.entry(format!("{why}/{until}")).or_default() += 1;
            }
        }
        self.present += present;
        self.protected += protected;
        let alone = alone.into_iter().map(|(why, n)| format!(", {n} {why}"));
        format!(
            "{protected} of {present} protected{}",
            alone.collect::<String>()
        )
    }

    /// Judges those that have ended, after a fault that came at `at`.
    pub(super) fn judge(&mut self, at: Instant, said: Said, verdict: &mut Verdict) {
        self.past.push_back((at, said));
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        let connections = self.crowd.connections();
        for (judged, connections) in self.judged.iter_mut().zip(connections) {
            let new = connections.iter().skip(*judged);
            for connection in new.take_while(|it| it.end.is_some()) {
                *judged += 1;
                judge_one(connection, &self.past, verdict);
            }
        }
    }

    /// Lets all come to an orderly end, and judges them.
    pub(super) fn finish(self, verdict: &mut Verdict) -> Result<Report> {
        let report = self.crowd.finish()?;
        for (judged, connections) in self.judged.into_iter().zip(&report.seats) {
            for connection in connections.iter().skip(judged) {
                judge_one(connection, &self.past, verdict);
            }
        }
        Ok(report)
    }

    /// Their flows, as their owners report them.
    fn among<'f>(&self, flows: &'f [FlowReport]) -> impl Iterator<Item = &'f FlowReport> {
        let open = self.crowd.connections().into_iter().flatten();
        let open = open.filter(|connection| connection.end.is_none());
        let clients = open.filter_map(|connection| connection.local.map(Endpoint::from));
        let clients = clients.collect::<BTreeSet<_>>();
        let owned = flows.iter().filter(|flow| flow.role == "owner");
        owned.filter(move |flow| client_of(&flow.flow).is_some_and(|it| clients.contains(&it)))
    }
}

/// A client that waits in vain notices a fault long after it: it is excused by
/// what was said before any fault since it last heard anything.
fn judge_one(connection: &Connection, past: &VecDeque<(Instant, Said)>, verdict: &mut Verdict) {
    let (end, waited) = match &connection.end {
        Some((end, Fate::Dead(_))) => (*end, PATIENCE + UNNOTICED),
        Some((end, Fate::Exact | Fate::Wrong(_) | Fate::Cut(_))) => (*end, UNNOTICED),
        None => (Instant::now(), UNNOTICED),
    };
    let mut before = past.iter().rev().filter(|(fault, _)| *fault <= end);
    let Some(last) = before.next() else {
        return verdict.judge(connection, &Said::default(), end);
    };
    let since = before.take_while(|(fault, _)| *fault + waited >= end);
    let mut all = iter::once(last).chain(since);
    let told = all
        .find(|(fault, said)| said.is_told(connection, *fault) || said.is_on_its_way(connection));
    let (fault, said) = told.unwrap_or(last);
    verdict.judge(connection, said, *fault);
}

/// Whether a flow will soon be protected again.
fn is_pending(flow: &FlowReport) -> bool {
    let pending = ["waiting", "restoring", "catching_up", "takeover_unfinished"];
    let waits_for = flow.reprotect.as_deref();
    waits_for.is_some_and(|what| pending.contains(&what))
}
