//! Godwit on the servers of a lab: configured, certified, started, watched.
//!
//! The agents are the `godwit` binary, run as anyone would run it: with a
//! configuration file, and asked through its command line.

mod config;
mod status;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use serde::de::DeserializeOwned;

pub use config::{ClusterOptions, Fencing, Service};
pub use status::{
    BackendReport, DataPath, DirectedReport, DirectorReport, EventReport, FlowMoves, FlowReport,
    Flows, MoveReport, MovedFlow, NoLinkReport, PeerReport, ServiceReport, Status, StayedFlow,
    Takeover,
};

use crate::host::{Host, SERVICE};
use crate::lab::Lab;
use crate::process::{Output, Pipes, Process};

/// Environment variable that names the `godwit` binary to run.
pub const BINARY_VARIABLE: &str = "GODWIT_BIN";

/// How long a `godwit` command may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(10);

/// Where agents pin programs and maps.
pub(crate) const PIN_ROOT: &str = "/sys/fs/bpf/godwit";

/// The agents of a lab that outlives them.
#[derive(Debug)]
pub struct Cluster<'a> {
    lab: &'a Lab,
    options: ClusterOptions,
    binary: PathBuf,
    agents: BTreeMap<Host, Process>,
}

impl<'a> Cluster<'a> {
    /// Writes configuration and certificates and starts all agents.
    ///
    /// # Errors
    /// Fails if there is no binary or an agent ends at once.
    pub fn start(lab: &'a Lab, options: ClusterOptions) -> Result<Self> {
        let mut cluster = Self::prepare(lab, options)?;
        for host in cluster.options.nodes() {
            cluster.start_agent(host)?;
        }
        Ok(cluster)
    }

    /// Writes configuration and certificates and starts nothing yet.
    ///
    /// # Errors
    /// Fails if there is no binary or it can't make certificates.
    pub fn prepare(lab: &'a Lab, options: ClusterOptions) -> Result<Self> {
        let cluster = Self {
            lab,
            options,
            binary: binary()?,
            agents: BTreeMap::new(),
        };
        let authority = lab.folder().join("pki");
        let authority = authority.to_str().context("the lab's folder is no UTF-8")?;
        // An earlier cluster of this lab may have left them; they are as good as new ones.
        if !Path::new(authority).exists() {
            cluster.must(Host::A, &["pki", "init", "--dir", authority])?;
        }
        for host in cluster.options.nodes() {
            let folder = lab.node(host).folder()?;
            let text = cluster
                .options
                .file_for(host, lab.options().control_network, folder);
            cluster.run_in_memory(folder)?;
            let path = config_path(folder);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            let out = folder.to_str().context("the lab's folder is no UTF-8")?;
            let name = host.name();
            if folder.join("node.pem").exists() {
                continue;
            }
            cluster.must(
                host,
                &[
                    "pki", "issue", "--dir", authority, "--name", name, "--out", out,
                ],
            )?;
        }
        Ok(cluster)
    }

    /// Run-time files are in memory, as on most systems; where they are not, here neither.
    fn run_in_memory(&self, folder: &Path) -> Result<()> {
        let run = folder.join("run");
        let memory = Path::new("/dev/shm");
        if run.exists() || statfs(memory).is_ok_and(|it| it.filesystem_type() != TMPFS_MAGIC) {
            return Ok(());
        }
        let lab = self.lab.folder().file_name().unwrap_or_default();
        let own = folder.file_name().unwrap_or_default();
        let name = [lab, own].map(|part| part.to_string_lossy()).join("-");
        let place = memory.join(name);
        self.lab.remove_at_end(&place)?;
        fs::create_dir(&place).with_context(|| format!("creating {}", place.display()))?;
        symlink(&place, &run).with_context(|| format!("creating {}", run.display()))
    }

    /// Starts the agent of one server, or the witness; one that runs already is killed first.
    ///
    /// # Errors
    /// Fails if it ends within its first 50 ms; the message is its log.
    pub fn start_agent(&mut self, host: Host) -> Result<()> {
        self.agents.remove(&host);
        let node = self.lab.node(host);
        self.lab.remove_at_end(&self.pins(host)?)?;
        let mut command = Command::new(&self.binary);
        command.arg(match host {
            Host::Witness => "witness",
            Host::Director | Host::Reserve => "director",
            Host::Client | Host::A | Host::B | Host::C | Host::Attacker => "agent",
        });
        command.arg("--config");
        command.arg(config_path(node.folder()?));
        let mut agent = node.spawn("agent", command)?;
        let end = Instant::now() + Duration::from_millis(50);
        while Instant::now() < end {
            ensure!(
                agent.is_running(),
                "the agent on {host} ended: {}",
                agent.log().trim()
            );
            thread::sleep(Duration::from_millis(5));
        }
        self.agents.insert(host, agent);
        Ok(())
    }

    /// Agents and commands from now on are another `godwit`: as after an upgrade.
    pub fn use_binary(&mut self, binary: &Path) {
        binary.clone_into(&mut self.binary);
    }

    /// The agent process of one server, if it was started.
    pub fn agent(&mut self, host: Host) -> Option<&mut Process> {
        self.agents.get_mut(&host)
    }

    /// The folder in which the agent of one server pins programs and maps.
    ///
    /// # Errors
    /// Fails if the machine is gone.
    pub fn pins(&self, host: Host) -> Result<PathBuf> {
        let instance = self.instance(host)?;
        Ok(Path::new(PIN_ROOT).join(match host {
            Host::Director | Host::Reserve => format!("{instance}-director"),
            Host::Client | Host::A | Host::B | Host::C | Host::Attacker | Host::Witness => instance,
        }))
    }

    /// The configuration file of one server.
    ///
    /// # Errors
    /// Fails if its folder can't be made.
    pub fn config_file(&self, host: Host) -> Result<PathBuf> {
        Ok(config_path(self.lab.node(host).folder()?))
    }

    /// The configuration that all of them run with.
    pub const fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// Service addresses with the port of the first service, IPv4 first.
    pub fn addresses(&self) -> [SocketAddr; 2] {
        let port = self
            .options
            .services
            .first()
            .map_or(80, |service| service.port);
        SERVICE.map(|address| SocketAddr::new(address, port))
    }

    /// Runs a `godwit` command on one server.
    ///
    /// # Errors
    /// Fails if it can't be started or does not end within ten seconds.
    pub fn godwit(&self, host: Host, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.binary);
        command.args(args);
        self.lab.node(host).run(command, COMMAND_DEADLINE)
    }

    /// What one agent says of itself.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub fn status(&self, host: Host) -> Result<Status> {
        self.ask(host, "status")
    }

    /// The flows of one server.
    ///
    /// # Errors
    /// Fails if its agent does not answer.
    pub fn flows(&self, host: Host) -> Result<Flows> {
        self.ask(host, "flows")
    }

    /// Starts `godwit events --follow` on one server, for a person to read.
    pub(crate) fn follow_events(&self, host: Host) -> Result<(Process, ChildStdout)> {
        let mut command = Command::new(&self.binary);
        command.args(["events", "--follow", "--socket"]);
        command.arg(self.socket(host)?);
        let mut process = self
            .lab
            .node(host)
            .start("events", command, Pipes::Output)?;
        let output = process.take_stdout().context("its output was piped")?;
        Ok((process, output))
    }

    /// Waits until `owner` owns every service and the other server is in sync.
    ///
    /// # Errors
    /// Fails after `deadline`, with the last status of both, or if an agent ends.
    pub fn wait_in_sync(&mut self, owner: Host, deadline: Duration) -> Result<()> {
        let standby = if owner == Host::A { Host::B } else { Host::A };
        let end = Instant::now() + deadline;
        loop {
            let (first, second) = (self.status(owner), self.status(standby));
            let ready = |status: &Result<Status>, wanted: fn(&ServiceReport) -> bool| {
                status
                    .as_ref()
                    .is_ok_and(|s| !s.services.is_empty() && s.services.iter().all(wanted))
            };
            if ready(&first, ServiceReport::is_owner_in_sync)
                && ready(&second, ServiceReport::is_shadow)
            {
                return Ok(());
            }
            for (host, agent) in &mut self.agents {
                ensure!(
                    agent.is_running(),
                    "the agent on {host} ended: {}",
                    agent.log().trim()
                );
            }
            if Instant::now() > end {
                bail!("not in sync after {deadline:?}:\n{owner}: {first:?}\n{standby}: {second:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Why a failure of `owner` would not be outlived at this moment, if it would not.
    ///
    /// # Errors
    /// Fails if an agent does not answer.
    pub(crate) fn why_unready(&self, owner: Host) -> Result<Option<String>> {
        let standby = if owner == Host::A { Host::B } else { Host::A };
        let (first, second) = (self.status(owner)?, self.status(standby)?);
        Ok(first.why_unready(&second, &self.flows(owner)?))
    }

    /// Waits until `host` owns every service.
    ///
    /// # Errors
    /// Fails after `deadline`, with its last status.
    pub fn wait_owner(&self, host: Host, deadline: Duration) -> Result<Status> {
        let end = Instant::now() + deadline;
        loop {
            match self.status(host) {
                Ok(status) if status.services.iter().all(|s| s.role == "owner") => {
                    return Ok(status);
                }
                last if Instant::now() > end => {
                    bail!("{host} does not own after {deadline:?}: {last:?}")
                }
                Ok(_) | Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Ends an agent as an operator would (SIGTERM).
    ///
    /// # Errors
    /// Fails if it was not started or still runs after five seconds.
    pub fn stop_agent(&mut self, host: Host) -> Result<()> {
        let mut agent = self
            .agents
            .remove(&host)
            .with_context(|| format!("no agent on {host}"))?;
        agent.signal(Signal::SIGTERM)?;
        agent.wait(Duration::from_secs(5)).map(drop)
    }

    /// Removes what the agent of one server has pinned, and the agent: for a
    /// machine that is dark, before [`Lab::reboot`] gives it a new namespace.
    ///
    /// # Errors
    /// Fails if its pins can't be removed.
    pub fn power_off(&mut self, host: Host) -> Result<()> {
        self.agents.remove(&host);
        let pins = self.pins(host)?;
        match fs::remove_dir_all(&pins) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("removing {}", pins.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn ask<T: DeserializeOwned>(&self, host: Host, what: &str) -> Result<T> {
        let socket = self.socket(host)?;
        let socket = socket.to_str().context("the lab's folder is no UTF-8")?;
        let text = self.must(host, &[what, "--json", "--socket", socket])?;
        serde_json::from_str(&text).with_context(|| format!("reading `godwit {what}` of {host}"))
    }

    /// Hands a service that `from` owns to `to`, as an operator would.
    ///
    /// # Errors
    /// Fails if it is refused, with the reason.
    pub fn hand_over(&self, service: &str, from: Host, to: Host) -> Result<MoveReport> {
        self.hand_over_with(service, from, to, &[])
    }

    /// As [`hand_over`](Self::hand_over); connections that can't move are reset.
    ///
    /// # Errors
    /// Fails if it is refused all the same, with the reason.
    pub fn hand_over_by_force(&self, service: &str, from: Host, to: Host) -> Result<MoveReport> {
        self.hand_over_with(service, from, to, &["--force"])
    }

    fn hand_over_with(
        &self,
        service: &str,
        from: Host,
        to: Host,
        more: &[&str],
    ) -> Result<MoveReport> {
        let socket = self.socket(from)?;
        let socket = socket.to_str().context("the lab's folder is no UTF-8")?;
        let to = to.to_string();
        let args = ["move", "--service", service, "--to", &to, "--json"];
        let text = self.must(from, &[&args[..], &["--socket", socket], more].concat())?;
        serde_json::from_str(&text).context("reading `godwit move`")
    }

    /// Hands one connection, `client -> service`, to another server.
    ///
    /// # Errors
    /// Fails if it stays, with the answer.
    pub fn hand_over_flow(&self, flow: &str, from: Host, to: Host) -> Result<FlowMoves> {
        self.hand_over_flows(&["--flow", flow], from, to)
    }

    /// Hands connections that `args` name to another server.
    ///
    /// # Errors
    /// Fails if one stays, with the answer.
    pub fn hand_over_flows(&self, args: &[&str], from: Host, to: Host) -> Result<FlowMoves> {
        let socket = self.socket(from)?;
        let socket = socket.to_str().context("the lab's folder is no UTF-8")?;
        let to = to.to_string();
        let more = ["--to", &to, "--json", "--socket", socket];
        let output = self.godwit(from, &[&["move"], args, &more].concat())?;
        ensure!(
            output.status.success(),
            "{} {}",
            output.stdout,
            output.stderr
        );
        serde_json::from_str(&output.stdout).context("reading `godwit move`")
    }

    /// Has `from`'s agent hand connections to another server, without a process of
    /// ours in between: `args` are fields of the request. Returns when it was asked,
    /// and how it ended; connections may have stayed.
    ///
    /// # Errors
    /// Fails if it refuses all of it.
    pub fn order_flows(&self, args: &str, from: Host, to: Host) -> Result<(Instant, FlowMoves)> {
        let agent = UnixStream::connect(self.socket(from)?).context("asking the agent")?;
        agent.set_read_timeout(Some(COMMAND_DEADLINE))?;
        let request = format!("{{\"cmd\":\"move_flows\",{args},\"to\":\"{to}\"}}\n");
        let mut line = String::new();
        let since = Instant::now();
        (&agent).write_all(request.as_bytes())?;
        BufReader::new(&agent).read_line(&mut line)?;
        let moved = serde_json::from_str(&line).with_context(|| line.trim().to_owned())?;
        Ok((since, moved))
    }

    /// Hands everything that a server owns to its standby, as an operator would.
    ///
    /// # Errors
    /// Fails if something stays, with the reason.
    pub fn drain(&self, host: Host) -> Result<()> {
        let socket = self.socket(host)?;
        let socket = socket.to_str().context("the lab's folder is no UTF-8")?;
        self.must(host, &["drain", "--socket", socket]).map(drop)
    }

    /// Names of the events that one agent remembers, oldest first.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub fn events(&self, host: Host) -> Result<Vec<String>> {
        let events = self.event_reports(host)?.into_iter();
        Ok(events.map(|event| event.event).collect())
    }

    /// The events that one agent remembers, oldest first.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub fn event_reports(&self, host: Host) -> Result<Vec<EventReport>> {
        let socket = self.socket(host)?;
        let socket = socket.to_str().context("the lab's folder is no UTF-8")?;
        let text = self.must(host, &["events", "--json", "--socket", socket])?;
        let events = text.lines().map(serde_json::from_str);
        events.collect::<Result<_, _>>().context("reading events")
    }

    /// The events that one agent remembers, for a person.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub fn event_text(&self, host: Host) -> Result<String> {
        let socket = self.socket(host)?;
        let socket = socket.to_str().context("the lab's folder is no UTF-8")?;
        self.must(host, &["events", "--socket", socket])
    }

    /// Where an agent answers.
    ///
    /// # Errors
    /// Fails if the machine is gone.
    pub fn socket(&self, host: Host) -> Result<PathBuf> {
        let run = self.lab.node(host).folder()?.join("run");
        Ok(run.join(self.instance(host)?).join("control.sock"))
    }

    /// Where an agent listens for server processes.
    ///
    /// # Errors
    /// Fails if the machine is gone.
    pub fn app_socket(&self, host: Host) -> Result<PathBuf> {
        Ok(self.socket(host)?.with_file_name("app.sock"))
    }

    /// What an agent calls its folders: its namespace's cookie and its node.
    fn instance(&self, host: Host) -> Result<String> {
        let cookie = self.lab.node(host).enter(godwit_sock::netns_cookie)?;
        let cookie = cookie.context("asking for the namespace's cookie")?;
        Ok(format!("n{cookie}-{host}"))
    }

    fn must(&self, host: Host, args: &[&str]) -> Result<String> {
        let output = self.godwit(host, args)?;
        ensure!(
            output.status.success(),
            "`godwit {}` on {host}: {}{} ({})",
            args.join(" "),
            output.stdout.trim(),
            output.stderr.trim(),
            output.status
        );
        Ok(output.stdout)
    }
}

/// The file that a server's agent runs with.
fn config_path(folder: &Path) -> PathBuf {
    folder.join("godwit.toml")
}

/// The `godwit` binary: the one that `GODWIT_BIN` names, else one that was built beside
/// the running program (a test runs in `target/<profile>/deps`), else
/// `target/release/godwit`.
///
/// # Errors
/// Fails if there is none; the message says how to build it.
pub fn binary() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(BINARY_VARIABLE).map(PathBuf::from) {
        ensure!(
            named.is_file(),
            "{BINARY_VARIABLE} names {}, which is no file",
            named.display()
        );
        return Ok(named);
    }
    let running = std::env::current_exe().context("looking for the running program")?;
    let beside = running
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("godwit"));
    let built = [PathBuf::from("target/release/godwit")];
    beside
        .chain(built)
        .find(|path| path.is_file())
        .and_then(|path| path.canonicalize().ok())
        .with_context(|| format!("no godwit binary; run `make build` or set {BINARY_VARIABLE}"))
}
