//! The agent: drives the core, the data path, peers, control socket and metrics.
#![forbid(unsafe_code)]

mod added;
mod agent_error;
pub mod apps;
mod births;
mod bucket;
mod bystander;
pub mod clock;
pub mod config;
pub mod control;
mod costs_error;
mod custody;
mod departure;
mod descriptors;
pub mod directed;
pub mod director;
pub mod doctor;
pub mod driver;
pub mod edge;
mod era;
pub mod events;
pub mod facts;
mod files;
pub mod flows;
pub mod heartbeat;
pub mod input;
mod locks;
pub mod logging;
mod machine_error;
mod membership;
pub mod metrics;
pub mod moves;
pub mod peers;
mod places;
mod privileges;
mod probes;
pub mod realtime;
pub mod reload;
mod reprotect;
mod run;
mod segment_costs;
pub mod status;
pub mod stonith;
pub mod surroundings;
mod syscalls;
mod tagging;
#[cfg(test)]
mod testing;
mod undo;
mod votes;
pub mod wake;
mod witness;

pub use agent_error::{AgentError, GIVEN_UP};
pub use costs_error::CostsError;
pub use custody::Changeable;
pub use departure::{attached, leave};
pub use director::direct;
pub use machine_error::MachineError;
pub use membership::Life;
pub use privileges::PrivilegeError;
pub use run::{detach, detach_node, left_behind, left_behind_by, run};
pub use segment_costs::{SegmentCosts, segment_costs};
pub use witness::witness;

pub use godwit_bpf::{VERSION, Whose};
pub use godwit_sock::netns_cookie;
