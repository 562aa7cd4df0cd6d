//! Clusters in network namespaces: for the demo, the tests and the benchmarks.
//!
//! A [`Lab`] is a client, two servers and a switch, each in a network
//! namespace of its own, with real ARP and neighbour discovery. On top of it:
//! [`links`] shapes, delays, thins and cuts; [`apps`] runs unmodified nginx,
//! Apache, redis and curl and a deterministic server of our own; [`capture`] counts
//! what a client could have noticed; [`cluster`] runs Godwit on both servers;
//! [`control`] is the same crash without Godwit; [`demo`] shows both.
//!
//! ```text
//!   client ──┐                      10.9.0.0/24, 2001:db8:9::/64  (eth0)
//!        a ──┼── switch (bridge)    service 10.9.0.100, 2001:db8:9::100
//!        b ──┘
//!    a ── switch (2nd bridge) ── b  10.9.1.0/24                   (eth1)
//! ```
//!
//! Everything needs root and nothing touches the host's own network. A lab
//! removes what it made when it is dropped, when a test panics and when its
//! process is killed (see [`lab`]).
//!
//! This crate is a harness: its errors are read by people and never matched,
//! so they are [`anyhow::Error`] with the object named in the context.
#![forbid(unsafe_code)]

pub mod apps;
pub mod bench;
pub mod capture;
mod cgroup;
pub mod chaos;
pub mod cli;
pub mod cluster;
pub mod control;
pub mod demo;
pub mod freezer;
pub mod host;
pub mod lab;
pub mod limits;
pub mod links;
pub mod machine;
pub mod meter;
pub mod netns;
mod out;
mod packet;
pub mod ping;
pub mod process;
mod tool;
mod unknown;
pub mod volume;

pub use host::{Host, Network};
pub use lab::{Lab, LabOptions, Node, SWITCH_VARIABLE, Switch};
pub use machine::Machine;
pub use process::{Output, Process, SAME_CAUSE};
pub use unknown::Unknown;
