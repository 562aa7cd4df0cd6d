//! All of Godwit leaves this network namespace: `godwit agent --detach --all`, which is how the
//! package is removed.
//!
//! What runs here ends first, one after the other: a server's agent as by SIGQUIT, so that a
//! standby takes over; a witness; a director as by SIGTERM, whose program stays. One that does
//! not answer is ended by its signal, and killed if that does not help. Then what each agent has
//! attached is taken away. Only the data path of an owner that was killed stays: it keeps this
//! machine silent once a standby has taken over.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{Foreign, PinError, Whose};
use godwit_sock::netns_cookie;
use godwit_wire::NodeName;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::agent_error::AgentError;
use crate::config::{Config, DEFAULT_RUN_DIR, PeerRole};
use crate::control::{Client, ClientError, StopReason, holders, is_held, running, sweep};
use crate::custody::own_user;
use crate::machine_error::MachineError;
use crate::run::{detach, detach_node, left_behind_by};
use crate::sentence::whole;

/// How long an agent may take from its signal to its end: as in its unit.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same of one that has not answered, and how long the kernel may take to end one that was
/// killed.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// Who has something attached in this network namespace.
///
/// # Errors
/// If that can't be looked at.
pub fn attached() -> Result<Vec<Whose>, AgentError> {
    let cookie = netns_cookie().map_err(MachineError::Socket)?;
    match Foreign::in_namespace(cookie) {
        // Whoever may do everything and gets no bpffs has none, as in a container.
        Err(PinError::Mount(_)) if own_user() == 0 => Ok(Vec::new()),
        found => Ok(found?),
    }
}

/// Ends all that runs in this network namespace, and takes away what agents have attached.
/// `file` is where a configuration may be: the one node that it is of is detached as it says.
/// `say` is told a sentence for each step. Returns whether nothing of an agent is left.
///
/// # Errors
/// If it is not known what there is.
pub fn leave(file: &Path, mut say: impl FnMut(&str)) -> Result<bool, AgentError> {
    let cookie = netns_cookie().map_err(MachineError::Socket)?;
    let mut run_dirs: BTreeSet<PathBuf> = [DEFAULT_RUN_DIR.into()].into();
    run_dirs.extend(Config::whereabouts(file).map(|(_, run_dir)| run_dir));
    let mut is_all = true;
    let mut nodes = BTreeSet::new();
    let mut note = |node: &str, done: Result<String, String>| {
        nodes.extend(NodeName::new(node).ok());
        let (Ok(sentence) | Err(sentence)) = &done;
        say(&format!("node {node}: {sentence}"));
        is_all &= done.is_ok();
    };
    let before = attached()?;
    for run_dir in run_dirs {
        for (node, socket) in running(&run_dir, cookie)? {
            let is_director = before.contains(&Whose::Director(node.clone()));
            note(&node, end(&socket, is_director));
        }
        sweep(&run_dir);
    }
    let config = Config::load(file).ok().map(Arc::new);
    for whose in attached()? {
        match whose {
            Whose::Agent(node) => {
                let done = take_away(&format!("n{cookie}-{node}"), &node, config.as_ref());
                note(&node, done);
            }
            Whose::Director(node) => note(&node, Ok(DIRECTOR_STAYS.into())),
        }
    }
    let addresses = nodes.first().copied().map(left_behind_by);
    if let Some(addresses) = addresses.filter(|it| !it.is_empty()) {
        let addresses = addresses.join(", ");
        say(&format!(
            "for connections that go on here these addresses stay: {addresses}"
        ));
    }
    Ok(is_all)
}

const DIRECTOR_STAYS: &str = "the program of its director stays until the next boot, as without \
                              it all connections break (godwit director --detach)";

/// Ends a process by its socket, or by its signal.
fn end(socket: &Path, is_director: bool) -> Result<String, String> {
    let asked = Client::connect(socket).and_then(|mut client| ask_to_end(&mut client));
    if asked.is_ok() && ends_within(LAST_STEPS, || is_held(socket)) {
        return Ok("its process has ended".into());
    }
    let why = asked.err().map(|error| format!(" ({})", whole(&error)));
    let why = why.unwrap_or_default();
    // As in its unit: by SIGQUIT a director takes its program away.
    let signal = if is_director {
        Signal::SIGTERM
    } else {
        Signal::SIGQUIT
    };
    let first = (signal, LAST_STEPS);
    match end_by_force(&holders(socket), first, || is_held(socket)) {
        Some(signal) => Ok(format!("its process did not end{why}, and has by {signal}")),
        None => Err(format!("its process does not end{why}")),
    }
}

fn ask_to_end(client: &mut Client) -> Result<(), ClientError> {
    // By another word a director would take its program with it.
    let reason = match client.status()?.director {
        Some(_) => StopReason::Restart,
        None => StopReason::Shutdown,
    };
    client.stop(reason)
}

/// The signal by which processes have ended.
fn end_by_force(
    pids: &[u32],
    first: (Signal, Duration),
    is_there: impl Fn() -> bool,
) -> Option<Signal> {
    let signals = [first, (Signal::SIGKILL, LAST_STEPS)];
    signals.into_iter().find_map(|(signal, patience)| {
        for pid in pids.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
            // One that has ended meanwhile is what is wanted.
            let _ = kill(Pid::from_raw(pid), signal);
        }
        ends_within(patience, &is_there).then_some(signal)
    })
}

/// Whether a process has the same root directory: where an image is made, others are of the
/// machine around it.
fn has_own_root(pid: u32) -> bool {
    let id = |of: &str| fs::metadata(format!("/proc/{of}/root")).map(|it| (it.dev(), it.ino()));
    matches!((id("self"), id(&pid.to_string())), (Ok(own), Ok(its)) if own == its)
}

fn ends_within(patience: Duration, is_there: impl Fn() -> bool) -> bool {
    let end = Instant::now() + patience;
    while is_there() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// What an agent has attached that has ended, or whose folder is none of those that were looked in.
fn take_away(folder: &str, node: &str, config: Option<&Arc<Config>>) -> Result<String, String> {
    let sentence = |error: AgentError| whole(&error);
    let name = NodeName::new(node).map_err(|_| format!("{folder} is no folder of Godwit's"))?;
    let left = Foreign::named(folder).map_err(|error| whole(&error))?;
    if let Some(left) = left {
        let drivers = left.drivers();
        if !drivers.iter().all(|pid| has_own_root(*pid)) {
            return Ok("its agent runs in another root than this one, and is left alone".into());
        }
        if !drivers.is_empty() {
            end_by_force(&drivers, (Signal::SIGQUIT, PATIENCE), || left.is_driven())
                .ok_or("its agent does not end")?;
        }
        // With the time of the clock's begin: also of those whose lease has ended.
        let owned = left.maps().owned(0).map_err(|error| whole(&error))?;
        if !owned.is_empty() {
            return Err(format!(
                "its agent was killed when it owned services; what it has attached stays until \
                 the next boot, so that this machine is silent when another one goes on with them \
                 (godwit agent --detach --node {node} takes it away)"
            ));
        }
    }
    let is_its = |config: &&Arc<Config>| {
        config.node.name == name && config.own_peer().role == PeerRole::Server
    };
    let by_file = config.filter(is_its).map(detach);
    // A file that does not fit this machine any more is no reason to leave it there.
    let is_done = by_file.is_some_and(|done| done.is_ok());
    if !is_done {
        detach_node(name).map_err(sentence)?;
    }
    Ok("what it had attached is removed".into())
}
