//! The control socket: what `godwit status`, `flows` and `events` talk to.
//!
//! A Unix socket at `<run_dir>/n<cookie>-<node>/control.sock`, where the cookie
//! is that of the agent's network namespace: several agents on one host, one
//! per namespace, do not meet, and a command finds the agent of the namespace
//! that it runs in. Mode 0660: whoever may open it may stop the agent.
//!
//! One request per line, as JSON; the answer is one line, or, for events, one
//! line per event:
//!
//! ```text
//! {"cmd":"status"}                          godwit.status/1
//! {"cmd":"flows"}                           godwit.flows/1
//! {"cmd":"events","follow":true}            godwit.events/1, line by line
//! {"cmd":"stop","reason":"detach"}          godwit.done/1
//! anything else                             godwit.error/1
//! ```

mod client;
mod place;
mod server;
#[cfg(test)]
mod tests;

use godwit_wire::GoodbyeReason;
use serde::{Deserialize, Serialize};

pub use client::{Client, ClientError};
pub use place::{FindError, Place, PlaceError, find, sweep};
pub(crate) use server::{Office, serve};

/// What a client may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// `godwit.done/1`: the request was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    schema: String,
}

/// `godwit.error/1`: the request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    schema: String,
    /// Why, as a sentence.
    pub error: String,
}

impl Done {
    const SCHEMA: &str = "godwit.done/1";

    fn new() -> Self {
        Self {
            schema: Self::SCHEMA.into(),
        }
    }
}

impl Refusal {
    const SCHEMA: &str = "godwit.error/1";

    fn new(error: impl Into<String>) -> Self {
        Self {
            schema: Self::SCHEMA.into(),
            error: error.into(),
        }
    }
}
