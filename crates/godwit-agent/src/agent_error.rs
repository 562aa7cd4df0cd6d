//! Why an agent does not run.

use godwit_bpf::PinError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::control::FindError;
use crate::costs_error::CostsError;
use crate::director::DirectError;
use crate::driver::{DetachError, InstallError, LeftoverError};
use crate::edge::StartError;
use crate::machine_error::MachineError;
use crate::privileges::PrivilegeError;

/// What the warning begins with when a reload has failed half-way.
pub const GIVEN_UP: &str = "the changed file was given up, and the one before is in force";

/// Why an agent did not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Configuration, certificates or a socket of the agent.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Something that any agent needs of its machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A server's data path.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// A director's.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// A program can't be measured.
    #[error(transparent)]
    Costs(#[from] CostsError),
    /// Pins of an earlier agent can't be looked at or removed.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The agent would have more rights than it needs.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// Something of the data path is still there.
    #[error(transparent)]
    Detach(#[from] DetachError),
    /// The folder of running agents can't be read.
    #[error(transparent)]
    Find(#[from] FindError),
    /// What another node has left stays.
    #[error(transparent)]
    Leftover(#[from] LeftoverError),
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
