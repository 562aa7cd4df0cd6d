//! Twins of connections whose servers export their state, kept until somebody is to
//! serve them (ADR 18).
//!
//! A kept twin is a socket of the agent's. What its client says waits in its receive
//! queue, which is the log: the kernel acknowledges what it holds, and offers no more
//! room than there is. With each snapshot from the owner the agent reads what the
//! server had read, throws it away, and writes as many bytes as the server had
//! written; the client has those already, so they go nowhere. The twin then stands
//! where the snapshot was made. Of a commit it writes what the client has not
//! acknowledged as the server did, so that it reaches the client whatever happens. At a
//! takeover it is given to the server here, with that snapshot, as a connection that has
//! moved.
//!
//! | who | what |
//! |---|---|
//! | driver | says what to keep and when to serve |
//! | `gw-keeper` | sockets: accepts, reads, writes, gives |
//! | [`Apps`] | the server processes that connections go to |

mod kept;
mod perch;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use godwit_bpf::{FlowTable, Keepers};
use godwit_core::snapshot::parcel::Parcel;
use godwit_wire::{Endpoint, FlowId, ShareId};

use super::follow::Place;
use crate::apps::Apps;
use crate::config::Config;
use crate::events::EventLog;
use crate::input::Inbox;
use crate::wake::{self, Orders};

pub(super) use kept::{is_origin, origin};
pub(super) use perch::Perches;

use worker::Worker;

/// The way to the thread, if this node has a service whose twins are kept.
#[derive(Debug)]
pub(super) struct Keeper {
    jobs: Orders<Job>,
    thread: JoinHandle<()>,
    ports: Keepers,
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) flows: Arc<FlowTable>,
    pub(super) apps: Apps,
    pub(super) events: EventLog,
    /// To the driver.
    pub(super) inbox: Inbox,
    /// Where the services are.
    pub(super) place: Arc<Place>,
}

/// What the driver wants.
#[derive(Debug)]
enum Job {
    /// A snapshot of a connection, and what its client has not of the output before it.
    Keep(FlowId, Parcel),
    /// A twin is about to be born at that snapshot.
    Bear(FlowId, Parcel),
    /// This node owns the share, or does not.
    Serve(ShareId, bool),
}

impl Keeper {
    pub(super) fn start(perches: Perches, config: &Config, means: Means) -> io::Result<Self> {
        let ports = perches.ports();
        let (jobs, work) = wake::queue()?;
        let worker = Worker::new(perches, shares(config), means);
        let thread = thread::Builder::new()
            .name("gw-keeper".into())
            .spawn(move || worker.run(&work))?;
        Ok(Self {
            jobs,
            thread,
            ports,
        })
    }

    /// Where the data path lets twins be born.
    pub(super) const fn ports(&self) -> Keepers {
        self.ports
    }

    pub(super) fn keep(&self, flow: FlowId, snapshot: Parcel) {
        self.give(Job::Keep(flow, snapshot));
    }

    /// To be called before there is such a twin.
    pub(super) fn bear(&self, flow: FlowId, snapshot: Parcel) {
        self.give(Job::Bear(flow, snapshot));
    }

    pub(super) fn serve(&self, share: ShareId, serves: bool) {
        self.give(Job::Serve(share, serves));
    }

    fn give(&self, job: Job) {
        if self.jobs.give(job).is_err() {
            tracing::error!("the thread that keeps twins has ended");
        }
    }

    /// Waits for the thread's end; what it keeps ends with it.
    pub(super) fn end(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            tracing::error!("the thread that keeps twins has died");
        }
    }
}

/// The shares of this node whose twins are kept, by the services' addresses.
pub(super) fn shares(config: &Config) -> BTreeMap<Endpoint, ShareId> {
    let kept = config.own_shares().filter(|(_, service)| service.is_kept());
    let ends = kept.flat_map(|(share, service)| {
        let ends = service.addresses.iter().copied();
        ends.map(move |at| (Endpoint::from(at), share))
    });
    ends.collect()
}
