//! Every input in every place.

use godwit_wire::QuestionWord;

use super::*;

const ME_ASKED: Server = Server(1);
const OWNER: Server = Server(2);
const STRANGER: Server = Server(3);

/// The number that an entry has, and those around it.
const NUMBER: u32 = 5;
const NUMBERS: [u32; 3] = [NUMBER - 1, NUMBER, NUMBER + 1];
const REQUEST: u32 = 7;

const SAID: [Said; 10] = [
    Said::Syn,
    Said::OtherSyn,
    Said::Completes,
    Said::Request(REQUEST),
    Said::Request(REQUEST + 1),
    Said::Rest(REQUEST),
    Said::AcknowledgesMore,
    Said::Other,
    Said::Reset,
    Said::Fin,
];

fn inputs() -> Vec<Input> {
    let mut all = Vec::new();
    for said in SAID {
        for by in [None, Some(ME_ASKED), Some(STRANGER)] {
            all.push(Input::Client(said, by));
        }
    }
    for number in NUMBERS {
        let offer = Offer {
            number,
            request: REQUEST,
        };
        all.push(Input::Ask(offer));
        for from in [ME_ASKED, STRANGER] {
            all.push(Input::Accepted(offer, from));
            all.push(Input::Refused(offer, from));
            all.push(Input::Lapse(offer, from));
        }
        for from in [OWNER, STRANGER] {
            let to = ME_ASKED;
            all.push(Input::AskByWay { offer, from, to });
            all.push(Input::Came(offer, from));
        }
        for accepted in [true, false] {
            let from = ME_ASKED;
            all.push(Input::AnswerByWay {
                offer,
                from,
                accepted,
            });
        }
        all.push(Input::RuleOut(number));
    }
    all.extend([None, Some(REQUEST - 1), Some(REQUEST)].map(Input::Fed));
    all.extend([
        Input::Own,
        Input::Timer,
        Input::TakeOver,
        Input::StandBy,
        Input::Installed,
        Input::Forget,
        Input::Over,
    ]);
    all
}

fn arounds() -> Vec<Around> {
    let mut all = Vec::new();
    for mate in [Mate::Serves, Mate::Silent, Mate::Dead, Mate::Ours] {
        for bits in 0..32_u8 {
            let is = |bit: u8| bits & 1 << bit != 0;
            all.push(Around {
                target: is(0).then_some(ME_ASKED),
                mate,
                by_standby: is(1),
                unwilling: is(2).then_some(Reason::NotOwner),
                in_place: false,
                twin_is_idle: is(3),
                ward: Some(OWNER),
                stands_by: is(4),
            });
        }
    }
    all
}

/// What a server may have of a connection.
fn is_legal(it: &Connection) -> bool {
    let has_target = it.to.is_some();
    match it.place {
        Place::Unknown | Place::Here | Place::Coming => true,
        Place::Refused => it.refused >= it.number,
        Place::Asked => has_target && it.socket != Socket::Twin,
        Place::Gone => has_target && !it.socket.is_owners(),
        Place::Told => has_target && it.socket == Socket::Twin,
        Place::Twin => it.socket == Socket::Twin,
    }
}

fn connections() -> Vec<Connection> {
    let mut all = Vec::new();
    for place in Place::ALL {
        for socket in Socket::ALL {
            for refused in [0, NUMBER - 1, NUMBER, NUMBER + 1] {
                for ruled_out in [0, NUMBER, NUMBER + 1] {
                    let known = place != Place::Unknown;
                    all.push(Connection {
                        place,
                        socket,
                        number: if known { NUMBER } else { 0 },
                        refused: if known { refused } else { 0 },
                        ruled_out,
                        request: REQUEST,
                        to: Some(ME_ASKED),
                        owner: Some(OWNER),
                        lapsed: place == Place::Asked && ruled_out == NUMBER,
                    });
                }
            }
        }
    }
    all.retain(is_legal);
    all
}

fn each(mut judge: impl FnMut(Connection, Input, &Around, Connection, Verdict)) {
    let (connections, arounds) = (connections(), arounds());
    for input in inputs() {
        for around in &arounds {
            for before in &connections {
                let mut after = *before;
                let verdict = after.hear(input, around);
                judge(*before, input, around, after, verdict);
            }
        }
    }
}

#[test]
fn every_input_in_every_place_leads_to_a_legal_one() {
    let mut seen = 0_u32;
    each(|before, input, around, after, verdict| {
        let what = || format!("{before:?}\n{input:?}\n{around:?}\n{verdict:?} {after:?}");
        assert!(is_legal(&after), "{}", what());
        assert!(after.ruled_out >= before.ruled_out, "{}", what());
        let forgets = after.number == 0;
        assert!(
            forgets || after.number >= before.number.min(NUMBER - 1),
            "{}",
            what()
        );
        seen += 1;
    });
    assert!(seen > 500_000, "{seen}");
}

/// Why a silent server may speak from here on.
fn gives_voice(before: &Connection, input: Input, verdict: Verdict) -> bool {
    // A new connection, of which nothing was known.
    let begins = verdict == Verdict::Serve(None) && before.place == Place::Unknown;
    let is_given_back = matches!(
        verdict,
        Verdict::Serve(Some(Reason::Reclaimed | Reason::Refused))
    );
    let is_asked = before.place == Place::Asked;
    let takes_over = input == Input::TakeOver;
    begins || (is_given_back && is_asked) || verdict == Verdict::Come || takes_over
}

#[test]
fn a_server_becomes_a_voice_for_a_named_reason_only() {
    each(|before, input, around, after, verdict| {
        if after.is_voice() && !before.is_voice() {
            let what = || format!("{before:?}\n{input:?}\n{around:?}\n{verdict:?} {after:?}");
            assert!(gives_voice(&before, input, verdict), "{}", what());
            assert!(
                verdict != Verdict::Come || around.unwilling.is_none(),
                "{}",
                what()
            );
        }
    });
}

#[test]
fn a_socket_is_lost_for_a_named_reason_only() {
    each(|before, input, _, after, verdict| {
        if before.socket == Socket::None || after.socket != Socket::None {
            return;
        }
        let is_reset = matches!(
            verdict,
            Verdict::Reset(Reason::Accepted | Reason::MateGone)
                | Verdict::LeaveLate(_)
                | Verdict::SendOnAndReset(_)
        );
        // Another connection has its addresses.
        let makes_way = matches!(input, Input::Client(Said::Completes, _));
        let ends = [Input::Over, Input::Forget].contains(&input);
        let named = is_reset || makes_way || ends;
        assert!(named, "{before:?} {input:?} {verdict:?}");
    });
}

/// Anybody can send one.
#[test]
fn a_syn_ends_nothing() {
    each(|before, input, around, after, verdict| {
        if !matches!(input, Input::Client(Said::OtherSyn, _)) {
            return;
        }
        let what = || format!("{before:?}\n{input:?}\n{around:?}\n{verdict:?} {after:?}");
        assert_eq!(after.socket, before.socket, "{}", what());
        // Without a socket it is over, and only a number was left.
        let is_over = before.place == Place::Here && before.socket == Socket::None;
        assert!(after == before || is_over, "{}", what());
    });
}

/// A copy of its owner's word that was under way for long.
#[test]
fn a_late_copy_makes_no_twin() {
    each(|before, input, _, after, verdict| {
        let Input::Came(offer, _) = input else { return };
        if before.place != Place::Unknown && offer.number < before.number {
            assert_eq!(verdict, Verdict::Drop(Reason::StaleSlip), "{before:?}");
            assert_eq!(after, before);
        }
    });
}

/// A question of a connection of which nothing is left here is no question for ever.
#[test]
fn who_has_nothing_left_waits_for_no_answer() {
    each(|before, input, _, after, _| {
        if before.place == Place::Asked && input == Input::Timer {
            let has_gone = after.place == Place::Gone;
            assert_eq!(has_gone, before.socket == Socket::None, "{before:?}");
        }
    });
}

/// While a question is open: whether the server is through with it.
fn settles(before: &Connection, input: Input, around: &Around, verdict: Verdict) -> bool {
    match input {
        Input::Accepted(..) | Input::Refused(..) | Input::AnswerByWay { .. } => matches!(
            verdict,
            Verdict::Reset(Reason::Accepted) | Verdict::Serve(Some(Reason::Refused))
        ),
        // Who offers it, or has it, was asked before.
        Input::Ask(_) => verdict == Verdict::Come,
        Input::Came(..) => matches!(verdict, Verdict::MakeTwin { .. }),
        Input::Client(Said::Completes, _) => true,
        // Nobody remembers it: the client has decided.
        Input::Client(..) if before.lapsed || matches!(around.mate, Mate::Dead | Mate::Ours) => {
            true
        }
        Input::Client(said, _) => {
            said == Said::AcknowledgesMore && matches!(verdict, Verdict::LeaveLate(_))
        }
        Input::StandBy | Input::Installed => true,
        Input::Fed(_)
        | Input::Own
        | Input::Lapse(..)
        | Input::AskByWay { .. }
        | Input::RuleOut(_)
        | Input::Timer
        | Input::TakeOver
        | Input::Forget
        | Input::Over => false,
    }
}

#[test]
fn silence_gives_no_question_back() {
    each(|before, input, around, after, verdict| {
        // Without a socket there is nothing to give back.
        if before.place != Place::Asked || before.socket == Socket::None {
            return;
        }
        let what = || format!("{before:?}\n{input:?}\n{around:?}\n{verdict:?} {after:?}");
        assert!(
            after.place == Place::Asked || settles(&before, input, around, verdict),
            "{}",
            what()
        );
        if after.place == Place::Asked && after.number == before.number {
            assert_eq!(after.to, before.to, "{}", what());
            assert!(!after.is_voice(), "{}", what());
        }
    });
}

/// Nobody remembers what became of the question: the connection is where the client has heard the
/// reply, or here.
#[test]
fn the_client_settles_what_nobody_remembers() {
    let offer = Offer {
        number: NUMBER,
        request: REQUEST,
    };
    let mut seen = 0;
    each(|before, input, around, after, verdict| {
        if input != Input::Lapse(offer, ME_ASKED) || before.place != Place::Asked {
            return;
        }
        assert_eq!(verdict, Verdict::Drop(Reason::Lapsed));
        assert!(
            after.place == Place::Asked && !after.is_voice(),
            "{after:?}"
        );
        if before.socket == Socket::None || matches!(around.mate, Mate::Dead | Mate::Ours) {
            return;
        }
        for said in SAID {
            let mut later = after;
            let verdict = later.hear(Input::Client(said, None), around);
            let what = || format!("{after:?} {said:?} {verdict:?} {later:?}");
            let place = match said {
                Said::AcknowledgesMore => Place::Gone,
                Said::OtherSyn => Place::Asked,
                Said::Completes => Place::Unknown,
                Said::Syn
                | Said::Request(_)
                | Said::Rest(_)
                | Said::Other
                | Said::Reset
                | Said::Fin => Place::Here,
            };
            assert_eq!(later.place, place, "{}", what());
            seen += 1;
        }
    });
    assert!(seen > 1_000, "{seen}");
}

/// Who was asked may yet have the question, and take it. Then this server may own what that one
/// had, and must not deny it.
#[test]
fn what_is_refused_in_anothers_place_is_not_remembered() {
    let offer = Offer {
        number: NUMBER,
        request: REQUEST,
    };
    let mut around = arounds()[0];
    around.unwilling = Some(Reason::NotOwner);
    for (in_place, again) in [
        (true, Verdict::AcceptAgain),
        (false, Verdict::Refuse(Reason::Again)),
    ] {
        around.in_place = in_place;
        let mut it = Connection::default();
        let first = it.hear(Input::Ask(offer), &around);
        assert_eq!(first, Verdict::Refuse(Reason::NotOwner));
        it.hear(Input::Installed, &around);
        it.hear(Input::TakeOver, &around);
        assert_eq!(it.hear(Input::Ask(offer), &around), again, "{it:?}");
    }
}

/// Whatever has changed meanwhile.
#[test]
fn a_question_has_one_answer() {
    let arounds = arounds();
    each(|before, input, _, after, verdict| {
        let Input::Ask(offer) = input else { return };
        for around in &arounds {
            let again = after.clone().hear(input, around);
            let what = || format!("{before:?}\n{offer:?}\n{verdict:?}, then {again:?}");
            if matches!(verdict, Verdict::Refuse(_)) {
                assert_eq!(again, Verdict::Refuse(Reason::Again), "{}", what());
            }
            if matches!(verdict, Verdict::Come | Verdict::AcceptAgain) {
                assert_eq!(again, Verdict::AcceptAgain, "{}", what());
            }
        }
    });
}

/// What was ruled out is not accepted, and what is here is not denied.
#[test]
fn a_ruling_holds() {
    let arounds = arounds();
    each(|before, input, _, after, verdict| {
        let Input::RuleOut(number) = input else {
            return;
        };
        let what = || format!("{before:?} {number} {verdict:?}");
        if before.place == Place::Here && before.refused != number {
            assert_eq!(verdict, Verdict::Settled(QuestionWord::Has), "{}", what());
        }
        if verdict != Verdict::Settled(QuestionWord::Never) {
            return;
        }
        let offer = Offer {
            number,
            request: REQUEST,
        };
        for around in &arounds {
            let late = after.clone().hear(Input::Ask(offer), around);
            assert!(
                !matches!(
                    late,
                    Verdict::Come | Verdict::AcceptAgain | Verdict::OnlyAnswer
                ),
                "{}, then {late:?}",
                what()
            );
        }
    });
}

/// Two shares move to and fro while a question is open. Who answers it in the end knows only that
/// the connection has gone on, under the number of that question. It said "later", for ever.
#[test]
fn who_knows_that_it_has_gone_on_says_so() {
    each(|before, input, _, _, verdict| {
        let Input::RuleOut(number) = input else {
            return;
        };
        let is_over = before.place == Place::Gone && number <= before.number;
        if is_over && before.refused != number {
            let has = Verdict::Settled(QuestionWord::Has);
            assert_eq!(verdict, has, "{before:?} {number}");
        }
    });
}

/// The standby of whoever asks puts the same question, if it has to.
#[test]
fn who_takes_over_goes_on_with_the_question() {
    each(|before, input, around, after, _| {
        let Input::AskByWay { offer, from, to } = input else {
            return;
        };
        let is_known = before.place != Place::Unknown;
        let is_last = before.place == Place::Twin && offer.number == NUMBER;
        let is_over = is_known && (offer.number < NUMBER || is_last);
        let hears = around.stands_by && from == OWNER && before.socket == Socket::Twin && !is_over;
        if !hears {
            assert_eq!(before, after);
            return;
        }
        let mut later = after;
        later.hear(Input::TakeOver, around);
        assert_eq!(
            (later.place, later.number, later.to, later.is_voice()),
            (Place::Asked, offer.number, Some(to), false)
        );
        let again = later.hear(Input::Client(Said::Request(REQUEST), None), around);
        match around.mate {
            Mate::Serves | Mate::Silent => assert!(matches!(again, Verdict::Ask { .. })),
            Mate::Dead | Mate::Ours => assert_eq!(again, Verdict::Serve(Some(Reason::Reclaimed))),
        }
        assert_eq!(later.number, offer.number);
    });
}

#[test]
fn places_have_the_data_paths_numbers() {
    let codes = Place::ALL.map(Place::code);
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7]);
    let mut names = Place::ALL.map(Place::name);
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}
