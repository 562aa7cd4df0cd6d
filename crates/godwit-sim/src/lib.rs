//! Whole clusters of `godwit-core` on a virtual clock, in which everything goes
//! wrong that can. For development only: no binary depends on it.
//!
//! ```text
//!   clients ══ frames ══ data path ── orders, reports ── agent (a real Node)
//!                 ║      of each node                       │
//!                 ╚═ mirror, twin's ACKs                    ╪ heartbeats, leases,
//!                                                           │ control links
//! ```
//!
//! The nodes are the real ones. Networks, clocks, hosts, kernels, the data path
//! and clients are models; `docs/simulation.md` says how far they go. A history
//! is a function of its seed. What must hold is in `audit.rs`; [`Mutant`]s show
//! that a violation would be seen.
#![forbid(unsafe_code)]

mod agent;
mod audit;
pub mod check;
mod client;
mod clock;
pub mod commits;
mod datapath;
mod facts;
mod fault;
mod flow;
mod history;
mod homes;
mod host;
mod insync;
mod link;
mod moves;
mod mutant;
mod network;
mod orders;
mod out;
mod plan;
mod power;
mod proof;
mod queue;
mod random;
mod rejoin;
pub mod requests;
mod run;
mod singles;
mod tally;
mod world;

pub use fault::FaultKind;
pub use history::{Outcome, run as history};
pub use mutant::Mutant;
pub use out::unheard;
pub use run::{Limits, run};
pub use tally::Tally;
