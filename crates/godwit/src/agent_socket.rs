//! Finds the agent that a command talks to.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use godwit_agent::config::{Config, DEFAULT_RUN_DIR};
use godwit_agent::control::{Client, FindError, find};
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
            Some(file) => match Config::load(file) {
                Ok(config) => {
                    let node = self.node.unwrap_or(config.node.name);
                    (config.node.run_dir, Some(node))
                }
                // An agent runs with what the file said before, whatever it says now.
                Err(error) => return self.despite(file, cookie).ok_or_else(|| error.into()),
            },
            None => {
                let run_dir = self
                    .run_dir
                    .clone()
                    .unwrap_or_else(|| DEFAULT_RUN_DIR.into());
                (run_dir, self.node)
            }
        };
        match find(&run_dir, cookie, node) {
            Err(error @ FindError::NoAgent { .. }) => {
                let renamed = self.renamed(&run_dir, cookie);
                renamed.ok_or_else(|| error.into())
            }
            found => Ok(found?),
        }
    }

    /// The socket of the agent that runs with this file, and has not taken the name that the
    /// file gives it now.
    fn renamed(&self, run_dir: &Path, cookie: u64) -> Option<PathBuf> {
        let file = self.config.as_ref().filter(|_| self.node.is_none())?;
        let socket = find(run_dir, cookie, None).ok()?;
        let running = Client::connect(&socket).ok()?.file().ok()?.path;
        let real = |path: &Path| fs::canonicalize(path).ok();
        (real(&running)? == real(file)?).then_some(socket)
    }

    /// The socket of an agent whose file can't be used any more. Where it is no TOML at all,
    /// the agent may still be where most are.
    fn despite(&self, file: &Path, cookie: u64) -> Option<PathBuf> {
        let found = Config::whereabouts(file);
        let (name, run_dir) = found.map_or_else(
            || (None, DEFAULT_RUN_DIR.into()),
            |(name, run_dir)| (Some(name), run_dir),
        );
        find(&run_dir, cookie, self.node.or(name)).ok()
    }
}
