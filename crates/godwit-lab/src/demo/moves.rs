//! `godwit demo move`: one download whose server is changed twenty times, as
//! planned; and beside it what moving an address does to plain TCP.

use anyhow::Result;
use serde::Serialize;

use super::DemoOptions;
use super::arm::Trouble;
use super::line::Line;
use super::pair::Pair;
use super::view::View;

/// How often the service moves.
const MOVES: usize = 20;

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Summary(Pair);

/// What this demonstration says besides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct More {
    handshakes: u64,
    moves: usize,
}

impl Summary {
    /// True if one connection carried the whole download over all moves, and a
    /// moved address ended it without Godwit.
    pub(super) const fn ok(&self) -> bool {
        let Pair { godwit, control } = &self.0;
        let one = godwit.exact && godwit.resets == 0 && godwit.handshakes == 1;
        one && godwit.moves == MOVES && control.struck && !control.exact
    }

    pub(super) fn line(&self) -> Line<More> {
        let more = More {
            handshakes: self.0.godwit.handshakes,
            moves: self.0.godwit.moves,
        };
        Line::new("move", self.ok(), self.0.facts(), more)
    }
}

/// Runs both arms.
pub(super) fn run(options: DemoOptions, view: &mut View) -> Result<Summary> {
    let parts = [
        (
            "With Godwit: the service moves twenty times",
            Trouble::Moves(MOVES),
        ),
        ("Plain TCP: its address moves once", Trouble::Moves(1)),
    ];
    Pair::run(options, parts, view).map(Summary)
}

#[cfg(test)]
mod tests {
    use super::super::pair::example;
    use super::*;

    fn good() -> Pair {
        let mut pair = example();
        pair.godwit.moves = MOVES;
        pair
    }

    #[test]
    fn the_line_is_what_others_script_against() {
        let line = serde_json::to_string(&Summary(good()).line()).expect("it is plain data");
        let expected = concat!(
            r#"{"schema":"godwit.demo/1","demo":"move","ok":true,"bytes":1073741824,"#,
            r#""digest_ok":true,"rst":0,"stall_ms":31.2,"control":{"digest_ok":false},"#,
            r#""handshakes":1,"moves":20}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn one_connection_less_or_one_move_less_is_not_ok() {
        assert!(Summary(good()).ok());
        let mut again = good();
        again.godwit.handshakes = 2;
        let mut fewer = good();
        fewer.godwit.moves = MOVES - 1;
        let mut survived = good();
        survived.control.exact = true;
        assert!(
            ![again, fewer, survived]
                .map(Summary)
                .iter()
                .any(Summary::ok)
        );
    }
}
