//! The command line as others script it: exit codes, one-line errors, schemas.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const CONFIG: &str = r#"
[node]
name = "a"
interface = "lo"
run_dir = "run"
[[peer]]
name = "a"
role = "server"
control = "127.0.0.1:7400"
[[peer]]
name = "b"
role = "server"
control = "127.0.0.2:7400"
[tls]
ca = "ca.pem"
cert = "node.pem"
key = "node.key"
[[service]]
name = "web"
address = "10.9.0.100:80"
primary = "a"
backups = ["b"]
"#;

fn godwit(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_godwit"));
    command
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// What a failed command says: one line.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    text.trim_end().to_owned()
}

fn write_config(dir: &TempDir, text: &str) -> String {
    let path = dir.path().join("godwit.toml");
    fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn usage_errors_are_2() {
    assert_eq!(code(&godwit(&[])), Some(2));
    assert_eq!(code(&godwit(&["nonsense"])), Some(2));
    assert_eq!(code(&godwit(&["status", "--nonsense"])), Some(2));
    assert_eq!(
        code(&godwit(&[
            "pki",
            "issue",
            "--dir",
            "x",
            "--name",
            "not a name"
        ])),
        Some(2)
    );
}

#[test]
fn a_wrong_configuration_is_2_and_names_file_line_and_key() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let file = write_config(&dir, &CONFIG.replace("primary", "primry"));
    for command in ["agent", "doctor", "status"] {
        let output = godwit(&[command, "--config", &file]);
        assert_eq!(code(&output), Some(2), "{command}");
        let expected = format!(
            "godwit: {file}:21: service \"web\": unknown key `primry`, did you mean `primary`?"
        );
        assert_eq!(complaint(&output), expected);
    }
}

#[test]
fn a_missing_file_is_named() {
    let output = godwit(&["agent", "--config", "/nonexistent/godwit.toml"]);
    assert_eq!(code(&output), Some(2));
    assert!(complaint(&output).starts_with("godwit: /nonexistent/godwit.toml: No such file"));
}

#[test]
fn an_agent_without_certificates_says_which() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let file = write_config(&dir, CONFIG);
    let output = godwit(&["agent", "--config", &file]);
    assert_eq!(code(&output), Some(1));
    let complaint = complaint(&output);
    let expected = format!("godwit: [tls]: {}/ca.pem: No such file", path(dir.path()));
    assert!(complaint.starts_with(&expected), "{complaint}");
    assert!(!dir.path().join("run").exists(), "nothing was made");
}

#[test]
fn without_an_agent_there_is_nobody_to_ask() {
    let dir = tempfile::tempdir().expect("temporary folder");
    for command in ["status", "flows", "events"] {
        let output = godwit(&[command, "--run-dir", path(dir.path())]);
        assert_eq!(code(&output), Some(1), "{command}");
        assert!(
            complaint(&output).starts_with("godwit: no agent answers in this network namespace")
        );
        let socket = dir.path().join("control.sock");
        let output = godwit(&[command, "--socket", path(&socket)]);
        assert_eq!(code(&output), Some(1), "{command}");
    }
}

#[test]
fn certificates_are_made_where_asked() {
    common::pki();
    let dir = tempfile::tempdir().expect("temporary folder");
    let (ca, out) = (dir.path().join("ca"), dir.path().join("a"));
    let init = ["pki", "init", "--dir", path(&ca)];
    assert_eq!(code(&godwit(&init)), Some(0));
    let issue = [
        "pki",
        "issue",
        "--dir",
        path(&ca),
        "--name",
        "a",
        "--out",
        path(&out),
    ];
    assert_eq!(code(&godwit(&issue)), Some(0));
    for file in ["ca.pem", "node.pem", "node.key"] {
        assert!(out.join(file).exists(), "{file}");
    }
    let again = godwit(&init);
    assert_eq!(code(&again), Some(1));
    assert!(complaint(&again).ends_with("exists; remove it to start anew"));
}

#[test]
fn the_doctor_answers_in_json_and_its_code_is_its_verdict() {
    let output = godwit(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(report["schema"], "godwit.doctor/1");
    let ok = report["ok"].as_bool().expect("a verdict");
    assert_eq!(code(&output), Some(if ok { 0 } else { 1 }));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_godwit"))
        .arg("doctor")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(doctor.stdout.take());
    let output = doctor.wait_with_output().expect("ended");
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A vote goes on where its log can't be written: the disk is full.
#[test]
fn a_full_disk_ends_no_witness() {
    common::pki();
    const VOTERS: &str = r#"
[cluster]
voters = ["a", "b", "w"]
[[peer]]
name = "w"
role = "witness"
control = "127.0.0.3:7410"
"#;
    let dir = TempDir::new().expect("a folder");
    let authority = path(&dir.path().join("pki")).to_owned();
    let here = path(dir.path()).to_owned();
    let made = godwit(&["pki", "init", "--dir", &authority]);
    assert_eq!(code(&made), Some(0));
    let issue = ["pki", "issue", "--dir", &authority, "--name", "w", "--out"];
    let issued = godwit(&[&issue[..], &[here.as_str()]].concat());
    assert_eq!(code(&issued), Some(0));
    let text = CONFIG.replacen("name = \"a\"", "name = \"w\"", 1) + VOTERS;
    let config = write_config(&dir, &text);
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let mut witness = Command::new(env!("CARGO_BIN_EXE_godwit"))
        .args(["witness", "--config", &config])
        .stdin(Stdio::null())
        .stderr(full.expect("every Linux has it"))
        .spawn()
        .expect("the binary runs");
    let is_up = || {
        let mut places = fs::read_dir(dir.path().join("run")).into_iter().flatten();
        places.any(|place| place.is_ok_and(|place| place.path().join("control.sock").exists()))
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !is_up() && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    // It says so in its log, and ends in an orderly way.
    let pid = witness.id().to_string();
    let told = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(told.expect("every Linux has it").success());
    let status = witness.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{status}");
}

/// Some are programs of their own, of which `godwit help` knew no option.
#[test]
fn help_of_a_command_is_what_its_option_says() {
    common::pki();
    for (command, has) in [
        (&["demo"][..], "--size"),
        (&["bench"], "--quick"),
        (&["chaos"], "--seed"),
        (&["pki"], "renew"),
        (&["pki", "issue"], "--name"),
        (&["status"], "--json"),
    ] {
        let help = godwit(&[&["help"], command].concat());
        let option = godwit(&[command, &["--help"]].concat());
        assert_eq!(
            (code(&help), code(&option)),
            (Some(0), Some(0)),
            "{command:?}"
        );
        let text = String::from_utf8(help.stdout).expect("UTF-8");
        assert!(text.contains(has), "{command:?}: {text}");
        assert_eq!(text.into_bytes(), option.stdout, "{command:?}");
    }
}

/// A command that needs an agent says that there is none.
#[test]
fn moves_without_an_agent_fail_in_one_line() {
    let dir = TempDir::new().expect("a folder");
    let socket = dir.path().join("none.sock");
    for args in [
        &["move", "--service", "web", "--to", "b"][..],
        &["drain", "a"],
        &["drain", "--json"],
    ] {
        let output = godwit(&[args, &["--socket", path(&socket)]].concat());
        assert_eq!(code(&output), Some(1), "{args:?}");
        assert!(complaint(&output).contains("no agent answers"), "{args:?}");
    }
    let output = godwit(&["move", "--service", "web"]);
    assert_eq!(code(&output), Some(2), "it must be told where to");
}
