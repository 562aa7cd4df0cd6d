//! The places of a connection that goes with its requests: the same sequences of inputs in the
//! data path and in `godwit-core/request`, and the same verdicts, places and numbers.

use std::time::{Duration, Instant};

use godwit_bpf::{Hook, Settlement};
use godwit_core::request::{Around, Connection, Input, Mate, Place, Reason, Server, Verdict};
use godwit_wire::{FlowId, QuestionWord};

use crate::bench::{Bench, DROP, NEXT, REDIRECT};
use crate::random::Noise;

mod origin;
mod standby;

pub(crate) const B: Server = Server(1);
pub(crate) const C: Server = Server(2);

/// The server at hand is asked and owns its share; nobody is in the way.
pub(crate) const AROUND: Around = Around {
    target: Some(B),
    mate: Mate::Serves,
    by_standby: false,
    unwilling: Some(Reason::NoListener),
    in_place: false,
    twin_is_idle: false,
    ward: None,
    stands_by: false,
};

/// Entries go by themselves after two seconds at the earliest, which the model knows nothing of.
const LONGEST: Duration = Duration::from_secs(1);

/// One connection in both.
pub(crate) struct Pair<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) flow: FlowId,
    pub(crate) model: Connection,
    pub(crate) around: Around,
    pub(crate) noise: Noise,
    begun: Instant,
    /// What has happened.
    story: Vec<String>,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(bench: &'a Bench, flow: FlowId, model: Connection, seed: u64) -> Self {
        Self {
            bench,
            flow,
            model,
            around: AROUND,
            noise: Noise(seed),
            begun: Instant::now(),
            story: Vec::new(),
        }
    }

    pub(crate) fn is_late(&self) -> bool {
        self.begun.elapsed() > LONGEST
    }

    pub(crate) fn one_in(&mut self, many: usize) -> bool {
        self.noise.below(many) == 0
    }

    /// One of the numbers around the last one.
    pub(crate) fn number(&mut self) -> u32 {
        let more = u32::try_from(self.noise.below(3)).expect("small");
        (self.model.number + more).saturating_sub(1).max(1)
    }

    /// In the model alone.
    pub(crate) fn judge(&mut self, input: Input) -> Verdict {
        let before = self.model;
        let verdict = self.model.hear(input, &self.around);
        let after = self.model;
        self.story
            .push(format!("{before:?}\n  {input:?}: {verdict:?}\n  {after:?}"));
        verdict
    }

    /// A frame that is that input, in both. What comes out.
    pub(crate) fn put(&mut self, hook: Hook, input: Input, frame: &[u8]) -> Verdict {
        self.put_marked(hook, 0, input, frame)
    }

    /// The same of a frame with that mark.
    pub(crate) fn put_marked(
        &mut self,
        hook: Hook,
        mark: u32,
        input: Input,
        frame: &[u8],
    ) -> Verdict {
        let verdict = self.judge(input);
        let (got, reasons) = self.bench.pass_marked(hook, mark, frame);
        let (want, reason) = expected(verdict);
        assert_eq!(got, want, "{reasons:?}\n{}", self.story.join("\n"));
        if let Some(reason) = reason {
            let counted = reasons.iter().any(|it| it == reason);
            assert!(counted, "{reason}: {reasons:?}\n{}", self.story.join("\n"));
        }
        verdict
    }

    /// The agent's order, in both.
    pub(crate) fn rule_out(&mut self, number: u32) {
        let verdict = self.judge(Input::RuleOut(number));
        let said = self.bench.datapath.orders.settle(self.flow, number);
        let word = match said.expect("it runs") {
            Settlement::Never => QuestionWord::Never,
            Settlement::Has => QuestionWord::Has,
            Settlement::Later => QuestionWord::Later,
        };
        assert_eq!(verdict, Verdict::Settled(word), "{}", self.story.join("\n"));
    }

    /// Nothing is left of what was asked about: with the next reminder it is no question.
    pub(crate) fn await_reminder(&mut self) {
        let end = Instant::now() + LONGEST * 5;
        let state = || {
            let entry = self.bench.datapath.requests.transfers.get(self.flow);
            entry.expect("it can be read").map(|it| it.state)
        };
        while state() != Some(Place::Gone.code()) {
            let story = || self.story.join("\n");
            assert!(Instant::now() < end, "{:?}\n{}", state(), story());
        }
        self.judge(Input::Timer);
    }

    /// What the data path knows is what the model does.
    pub(crate) fn compare(&self) {
        if self.is_late() {
            return;
        }
        let entry = self.bench.datapath.requests.transfers.get(self.flow);
        let entry = entry.expect("it can be read");
        let got = entry.map(|it| (it.state, it.number));
        let place = self.model.place;
        let known = place != Place::Unknown;
        let want = known.then(|| (place.code(), self.model.number));
        assert_eq!(got, want, "{}", self.story.join("\n"));
    }
}

/// The verdict of the hook, and the reason that is counted.
fn expected(verdict: Verdict) -> (i32, Option<&'static str>) {
    match verdict {
        Verdict::Serve(reason) => (NEXT, reason.and_then(Reason::counter)),
        Verdict::Ask { .. } => (REDIRECT, Some("asked")),
        Verdict::AskForRest => (REDIRECT, Some("rest_asked")),
        // Or the director is told, by a copy of the frame.
        Verdict::SendOn(_) | Verdict::ToOwner => (REDIRECT, None),
        Verdict::LeaveLate(_) | Verdict::SendOnAndReset(_) => (NEXT, Some("accepted")),
        Verdict::AcceptAgain => (NEXT, Some("came_before")),
        Verdict::OnlyAnswer => (DROP, Some("came_before")),
        Verdict::Refuse(Reason::RuledOut) => (REDIRECT, Some("ruled_out")),
        Verdict::Refuse(_) => (REDIRECT, Some("sent_away")),
        Verdict::Reset(reason) => (NEXT, reason.counter()),
        Verdict::Drop(reason) => (DROP, reason.counter()),
        Verdict::Speak => (NEXT, None),
        // The kernel makes no socket of a frame that is only tried on a hook.
        Verdict::MakeTwin { .. } | Verdict::Feed => (DROP, None),
        Verdict::Come | Verdict::Settled(_) | Verdict::Remind | Verdict::Nothing => {
            panic!("{verdict:?} is of no frame here")
        }
    }
}
