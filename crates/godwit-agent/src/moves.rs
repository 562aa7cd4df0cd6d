//! `godwit.move/1`: how a planned move ended, as the control socket answers it.
//!
//! The schema is stable: fields may be added, none is renamed or removed.

use serde::{Deserialize, Serialize};

/// The schema's name and version.
pub const SCHEMA: &str = "godwit.move/1";

/// A move that was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MoveReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// The owner that was.
    pub from: String,
    /// The owner that is.
    pub to: String,
    /// The services that moved: the one asked for and all that have an address
    /// in common with it.
    pub services: Vec<String>,
    /// Connections that moved with them.
    pub flows: u64,
    /// From the last segment of the old owner to the claim of the new one, as
    /// the old one saw it, in milliseconds.
    pub silent_ms: f64,
}

/// Why nothing, or not everything, moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveRefused {
    /// The stable name.
    pub reason: &'static str,
    /// A sentence for people.
    pub sentence: String,
}
