//! What an agent may do once it runs, and that it still can do its work.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::LabOptions;
use godwit_lab::apps::server;
use godwit_lab::host::Host;
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{Site, lab};
use nix::unistd::Pid;

/// NET_ADMIN, NET_RAW, PERFMON, BPF: `linux/capability.h`.
const KEPT: u64 = 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39;

/// Kept only where real-time priority can't be had by a limit.
const NICE: u64 = 1 << 23;

/// A line of the status of each thread of a process.
fn of_threads(process: Pid, field: &str) -> Result<Vec<String>> {
    let mut values = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        values.push(line.context("no such field")?.trim().to_owned());
    }
    Ok(values)
}

/// Every thread has lost what its work does not need, for good, and a takeover
/// comes about all the same.
#[test]
fn an_agent_gives_up_what_it_does_not_need() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let mut site = Site::start(&lab, 80)?;
    let mut stream = connect(lab.client(), site.addresses()[0])?;
    send(&mut stream, "echo\nbefore")?;
    expect(&mut stream, "before")?;
    site.wait_protected(1)?;
    for host in Host::SERVERS {
        let Some(cluster) = &mut site.cluster else {
            break;
        };
        let agent = cluster.agent(host).context("it runs")?.pid();
        for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
            let sets = of_threads(agent, set)?;
            ensure!(sets.len() > 3, "it has threads");
            for bits in sets {
                let more = u64::from_str_radix(&bits, 16)? & !(KEPT | NICE);
                ensure!(more == 0, "{host}: {set} has {more:x}");
            }
        }
        let free = of_threads(agent, "NoNewPrivs")?;
        ensure!(free.iter().all(|value| value == "1"), "{host}: {free:?}");
    }
    site.crash_owner()?;
    site.wait_taken_over()?;
    send(&mut stream, "after")?;
    expect(&mut stream, "after")?;
    site.verify().map(drop)
}
