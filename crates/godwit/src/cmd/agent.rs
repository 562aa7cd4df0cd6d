//! `godwit agent`: the agent of this server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use godwit_agent::config::{Config, PeerRole};
use godwit_agent::control::{Client, FindError, StopReason, find, sweep};
use godwit_agent::logging;
use godwit_wire::NodeName;

use crate::out;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, the same on all nodes but for `[node]`.
    #[arg(long, value_name = "FILE", default_value = "/etc/godwit/godwit.toml")]
    config: PathBuf,
    /// End the running agent, if there is one, and remove programs and pins.
    /// An owner's connections go on without Godwit.
    #[arg(long)]
    detach: bool,
    /// With --detach: what the agent of this node has left here, whatever the file says. It is
    /// not read, and the agent must have ended.
    #[arg(
        long,
        value_name = "NAME",
        requires = "detach",
        conflicts_with = "config"
    )]
    node: Option<NodeName>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(node) = args.node {
        let removed = godwit_agent::detach_node(node)?;
        out::lines(if removed {
            "what an earlier agent left is removed"
        } else {
            "nothing was attached"
        })?;
        say_left(&godwit_agent::left_behind_by(node))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.detach {
        return detach(&args.config, PeerRole::Server);
    }
    logging::init();
    logging::die_on_panic();
    let ended = godwit_agent::run(&args.config);
    logging::flush();
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Ends what runs with that configuration, and removes what it has attached.
pub(crate) fn detach(config: &Path, wanted: PeerRole) -> anyhow::Result<ExitCode> {
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
        "nothing was attached"
    })?;
    if wanted == PeerRole::Server {
        say_left(&godwit_agent::left_behind(config))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What stays for connections that were this node's.
fn say_left(addresses: &[String]) -> anyhow::Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    out::lines(&format!(
        "this node owned services, and their connections go on here without Godwit, so these \
         addresses stay: {}; if another machine is to have them, remove them first (ip addr del \
         ADDRESS dev INTERFACE), which ends the connections",
        addresses.join(", ")
    ))
}
