//! `godwit demo move`: one download whose server is changed twenty times, as
//! planned; and beside it what moving an address does to plain TCP.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::DemoOptions;
use super::arm::{self, FILE, Outcome, Protection, Trouble};
use super::shadow::{ControlLine, SCHEMA, SEED, SIZE_MIN, say_end, table};
use super::view::View;
use crate::apps::content::Content;
use crate::lab::{Lab, LabOptions};

/// How often the service moves.
const MOVES: usize = 20;

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    godwit: Outcome,
    control: Outcome,
}

/// The last line that `--json` prints; its fields and their order are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Line {
    schema: &'static str,
    demo: &'static str,
    ok: bool,
    bytes: u64,
    digest_ok: bool,
    rst: u64,
    stall_ms: f64,
    control: ControlLine,
    handshakes: u64,
    moves: usize,
}

impl Summary {
    /// True if one connection carried the whole download over all moves, and a
    /// moved address ended it without Godwit.
    pub(super) const fn ok(&self) -> bool {
        let Self { godwit, control } = self;
        let one = godwit.exact && godwit.resets == 0 && godwit.handshakes == 1;
        one && godwit.moves == MOVES && control.struck && !control.exact
    }

    pub(super) fn line(&self) -> Line {
        Line {
            schema: SCHEMA,
            demo: "move",
            ok: self.ok(),
            bytes: self.godwit.bytes,
            digest_ok: self.godwit.exact,
            rst: self.godwit.resets,
            stall_ms: self.godwit.stall_ms(),
            control: ControlLine {
                digest_ok: self.control.exact,
            },
            handshakes: self.godwit.handshakes,
            moves: self.godwit.moves,
        }
    }
}

/// Runs both arms, one after the other: each has the machine to itself.
pub(super) fn run(options: DemoOptions, view: &mut View) -> Result<Summary> {
    ensure!(
        options.size >= SIZE_MIN,
        "the download must have at least 1 MiB"
    );
    let content = Content {
        seed: SEED,
        length: options.size,
    };
    let lab = Lab::new(LabOptions::default())?;
    let root = lab.folder().join("www");
    fs::create_dir(&root).context("creating the folder of the web server")?;
    view.line(&format!(
        "A client, two servers and a switch, in network namespaces; {} MB to download at {} Mbit/s.",
        options.size / 1_000_000,
        options.mbit
    ))?;
    let digest = content.write_to(&root.join(FILE))?;

    view.part("With Godwit: the service moves twenty times")?;
    let how = (Protection::Godwit, Trouble::Moves(MOVES));
    let godwit = arm::run(&lab, &root, content, options.mbit, how, view)?;
    say_end(&godwit, view)?;

    view.part("Plain TCP: its address moves once")?;
    // The first lab stays for its file; its machines have nothing to do.
    let second = Lab::new(LabOptions::default())?;
    let how = (Protection::MovedAddress, Trouble::Moves(1));
    let control = arm::run(&second, &root, content, options.mbit, how, view)?;
    say_end(&control, view)?;

    table(&godwit, &control, digest, view)?;
    Ok(Summary { godwit, control })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn outcome(exact: bool) -> Outcome {
        Outcome {
            bytes: 1 << 30,
            exact,
            digest: String::new(),
            resets: 0,
            handshakes: 1,
            stall: Some(Duration::from_micros(1_240)),
            struck: true,
            moves: MOVES,
            owner: "b",
            said: String::new(),
        }
    }

    fn good() -> Summary {
        Summary {
            godwit: outcome(true),
            control: outcome(false),
        }
    }

    #[test]
    fn the_line_is_what_others_script_against() {
        let line = serde_json::to_string(&good().line()).expect("it is plain data");
        let expected = concat!(
            r#"{"schema":"godwit.demo/1","demo":"move","ok":true,"bytes":1073741824,"#,
            r#""digest_ok":true,"rst":0,"stall_ms":1.2,"control":{"digest_ok":false},"#,
            r#""handshakes":1,"moves":20}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn one_connection_less_or_one_move_less_is_not_ok() {
        assert!(good().ok());
        let mut again = good();
        again.godwit.handshakes = 2;
        let mut fewer = good();
        fewer.godwit.moves = MOVES - 1;
        let mut survived = good();
        survived.control.exact = true;
        assert!(![again, fewer, survived].iter().any(Summary::ok));
    }
}
