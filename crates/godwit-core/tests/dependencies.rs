//! Decisions see no I/O, whoever adds a dependency.

use std::collections::BTreeSet;
use std::process::Command;

/// Everything that godwit-core is built from: formats, and a macro for errors.
const ALLOWED: [&str; 8] = [
    "godwit-core",
    "godwit-wire",
    "thiserror",
    "thiserror-impl",
    "proc-macro2",
    "quote",
    "syn",
    "unicode-ident",
];

#[test]
fn the_core_is_built_from_nothing_that_does_io() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "godwit-core", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(["--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let text = String::from_utf8(output.stdout).expect("names are UTF-8");
    let crates = text.lines().filter_map(|line| line.split(' ').next());
    let crates: BTreeSet<_> = crates.filter(|name| !name.is_empty()).collect();
    assert!(
        crates.contains("godwit-wire"),
        "{crates:?} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let more: Vec<_> = crates
        .iter()
        .filter(|name| !ALLOWED.contains(name))
        .collect();
    assert!(more.is_empty(), "godwit-core is also built from {more:?}");
}
