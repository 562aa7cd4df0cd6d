//! `godwit-lab`, which `godwit demo`, `bench` and `chaos` run.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

#[test]
fn a_lab_of_another_version_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_godwit-lab"))
        .args(["demo", "nothing"])
        .env("GODWIT_LAB_CALLER", "0.0.1")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(
        said.trim(),
        format!(
            "godwit-lab: this is godwit-lab {own}, and godwit is of version 0.0.1: \
             install both from one build"
        )
    );
}

/// Namespaces of the labs that a process has made: they are called after it.
fn namespaces_of(pid: u32) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.contains(&format!("gw{pid}-")))
        .collect()
}

/// `godwit demo handoff | head -1`: it said "Broken pipe", and was a failure.
#[test]
fn a_reader_that_has_had_enough_ends_it_quietly() {
    if let Err(reason) = godwit_lab::Lab::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut demo = Command::new(env!("CARGO_BIN_EXE_godwit-lab"))
        // It says its first line, makes a lab, and says another before it starts a server.
        .args(["demo", "handoff"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = demo.id();
    let mut first = String::new();
    let out = demo.stdout.take().expect("it is piped");
    BufReader::with_capacity(1, out)
        .read_line(&mut first)
        .expect("it says something");
    let ended = demo.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(said, "", "after {first:?}");
    assert!(ended.status.success(), "{}", ended.status);
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
}
