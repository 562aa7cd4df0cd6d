//! One request, as a line of JSON has it.

use godwit_wire::GoodbyeReason;
use serde::{Deserialize, Serialize};

/// What a client may ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Everything about this node.
    Status,
    /// Every flow.
    Flows,
    /// What happened.
    Events {
        /// Whether to go on with what happens from now on.
        #[serde(default)]
        follow: bool,
    },
    /// Hand a service that this node owns to another node.
    Move {
        /// Its name.
        service: String,
        /// Name of the node that is to own it.
        to: String,
        /// Whether connections that can't move are reset.
        #[serde(default)]
        force: bool,
    },
    /// Hand connections that this node has to another node, one by one: a single
    /// one, or so many of a service; all of that if not said how many.
    MoveFlows {
        /// `client -> service`, addresses with ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow: Option<String>,
        /// Name of the service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        service: Option<String>,
        /// At most so many.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<usize>,
        /// So many of a hundred.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<u8>,
        /// Name of the node that is to have them.
        to: String,
    },
    /// Of a director: a back-end is to get no new connections, or some again.
    Drain {
        /// Name of the back-end.
        node: String,
        /// Whether it is to get none.
        drained: bool,
    },
    /// The file that the agent runs with, as it was when it was taken.
    File,
    /// Take the changed file: the agent starts anew with it, in the same process.
    Reload,
    /// End the agent.
    Stop {
        /// What peers are told.
        reason: StopReason,
    },
}

/// Why an agent is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It comes back at once; the data path goes on.
    Restart,
    /// Programs and pins are removed; the owner's connections go on without Godwit.
    Detach,
    /// The agent stays away: a standby in sync takes over at once; without one it
    /// is as [`StopReason::Detach`].
    Shutdown,
}

impl From<StopReason> for GoodbyeReason {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::Restart => Self::Restart,
            StopReason::Detach => Self::Detach,
            StopReason::Shutdown => Self::Shutdown,
        }
    }
}
