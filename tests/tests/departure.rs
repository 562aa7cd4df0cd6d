//! A machine that is to have no Godwit any more: what is attached there is named, and goes.

use std::process::Command;
use std::time::Instant;

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, SERVICE_V4};
use godwit_lab::{Lab, LabOptions, Output};
use godwit_tests::stage::{
    in_sync, servers, service_v4, service_v6, stage, wait_protected, wait_unprotected,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// `godwit agent --detach` with these words, to its end.
fn detach(cluster: &Cluster<'_>, host: Host, words: &[&str]) -> Output {
    let output = cluster.godwit(host, &[&["agent", "--detach"], words].concat());
    output.expect("it ends")
}

fn file_of(cluster: &Cluster<'_>, host: Host) -> String {
    let file = cluster.config_file(host).expect("it was written");
    file.to_str().expect("the lab's folder is UTF-8").to_owned()
}

fn has_pins(cluster: &Cluster<'_>, host: Host) -> bool {
    cluster.pins(host).expect("the machine is there").exists()
}

fn has_address(lab: &Lab, host: Host) -> bool {
    let mut command = Command::new("ip");
    command.args(["addr", "show"]);
    let shown = lab.node(host).run(command, DEADLINE).expect("ip runs");
    shown.stdout.contains(&format!("{SERVICE_V4}/"))
}

fn protected_echoes(lab: &Lab, cluster: &Cluster<'_>) -> [Traffic; 2] {
    let echoes = [service_v4(), service_v6()].map(|to| Traffic::start(lab, to, Load::Echo));
    for echo in &echoes {
        wait_protected(cluster, Host::A, echo.local());
    }
    echoes
}

/// With another node's file, or name, nothing was attached, and all was well.
#[test]
fn the_file_of_another_node_detaches_nothing_and_says_whose_data_path_is_here() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let (of_a, of_b) = (file_of(&cluster, Host::A), file_of(&cluster, Host::B));
    let wanted = "node b has its data path here; use its file, --node b or --all";
    for words in [["--config", &of_a], ["--node", "a"], ["--node", "c"]] {
        let output = detach(&cluster, Host::B, &words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert!(output.stderr.contains(wanted), "{words:?}: {output:?}");
    }
    assert!(has_pins(&cluster, Host::B));
    cluster.wait_in_sync(Host::A, DEADLINE).expect("as before");
    let output = detach(&cluster, Host::B, &["--config", &of_b]);
    assert!(output.status.success(), "{output:?}");
    assert!(!has_pins(&cluster, Host::B));
    // Where there is nothing there is nothing to mistake it for.
    for words in [["--config", &of_b], ["--config", &of_a], ["--node", "a"]] {
        let output = detach(&cluster, Host::B, &words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        assert!(output.stdout.contains("nothing was"), "{output:?}");
    }
    let output = detach(&cluster, Host::B, &["--all", "--config", &of_b]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains("nothing was"), "{output:?}");
}

/// The owner's standby goes on with all connections, and nothing of Godwit is left there.
#[test]
fn all_of_an_owner_goes_and_its_standby_takes_over() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let since = Instant::now();
    let echoes = protected_echoes(&lab, &cluster);
    let file = file_of(&cluster, Host::A);
    let output = detach(&cluster, Host::A, &["--all", "--config", &file]);
    assert!(output.status.success(), "{output:?}");
    for wanted in [
        "node a: its process has ended",
        "node a: what it had attached is removed",
    ] {
        assert!(output.stdout.contains(wanted), "{output:?}");
    }
    assert!(!has_pins(&cluster, Host::A) && !has_address(&lab, Host::A));
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for echo in echoes {
        echo.goes_on();
        echo.finish(since, STALL_LIMIT);
    }
}

/// An agent that does not answer is killed. A standby's data path goes, an owner's stays: without
/// it this machine would speak beside the one that has taken over.
#[test]
fn an_agent_that_hangs_does_not_keep_its_data_path() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let echoes = protected_echoes(&lab, &cluster);
    let stop = |cluster: &mut Cluster<'_>, host| {
        let agent = cluster.agent(host).expect("it was started");
        agent.stop().expect("it runs");
    };
    stop(&mut cluster, Host::B);
    let file = file_of(&cluster, Host::B);
    let began = Instant::now();
    let output = detach(&cluster, Host::B, &["--all", "--config", &file]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains("has by SIGKILL"), "{output:?}");
    assert!(began.elapsed() < DEADLINE, "{:?}", began.elapsed());
    assert!(!has_pins(&cluster, Host::B));
    for echo in &echoes {
        wait_unprotected(&cluster, Host::A, echo.local(), &["standby_lost"]);
        echo.goes_on();
    }
    cluster.start_agent(Host::B).expect("another one begins");
    cluster.wait_in_sync(Host::A, DEADLINE).expect("in sync");

    stop(&mut cluster, Host::A);
    let file = file_of(&cluster, Host::A);
    let output = detach(&cluster, Host::A, &["--all", "--config", &file]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let wanted = "killed when it owned services";
    assert!(output.stdout.contains(wanted), "{output:?}");
    assert!(has_pins(&cluster, Host::A), "so that it is silent");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
    fresh.goes_on();
}
