//! The agent: drives the core, the data path, peers, control socket and metrics.
#![forbid(unsafe_code)]

pub mod config;
