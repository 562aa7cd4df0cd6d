//! Why an agent can't start.

use std::io;
use std::path::PathBuf;

use godwit_wire::NodeName;

use crate::apps::AppSocketError;
use crate::config::{ConfigError, PeerRole};
use crate::control::PlaceError;
use crate::doctor::Unfit;
use crate::peers::TlsError;

/// Why an agent can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The certificates can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// This node is to run something else.
    #[error("{}: node \"{name}\" is a {role}, and this command is for a {wanted}", path.display())]
    OtherRole {
        /// The configuration.
        path: PathBuf,
        /// The node.
        name: NodeName,
        /// What it is.
        role: PeerRole,
        /// What runs this command.
        wanted: PeerRole,
    },
    /// The machine lacks something.
    #[error("this machine can't run an agent")]
    Unfit(#[from] Unfit),
    /// The control socket's place can't be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The kernel does not say which network namespace this is, or gives no random numbers.
    #[error("{what}")]
    Kernel {
        /// What was asked.
        what: &'static str,
        /// The answer.
        #[source]
        source: io::Error,
    },
    /// The socket for server processes can't be made.
    #[error("can't listen for server processes")]
    Apps(#[from] AppSocketError),
    /// There is no helper for the stonith command.
    #[error("can't start the helper that runs the stonith command")]
    Stonith(#[source] io::Error),
    /// An address can't be listened on.
    #[error("can't listen on {address}, the {what} of this node")]
    Listen {
        /// Which.
        address: String,
        /// What it is for.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A thread can't be started.
    #[error("can't start a thread")]
    Thread(#[source] io::Error),
}
