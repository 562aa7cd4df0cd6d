//! The agent: drives the core, the data path, peers, control socket and metrics.
#![forbid(unsafe_code)]

pub mod clock;
pub mod config;
pub mod control;
pub mod doctor;
pub mod driver;
pub mod edge;
pub mod events;
pub mod flows;
pub mod heartbeat;
pub mod input;
pub mod logging;
pub mod metrics;
pub mod peers;
pub mod pki;
pub mod realtime;
mod run;
pub mod status;
#[cfg(test)]
mod testing;

pub use run::{AgentError, detach, run};

pub use godwit_sock::netns_cookie;
