//! The table of places in `docs/requests.md` is what the model does.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use godwit_core::request::{Around, Connection, Input, Mate, Offer, Place, Said, Server, Socket};

const TARGET: Server = Server(1);
const OWNER: Server = Server(2);
const NUMBER: u32 = 5;
const REQUEST: u32 = 7;

/// The columns.
const PLACES: [(Place, Socket); 7] = [
    (Place::Unknown, Socket::Own),
    (Place::Here, Socket::Own),
    (Place::Asked, Socket::Own),
    (Place::Gone, Socket::None),
    (Place::Refused, Socket::None),
    (Place::Told, Socket::Twin),
    (Place::Twin, Socket::Twin),
];

const AROUND: Around = Around {
    target: Some(TARGET),
    mate: Mate::Serves,
    by_standby: false,
    unwilling: None,
    in_place: false,
    twin_is_idle: true,
    ward: Some(OWNER),
    stands_by: true,
};

const DEAD: Around = Around {
    mate: Mate::Dead,
    ..AROUND
};

const fn offer(number: u32) -> Offer {
    Offer {
        number,
        request: REQUEST,
    }
}

const fn client(said: Said) -> Input {
    Input::Client(said, None)
}

/// The rows: what happens, as people read it.
fn rows() -> Vec<(&'static str, Input, Around)> {
    let of_client = of_client().into_iter();
    let all = of_client.chain(of_servers()).chain(of_standbys());
    let all = all.map(|(what, input)| {
        let is_dead = what.ends_with("without power");
        (what, input, if is_dead { DEAD } else { AROUND })
    });
    all.collect()
}

fn of_client() -> Vec<(&'static str, Input)> {
    vec![
        (
            "the client's request, which another server is to have",
            client(Said::Request(REQUEST)),
        ),
        ("anything else that the client says", client(Said::Other)),
        (
            "the client has heard more than was said here",
            client(Said::AcknowledgesMore),
        ),
        ("a SYN with another sequence number", client(Said::OtherSyn)),
        (
            "the handshake of another connection with its addresses and ports is completed",
            client(Said::Completes),
        ),
        (
            "the client speaks, and whom it has asked, or given it to, is without power",
            client(Said::Other),
        ),
        (
            "the client speaks, and whom it was offered to may have forgotten it",
            client(Said::Other),
        ),
    ]
}

fn of_servers() -> Vec<(&'static str, Input)> {
    vec![
        (
            "the answer: accepted",
            Input::Accepted(offer(NUMBER), TARGET),
        ),
        ("the answer: refused", Input::Refused(offer(NUMBER), TARGET)),
        (
            "an answer to another question",
            Input::Accepted(offer(NUMBER - 1), TARGET),
        ),
        (
            "it is offered, under the number that is known",
            Input::Ask(offer(NUMBER)),
        ),
        (
            "it is offered, under a later number",
            Input::Ask(offer(NUMBER + 1)),
        ),
    ]
}

fn of_standbys() -> Vec<(&'static str, Input)> {
    let by_way = Input::AskByWay {
        offer: offer(NUMBER + 1),
        from: OWNER,
        to: TARGET,
    };
    let answer = |accepted| Input::AnswerByWay {
        offer: offer(NUMBER),
        from: TARGET,
        accepted,
    };
    vec![
        ("a question of its owner goes by this server", by_way),
        ("so does the answer: accepted", answer(true)),
        ("so does the answer: refused", answer(false)),
        (
            "its owner has got it with a request",
            Input::Came(offer(NUMBER + 1), OWNER),
        ),
        (
            "its owner serves that request itself",
            Input::Fed(Some(REQUEST)),
        ),
        ("a question about it is ruled out", Input::RuleOut(NUMBER)),
        ("this server takes over its share", Input::TakeOver),
        ("this server gives its share to its standby", Input::StandBy),
        ("the entry's timer", Input::Timer),
        ("its twin is taken away", Input::Forget),
        ("it is over", Input::Over),
    ]
}

fn table() -> String {
    let mut text = String::from("| what happens |");
    for (place, _) in PLACES {
        let _ = write!(text, " {} |", place.name());
    }
    text.push_str("\n|---|---|---|---|---|---|---|---|\n");
    for (what, input, around) in rows() {
        let _ = write!(text, "| {what} |");
        for (place, socket) in PLACES {
            let known = place != Place::Unknown;
            let mut it = Connection {
                place,
                socket,
                number: if known { NUMBER } else { 0 },
                refused: if place == Place::Refused { NUMBER } else { 0 },
                ruled_out: 0,
                request: REQUEST,
                to: Some(TARGET),
                owner: Some(OWNER),
                lapsed: place == Place::Asked && what.ends_with("may have forgotten it"),
            };
            it.hear(input, &around);
            let same = it.place == place && it.socket == socket;
            let gone = it.place == Place::Unknown && it.socket == Socket::None;
            let cell = match (same, gone) {
                (true, _) => " ",
                (false, true) => " - ",
                (false, false) if it.place == place => " silent ",
                (false, false) => &format!(" {} ", it.place.name()),
            };
            let _ = write!(text, "{cell}|");
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_table_of_places_is_what_the_model_does() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/requests.md");
    let page = fs::read_to_string(page).expect("it is there");
    let table = table();
    assert!(page.contains(&table), "the page should have:\n{table}");
}
