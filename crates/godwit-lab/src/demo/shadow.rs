//! `godwit demo shadow`: a download outlives its server, and beside it the
//! same crash with plain TCP and a moved address, where it does not.

use anyhow::Result;
use serde::Serialize;

use super::DemoOptions;
use super::arm::Trouble;
use super::line::Line;
use super::pair::Pair;
use super::view::View;

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Summary(Pair);

/// Nothing more than every demonstration says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct More {}

impl Summary {
    /// True if the download survived unharmed, and the same crash ended it
    /// without Godwit.
    pub(super) const fn ok(&self) -> bool {
        let Pair { godwit, control } = &self.0;
        let survived = godwit.exact && godwit.struck && godwit.resets == 0;
        survived && control.struck && !control.exact
    }

    pub(super) fn line(&self) -> Line<More> {
        Line::new("shadow", self.ok(), self.0.facts(), More {})
    }
}

/// Runs both arms.
pub(super) fn run(options: DemoOptions, view: &mut View) -> Result<Summary> {
    let parts = [
        ("With Godwit", Trouble::Crash),
        (
            "The same with plain TCP and a moved address",
            Trouble::Crash,
        ),
    ];
    Pair::run(options, parts, view).map(Summary)
}

#[cfg(test)]
mod tests {
    use super::super::pair::example;
    use super::*;

    #[test]
    fn the_line_is_what_others_script_against() {
        let line = serde_json::to_string(&Summary(example()).line()).expect("it is plain data");
        let expected = concat!(
            r#"{"schema":"godwit.demo/1","demo":"shadow","ok":true,"bytes":1073741824,"#,
            r#""digest_ok":true,"rst":0,"stall_ms":31.2,"control":{"digest_ok":false}}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn a_reset_or_a_surviving_control_arm_is_not_ok() {
        assert!(Summary(example()).ok());
        let mut reset = example();
        reset.godwit.resets = 1;
        assert!(!Summary(reset).ok());
        let mut survived = example();
        survived.control.exact = true;
        assert!(!Summary(survived).ok());
    }
}
