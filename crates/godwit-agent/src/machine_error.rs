//! What a machine does not give to an agent.

use std::io;
use std::net::IpAddr;

use godwit_bpf::{MapError, OpenError, PinError};
use godwit_sock::InterfaceError;
use thiserror::Error;

/// What every agent needs of its machine, a server's as a director's.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The service interface can't serve.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The network interfaces can't be listed or watched.
    #[error("can't list the network interfaces")]
    Devices(#[source] io::Error),
    /// There is no place to pin to.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The programs are not in place.
    #[error(transparent)]
    Programs(#[from] OpenError),
    /// The programs are not told what they have to know.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A socket that the agent needs can't be opened.
    #[error("can't open a raw socket (CAP_NET_RAW and CAP_NET_ADMIN are needed)")]
    Socket(#[source] io::Error),
    /// A service address can't be added.
    #[error("can't add service address {address}")]
    Address {
        /// Which.
        address: IpAddr,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A thread can't be started.
    #[error("can't start a thread")]
    Thread(#[source] io::Error),
}

/// Lets `?` take what is wrong with the machine for an error of those who need it.
macro_rules! from_machine {
    ($error:ty: $($cause:ty),+) => {$(
        impl From<$cause> for $error {
            fn from(cause: $cause) -> Self {
                Self::Machine(cause.into())
            }
        }
    )+};
}
pub(crate) use from_machine;
