//! What each input makes of a connection. Every place is named in every `match`.

use godwit_wire::QuestionWord;

use super::input::{Around, Input, Mate, Offer, Reason, Said, Verdict};
use super::{Connection, Place, Server, Socket};

impl Connection {
    /// Something happens to it.
    pub fn hear(&mut self, input: Input, around: &Around) -> Verdict {
        match input {
            Input::Client(said, by) => self.hear_client(said, by, around),
            Input::Fed(request) => self.hear_owner(request),
            Input::Own => self.hear_own(),
            Input::Ask(offer) => self.hear_question(offer, around),
            Input::Accepted(offer, from) => self.hear_answer(offer, from, true),
            Input::Refused(offer, from) => self.hear_answer(offer, from, false),
            Input::Lapse(offer, from) => self.lapse(offer, from),
            Input::AskByWay { offer, from, to } => self.relay_question(offer, from, to, around),
            Input::AnswerByWay {
                offer,
                from,
                accepted,
            } => self.relay_answer(offer, from, accepted, around),
            Input::Came(offer, owner) => self.hear_coming(offer, owner, around),
            Input::RuleOut(number) => self.rule_out(number, around),
            Input::Timer => self.hear_timer(),
            Input::TakeOver => self.take_over(),
            Input::StandBy => self.stand_by(around),
            Input::Installed => self.install(),
            Input::Forget => self.part(),
            Input::Over => self.end(),
        }
    }

    fn hear_client(&mut self, said: Said, by: Option<Server>, around: &Around) -> Verdict {
        if said == Said::Completes {
            // A SYN proves nothing, and this does: the earlier connection is over.
            self.forget();
            self.socket = Socket::None;
            return Verdict::Serve(None);
        }
        match self.place {
            Place::Unknown | Place::Here | Place::Refused => self.hear_at_home(said, by, around),
            Place::Asked => self.hear_while_asked(said, around),
            // Of a twin the owner is to have what its client says.
            Place::Gone if self.socket == Socket::Twin => Verdict::ToOwner,
            Place::Gone => self.hear_for_gone(said, by, around),
            Place::Told | Place::Twin => Verdict::ToOwner,
            Place::Coming => Verdict::Serve(None),
        }
    }

    /// Nothing is known that says that it is elsewhere.
    fn hear_at_home(&mut self, said: Said, by: Option<Server>, around: &Around) -> Verdict {
        match (self.socket, said) {
            // So is a SYN, which may be anybody's.
            (Socket::Twin, _) => Verdict::ToOwner,
            (Socket::None, Said::Syn) => {
                if self.place == Place::Unknown {
                    self.socket = Socket::Own;
                }
                Verdict::Serve(None)
            }
            (Socket::None, Said::OtherSyn) => {
                // What was refused stays refused: the question may come once more.
                if self.place == Place::Here {
                    self.forget();
                }
                Verdict::Serve(None)
            }
            (Socket::None, _) if by.is_some() => Verdict::Drop(Reason::NoSlip),
            (Socket::Own, Said::Request(request)) => self.place_request(request, around),
            // Its kernel says that there is no such connection, or TCP answers.
            (Socket::None | Socket::Own | Socket::Adopted, _) => Verdict::Serve(None),
        }
    }

    fn place_request(&mut self, request: u32, around: &Around) -> Verdict {
        let Some(to) = around.target.filter(|_| self.place != Place::Refused) else {
            return Verdict::Serve(None);
        };
        self.place = Place::Asked;
        self.lapsed = false;
        self.number += 1;
        self.request = request;
        self.to = Some(to);
        Verdict::Ask {
            by_way: around.by_standby,
        }
    }

    fn hear_while_asked(&mut self, said: Said, around: &Around) -> Verdict {
        let has_socket = self.socket != Socket::None;
        let Some(to) = self.to else {
            return Verdict::Drop(Reason::StaleSlip);
        };
        let is_dead = matches!(around.mate, Mate::Dead | Mate::Ours);
        // A twin's server may have said less than the last owner's. Of a question that nobody
        // remembers there is no better sign.
        let tells = self.socket == Socket::Own || (self.lapsed && has_socket && !is_dead);
        match (said, is_dead || self.lapsed) {
            (Said::OtherSyn, false) => Verdict::Drop(Reason::SynTooEarly),
            (Said::OtherSyn, true) => Verdict::Serve(None),
            (_, _) if has_socket && is_dead => self.reclaim(said),
            (Said::AcknowledgesMore, _) if tells => {
                self.place = Place::Gone;
                self.socket = Socket::None;
                Verdict::LeaveLate(to)
            }
            (_, true) if has_socket => self.reclaim(said),
            (Said::Request(request), _) if has_socket && request == self.request => Verdict::Ask {
                by_way: around.by_standby,
            },
            (Said::Rest(request), _) if has_socket && request == self.request => {
                Verdict::AskForRest
            }
            (
                Said::Syn
                | Said::Completes
                | Said::Request(_)
                | Said::Rest(_)
                | Said::AcknowledgesMore
                | Said::Other
                | Said::Reset
                | Said::Fin,
                true | false,
            ) => Verdict::SendOn(to),
        }
    }

    /// Whom it has asked has no power, or had none since. If the client has heard one without
    /// power, nobody can go on.
    const fn reclaim(&mut self, said: Said) -> Verdict {
        if matches!(said, Said::AcknowledgesMore) {
            self.place = Place::Gone;
            self.socket = Socket::None;
            return Verdict::Reset(Reason::MateGone);
        }
        self.place = Place::Here;
        // Its standby may yet ask this server the same, as the owner.
        self.refused = self.number;
        Verdict::Serve(Some(Reason::Reclaimed))
    }

    fn hear_for_gone(&mut self, said: Said, by: Option<Server>, around: &Around) -> Verdict {
        let Some(to) = self.to else {
            return Verdict::Drop(Reason::StaleSlip);
        };
        let is_back = by == Some(to);
        match (said, around.mate) {
            // It is anybody's, and begins here if nobody is known to have what it is about. What
            // is about the earlier connection stays.
            (Said::OtherSyn, Mate::Silent | Mate::Dead | Mate::Ours) => Verdict::Serve(None),
            (Said::OtherSyn, Mate::Serves) if is_back => Verdict::Serve(None),
            (_, Mate::Serves | Mate::Silent | Mate::Dead | Mate::Ours) if is_back => {
                Verdict::Drop(Reason::SentBack)
            }
            // It may have gone on from there before, which who has sent this on may know.
            (_, Mate::Ours) if by.is_some() => Verdict::Drop(Reason::NoSlip),
            (_, Mate::Dead | Mate::Ours) => {
                self.forget();
                Verdict::Serve(Some(Reason::MateGone))
            }
            (_, Mate::Serves | Mate::Silent) => Verdict::SendOn(to),
        }
    }

    /// Its owner serves itself what it had asked about.
    fn hear_owner(&mut self, request: Option<u32>) -> Verdict {
        match self.place {
            Place::Told if request.is_some_and(|it| it >= self.request) => self.place = Place::Twin,
            Place::Unknown
            | Place::Here
            | Place::Asked
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Twin
            | Place::Coming => {}
        }
        match self.socket {
            Socket::Twin => Verdict::Feed,
            Socket::None | Socket::Own | Socket::Adopted => Verdict::Drop(Reason::NotOwner),
        }
    }

    const fn hear_own(&self) -> Verdict {
        match (self.place, self.socket) {
            (_, Socket::Twin) => Verdict::Drop(Reason::Suppressed),
            (Place::Asked, _) => Verdict::Drop(Reason::Unanswered),
            (Place::Gone, _) => Verdict::Drop(Reason::Away),
            (
                Place::Unknown
                | Place::Here
                | Place::Refused
                | Place::Told
                | Place::Twin
                | Place::Coming,
                Socket::None | Socket::Own | Socket::Adopted,
            ) => Verdict::Speak,
        }
    }

    fn hear_question(&mut self, offer: Offer, around: &Around) -> Verdict {
        let number = offer.number;
        if self.place == Place::Unknown {
            if self.socket == Socket::Adopted {
                // Nobody else could offer it: the last owner has accepted.
                self.place = Place::Here;
                self.number = number;
                return Verdict::AcceptAgain;
            }
            return self.consider(number, around);
        }
        if number == self.refused {
            return Verdict::Refuse(Reason::Again);
        }
        // What is here stays accepted, whatever was refused since.
        let is_here = self.place == Place::Here && number == self.number;
        if number < self.number || (number < self.refused && !is_here) {
            return Verdict::Drop(Reason::StaleSlip);
        }
        match self.place {
            Place::Here => {
                // To refuse would give it two servers.
                self.number = number;
                Verdict::AcceptAgain
            }
            Place::Unknown
            | Place::Asked
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Twin
            | Place::Coming
                if number != self.number =>
            {
                self.consider(number, around)
            }
            // Of whom it was to be asked this server has all, and it has it not.
            Place::Told if around.mate == Mate::Ours => {
                self.refused = number;
                Verdict::Refuse(Reason::NotOwner)
            }
            // What becomes of its own question, or its owner's, is not known here.
            Place::Asked | Place::Told | Place::Coming => Verdict::Drop(Reason::StaleSlip),
            Place::Unknown | Place::Gone | Place::Refused | Place::Twin => Verdict::OnlyAnswer,
        }
    }

    /// A question that is new here.
    fn consider(&mut self, number: u32, around: &Around) -> Verdict {
        let makes_way = match (self.socket, self.place) {
            (Socket::None, _) => true,
            (Socket::Twin, _) => around.twin_is_idle,
            // Nobody else could offer it: that is the answer.
            (Socket::Own | Socket::Adopted, Place::Asked) => true,
            (
                Socket::Own | Socket::Adopted,
                Place::Unknown
                | Place::Here
                | Place::Gone
                | Place::Refused
                | Place::Told
                | Place::Twin
                | Place::Coming,
            ) => false,
        };
        let ruled_out = (self.ruled_out >= number).then_some(Reason::RuledOut);
        let in_the_way = (!makes_way).then_some(Reason::BornBefore);
        let not_owner = around.unwilling.filter(|why| *why == Reason::NotOwner);
        let why = not_owner.or(ruled_out).or(in_the_way).or(around.unwilling);
        let Some(why) = why else {
            self.forget();
            self.place = Place::Here;
            self.socket = Socket::Own;
            self.number = number;
            return Verdict::Come;
        };
        // That one may yet have the question, and take it.
        if around.in_place {
            return Verdict::Refuse(why);
        }
        match self.place {
            Place::Unknown | Place::Coming => {
                self.place = Place::Refused;
                self.number = number;
            }
            // It goes on forwarding, or waiting.
            Place::Here
            | Place::Asked
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Twin => {}
        }
        self.refused = number;
        Verdict::Refuse(why)
    }

    fn hear_answer(&mut self, offer: Offer, from: Server, accepted: bool) -> Verdict {
        let known = Offer {
            number: self.number,
            request: self.request,
        };
        match self.place {
            Place::Asked if offer == known && self.to == Some(from) => {
                if accepted {
                    self.place = Place::Gone;
                    self.socket = Socket::None;
                    return Verdict::Reset(Reason::Accepted);
                }
                self.place = Place::Here;
                self.refused = self.number;
                Verdict::Serve(Some(Reason::Refused))
            }
            Place::Unknown
            | Place::Here
            | Place::Asked
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Twin
            | Place::Coming => Verdict::Drop(Reason::StaleSlip),
        }
    }

    /// The client's next segment decides.
    fn lapse(&mut self, offer: Offer, from: Server) -> Verdict {
        let is_known = offer.number == self.number && offer.request == self.request;
        if self.place != Place::Asked || !is_known || self.to != Some(from) {
            return Verdict::Drop(Reason::StaleSlip);
        }
        self.lapsed = true;
        Verdict::Drop(Reason::Lapsed)
    }

    fn relay_question(
        &mut self,
        offer: Offer,
        from: Server,
        to: Server,
        around: &Around,
    ) -> Verdict {
        let is_over = self.socket == Socket::Twin && self.is_over(offer.number);
        if !around.stands_by || around.ward != Some(from) || is_over {
            return Verdict::Drop(Reason::StaleSlip);
        }
        // So would this server ask, if it were to own it.
        if self.socket == Socket::Twin {
            self.place = Place::Told;
            self.number = offer.number;
            self.request = offer.request;
            self.to = Some(to);
            self.owner = Some(from);
        }
        Verdict::SendOn(to)
    }

    /// Whether the owner's question of that number is over, as far as its standby knows.
    const fn is_over(&self, number: u32) -> bool {
        match self.place {
            Place::Unknown => false,
            Place::Twin => number <= self.number,
            Place::Here
            | Place::Asked
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Coming => number < self.number,
        }
    }

    fn relay_answer(
        &mut self,
        offer: Offer,
        from: Server,
        accepted: bool,
        around: &Around,
    ) -> Verdict {
        let Some(owner) = around.ward.filter(|_| around.stands_by) else {
            // It is the owner by now, and the answer is its own.
            return self.hear_answer(offer, from, accepted);
        };
        let is_known = self.number == offer.number && self.request == offer.request;
        let is_later = self.place == Place::Unknown || offer.number > self.number;
        // It was to be where the owner is, who knows better.
        let is_news = is_later || self.to == Some(owner);
        match self.place {
            Place::Unknown | Place::Gone if accepted && is_news && self.socket == Socket::None => {
                self.place = Place::Gone;
                self.number = self.number.max(offer.number);
                self.to = Some(from);
            }
            Place::Told if is_known && accepted => {
                self.place = Place::Gone;
                self.socket = Socket::None;
                return Verdict::SendOnAndReset(owner);
            }
            Place::Told if is_known => self.place = Place::Twin,
            Place::Unknown
            | Place::Here
            | Place::Asked
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Twin
            | Place::Coming => {}
        }
        Verdict::SendOn(owner)
    }

    /// The owner, whose standby this server is, has got it.
    fn hear_coming(&mut self, offer: Offer, owner: Server, around: &Around) -> Verdict {
        let is_ward = around.ward == Some(owner);
        let is_wrong = match self.place {
            Place::Here => true,
            // Somebody else has it than was asked for it.
            Place::Asked => self.number != offer.number,
            Place::Unknown => false,
            // A late copy: it has gone on since.
            Place::Gone | Place::Refused | Place::Told | Place::Twin | Place::Coming => {
                offer.number < self.number
            }
        };
        if !is_ward || !around.stands_by || is_wrong {
            if self.place == Place::Gone && is_ward && offer.number > self.number {
                self.number = offer.number;
                self.to = Some(owner);
            }
            return Verdict::Drop(Reason::StaleSlip);
        }
        let is_twin = self.socket == Socket::Twin;
        if is_twin && self.place != Place::Unknown && self.number == offer.number {
            return Verdict::Feed;
        }
        if self.refused == offer.number {
            // Here, and not where it was meant to come.
            self.refused = 0;
        }
        self.place = Place::Twin;
        self.socket = Socket::Twin;
        self.number = offer.number;
        self.owner = Some(owner);
        self.to = None;
        Verdict::MakeTwin { again: is_twin }
    }

    /// From here on a question of up to that number is never accepted.
    fn rule_out(&mut self, number: u32, around: &Around) -> Verdict {
        self.ruled_out = self.ruled_out.max(number);
        let word = match self.place {
            _ if number != 0 && number == self.refused => QuestionWord::Never,
            // The last owner has accepted it.
            Place::Unknown if self.socket == Socket::Adopted => QuestionWord::Has,
            Place::Unknown | Place::Refused => QuestionWord::Never,
            Place::Coming => QuestionWord::Later,
            Place::Here => QuestionWord::Has,
            // Somebody has accepted that number, or it came and has gone on under a later one.
            Place::Gone if self.number >= number => QuestionWord::Has,
            Place::Asked if self.number > number => QuestionWord::Has,
            // What becomes of its own question is not known here.
            Place::Asked if self.number == number => QuestionWord::Later,
            Place::Asked | Place::Gone => QuestionWord::Never,
            Place::Told if around.mate == Mate::Ours => QuestionWord::Never,
            // It has gone on under a later number, so it came under this one.
            Place::Told | Place::Twin if self.number > number => QuestionWord::Has,
            // Its owner may have it.
            Place::Told | Place::Twin if self.number == number => QuestionWord::Later,
            Place::Told | Place::Twin => QuestionWord::Never,
        };
        Verdict::Settled(word)
    }

    const fn hear_timer(&mut self) -> Verdict {
        match self.place {
            // Nothing is left to be given back.
            Place::Asked if matches!(self.socket, Socket::None) => {
                self.place = Place::Gone;
                Verdict::Nothing
            }
            Place::Asked if self.lapsed => Verdict::Nothing,
            Place::Asked => Verdict::Remind,
            Place::Gone | Place::Refused | Place::Told => {
                self.forget();
                Verdict::Nothing
            }
            Place::Unknown | Place::Here | Place::Twin | Place::Coming => Verdict::Nothing,
        }
    }

    fn take_over(&mut self) -> Verdict {
        if self.socket != Socket::Twin {
            return Verdict::Nothing;
        }
        self.socket = Socket::Adopted;
        self.place = match self.place {
            // The question of the last owner is this one's.
            Place::Told => {
                self.lapsed = false;
                Place::Asked
            }
            Place::Gone | Place::Refused | Place::Twin | Place::Coming => Place::Here,
            Place::Unknown | Place::Here | Place::Asked => self.place,
        };
        self.owner = None;
        Verdict::Nothing
    }

    const fn stand_by(&mut self, around: &Around) -> Verdict {
        if !self.socket.is_owners() {
            return Verdict::Nothing;
        }
        self.socket = Socket::Twin;
        self.owner = around.ward;
        self.place = match self.place {
            Place::Asked => Place::Told,
            // From now on it is where its next owner is.
            Place::Here => Place::Twin,
            Place::Unknown
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Twin
            | Place::Coming => self.place,
        };
        Verdict::Nothing
    }

    fn install(&mut self) -> Verdict {
        if self.socket != Socket::None {
            return Verdict::Nothing;
        }
        self.socket = Socket::Twin;
        self.place = match self.place {
            // What this server has asked as its owner, another owner has no part in.
            Place::Asked | Place::Told => Place::Twin,
            Place::Unknown
            | Place::Here
            | Place::Gone
            | Place::Refused
            | Place::Twin
            | Place::Coming => self.place,
        };
        Verdict::Nothing
    }

    /// By its twin this server knows whose what its client says is. If it was told of a question
    /// whose answer it has not heard, that was accepted: its owner would feed the twin else.
    fn part(&mut self) -> Verdict {
        let has_twin = self.socket == Socket::Twin;
        let to = match self.place {
            Place::Told if has_twin => self.to,
            Place::Twin if has_twin => self.owner,
            Place::Unknown
            | Place::Here
            | Place::Asked
            | Place::Gone
            | Place::Refused
            | Place::Told
            | Place::Twin
            | Place::Coming => None,
        };
        if to.is_none() {
            return self.end();
        }
        self.place = Place::Gone;
        self.to = to;
        self.owner = None;
        self.socket = Socket::None;
        Verdict::Nothing
    }

    const fn end(&mut self) -> Verdict {
        self.socket = Socket::None;
        match self.place {
            Place::Asked | Place::Gone | Place::Refused => {}
            Place::Unknown | Place::Here | Place::Told | Place::Twin | Place::Coming => {
                self.forget();
            }
        }
        Verdict::Nothing
    }
}
