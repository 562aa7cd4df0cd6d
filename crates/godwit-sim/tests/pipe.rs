//! What `godwit-sim` does when nobody reads on.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

/// `godwit-sim --trace | head -1`
#[test]
fn a_reader_that_has_had_enough_ends_it_quietly() {
    let mut sim = Command::new(env!("CARGO_BIN_EXE_godwit-sim"))
        .args(["--seed", "7", "--trace"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = String::new();
    let out = sim.stdout.take().expect("it is piped");
    BufReader::with_capacity(1, out)
        .read_line(&mut first)
        .expect("it says something");
    let ended = sim.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(said, "", "after {first:?}");
    assert!(ended.status.success(), "{}", ended.status);
}
