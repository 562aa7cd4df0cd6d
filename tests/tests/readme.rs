//! The commands that the README gives to a new user, on servers as it describes them.

use std::fs;
use std::path::Path;

use godwit_lab::LabOptions;
use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network};
use godwit_tests::stage::{in_sync, servers, stage};
use godwit_tests::{DEADLINE, until};
use serde_json::Value;

/// Lines of fenced blocks that begin with `godwit`, without what `#` says of them.
fn commands(readme: &str) -> Vec<Vec<&str>> {
    let fenced = readme.split("```").skip(1).step_by(2);
    let lines = fenced.flat_map(str::lines);
    let commands = lines.filter_map(|line| {
        let command = line.split(" # ").next()?.trim();
        command.strip_prefix("godwit ")
    });
    commands
        .map(|words| words.split_whitespace().collect())
        .collect()
}

/// `godwit pki` has a test of its own, which needs no lab. `--follow` has no end.
#[test]
fn commands_for_a_running_cluster_do_what_is_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let socket = cluster.socket(Host::A).expect("a is there");
    let socket = socket.to_str().expect("it is text");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(path).expect("it is there");
    let mut seen = Vec::new();
    for words in commands(&readme) {
        if words.first() == Some(&"pki") {
            continue;
        }
        let mut args: Vec<_> = words.into_iter().filter(|it| *it != "--follow").collect();
        seen.push(args.join(" "));
        args.extend(["--socket", socket]);
        let output = cluster.godwit(Host::A, &args).expect("it ends");
        assert!(output.status.success(), "{args:?}: {output:?}");
        match args.first() {
            Some(&"status") => assert!(output.stdout.contains("IN SYNC"), "{output:?}"),
            Some(&"events") => assert!(output.stdout.contains("standby"), "{output:?}"),
            _ => {}
        }
    }
    assert_eq!(seen, ["status", "flows", "events", "drain"]);
    // "the standby takes everything"
    cluster.wait_owner(Host::B, DEADLINE).expect("b owns web");
}

/// "run `godwit doctor --config /etc/godwit/godwit.toml`, do what it says"
#[test]
fn the_doctor_finds_servers_ready_that_are() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    for host in Host::SERVERS {
        let file = cluster.config_file(host).expect("it is there");
        let file = file.to_str().expect("it is text");
        let output = cluster.godwit(host, &["doctor", "--config", file]);
        let output = output.expect("it ends");
        assert!(output.status.success(), "{host}: {output:?}");
    }
}

/// What no single look at the machine shows: an agent that is stopped, a link that carries
/// no frames of servers.
#[test]
fn the_doctor_says_what_the_running_agent_knows() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let file = cluster.config_file(Host::A).expect("it is there");
    let file = file.to_str().expect("it is text").to_owned();
    let agent = |cluster: &Cluster<'_>| {
        let output = cluster.godwit(Host::A, &["doctor", "--json", "--config", &file]);
        let output = output.expect("it ends");
        let report: Value = serde_json::from_str(&output.stdout).expect("it is JSON");
        let checks = report["checks"].as_array().expect("checks");
        let about = checks.iter().filter(|check| check["name"] == "agent");
        let said = about.map(|check| format!("{}: {}", check["level"], check["found"]));
        (output.status.success(), said.collect::<Vec<_>>().join("\n"))
    };
    let (good, said) = agent(&cluster);
    assert!(good && said.contains("warns of nothing"), "{said}");
    let link = [Network::Data];
    lab.cut(Host::B, &link).expect("the switch has the port");
    until("it is said", || Ok(agent(&cluster).1.contains("\"warn\"")))
        .expect("what status warns of, doctor does");
    lab.heal(Host::B, &link).expect("the switch has the port");
    let stop = |cluster: &mut Cluster<'_>, stands: bool| {
        let agent = cluster.agent(Host::A).expect("it runs");
        let done = if stands { agent.stop() } else { agent.cont() };
        done.expect("it runs");
    };
    stop(&mut cluster, true);
    let (good, said) = agent(&cluster);
    stop(&mut cluster, false);
    assert!(!good && said.contains("does not answer"), "{said}");
}
