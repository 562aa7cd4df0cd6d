//! Why a director can't start.

use std::io;

use godwit_bpf::{MapError, OpenError, PinError};
use godwit_sock::InterfaceError;
use thiserror::Error;

use crate::machine_error::{MachineError, from_machine};

/// Why a director can't start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DirectError {
    /// What any agent needs is not there.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The file has nothing for it.
    #[error("section [director] is missing, or no service has front = \"director\"")]
    NothingToDirect,
    /// Service addresses of earlier days can't be removed.
    #[error("can't remove service addresses that are no longer wanted")]
    Addresses(#[source] io::Error),
    /// The machine would not answer for the IPv4 addresses of services, which are on
    /// loopback (ip-sysctl.rst).
    #[error("{setting} is {value}: with anything but 0 nobody on the link finds the services")]
    Mute {
        /// The sysctl.
        setting: String,
        /// What it is.
        value: u32,
    },
}

from_machine!(DirectError: InterfaceError, PinError, OpenError, MapError);
