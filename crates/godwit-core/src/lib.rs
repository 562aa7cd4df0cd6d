//! Decisions of Godwit, sans-IO and deterministic.
//!
//! Nothing here has a clock, a socket, a file, a thread or BPF (a lint
//! enforces it). A driver feeds what happened and carries out what comes back:
//!
//! ```text
//!   heartbeats, messages, flow events, time        actions, events
//!   ───────────────────────────────────────► Node ─────────────────►
//! ```
//!
//! Every machine has the same shape, so that knowing one is knowing all:
//!
//! | family | form | rule |
//! |---|---|---|
//! | create | `new(config, .., now)` | infallible |
//! | input | `handle_<noun>(&mut self, noun, now)` | never blocks, never returns output |
//! | time | `poll_timeout()`, `handle_timeout(now)` | may be called late or twice |
//! | output | `poll_action()`, `poll_event()` | drain to `None` after every input |
//! | look | getters | `&self`, cheap |
//!
//! Start with [`detector`]: it is the smallest whole machine. [`share`] decides
//! which node owns a share, [`lease`] whether it may and until when, [`insync`]
//! which standby holds what clients were told, [`fitness`] what a node can do while
//! something around it is wrong, [`claims`] who else has its addresses, [`flow`] what happens
//! to flows that do not fit, [`rejoin`] how running ones get a new twin, [`twin`] how far twins may be behind, [`snapshot`] what
//! travels to them, [`unlisted`] which nobody has, [`handoff`] how one goes to another server by itself, and [`node`] puts them
//! together. [`request`] is what the data path decides without any of them: where a connection
//! is that goes with its requests. [`director`] is
//! apart from that: it places new connections, on a machine that owns none.
#![forbid(unsafe_code)]

pub mod announce;
pub mod claims;
pub mod detector;
pub mod director;
pub mod fitness;
pub mod flow;
pub mod handoff;
pub mod hearing;
pub mod insync;
pub mod lease;
pub mod node;
pub mod path;
mod peer_id;
pub mod probe;
pub mod question;
pub mod rejoin;
pub mod remembered;
pub mod request;
pub mod share;
pub mod snapshot;
pub mod tags;
mod time;
pub mod twin;
pub mod unlisted;
pub mod whereabouts;

pub use node::{
    Action, Beat, Birth, Command, Difference, EndReason, Event, EventKind, Fencing, Field,
    FlowAction, FlowCheck, FlowEvent, FlowEventKind, FlowPolicy, LeaseAction, LeaseConfig,
    LeaseStatus, Link, Listening, MoveAction, MoveCause, MoveError, MoveWish, Node, NodeConfig,
    PeerAction, PeerConfig, PeerStatus, Power, Proof, Registration, RejoinAction, ServerExit,
    ShareAction, ShareConfig, ShareStatus, Side, SnapshotAction, StonithFault, TwinAction,
    VoterMemory,
};
pub use peer_id::PeerId;
pub use time::MonoTime;
