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
//! It is a server of hands. Each concern is a value of its own, or functions, in a file or
//! folder: `requests`, `canary`, `moves`, `snapshots`, `revive` and so on. A hand is lent the
//! [`ground`], on which all of them stand, and knows neither the driver nor another hand that
//! is not lent to it. What needs all of them is a method of [`Driver`]: `turn` feeds, looks at
//! the clock, and has the order of the end, `carry` hands out the core's actions, `report`
//! looks at everything, `install` begins it.
//!
//! The threads that it has, and what each may wait for, are in `docs/threads.md`.
//!
//! Nothing here blocks for longer than a map scan.

pub(crate) mod addresses;
mod bereft;
mod canary;
mod carry;
mod compare;
mod crowd;
mod detach;
mod devices;
mod digest;
mod dismissal;
mod doubters;
mod doubts;
mod dying;
mod earlier;
mod fence;
mod flow_feed;
pub(crate) mod follow;
mod freezer;
mod gone;
mod ground;
mod handoff;
mod hearing;
mod install;
mod install_error;
mod keeper;
mod leash;
mod leave;
mod leftover;
mod locals;
mod logs;
mod moves;
pub(crate) mod neighbours;
mod offer;
mod other;
mod output;
pub(crate) mod pauses;
mod pins;
mod registration;
mod rejoin;
mod replay;
mod report;
mod requests;
mod resets;
mod revive;
mod ring;
mod routes;
mod segments;
mod servers;
mod shares;
mod snapshots;
mod standstill;
mod sweep;
mod turn;
mod twins;
mod unlisted;
mod unreached;
mod voice;

use std::sync::{Arc, Mutex};

use godwit_bpf::Events;
use godwit_core::VoterMemory;
use godwit_sock::Interface;

use crate::apps::Apps;
use crate::era::Era;
use crate::events::EventLog;
use crate::heartbeat::{LeaseSender, ShareBoard};
use crate::input::{Inbox, Inputs};
use crate::metrics::Metrics;
use crate::peers::PeerSender;
use crate::places::Places;
use crate::stonith::Stonith;
use crate::surroundings::FactBoard;

pub use detach::DetachError;
pub use earlier::EarlierError;
pub use gone::GoneError;
pub use install::{Installed, Remains};
pub use install_error::InstallError;
pub use leave::End;
pub use leftover::LeftoverError;
pub(crate) use leftover::detach_node as detach_other;
pub use pins::pin_name;

use canary::{Canaries, Origins};
use digest::Digest;
use dismissal::Dismissals;
use follow::{Follow, Place};
use ground::Ground;
pub use handoff::HandoffStartError;
use handoff::Handoffs;
use leave::Ending;
use locals::Locals;
use moves::Moves;
use rejoin::Rejoins;
use requests::Requests;
use servers::Servers;
use snapshots::Snapshots;
use standstill::Standstill;
use sweep::Sweep;
use twins::Twins;

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

/// What is said and heard of this node beside its connections.
#[derive(Debug)]
struct Outside {
    board: ShareBoard,
    facts: FactBoard,
    leases: LeaseSender,
    /// The way to other nodes' power switches.
    stonith: Stonith,
    metrics: Metrics,
}

/// What the next driver of this process goes on with, see [`Remains`].
#[derive(Debug)]
struct Lasting {
    /// Where this node is on the link now.
    stand: Arc<Place>,
    /// The service interface, as it was found at start.
    interface: Interface,
    /// The ring buffer's reading end, of which a thread has a share.
    records: Arc<Mutex<Events>>,
    origins: Origins,
    /// Follows the service interface.
    follow: Follow,
}

/// The running driver.
#[derive(Debug)]
pub struct Driver {
    ground: Ground,
    incarnation: u64,
    era: Era,
    lasting: Lasting,
    outside: Outside,
    ending: Ending,
    requests: Requests,
    digest: Digest,
    /// Those of this node while they are silent.
    twins: Twins,
    rejoins: Rejoins,
    snapshots: Snapshots,
    /// Processes of this machine that are clients of its services.
    locals: Locals,
    canaries: Canaries,
    dismissals: Dismissals,
    servers: Servers,
    /// Which of them are stopped.
    standstill: Standstill,
    moves: Moves,
    sweep: Sweep,
    /// Connections that go to other servers one by one.
    handoffs: Handoffs,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    fn files_of_driver(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("it is a folder") {
            let path = entry.expect("it is listed").path();
            if path.is_dir() {
                files_of_driver(&path, found);
                continue;
            }
            let text = fs::read_to_string(&path).expect("it is text");
            if text.lines().any(|line| line.starts_with("impl Driver ")) {
                let name = path.file_name().expect("it is a file");
                found.push(name.to_string_lossy().into_owned());
            }
        }
    }

    /// Everything else is a hand's.
    #[test]
    fn few_files_have_methods_of_the_driver() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/driver");
        let mut found = Vec::new();
        files_of_driver(&source, &mut found);
        found.sort();
        assert_eq!(found, ["carry.rs", "install.rs", "report.rs", "turn.rs"]);
    }
}
