//! Whether somebody else can change what the agent believes.

use std::path::PathBuf;

use super::{Check, Scope};
use crate::custody;

/// The fact that nobody else can.
const FACT: &str = "believed_files";

pub(super) fn check(scope: &Scope) -> Option<Check> {
    (!scope.believed.is_empty()).then(|| look(&scope.believed))
}

/// Looks at files and the folders on their ways.
pub(crate) fn look(believed: &[PathBuf]) -> Check {
    let faults = custody::faults(believed);
    if faults.is_empty() {
        let names = believed.iter().filter_map(|path| path.file_name());
        let names: Vec<_> = names.map(|it| it.to_string_lossy()).collect();
        let found = format!("only root and the agent change {}", names.join(", "));
        return Check::ok(FACT, found);
    }
    Check::fail(
        FACT,
        faults.join("; "),
        "whoever can write there decides whom this node trusts: look for changes, and take the \
         right away",
    )
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::doctor::Level;
    use crate::testing::Pair;

    #[test]
    fn a_file_that_others_can_write_is_a_failure() {
        let pair = Pair::new();
        let scope = Scope::of(&pair.a);
        let level = || check(&scope).expect("there are files").level;
        assert_eq!(level(), Level::Ok);
        fs::set_permissions(&pair.a.tls.ca, Permissions::from_mode(0o666)).expect("ours");
        assert_eq!(level(), Level::Fail);
        let found = check(&scope).expect("there are files").found;
        assert!(
            found.contains("ca.pem: its group or others may write it (mode 666)"),
            "{found}"
        );
        assert_eq!(check(&Scope::default()), None);
    }
}
