//! Finds the agent that a command talks to.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use godwit_agent::config::{Config, DEFAULT_RUN_DIR};
use godwit_agent::control::{Client, find};
use godwit_wire::NodeName;

/// Which agent; without any of these, the one in this network namespace.
#[derive(Debug, Args)]
pub(crate) struct AgentSocket {
    /// The agent's control socket itself.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["node", "run_dir", "config"])]
    socket: Option<PathBuf>,
    /// The agent of this node, where several run in one network namespace.
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,
    /// Folder of running agents, if `[node]` sets `run_dir`.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    run_dir: Option<PathBuf>,
    /// Take node and folder from this configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl AgentSocket {
    /// Connects to the agent.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.path()?)?)
    }

    fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let cookie = godwit_agent::netns_cookie()
            .context("can't ask the kernel which network namespace this is")?;
        let (run_dir, node) = match &self.config {
            Some(file) => {
                // An agent runs with what the file said before, whatever it says now.
                match (Config::whereabouts(file), Config::load(file)) {
                    (Some((name, run_dir)), _) => (run_dir, Some(self.node.unwrap_or(name))),
                    // It is no TOML any more: most agents are where they are by default.
                    (None, Err(error)) => {
                        let found = find(DEFAULT_RUN_DIR.as_ref(), cookie, self.node);
                        return found.map_err(|_| error.into());
                    }
                    (None, Ok(config)) => (config.node.run_dir, self.node),
                }
            }
            None => {
                let run_dir = self
                    .run_dir
                    .clone()
                    .unwrap_or_else(|| DEFAULT_RUN_DIR.into());
                (run_dir, self.node)
            }
        };
        Ok(find(&run_dir, cookie, node)?)
    }
}
