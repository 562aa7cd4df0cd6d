//! `--detach` of an agent or a director: what has ended, what is removed, and what is not.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use godwit_agent::Whose;
use godwit_agent::config::{Config, PeerRole};
use godwit_agent::control::{Client, FindError, StopReason, find, sweep};
use godwit_wire::NodeName;

use crate::{exit, out};

/// Ends what runs with that configuration, and removes what it has attached.
pub(crate) fn of_file(config: &Path, wanted: PeerRole) -> anyhow::Result<ExitCode> {
    let config = &Arc::new(Config::load(config)?);
    let role = config.own_peer().role;
    anyhow::ensure!(
        role == wanted,
        "{}: node \"{}\" is a {role}, not a {wanted}",
        config.path.display(),
        config.node.name
    );
    let node = config.node.name;
    let ended = match find(
        &config.node.run_dir,
        godwit_agent::netns_cookie()?,
        Some(node),
    ) {
        Ok(socket) => match Client::connect(&socket) {
            Ok(mut client) => client.stop(StopReason::Detach).map(|()| true)?,
            // It was killed, and left its socket.
            Err(error) if error.is_absence() => false,
            Err(error) => return Err(error.into()),
        },
        Err(FindError::NoAgent { .. }) => false,
        Err(other) => return Err(other.into()),
    };
    sweep(&config.node.run_dir);
    let removed = godwit_agent::detach(config)?;
    out::lines(if ended {
        "the agent has ended; its programs are removed"
    } else if removed {
        "no agent was running; what an earlier one left is removed"
    } else {
        return nothing(node, wanted);
    })?;
    if wanted == PeerRole::Server {
        say_left(&godwit_agent::left_behind(config))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes what the agent of a node has left, whatever any file says.
pub(crate) fn of_node(node: NodeName) -> anyhow::Result<ExitCode> {
    if !godwit_agent::detach_node(node)? {
        return nothing(node, PeerRole::Server);
    }
    out::lines("what an earlier agent left is removed")?;
    say_left(&godwit_agent::left_behind_by(node))?;
    Ok(ExitCode::SUCCESS)
}

/// Ends all that runs here, and removes what agents have attached.
pub(crate) fn of_all(config: &Path) -> anyhow::Result<ExitCode> {
    let mut said = Vec::new();
    let is_all = godwit_agent::leave(config, |sentence| {
        // Each when it is so: an end may take seconds.
        said.push(out::lines(sentence));
    })?;
    if said.is_empty() {
        out::lines("nothing was attached")?;
    }
    said.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(if is_all {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::FAILED)
    })
}

/// Nothing of the node is attached here, which may not be what whoever asks believes.
fn nothing(node: NodeName, role: PeerRole) -> anyhow::Result<ExitCode> {
    let others: Vec<_> = godwit_agent::attached()?
        .into_iter()
        .filter_map(|whose| match (whose, role) {
            (Whose::Agent(node), PeerRole::Server) => Some(node),
            (Whose::Director(node), PeerRole::Director) => Some(node),
            (Whose::Agent(_) | Whose::Director(_), _) => None,
        })
        .collect();
    let (Some(first), all) = (others.first(), others.join(", ")) else {
        out::lines("nothing was attached")?;
        return Ok(ExitCode::SUCCESS);
    };
    let how = match role {
        PeerRole::Server => format!("use its file, --node {first} or --all"),
        PeerRole::Director | PeerRole::Witness => "use its file".to_owned(),
    };
    let (noun, verb) = match others[..] {
        [_] => ("node", "has its"),
        _ => ("nodes", "have their"),
    };
    anyhow::bail!(
        "nothing of node {node} was attached, and nothing is removed: {noun} {all} {verb} data \
         path here; {how}"
    );
}

/// What stays for connections that were this node's.
fn say_left(addresses: &[String]) -> anyhow::Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    out::lines(&format!(
        "this node owned services, and their connections go on here without Godwit, so these \
         addresses stay: {}; if another machine is to have them, remove them first (ip addr del \
         ADDRESS dev INTERFACE), which ends the connections; a standby whose agent is started \
         anew or reloaded takes the services over, and a director takes this server for gone \
         after 10 s: the connections end then",
        addresses.join(", ")
    ))
}
