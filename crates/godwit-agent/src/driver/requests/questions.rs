//! Connections that were offered to another server over the link, and no answer came: settled
//! between the agents ([`godwit_core::question`], `gw_settle.h`).
//!
//! The data path reports such a question after 10 ms, and again, more and more seldom, while it is
//! open. What is decided goes into the data path as the frame that should have come.

use godwit_bpf::{KeptQuestion, Settlement, Unanswered};
use godwit_core::PeerId;
use godwit_core::question::{Route, Settling, settle};
use godwit_wire::{FlowId, Message, Question, QuestionWord};

use super::super::ground::Ground;
use super::placing::Placing;

/// Questions that the data path has reported, and that may still be open.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: Vec<(PeerId, Unanswered)>,
}

/// More than are open at a time; of those beyond it the data path reminds us.
const MOST: usize = 1024;

impl Questions {
    fn note(&mut self, peer: PeerId, question: Unanswered) {
        self.open.retain(|(_, it)| it.flow.key != question.flow.key);
        if self.open.len() < MOST {
            self.open.push((peer, question));
        }
    }

    /// The open question that a peer speaks of; it is not open any more.
    fn take(&mut self, peer: PeerId, flow: FlowId, number: u32) -> Option<Unanswered> {
        let is_it =
            |(of, it): &(PeerId, Unanswered)| (*of, it.flow, it.number) == (peer, flow, number);
        let at = self.open.iter().position(is_it)?;
        Some(self.open.swap_remove(at).1)
    }
}

impl Questions {
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
        peer: PeerId,
        (flow, number): (FlowId, u32),
        word: QuestionWord,
    ) {
        if word == QuestionWord::Settle {
            return rule_out(ground, peer, flow, number);
        }
        let Some(question) = self.take(peer, flow, number) else {
            return;
        };
        let kept = match ground.datapath.requests.questions.get(&question) {
            Ok(Some(kept)) => kept,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "requests that are kept can't be read");
                return;
            }
        };
        carry_out_settling(ground, &question, &kept, word);
    }
}

fn carry_out_settling(
    ground: &Ground,
    question: &Unanswered,
    kept: &KeptQuestion,
    word: QuestionWord,
) {
    let route = if kept.by_way {
        Route::ByStandby
    } else {
        Route::Direct
    };
    let settling = settle(word, route);
    let sent = match settling {
        Settling::TakeBack => ground
            .voice
            .settled
            .send(&kept.answer(ground.voice.mac, false)),
        Settling::LetGo => ground
            .voice
            .settled
            .send(&kept.answer(ground.voice.mac, true)),
        Settling::PutAgain => ground.voice.frames.send(kept.frame()),
        Settling::Wait | Settling::Ignore => return,
    };
    let flow = question.flow.key;
    match sent {
        Ok(()) => tracing::debug!(%flow, ?settling, "a question was settled by the agents"),
        Err(error) => tracing::warn!(%flow, %error, "what was settled can't be carried out"),
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
        assert_eq!(it.take(b, flow(1), 5), Some(question(1, 5)));
        assert_eq!(it.take(b, flow(1), 5), None, "twice");
        assert_eq!(it.open.len(), 1);
    }
}
