//! What an agent may do once it runs, and that it still can do its work.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::LabOptions;
use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::Host;
#[cfg(target_arch = "x86_64")]
use godwit_tests::hostage::Hostage;
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{DEADLINE, Site, lab, until};
use nix::unistd::Pid;
#[cfg(target_arch = "x86_64")]
use nix::{errno::Errno, libc};

/// NET_ADMIN, NET_RAW, PERFMON, BPF: `linux/capability.h`.
const KEPT: u64 = 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39;

/// Kept only where real-time priority can't be had by a limit.
const NICE: u64 = 1 << 23;

/// `SECCOMP_MODE_FILTER`, linux/seccomp.h.
const FILTERED: &str = "2";

/// The niceness of one thread, proc_pid_stat(5).
fn niceness(process: Pid, thread: &str) -> Result<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).context("listing threads")?;
    for task in tasks {
        let folder = task.context("listing threads")?.path();
        let stat = fs::read_to_string(folder.join("stat")).context("reading a thread")?;
        let Some((name, fields)) = stat.rsplit_once(") ") else {
            continue;
        };
        if name.ends_with(&format!("({thread}")) {
            // The 19th of the line; the state, the 3rd, is the first here.
            let nice = fields.split(' ').nth(16).context("it has a niceness")?;
            return nice.parse().context("reading a niceness");
        }
    }
    anyhow::bail!("there is no thread {thread}")
}

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
        let links = niceness(agent, "gw-edge")?;
        ensure!(
            links < 0,
            "{host}: links are no more urgent than others' work: {links}"
        );
        // What root owns it can change, for it is root without its capabilities.
        let users = of_threads(agent, "Uid")?;
        let root = users.iter().all(|ids| ids.split('\t').all(|id| id == "0"));
        ensure!(root, "{host}: {users:?}");
        let free = of_threads(agent, "NoNewPrivs")?;
        ensure!(free.iter().all(|value| value == "1"), "{host}: {free:?}");
        let filters = of_threads(agent, "Seccomp")?;
        let all = filters.iter().all(|mode| mode == FILTERED);
        ensure!(all, "{host}: {filters:?}");
    }
    site.crash_owner()?;
    site.wait_taken_over()?;
    send(&mut stream, "after")?;
    expect(&mut stream, "after")?;
    site.verify().map(drop)
}

/// A witness keeps no capability at all, and is behind the same filter.
#[test]
fn a_witness_gives_up_everything() -> Result<()> {
    let Some(lab) = lab(LabOptions {
        witness: true,
        ..LabOptions::default()
    })?
    else {
        return Ok(());
    };
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::prepare(&lab, options)?;
    cluster.start_agent(Host::Witness)?;
    until("the witness to answer", || {
        Ok(cluster.status(Host::Witness).is_ok())
    })?;
    let witness = cluster.agent(Host::Witness).context("it runs")?.pid();
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        for bits in of_threads(witness, set)? {
            let more = u64::from_str_radix(&bits, 16)? & !NICE;
            ensure!(more == 0, "{set} has {more:x}");
        }
    }
    let filters = of_threads(witness, "Seccomp")?;
    ensure!(filters.iter().all(|mode| mode == FILTERED), "{filters:?}");
    Ok(())
}

/// An ordinary account can't reach the agent; one of the socket's group can.
#[test]
fn an_account_without_privileges_stays_outside() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let cluster = Cluster::start(&lab, ClusterOptions::default())?;
    until("the agent to answer", || {
        Ok(cluster.status(Host::A).is_ok())
    })?;
    let socket = cluster.socket(Host::A)?;
    let asked_as = |group: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=nobody", "--clear-groups"]);
        command.arg(format!("--regid={group}"));
        command.args(["curl", "--silent", "--max-time", "5", "--unix-socket"]);
        command.arg(&socket).arg("http://agent/");
        lab.a().run(command, DEADLINE)
    };
    ensure!(asked_as("nogroup")?.status.code() == Some(NOT_CONNECTED));
    ensure!(asked_as("root")?.status.code() != Some(NOT_CONNECTED));
    Ok(())
}

/// `CURLE_COULDNT_CONNECT`.
const NOT_CONNECTED: i32 = 7;

/// What code that took an agent over would like to do is refused to every thread,
/// and the agent works on.
#[cfg(target_arch = "x86_64")]
#[test]
fn an_agent_is_refused_what_it_has_no_use_for() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let mut site = Site::start(&lab, 80)?;
    let cluster = site.cluster.as_mut().context("agents are wanted")?;
    let agent = cluster.agent(Host::B).context("it runs")?.pid();
    let mut asked = 0;
    for task in fs::read_dir(format!("/proc/{agent}/task"))? {
        let thread = task?.file_name();
        let thread = thread.to_string_lossy().parse().map(Pid::from_raw)?;
        let Ok(hostage) = Hostage::take(thread) else {
            // It has ended meanwhile.
            continue;
        };
        refused(&hostage).with_context(|| format!("thread {thread}"))?;
        ensure!(hostage.call(libc::SYS_gettid, [0; 6])? == i64::from(thread.as_raw()));
        asked += 1;
    }
    ensure!(asked > 3, "it has threads");
    // A connection of afterwards is protected by it.
    let mut stream = connect(lab.client(), site.addresses()[0])?;
    send(&mut stream, "echo\nword")?;
    expect(&mut stream, "word")?;
    site.wait_protected(1)
}

/// Without the filter each of these fails in another way, or does not.
#[cfg(target_arch = "x86_64")]
fn refused(hostage: &Hostage) -> Result<()> {
    let code = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let memory = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let word = |value: i32| u64::from(value.cast_unsigned());
    let calls = [
        (libc::SYS_execve, [0; 6], Errno::EPERM),
        (libc::SYS_clone3, [0; 6], Errno::ENOSYS),
        // BPF_PROG_LOAD.
        (libc::SYS_bpf, [5, 0, 0, 0, 0, 0], Errno::EPERM),
        (libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0], Errno::EPERM),
        (
            libc::SYS_mmap,
            [0, 4096, word(code), word(memory), u64::MAX, 0],
            Errno::EPERM,
        ),
        (
            libc::SYS_socket,
            [word(libc::AF_ALG), word(libc::SOCK_SEQPACKET), 0, 0, 0, 0],
            Errno::EPERM,
        ),
    ];
    for (number, arguments, error) in calls {
        let answer = hostage.call(number, arguments)?;
        ensure!(answer == -i64::from(error as i32), "{number}: {answer}");
    }
    Ok(())
}
