//! `godwit check`: what it says of a file, and what it can't know.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// `nobody`, on most machines.
const NOBODY: u32 = 65534;

/// A configuration with its certificates.
struct Site {
    dir: TempDir,
    file: PathBuf,
}

impl Site {
    fn new() -> Self {
        let dir = TempDir::new().expect("a folder");
        let (authority, here) = (dir.path().join("pki"), dir.path());
        let pki = |args: &[&str], folders: &[&Path]| {
            let mut command = Command::new(common::pki());
            let output = command.args(args).args(folders).output();
            let output = output.expect("the program runs");
            assert!(output.status.success(), "{output:?}");
        };
        pki(&["init", "--dir"], &[&authority]);
        let out = Path::new("--out");
        pki(&["issue", "--name", "a", "--dir"], &[&authority, out, here]);
        let file = here.join("godwit.toml");
        fs::write(&file, CONFIG).expect("written");
        Self { dir, file }
    }

    /// What the program says of the file; as another user if this one may do everything.
    fn check(&self, is_stranger: bool, args: &[&str]) -> Output {
        // Strangers may not look into the folder where it was built.
        let program = self.dir.path().join("godwit");
        if !program.exists() {
            // Not by this process: what another thread forks meanwhile could have it open.
            let from = env!("CARGO_BIN_EXE_godwit");
            let copied = Command::new("cp").arg(from).arg(&program).status();
            assert!(copied.expect("every Linux has it").success());
        }
        let mut command = Command::new(program);
        command.arg("check").arg(&self.file).args(args);
        let is_root = fs::metadata(&self.file).expect("it is there").uid() == 0;
        if is_stranger && is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.current_dir("/").stdin(Stdio::null()).output();
        output.expect("the program runs")
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// A user who may not connect to the agent's socket was told that no agent runs, and that none
/// would start, as the key can't be read.
#[test]
fn who_may_not_ask_the_agent_does_not_hear_that_none_runs() {
    let site = Site::new();
    let cookie = godwit_agent::netns_cookie().expect("the kernel says it");
    let place = site.dir.path().join(format!("run/n{cookie}-a"));
    fs::create_dir_all(&place).expect("made");
    let here = site.dir.path();
    chmod(here, 0o755);
    chmod(&here.join("node.key"), 0o000);
    chmod(&place, 0o000);
    let checked = site.check(true, &[]);
    let json = site.check(true, &["--json"]);
    chmod(&here.join("run"), 0o000);
    let closed = site.check(true, &[]);
    chmod(&here.join("run"), 0o755);
    chmod(&place, 0o755);
    for output in [&checked, &json, &closed] {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = said(output);
        assert!(!text.contains("no agent"), "{text}");
        assert!(!text.contains("would not start"), "{text}");
        assert!(text.contains("may not read"), "{text}");
    }
    let text = said(&checked);
    let wanted = "valid; what it would change is not known: this user may not ask the agent";
    assert!(text.contains(wanted), "{text}");
    let text = said(&closed);
    assert!(text.contains("can't look for agents"), "{text}");
    let json: Value = serde_json::from_str(&said(&json)).expect("one object");
    assert_eq!(json["changes"], Value::Null);
    let why = json["unknown"].as_str().expect("a reason");
    assert!(why.contains("may not ask"), "{why}");
    // Where there is nothing in the way, there is nobody to ask.
    let text = said(&site.check(false, &[]));
    assert!(text.contains("no agent of its node runs here"), "{text}");
}

/// Files that are torn, missing or another node's were a warning behind "valid", and exit code 0:
/// the restart that followed had no agent.
#[test]
fn what_no_agent_starts_with_is_a_failure() {
    let site = Site::new();
    let here = site.dir.path();
    let assert_good = || {
        let output = site.check(false, &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    let assert_bad = |why: &str| {
        let output = site.check(false, &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = said(&output);
        let mut errors = text.lines().filter_map(|it| it.strip_prefix("error: "));
        assert!(errors.any(|error| error.contains(why)), "{why}: {text}");
        let output = site.check(false, &["--json"]);
        let json: Value = serde_json::from_str(&said(&output)).expect("one object");
        assert_eq!(
            (output.status.code(), &json["starts"]),
            (Some(1), &Value::Bool(false))
        );
    };
    assert_good();
    for name in ["ca.pem", "node.pem", "node.key"] {
        let path = here.join(name);
        let kept = fs::read(&path).expect("it is there");
        for torn in [&kept[..kept.len() / 2], &kept[..0]] {
            fs::write(&path, torn).expect("written");
            assert_bad(name);
        }
        fs::remove_file(&path).expect("removed");
        assert_bad(name);
        fs::write(&path, &kept).expect("written");
        chmod(&path, 0o600);
        assert_good();
    }
    let other = Site::new();
    for (name, why) in [
        ("node.key", "is not that of"),
        ("ca.pem", "no authority in"),
    ] {
        let path = here.join(name);
        let kept = fs::read(&path).expect("it is there");
        fs::copy(other.dir.path().join(name), &path).expect("copied");
        assert_bad(why);
        fs::write(&path, &kept).expect("written");
        assert_good();
    }
    // A program of the user's own is read at the start, too.
    let policy =
        "backups = [\"b\"]\nstandby = \"none\"\n[service.policy]\nprogram = \"./choose.bpf.o\"\n";
    let text = CONFIG.replace("backups = [\"b\"]\n", policy);
    fs::write(&site.file, text).expect("written");
    assert_bad("choose.bpf.o");
    fs::write(here.join("choose.bpf.o"), "torn").expect("written");
    assert_bad("no eBPF object");
}

/// Such a file was "valid", and "needs a restart, which disturbs no connection": the agent did not
/// come back.
#[test]
fn what_this_machine_lacks_is_a_failure() {
    let site = Site::new();
    let with = |from: &str, to: &str| {
        let text = CONFIG.replacen(from, to, 1);
        assert_ne!(text, CONFIG);
        fs::write(&site.file, text).expect("written");
    };
    for (from, to, why) in [
        (
            "[node]",
            "[node]\napp_group = \"no-such-group\"",
            "app_group is \"no-such-group\": no such group is here",
        ),
        (
            "[node]",
            "[node]\nmetrics = \"192.0.2.7:9469\"",
            "metrics is 192.0.2.7:9469, and 192.0.2.7 is no address of this machine",
        ),
        (
            "\"run\"",
            "\"/etc/passwd\"",
            "run_dir is /etc/passwd, and /etc/passwd is no folder",
        ),
        ("\"lo\"", "\"none0\"", "there is no interface none0 here"),
    ] {
        with(from, to);
        let output = site.check(false, &[]);
        assert_eq!(output.status.code(), Some(1), "{to}: {output:?}");
        let text = said(&output);
        let wanted = format!("error: an agent would not start: {why}");
        assert!(text.lines().any(|it| it.starts_with(&wanted)), "{text}");
    }
    // Such a file may be another machine's.
    with(
        "interface = \"lo\"\nrun_dir = \"run\"",
        "interface = \"none0\"",
    );
    let text = fs::read_to_string(&site.file).expect("it is there");
    fs::write(&site.file, text.replace("127.0.0.1", "192.0.2.8")).expect("written");
    let output = site.check(false, &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// A file that is to replace another one: neither line may recommend the restart.
#[test]
fn a_restart_that_would_fail_is_not_recommended() {
    let site = Site::new();
    let before = site.dir.path().join("before.toml");
    fs::write(&before, CONFIG).expect("written");
    let compared = |key: &str| {
        let text = CONFIG.replacen("[node]", &format!("[node]\n{key}"), 1);
        fs::write(&site.file, text).expect("written");
        let before = before.to_str().expect("it is text");
        let output = site.check(false, &["--config", before]);
        (output.status.code(), said(&output))
    };
    let (code, text) = compared("metrics = \"127.0.0.1:9469\"");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("disturbs no connection").count(), 2, "{text}");
    let (code, text) = compared("metrics = \"192.0.2.7:9469\"");
    assert_eq!(code, Some(1), "{text}");
    assert!(!text.contains("disturbs no"), "{text}");
    assert_eq!(
        text.matches("a restart, once nothing is in its way")
            .count(),
        2,
        "{text}"
    );
}
