//! `godwit pki` is a program of its own: what makes keys is no part of what runs for years
//! with privileges.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::pki;

fn run(program: &Path, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("PATH", "/nonexistent")
        .output()
        .expect("the binary runs")
}

fn said(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    let parts = parts.map(|part| String::from_utf8_lossy(part).into_owned());
    parts.concat()
}

#[test]
fn the_agent_s_program_is_built_from_nothing_that_makes_certificates_or_faults() {
    let tree = |package: &str| -> BTreeSet<String> {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--package", package, "--edges", "normal"])
            .args(["--prefix", "none", "--format", "{p}"])
            .args(["--locked", "--offline"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).expect("names are UTF-8");
        let names = text.lines().filter_map(|line| line.split(' ').next());
        names.map(str::to_owned).collect()
    };
    let makers = ["rcgen", "x509-parser", "yasna", "godwit-pki"];
    let makers: BTreeSet<_> = makers.map(str::to_owned).into();
    assert!(tree("godwit-pki").is_superset(&makers));
    let agent = tree("godwit");
    assert!(agent.contains("godwit-agent") && agent.contains("rustls"));
    assert_eq!(agent.intersection(&makers).count(), 0, "{agent:?}");
    // What makes networks and faults is none of it, either.
    assert!(!agent.contains("godwit-lab"), "{agent:?}");
}

#[test]
fn arguments_and_exit_codes_pass_through() {
    pki();
    let godwit = Path::new(env!("CARGO_BIN_EXE_godwit"));
    let dir = tempfile::tempdir().expect("a folder");
    let authority = dir.path().join("ca");
    let authority = authority.to_str().expect("UTF-8");
    assert!(
        run(godwit, &["pki", "init", "--dir", authority])
            .status
            .success()
    );
    let issue = ["pki", "issue", "--dir", authority, "--name", "a"];
    for (days, code) in [
        ("1", 0),
        ("3650", 0),
        ("0", 2),
        ("3651", 2),
        ("-1", 2),
        ("x", 2),
    ] {
        let days = format!("--days={days}");
        let output = run(godwit, &[&issue[..], &[&days]].concat());
        assert_eq!(
            output.status.code(),
            Some(code),
            "{days}: {}",
            said(&output)
        );
    }
    let made = run(godwit, &issue);
    assert!(
        said(&made).ends_with("valid for 365 days\n"),
        "{}",
        said(&made)
    );
    let kept = run(
        godwit,
        &[&issue[..], &["--unless-valid-for", "30"]].concat(),
    );
    assert!(
        said(&kept).starts_with("kept the certificate of a"),
        "{}",
        said(&kept)
    );
    let revoked = run(godwit, &["pki", "revoke", "--dir", authority, "a"]);
    assert!(revoked.status.success(), "{}", said(&revoked));
    let cert = format!("{authority}/node.pem");
    let again = run(
        godwit,
        &["pki", "revoke", "--dir", authority, "--cert", &cert],
    );
    assert!(again.status.success(), "{}", said(&again));
    let both = ["pki", "revoke", "--dir", authority, "a", "--cert", &cert];
    assert_eq!(run(godwit, &both).status.code(), Some(2));
    let unknown = run(godwit, &["pki", "revoke", "--dir", authority, "b"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(said(&unknown).lines().count(), 1, "{}", said(&unknown));
    let none = run(godwit, &["pki", "revoke", "--dir", authority]);
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));
    let help = run(godwit, &["pki", "issue", "--help"]);
    assert!(
        said(&help).contains("--unless-valid-for"),
        "{}",
        said(&help)
    );
}

#[test]
fn where_it_is_missing_one_sentence_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    let godwit = bin.join("godwit");
    fs::copy(env!("CARGO_BIN_EXE_godwit"), &godwit).expect("copied");
    let output = run(&godwit, &["pki", "--help"]);
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.starts_with("godwit: godwit-pki is not installed"),
        "{text}"
    );
    // Where distributions have such programs.
    let libexec = dir.path().join("libexec/godwit");
    fs::create_dir_all(&libexec).expect("a folder");
    fs::copy(pki(), libexec.join("godwit-pki")).expect("copied");
    let output = run(&godwit, &["pki", "--help"]);
    assert!(output.status.success(), "{}", said(&output));
}
