//! What an agent may do once it runs, and that it still can do its work.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::LabOptions;
use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, Service};
use godwit_lab::host::Host;
#[cfg(target_arch = "x86_64")]
use godwit_tests::hostage::Hostage;
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{DEADLINE, Site, lab, until};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::Pid;
#[cfg(target_arch = "x86_64")]
use nix::{errno::Errno, libc};

/// NET_ADMIN, NET_RAW, PERFMON, BPF: `linux/capability.h`.
const KEPT: u64 = 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39;

/// Kept only where real-time priority can't be had by a limit.
const NICE: u64 = 1 << 23;

/// `SECCOMP_MODE_FILTER`, linux/seccomp.h.
const FILTERED: &str = "2";

/// `SCHED_FIFO`, linux/sched.h.
const FIFO: i32 = 1;

/// The folder in /proc of one thread.
fn task(process: Pid, thread: &str) -> Result<PathBuf> {
    for task in fs::read_dir(format!("/proc/{process}/task")).context("listing threads")? {
        let folder = task.context("listing threads")?.path();
        // A thread may end meanwhile.
        let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        if name.trim_end() == thread {
            return Ok(folder);
        }
    }
    anyhow::bail!("there is no thread {thread}")
}

/// A number that the kernel tells of a thread: `field` counts from 1, as in
/// proc_pid_stat(5), from the state (3) on.
fn stat(task: &Path, field: usize) -> Result<i32> {
    let stat = fs::read_to_string(task.join("stat")).context("reading a thread")?;
    let (_, fields) = stat.rsplit_once(") ").context("it has a name")?;
    let value = fields
        .split(' ')
        .nth(field - 3)
        .context("it has the field")?;
    value.parse().context("reading a field")
}

/// Policy, and priority if that is a real-time one.
fn schedule(task: &Path) -> Result<(i32, i32)> {
    Ok((stat(task, 41)?, stat(task, 40)?))
}

/// Whether root may have real-time priority here: a container or a cgroup may forbid it.
fn may_be_urgent() -> bool {
    let status = Command::new("chrt").args(["--fifo", "10", "true"]).status();
    status.is_ok_and(|status| status.success())
}

/// Whether an agent may have all of its memory locked: who can't lift the limit has to
/// have none.
fn may_lock() -> Result<bool> {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let limits = getrlimit(Resource::RLIMIT_MEMLOCK).context("asking for a limit")?;
    let bits = of_threads(Pid::this(), "CapEff")?;
    let bits = u64::from_str_radix(bits.first().context("one thread")?, 16)?;
    Ok(limits.1 == RLIM_INFINITY || bits & CAP_SYS_RESOURCE != 0)
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
        let links = stat(&task(agent, "gw-edge")?, 19)?;
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

/// Late heartbeats look like a dead node. Priority and locked memory are had before
/// the right to them is given up, and kept.
#[test]
fn what_must_not_wait_does_not() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let mut cluster = Cluster::start(&lab, ClusterOptions::unfenced())?;
    let (urgent, locks) = (may_be_urgent(), may_lock()?);
    for host in Host::SERVERS {
        until("the agent to answer", || Ok(cluster.status(host).is_ok()))?;
        let agent = cluster.agent(host).context("it runs")?;
        let (pid, log) = (agent.pid(), agent.log());
        // The driver is the agent's first thread.
        let threads = [
            ("gw-beat-send", task(pid, "gw-beat-send")?, 10),
            ("gw-beat-recv", task(pid, "gw-beat-recv")?, 10),
            ("gw-driver", format!("/proc/{pid}/task/{pid}").into(), 9),
        ];
        for (name, task, priority) in threads {
            let found = schedule(&task)?;
            ensure!(
                found == (FIFO, priority) || !urgent && log.contains("no priority over"),
                "{host}: {name} has policy and priority {found:?}"
            );
        }
        let locked = of_threads(pid, "VmLck")?;
        let any = locked.iter().all(|size| !size.starts_with("0 "));
        ensure!(
            any || !locks && log.contains("memory is not locked"),
            "{host}: locked memory: {locked:?}"
        );
    }
    for (what, can) in [("SCHED_FIFO", urgent), ("locked memory", locks)] {
        if !can {
            println!("this machine permits no {what}: the agents say so in their logs");
        }
    }
    Ok(())
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
    // Another process of its user, who is root, and without a capability as it is.
    let mut look = Command::new("setpriv");
    look.args(["--bounding-set=-all", "--inh-caps=-all", "cat"]);
    look.args(["/proc/self/environ", &format!("/proc/{witness}/environ")]);
    let looked = look.output().context("setpriv")?;
    let said = String::from_utf8_lossy(&looked.stderr);
    let refused = said.contains("Permission denied") && !looked.stdout.is_empty();
    ensure!(
        refused,
        "its memory, where its keys are, can be read: {said}"
    );
    Ok(())
}

/// A director keeps what maps, links, neighbours and addresses need.
#[test]
fn a_director_keeps_two() -> Result<()> {
    const TWO: u64 = 1 << 12 | 1 << 39;
    let Some(lab) = lab(LabOptions {
        director: true,
        ..LabOptions::default()
    })?
    else {
        return Ok(());
    };
    let mut cluster = Cluster::prepare(
        &lab,
        ClusterOptions {
            services: vec![Service {
                standby: "none",
                extra: "front = \"director\"".into(),
                ..Service::new("web", 8080)
            }],
            sections: "[director]\nseed = \"0123456789abcdef\"\n".into(),
            more: &[Host::Director],
            ..ClusterOptions::unfenced()
        },
    )?;
    cluster.start_agent(Host::Director)?;
    until("the director to answer", || {
        Ok(cluster.status(Host::Director).is_ok())
    })?;
    let director = cluster.agent(Host::Director).context("it runs")?.pid();
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        for bits in of_threads(director, set)? {
            let more = u64::from_str_radix(&bits, 16)? & !(TWO | NICE);
            ensure!(more == 0, "{set} has {more:x}");
        }
    }
    let filters = of_threads(director, "Seccomp")?;
    ensure!(filters.iter().all(|mode| mode == FILTERED), "{filters:?}");
    Ok(())
}

/// An ordinary account can't reach the agent; one of the socket's group can.
#[test]
fn an_account_without_privileges_stays_outside() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let cluster = Cluster::start(&lab, ClusterOptions::unfenced())?;
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

/// It heard that nothing had been attached, and that this node had owned services.
#[test]
fn an_account_without_privileges_detaches_nothing() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let cluster = Cluster::start(&lab, ClusterOptions::unfenced())?;
    until("the agent to answer", || {
        Ok(cluster.status(Host::A).is_ok())
    })?;
    // That account may not look into the folder where it was built.
    let program = lab.folder().join("godwit");
    fs::copy(godwit_lab::cluster::binary()?, &program).context("copying it")?;
    let everybody = fs::Permissions::from_mode(0o755);
    for path in [lab.folder(), &program] {
        fs::set_permissions(path, everybody.clone()).context("opening it")?;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    command
        .arg(&program)
        .args(["agent", "--detach", "--node", "a"]);
    let output = lab.a().run(command, DEADLINE)?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    let sentence = output.stderr.trim();
    let is_clear = sentence.contains("needs the rights of root") && !sentence.contains('\n');
    ensure!(is_clear && output.stdout.is_empty(), "{output:?}");
    ensure!(cluster.pins(Host::A)?.exists() && cluster.status(Host::A).is_ok());
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
