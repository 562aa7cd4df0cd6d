//! Carries out what the core decides: the one place where core, data path,
//! peers and people meet.
//!
//! One plain thread owns it all. It waits for input with a deadline, feeds the
//! node, and drains actions and events before it waits again:
//!
//! ```text
//!   Inbox ──► Node::handle_* ──► Node::poll_action ──► data path, wire, peers
//!     ▲                    └───► Node::poll_event  ──► EventLog
//!     └── heartbeats, links, ring buffer, control socket, signals
//! ```
//!
//! | thread | owner of | ends |
//! |---|---|---|
//! | `gw-driver` | this (`turn`), the node, the typed maps | after [`Input::Stop`](crate::input::Input::Stop) |
//! | `gw-events` | the ring buffer's reading end | when the inbox is closed |
//! | `gw-devices` | the programs' places, and this node's on the link (`follow`) | when the inbox is closed, or the data path is taken away |
//! | `gw-census` | counts of busy flows | when the inbox is closed |
//! | `gw-sweep` | looks for flows without a socket | when the inbox is closed |
//! | `gw-standstill` | whether servers are stopped | when the driver ends |
//! | `gw-locals` | ends local clients of services that this node owns no more | when the driver ends |
//! | `gw-unlisted` | looks for sockets without a flow | when the inbox is closed |
//! | `gw-routes` | whether the kernel finds clients | when the inbox is closed |
//! | `gw-offers` | after a takeover: windows of idle twins | when all are told |
//! | `gw-neighbours` | where peers are on the link | when the driver is gone |
//! | `gw-canary` | sockets that other nodes' canaries make here | with the process |
//! | `gw-keeper` | twins that stand still until they are served (`keeper`) | when the driver ends |
//! | `gw-handoff` | sockets that leave and come (`handoff`) | when the driver ends, all jobs done |
//!
//! Nothing here blocks for longer than a map scan.

pub(crate) mod addresses;
mod bereft;
mod births;
mod canary;
mod carry;
mod commits;
mod compare;
mod crowd;
mod detach;
mod devices;
mod digest;
mod dismissal;
mod dying;
mod earlier;
mod exports;
mod fence;
pub(crate) mod follow;
mod freezer;
mod gone;
mod handoff;
mod hearing;
mod install;
mod install_error;
mod keeper;
mod leash;
mod leave;
mod leftover;
mod load;
mod locals;
mod logs;
mod moves;
pub(crate) mod neighbours;
mod offer;
mod other;
mod output;
mod paths;
pub(crate) mod pauses;
mod placing;
mod questions;
mod rejoin;
mod replay;
mod report;
mod resets;
mod revive;
mod ring;
mod routes;
mod segments;
mod servers;
mod shares;
mod stalls;
mod standstill;
mod sweep;
mod tags;
mod turn;
mod twins;
mod unlisted;
mod unreached;

use std::sync::{Arc, Mutex};

use godwit_bpf::{Datapath, Events};
use godwit_core::snapshot::exports::Exports;
use godwit_core::twin::compare::Comparisons;
use godwit_core::{MonoTime, Node, VoterMemory};
use godwit_sock::{FrameSender, Interface, SegmentSender};
use godwit_wire::MacAddr;

use crate::apps::Apps;
use crate::config::Config;
use crate::era::Era;
use crate::events::EventLog;
use crate::heartbeat::{LeaseSender, ShareBoard};
use crate::input::{Inbox, Inputs};
use crate::metrics::Metrics;
use crate::peers::{Identity, PeerSender};
use crate::places::Places;
use crate::stonith::Stonith;
use crate::surroundings::FactBoard;
use crate::tagging::Tagging;

pub use detach::DetachError;
pub use earlier::EarlierError;
pub use gone::GoneError;
pub use install::{Installed, Remains, pin_name};
pub use install_error::InstallError;
pub use leave::End;
pub use leftover::LeftoverError;
pub(crate) use leftover::detach_node as detach_other;

use births::AwaitedTwins;
use canary::{Canaries, Origins};
use commits::Commits;
use digest::Digest;
use dismissal::Dismissals;
use follow::{Follow, Place};
pub use handoff::{FlowWish, HandoffStartError};
use handoff::{Handoffs, Wishes};
use keeper::Keeper;
use load::Loads;
use locals::Locals;
use moves::Moves;
pub use moves::Wish;
use neighbours::Resolver;
use placing::Placing;
use questions::Questions;
use rejoin::Rejoins;
use replay::Replays;
use servers::Servers;
use shares::Shares;
use standstill::Standstill;
use twins::Farewells;

/// What the driver needs besides what [`Installed`] has.
#[derive(Debug)]
pub struct Surroundings {
    /// Where input comes from.
    pub inputs: Inputs,
    /// The same queue's writing end, for the ring buffer's thread.
    pub inbox: Inbox,
    /// The way to peers.
    pub peers: PeerSender,
    /// Where they have said that they are.
    pub(crate) places: Places,
    /// What heartbeats say.
    pub board: ShareBoard,
    /// The way to voters.
    pub leases: LeaseSender,
    /// What people hear of.
    pub events: EventLog,
    /// What machines read.
    pub metrics: Metrics,
    /// The way to other nodes' power switches.
    pub stonith: Stonith,
    /// The server processes that let go of connections, and take them.
    pub apps: Apps,
    /// What an earlier life in this process has voted for.
    pub memory: Option<VoterMemory>,
}

impl Surroundings {
    /// What a search for peers goes by, and whom it tells.
    fn ears(&self) -> (Places, Inbox) {
        (self.places.clone(), self.inbox.clone())
    }
}

/// The running driver.
#[derive(Debug)]
pub struct Driver {
    config: Arc<Config>,
    node: Node,
    incarnation: u64,
    era: Era,
    started: MonoTime,
    datapath: Datapath,
    /// Where this node is on the link now.
    stand: Arc<Place>,
    /// The service interface, as it was found at start.
    interface: Interface,
    /// The ring buffer's reading end, of which a thread has a share.
    records: Arc<Mutex<Events>>,
    /// The changed file, and its identity if this process goes on with it.
    next: Option<(Arc<Config>, Option<Identity>)>,
    shares: Shares,
    placing: Placing,
    questions: Questions,
    tagging: Tagging,
    loads: Loads,
    /// Processes of this machine that are clients of its services.
    locals: Locals,
    resolver: Resolver,
    /// Follows the service interface.
    follow: Follow,
    /// Of the service interface.
    ifindex: u32,
    /// Of the service interface.
    mac: MacAddr,
    /// Segments to clients; the kernel routes them.
    segments: SegmentSender,
    /// Frames to the standby and to the whole link.
    frames: FrameSender,
    /// Frames to our own kernel, turned round by the gate.
    injected: Arc<FrameSender>,
    /// As `injected`, for twins of flows that run already.
    replayed: Arc<FrameSender>,
    /// Canaries, to our own tap.
    canary_frames: FrameSender,
    origins: Origins,
    canaries: Canaries,
    /// Answers to our own questions, turned round by the gate.
    settled: FrameSender,
    rejoins: Rejoins,
    replays: Replays,
    digest: Digest,
    comparisons: Comparisons,
    farewells: Farewells,
    dismissals: Dismissals,
    servers: Servers,
    /// Which of them are stopped.
    standstill: Standstill,
    moves: Moves,
    /// Flows of which the kernel is asked soon whether they have sockets.
    doubts: Arc<sweep::Doubts>,
    /// Connections that go to other servers one by one; `None` if no service of
    /// this node has such.
    handoffs: Option<Handoffs>,
    wishes: Wishes,
    /// Twins that stand still until they are served; `None` if no service of this
    /// node has such.
    keeper: Option<Keeper>,
    exports: Exports,
    awaited_twins: AwaitedTwins,
    commits: Commits,
    apps: Apps,
    peers: PeerSender,
    board: ShareBoard,
    facts: FactBoard,
    leases: LeaseSender,
    /// The way to other nodes' power switches.
    stonith: Stonith,
    events: EventLog,
    metrics: Metrics,
    housekeeping: MonoTime,
    /// Whether this is the end before a restart.
    restarts: bool,
}
