//! What the client says, and where frames arrive.

use godwit_core::request::{Input, Offer, Place, Reason, Said, Server, Socket, Verdict};

use super::Rule;
use super::frame::{Flight, Frame, HOPS};
use super::node::Id;
use super::world::{World, server};

impl World {
    /// The client says its request, or something else.
    pub(super) fn say(&mut self) {
        let request = (self.is_calm || self.random.chance(700)).then_some(self.request);
        if let Some(owner) = self.has(self.led) {
            self.send(
                owner,
                Frame::Client {
                    request,
                    heard: self.request - 1,
                    by: None,
                    hops: HOPS,
                },
            );
        }
    }

    /// Whoever may speak replies to the request.
    pub(super) fn reply(&mut self) {
        // What its twin lacks an owner does not acknowledge.
        let has_read = |node: Id| self.nodes[node].read >= self.request;
        let is_safe = |node: Id| self.standby(node).is_none_or(has_read);
        let replies = |node: &Id| self.speaks(*node) && has_read(*node) && is_safe(*node);
        if (0..self.nodes.len()).any(|node| replies(&node)) {
            self.request += 1;
            // No frame lives for so long that its client has gone on meanwhile.
            let request = self.request;
            let is_new = |it: &Flight| it.frame.about().is_none_or(|about| about >= request);
            self.link.retain(is_new);
        }
    }

    /// One of the frames arrives, whichever; the first one if all is calm.
    pub(super) fn deliver(&mut self) {
        if self.link.is_empty() {
            return;
        }
        let drawn = self.random.below(self.link.len() as u64);
        let at = if self.is_calm { 0 } else { drawn };
        let Flight { at, frame } = self.link.remove(usize::try_from(at).unwrap_or(0));
        if !self.nodes[at].is_on {
            return;
        }
        match frame {
            Frame::Client {
                request,
                heard,
                by,
                hops,
            } => self.hear_client(at, request, heard, (by, hops)),
            Frame::Syn => self.hear_syn(at),
            Frame::Fed { request, from } => self.hear_owner(at, request, from),
            Frame::Ask {
                offer,
                from,
                to,
                by_way,
            } => {
                let by_way = by_way.filter(|_| to != at);
                if by_way == Some(at) {
                    self.relay(at, offer, from, to);
                } else {
                    self.hear_question(at, (offer, to), from, by_way);
                }
            }
            Frame::Answer { .. } => self.hear_answer(at, frame),
            Frame::Came { offer, from } => self.hear_coming(at, offer, from),
        }
    }

    /// Anybody's, with its addresses.
    fn hear_syn(&mut self, at: Id) {
        let before = self.nodes[at].connection;
        // It would end a twin, of which its owner hears.
        if before.socket == Socket::Twin {
            return;
        }
        // It may end what is known here of a question that is open, or under way once more.
        let is_asked = self.is_open() || self.link.iter().any(|it| it.frame.is_slip());
        if before.place == Place::Gone && is_asked {
            return;
        }
        let around = self.around(at, None, None);
        let verdict = self.hear(at, Input::Client(Said::OtherSyn, None), &around);
        // Nobody is known to have what it would be sent on for.
        let is_forgotten = before.place == Place::Gone && verdict == Verdict::Serve(None);
        self.at_risk |= is_forgotten;
    }

    fn hear_owner(&mut self, at: Id, request: u32, from: Id) {
        // Another owner's twin is not fed by it.
        if self.has(self.nodes[at].share) != Some(from) {
            return;
        }
        // What an owner said to its standby before it is there, or lost.
        self.link.retain(|it| !it.is_question_by(at, from, request));
        let around = self.around(at, Some(from), None);
        if around.stands_by && self.hear(at, Input::Fed(Some(request)), &around) == Verdict::Feed {
            let it = &mut self.nodes[at];
            it.read = it.read.max(request);
        }
    }

    fn relay(&mut self, at: Id, offer: Offer, from: Id, to: Id) {
        let around = self.around(at, Some(from), None);
        let input = Input::AskByWay {
            offer,
            from: server(from),
            to: server(to),
        };
        let verdict = self.hear(at, input, &around);
        if self.nodes[at].connection.place == Place::Told {
            self.nodes[at].asked_at = self.now;
        }
        if let Verdict::SendOn(_) = verdict
            && let Some(target) = self.has(to)
        {
            let by_way = Some(at);
            let frame = Frame::Ask {
                offer,
                from,
                to,
                by_way,
            };
            // It would be for itself.
            if target != at {
                self.send(target, frame);
            }
        }
    }

    fn hear_question(&mut self, at: Id, (offer, of): (Offer, Id), from: Id, by_way: Option<Id>) {
        let mut around = self.around(at, None, None);
        if of != at && !self.breaks(Rule::OnlyOwn) {
            // It has what that one had, and no more.
            around.unwilling = Some(Reason::NotOwner);
            around.in_place = true;
        }
        let verdict = self.hear(at, Input::Ask(offer), &around);
        if verdict == Verdict::Come {
            self.sums.handoffs += 1;
            let it = &mut self.nodes[at];
            (it.share, it.read) = (at, offer.request);
            it.is_protected = self.shares[at].in_sync;
        } else if verdict == Verdict::AcceptAgain {
            self.serve(at, Some(offer.request));
        }
        let refused = matches!(verdict, Verdict::Refuse(_));
        self.sums.refusals += u64::from(refused);
        let is_told = [Verdict::Come, Verdict::AcceptAgain, Verdict::OnlyAnswer];
        let accepted = is_told.contains(&verdict);
        if !accepted && !refused {
            return;
        }
        let answer = Frame::Answer {
            offer,
            accepted,
            by: at,
            of,
            origin: from,
            by_way,
        };
        self.send(by_way.unwrap_or(from), answer);
        if let Some(standby) = self.standby(at).filter(|_| verdict == Verdict::Come) {
            self.send(standby, Frame::Came { offer, from: at });
        }
    }

    fn hear_answer(&mut self, at: Id, frame: Frame) {
        let Frame::Answer {
            offer,
            accepted,
            by,
            of,
            origin,
            by_way,
        } = frame
        else {
            return;
        };
        let passes = by_way == Some(at);
        let around = self.around(at, passes.then_some(origin), None);
        let from = self.sender(at, by, by_way.map(|_| of));
        let input = match (passes, accepted) {
            (true, _) => Input::AnswerByWay {
                offer,
                from,
                accepted,
            },
            (false, true) => Input::Accepted(offer, from),
            (false, false) => Input::Refused(offer, from),
        };
        let verdict = self.hear(at, input, &around);
        if matches!(verdict, Verdict::SendOn(_) | Verdict::SendOnAndReset(_)) {
            self.send(origin, frame);
        } else if verdict == Verdict::Serve(Some(Reason::Refused)) {
            self.serve(at, Some(offer.request));
        }
    }

    /// Who has sent an answer, as the entry knows it: by its place on the link, or by the
    /// name of whom was asked.
    fn sender(&self, at: Id, by: Id, named: Option<Id>) -> Server {
        let to = self.nodes[at].connection.to;
        let is_there = |to: &Server| self.has(usize::from(to.0)) == Some(by);
        let named = named.map(server);
        named
            .or_else(|| to.filter(is_there))
            .unwrap_or_else(|| server(by))
    }

    fn hear_coming(&mut self, at: Id, offer: Offer, from: Id) {
        let around = self.around(at, Some(from), None);
        let verdict = self.hear(at, Input::Came(offer, server(from)), &around);
        if let Verdict::MakeTwin { .. } = verdict {
            let it = &mut self.nodes[at];
            (it.share, it.read) = (from, offer.request);
        }
    }
}
