//! What tags add to an exchange of an echo client (docs/benchmarks.md): the same pair, the same
//! processes, and keys that are taken away from the data path and given back, by turns.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::apps::client::{Client, Rounds};
use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::Host;
use godwit_lab::meter::Meter;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::{DEADLINE, lab, until};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// As in `echo.added`.
const ROUNDS: Rounds = Rounds {
    count: 1000,
    request: 150,
    reply: None,
    pause: Duration::ZERO,
};

/// Each has an exchange with tags, without, and with again.
const TURNS: usize = 40;

/// The owner's server and agent have the one processor, all else the other.
const OWNER_CPU: usize = 1;
const OTHER_CPU: usize = 0;

/// The keys of one server's data path, as they were.
struct Keys {
    map: MapHandle,
    all: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Keys {
    fn of(cluster: &Cluster<'_>, host: Host) -> Result<Self> {
        let path: PathBuf = cluster.pins(host)?.join("maps/gw_trusts");
        let map = MapHandle::from_pinned_path(&path).context("opening the keys")?;
        let mut all = BTreeMap::new();
        for key in map.keys() {
            let value = map.lookup(&key, MapFlags::ANY)?.context("it was there")?;
            all.insert(key, value);
        }
        ensure!(!all.is_empty(), "{host} has no keys");
        Ok(Self { map, all })
    }

    fn take(&self) -> Result<()> {
        let mut keys = self.all.keys();
        keys.try_for_each(|key| self.map.delete(key).context("taking a key away"))
    }

    fn give_back(&self) -> Result<()> {
        for (key, value) in &self.all {
            let given = self.map.update(key, value, MapFlags::ANY);
            given.context("giving a key back")?;
        }
        Ok(())
    }
}

#[test]
#[ignore = "a measurement, for a machine that does nothing else"]
fn what_tags_add_to_an_exchange() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let mut cluster = Cluster::start(&lab, ClusterOptions::unfenced())?;
    cluster.wait_in_sync(Host::A, DEADLINE)?;
    until("both to have keys", || {
        let tags = Host::SERVERS.map(|host| Keys::of(&cluster, host));
        Ok(tags.iter().all(Result::is_ok))
    })?;
    for (host, process, cpu) in [
        (Host::A, &servers[0], OWNER_CPU),
        (Host::B, &servers[1], OTHER_CPU),
    ] {
        pin(process.pid(), cpu)?;
        let agent = cluster.agent(host).context("both agents run")?;
        pin(agent.pid(), cpu)?;
    }
    let _awake = [spin(&lab, OWNER_CPU)?, spin(&lab, OTHER_CPU)?];
    let keys = [Keys::of(&cluster, Host::A)?, Keys::of(&cluster, Host::B)?];
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        samples[0].push(exchange(&lab)?);
        keys.iter().try_for_each(Keys::take)?;
        samples[1].push(exchange(&lab)?);
        keys.iter().try_for_each(Keys::give_back)?;
        samples[2].push(exchange(&lab)?);
    }
    let [with, without, again] = samples.map(middle);
    // Nobody to tell is fine.
    let _ = writeln!(
        io::stderr(),
        "an exchange: {with:.2} us with tags, {without:.2} without: {:.2} us are added; \
         with and with again differ by {:.2} us",
        (with + again) / 2.0 - without,
        again - with
    );
    Ok(())
}

/// The middle time of many exchanges, in microseconds.
fn exchange(lab: &Lab) -> Result<f64> {
    let address = (godwit_lab::host::SERVICE_V4, 80).into();
    let times = lab.client().enter(|| {
        pin(Pid::from_raw(0), OTHER_CPU)?;
        Client::connect(address, DEADLINE)?.exchange(ROUNDS, &Meter::default())
    })??;
    Ok(middle(
        times.iter().map(|it| it.as_secs_f64() * 1e6).collect(),
    ))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Ties all threads of a process to a processor, or with 0 the calling one.
fn pin(process: Pid, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).context("no such CPU")?;
    if process.as_raw() == 0 {
        return sched_setaffinity(process, &set).context("pinning a thread");
    }
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        let name = entry?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        let thread = Pid::from_raw(thread.context("a thread's id is a number")?);
        sched_setaffinity(thread, &set).context("pinning a thread")?;
    }
    Ok(())
}

/// A processor that sleeps answers late.
fn spin(lab: &Lab, cpu: usize) -> Result<Process> {
    let mut command = Command::new("chrt");
    command.args(["--idle", "0", "taskset", "-c", &cpu.to_string()]);
    command.args(["sh", "-c", "while :; do :; done"]);
    lab.client().spawn("spin", command)
}
