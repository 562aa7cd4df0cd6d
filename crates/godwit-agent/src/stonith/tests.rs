use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::helper::serve;
use super::{Answer, Outcome, Request};

fn run(commands: &[&str], limit: Duration) -> Vec<Outcome> {
    let requests = commands.iter().map(|command| {
        let request = Request {
            node: "a".into(),
            command: (*command).to_owned(),
            limit_ms: u64::try_from(limit.as_millis()).unwrap(),
        };
        serde_json::to_string(&request).unwrap() + "\n"
    });
    let input: String = requests.collect();
    let mut output = Vec::new();
    serve(input.as_bytes(), &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    let answers = text.lines().map(serde_json::from_str::<Answer>);
    answers.map(|answer| answer.unwrap().outcome).collect()
}

const AMPLE: Duration = Duration::from_secs(20);

#[test]
fn a_command_is_told_whom_and_judged_by_its_status() {
    let commands = ["test \"$GODWIT_NODE\" = a", "exit 3", "kill -9 $$"];
    assert_eq!(
        run(&commands, AMPLE),
        [Outcome::Off, Outcome::CommandFailed, Outcome::CommandFailed]
    );
}

#[test]
fn what_a_command_says_is_no_answer() {
    let commands = ["echo '{\"outcome\":\"off\"}'; exit 1", "cat; echo read"];
    assert_eq!(
        run(&commands, AMPLE),
        [Outcome::CommandFailed, Outcome::Off]
    );
}

#[test]
fn a_command_that_hangs_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let hang = format!(
        "echo $$ > {0}; sleep 600 & echo $! >> {0}; wait",
        pids.display()
    );
    let since = Instant::now();
    let outcomes = run(&[&hang, "true"], Duration::from_millis(300));
    assert_eq!(outcomes, [Outcome::TimedOut, Outcome::Off]);
    assert!(since.elapsed() < AMPLE);
    let text = fs::read_to_string(pids).unwrap();
    assert_eq!(text.lines().count(), 2);
    for pid in text.lines() {
        wait_dead(pid);
    }
}

/// A signal is carried out when its process runs next, and a killed orphan may wait for
/// init to bury it.
fn wait_dead(pid: &str) {
    let end = Instant::now() + AMPLE;
    loop {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if status.is_empty() || status.contains(") Z ") {
            return;
        }
        assert!(Instant::now() < end, "{status}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_agent_that_says_nonsense_is_not_obeyed() {
    let mut output = Vec::new();
    assert!(serve(&b"power off everything\n"[..], &mut output).is_err());
    assert!(output.is_empty());
}
