//! Why a server's agent can't start.

use std::io;
use std::path::PathBuf;

use godwit_bpf::{MapError, OpenError, PinError};
use godwit_sock::InterfaceError;
use godwit_wire::MacAddr;
use thiserror::Error;

use super::earlier::EarlierError;
use super::gone::GoneError;
use super::handoff::HandoffStartError;
use crate::machine_error::{MachineError, from_machine};

/// Why a server's agent can't start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InstallError {
    /// What any agent needs is not there.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Both would act on the same segments.
    #[error(
        "an agent of node \"{node}\" is running on interface {interface} in this network \
         namespace: two nodes can't have one interface, so stop that one first"
    )]
    OtherNode {
        /// The other one's name.
        node: String,
        /// The interface.
        interface: String,
    },
    /// Its lease is in the other name, and nobody could renew it.
    #[error(
        "this machine was node \"{node}\", which owns service {service} with {connections} \
         connections: start it under that name and hand it over (`godwit drain` there), then give \
         it another name. If it does not come back, a standby takes over, and this node starts \
         when the lease has ended; without one `godwit agent --detach --node {node}` leaves the \
         connections here without Godwit"
    )]
    StillOwner {
        /// The other name.
        node: String,
        /// Of the first such share.
        service: String,
        /// How many would be lost.
        connections: usize,
    },
    /// They are beside what an agent of this node has left.
    #[error(
        "the agent of node \"{node}\" has left programs on interface {interface} beside this \
         node's: `godwit agent --detach --node {node}` takes them away"
    )]
    LeftBeside {
        /// The other one's name.
        node: String,
        /// The interface.
        interface: String,
    },
    /// What an agent of another version has left stays where it is.
    #[error(transparent)]
    Earlier(#[from] EarlierError),
    /// What is no longer in the file can't be ended.
    #[error(transparent)]
    Gone(#[from] GoneError),
    /// A program of the user's own can't be read.
    #[error("can't read policy {path}")]
    Policy {
        /// Its file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The interface does not take frames to the group of a multicast tap.
    #[error("the service interface can't receive group {group}")]
    Group {
        /// Which.
        group: MacAddr,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Connections can't move one by one.
    #[error("connections can't move to other servers here (standby = \"none\" or \"snapshot\")")]
    Handoffs(#[from] HandoffStartError),
    /// Twins can't be kept.
    #[error("can't listen on the loopback for twins (snapshots = \"eager\")")]
    Perch(#[source] io::Error),
}

from_machine!(InstallError: InterfaceError, PinError, OpenError, MapError);
