//! Connections that were offered to another server over the link, and no answer came: settled
//! between the agents ([`godwit_core::question`], `gw_settle.h`).
//!
//! The data path reports such a question after 10 ms, and again, more and more seldom, while it is
//! open. What is decided goes into the data path as the frame that should have come.

use std::collections::BTreeMap;

use godwit_bpf::{Said, Settlement, Unanswered};
use godwit_core::question::{Memory, Route, Settling, settle};
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{FlowId, Message, Question, QuestionWord};

use super::super::ground::Ground;
use super::placing::Placing;

/// Questions that the data path has reported, and that may still be open.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: Vec<Open>,
    /// Which life of each peer this is, and since when it is known.
    lives: BTreeMap<PeerId, (u64, MonoTime)>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    /// Who is to say what became of it.
    peer: PeerId,
    question: Unanswered,
    /// It was put once more, as this node's standby was to hear the answer.
    put_again: bool,
}

/// More than are open at a time. Of the oldest ones the data path reminds us, if they are.
const MOST: usize = 1024;

impl Questions {
    fn note(&mut self, peer: PeerId, question: Unanswered) {
        let is_it = |it: &Unanswered| (it.flow, it.number) == (question.flow, question.number);
        let known = self.open.iter().find(|it| is_it(&it.question));
        let put_again = known.is_some_and(|it| it.put_again);
        self.keep(Open {
            peer,
            question,
            put_again,
        });
    }

    fn keep(&mut self, open: Open) {
        let key = open.question.flow.key;
        self.open.retain(|it| it.question.flow.key != key);
        if self.open.len() == MOST {
            self.open.remove(0);
        }
        self.open.push(open);
    }

    /// The open question that a peer speaks of; it is not open any more.
    fn take(&mut self, peer: PeerId, flow: FlowId, number: u32) -> Option<Open> {
        let is_it =
            |it: &Open| (it.peer, it.question.flow, it.question.number) == (peer, flow, number);
        let at = self.open.iter().position(is_it)?;
        Some(self.open.swap_remove(at))
    }

    /// Whether the peer would know of the question, had it been accepted: it was there when that
    /// was put, and is not in the place of whom it was put to.
    fn memory(&self, peer: PeerId, put_ns: u64, is_itself: bool) -> Memory {
        let life = self.lives.get(&peer);
        let is_older = life.is_some_and(|(_, since)| since.as_nanos() <= put_ns);
        if is_itself && is_older {
            Memory::Whole
        } else {
            Memory::Partial
        }
    }
}

impl Questions {
    /// A peer has introduced itself, in this life or in another one.
    pub(super) fn greet(&mut self, peer: PeerId, incarnation: u64, now: MonoTime) {
        let known = self.lives.get(&peer);
        if known.is_none_or(|(life, _)| *life != incarnation) {
            self.lives.insert(peer, (incarnation, now));
        }
    }

    /// A question of ours has no answer.
    pub(super) fn ask_after(&mut self, ground: &Ground, placing: &Placing, question: Unanswered) {
        let Some(peer) = placing.whom(question.share, question.node) else {
            return;
        };
        self.note(peer, question);
        let message = Message::Question(Question {
            flow: question.flow,
            number: question.number,
            word: QuestionWord::Settle,
        });
        // The data path reminds us while it is open.
        if let Err(error) = ground.peers.send(peer, message) {
            tracing::debug!(%error, flow = %question.flow.key, "a question can't be settled yet");
        }
    }

    /// A peer speaks of a question: of its own, or of one of ours.
    pub(super) fn hear(
        &mut self,
        ground: &Ground,
        placing: &Placing,
        peer: PeerId,
        (flow, number): (FlowId, u32),
        word: QuestionWord,
    ) {
        if word == QuestionWord::Settle {
            return rule_out(ground, peer, flow, number);
        }
        let Some(open) = self.take(peer, flow, number) else {
            return;
        };
        let question = open.question;
        let is_itself = placing.is_itself(question.share, question.node, peer);
        let memory = self.memory(peer, question.put_ns, is_itself);
        match carry_out_settling(ground, open, word, memory) {
            Some(Settling::Wait) => self.keep(open),
            Some(Settling::PutAgain) => self.keep(Open {
                put_again: true,
                ..open
            }),
            Some(settling) => {
                tracing::debug!(flow = %flow.key, ?settling, "a question was settled by the agents");
            }
            None => {}
        }
    }
}

/// What was done, if anything was.
fn carry_out_settling(
    ground: &Ground,
    open: Open,
    word: QuestionWord,
    memory: Memory,
) -> Option<Settling> {
    let (question, datapath) = (&open.question, &ground.datapath);
    let read = datapath.requests.questions.get(question);
    let read = read.and_then(|kept| Ok((kept, datapath.requests.transfers.get(question.flow)?)));
    let (kept, entry) = match read {
        Ok(read) => read,
        Err(error) => {
            tracing::error!(%error, "requests that are kept can't be read");
            return None;
        }
    };
    // Else it has its answer.
    let entry = entry.filter(|it| it.asks(question.number))?;
    let by_way = kept.as_ref().is_some_and(|kept| kept.by_way);
    let route = if by_way && !open.put_again {
        Route::ByStandby
    } else {
        Route::Direct
    };
    let settling = settle(word, route, memory);
    let mac = ground.voice.mac;
    // An earlier owner of the share has the request of its questions.
    let answer = |said| match &kept {
        Some(kept) => Some(kept.answer(mac, said)),
        None => entry.answer(mac, question.flow, said),
    };
    let sent = match settling {
        Settling::TakeBack => ground.voice.settled.send(&answer(Said::Refused)?),
        Settling::LetGo => ground.voice.settled.send(&answer(Said::Accepted)?),
        Settling::Lapse => ground.voice.settled.send(&answer(Said::Lapsed)?),
        Settling::PutAgain => ground.voice.frames.send(kept.as_ref()?.frame()),
        Settling::Wait => return Some(settling),
        Settling::Ignore => return None,
    };
    match sent {
        Ok(()) => Some(settling),
        Err(error) => {
            let flow = question.flow.key;
            tracing::warn!(%flow, %error, "what was settled can't be carried out");
            None
        }
    }
}

/// A peer has offered us a connection, and has no answer.
fn rule_out(ground: &Ground, peer: PeerId, flow: FlowId, number: u32) {
    let word = match ground.datapath.orders.settle(flow, number) {
        Ok(Settlement::Never) => QuestionWord::Never,
        Ok(Settlement::Has) => QuestionWord::Has,
        Ok(Settlement::Later) => QuestionWord::Later,
        Err(error) => {
            tracing::error!(%error, "a question can't be ruled out");
            return;
        }
    };
    let answer = Message::Question(Question { flow, number, word });
    if let Err(error) = ground.peers.send(peer, answer) {
        tracing::debug!(%error, flow = %flow.key, "a question is not answered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use godwit_wire::{Endpoint, FlowKey, SeqNumber, ShareId};

    fn flow(port: u16) -> FlowId {
        let end = |port| Endpoint::new(std::net::Ipv6Addr::LOCALHOST, port);
        FlowId {
            key: FlowKey {
                client: end(port),
                service: end(80),
            },
            irs: SeqNumber(1),
        }
    }

    #[test]
    fn an_answer_settles_the_question_that_it_is_about_and_only_once() {
        let (b, c) = (PeerId(1), PeerId(2));
        let mut it = Questions::default();
        let question = |port, number| Unanswered::new(ShareId(0), flow(port), number);
        it.note(b, question(1, 4));
        it.note(b, question(1, 5));
        it.note(b, question(2, 1));
        assert_eq!(it.take(b, flow(1), 4), None, "an older one");
        assert_eq!(it.take(c, flow(1), 5), None, "of another server");
        let taken = it.take(b, flow(1), 5).map(|it| it.question);
        assert_eq!(taken, Some(question(1, 5)));
        assert_eq!(it.take(b, flow(1), 5), None, "twice");
        assert_eq!(it.open.len(), 1);
    }
    #[test]
    fn a_question_is_put_again_once() {
        let mut it = Questions::default();
        let again = |it: &mut Questions| it.take(PeerId(1), flow(1), 4).map(|it| it.put_again);
        let question = |number| Unanswered::new(ShareId(0), flow(1), number);
        it.note(PeerId(1), question(4));
        let open = it.take(PeerId(1), flow(1), 4).expect("it is open");
        it.keep(Open {
            put_again: true,
            ..open
        });
        it.note(PeerId(1), question(4));
        assert_eq!(again(&mut it), Some(true), "a reminder");
        it.note(PeerId(1), question(5));
        it.note(PeerId(1), question(4));
        assert_eq!(again(&mut it), Some(false), "of another number");
    }

    #[test]
    fn who_has_begun_anew_or_is_in_anothers_place_does_not_deny_it() {
        let b = PeerId(1);
        let mut it = Questions::default();
        let put = 5_000;
        assert_eq!(
            it.memory(b, put, true),
            Memory::Partial,
            "it was never heard"
        );
        it.greet(b, 7, MonoTime::from_nanos(4_000));
        assert_eq!(it.memory(b, put, true), Memory::Whole);
        assert_eq!(it.memory(b, put, false), Memory::Partial);
        it.greet(b, 7, MonoTime::from_nanos(6_000));
        assert_eq!(
            it.memory(b, put, true),
            Memory::Whole,
            "only the link is new"
        );
        it.greet(b, 8, MonoTime::from_nanos(6_000));
        assert_eq!(it.memory(b, put, true), Memory::Partial);
        assert_eq!(it.memory(b, 6_000, true), Memory::Whole);
    }
}
