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
//! {"cmd":"move","service":"web","to":"b"}   godwit.move/1
//! {"cmd":"move_flows","flow":"10.9.0.10:40000 -> 10.9.0.100:80","to":"b"}
//!                                           godwit.flow_moves/1
//! {"cmd":"move_flows","service":"web","count":9,"to":"b"}   the same; or percent
//! {"cmd":"drain","node":"b","drained":true}   godwit.backend/1, of a director
//! {"cmd":"file"}                            godwit.file/1
//! {"cmd":"reload"}                          godwit.done/1
//! {"cmd":"stop","reason":"detach"}          godwit.done/1
//! anything else                             godwit.error/1
//! ```

mod client;
mod place;
mod request;
mod server;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::moves::MoveRefused;

pub use client::{Client, ClientError};
pub use place::{FindError, Place, PlaceError, find, sweep};
pub(crate) use place::{
    Restorer, holders, is_held, is_in_memory, is_taken, lock_file, own_files, running,
    unfit as unfit_for_places,
};
pub use request::{Request, StopReason};
pub(crate) use server::{IDLE_LIMIT, Office, serve};

/// `godwit.done/1`: the request was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    schema: String,
}

/// `godwit.file/1`: what an agent runs with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningFile {
    schema: String,
    /// The agent's node.
    pub node: String,
    /// Where the file is.
    pub path: PathBuf,
    /// What was in it when it was taken.
    pub text: String,
}

/// `godwit.error/1`: the request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    schema: String,
    /// Why, as a sentence.
    pub error: String,
    /// The stable name of the reason, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl RunningFile {
    fn of(config: &Config) -> Self {
        Self {
            schema: "godwit.file/1".into(),
            node: config.node.name.to_string(),
            path: config.path.clone(),
            text: config.text.to_string(),
        }
    }
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
            reason: None,
        }
    }
}

impl Refusal {
    /// A refusal with the stable name of its reason.
    pub fn because(reason: &str, sentence: impl Into<String>) -> Self {
        Self {
            reason: Some(reason.into()),
            ..Self::new(sentence)
        }
    }
}

impl From<MoveRefused> for Refusal {
    fn from(refused: MoveRefused) -> Self {
        Self::because(refused.reason, refused.sentence)
    }
}
