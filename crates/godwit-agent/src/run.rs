//! One agent from start to end.

use std::path::Path;
use std::sync::Arc;

use godwit_bpf::{MUTANT, PinDir, PinError};
use thiserror::Error;

use crate::apps::Apps;
use crate::config::{Config, ConfigError, PeerRole};
use crate::director;
use crate::driver::{DetachError, InstallError, Installed, Surroundings, pin_name};
use crate::edge::{Edge, Prepared, StartError};
use crate::input::Inbox;
use crate::privileges::{self, PrivilegeError};
use crate::realtime::{Urgency, prefer};
use crate::stonith::Stonith;

/// Why an agent did not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Configuration, certificates or a socket of the agent.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The data path.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// Pins of an earlier agent can't be looked at or removed.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The agent would have more rights than it needs.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// Something of the data path is still there.
    #[error(transparent)]
    Detach(#[from] DetachError),
}

impl AgentError {
    /// Whether the user has to change the configuration.
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Start(StartError::Config(ConfigError::Invalid { .. }))
        )
    }
}

/// Runs an agent until a signal or a command ends it. Nothing is attached
/// before everything that can be wrong with the configuration is known.
///
/// # Errors
/// If it can't start; then nothing of it is left behind.
pub fn run(config: &Path) -> Result<(), AgentError> {
    let prepared = Prepared::load(config, PeerRole::Server)?;
    if let Some(mutant) = MUTANT {
        // Only a chaos run may ever see this.
        tracing::error!("THIS BUILD IS BROKEN ON PURPOSE ({mutant}): never use it");
    }
    let (life, votes) = (prepared.life, prepared.votes.clone());
    let (inbox, inputs) = Inbox::new();
    // While this process has all its privileges, and no real-time thread.
    let app_socket = prepared.app_socket()?;
    let services = prepared.config.services.iter();
    let services = services.flat_map(|service| service.addresses.clone());
    let services: Vec<_> = services.collect();
    let stonith = Stonith::start(&prepared.config, &inbox).map_err(StartError::Stonith)?;
    let installed = Installed::new(prepared.config.clone())?;
    if let Err(error) = privileges::give_up(&installed.config) {
        installed.remove();
        return Err(error.into());
    }
    let edge = match Edge::start(prepared, inbox.clone()) {
        Ok(edge) => edge,
        Err(error) => {
            installed.remove();
            return Err(error.into());
        }
    };
    let apps = match Apps::start(app_socket, services, inbox.clone()) {
        Ok(apps) => apps,
        Err(error) => {
            edge.shutdown();
            installed.remove();
            return Err(StartError::Thread(error).into());
        }
    };
    let node = installed.node_config(&life);
    let surroundings = Surroundings {
        inputs,
        inbox,
        peers: edge.peers.clone(),
        board: edge.board.clone(),
        leases: edge.leases.clone(),
        events: edge.events.clone(),
        metrics: edge.metrics.clone(),
        stonith,
        apps: apps.clone(),
    };
    let run = installed
        .into_driver(node, surroundings)
        .map(|(driver, inputs)| {
            prefer("gw-driver", Urgency::Decisions);
            votes.close(driver.run(&inputs));
            // Here the queue closes: nobody waits for an answer any more.
        });
    drop(apps);
    edge.shutdown();
    Ok(run?)
}

/// Takes away what an agent that no longer runs has left: a standby's twins
/// end silently, an owner's connections go on. Returns whether there was
/// anything.
///
/// # Errors
/// If it can't be taken away.
pub fn detach(config: &Arc<Config>) -> Result<bool, AgentError> {
    if config.own_peer().role == PeerRole::Director {
        return director::detach(config);
    }
    if PinDir::existing(&pin_name(config)?)?.is_none() {
        return Ok(false);
    }
    // Programs of this version take over first: the twins stay silent.
    Installed::new(config.clone())?.detach()?;
    Ok(true)
}
