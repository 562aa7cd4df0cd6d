//! Why there are no figures of what programs of a data path cost.

use godwit_bpf::MapError;
use thiserror::Error;

use crate::machine_error::{MachineError, from_machine};

/// Why there are no figures of what programs of a data path cost.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CostsError {
    /// They are not in place.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The kernel does not run one.
    #[error("can't run a program of the data path for figures")]
    TestRun(#[source] Box<dyn std::error::Error + Send + Sync>),
}

from_machine!(CostsError: MapError);
