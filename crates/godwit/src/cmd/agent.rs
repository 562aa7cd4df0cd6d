//! `godwit agent`: the agent of this server.

use std::path::PathBuf;
use std::process::ExitCode;

use godwit_agent::config::PeerRole;
use godwit_agent::logging;
use godwit_wire::NodeName;

use super::detach;

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
    /// With --detach: all that runs and is attached in this network namespace, whatever the file
    /// says. Agents hand over to their standbys. A director's program stays.
    #[arg(long, requires = "detach", conflicts_with = "node")]
    all: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(node) = args.node {
        return detach::of_node(node);
    }
    if args.all {
        return detach::of_all(&args.config);
    }
    if args.detach {
        return detach::of_file(&args.config, PeerRole::Server);
    }
    logging::init();
    logging::die_on_panic();
    let ended = godwit_agent::run(&args.config);
    logging::flush();
    ended?;
    Ok(ExitCode::SUCCESS)
}
