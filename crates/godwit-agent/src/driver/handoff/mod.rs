//! Connections that go to another server one by one: what the driver does itself,
//! and what it leaves to a thread.
//!
//! | who | what |
//! |---|---|
//! | core (`godwit-core/handoff`) | where a connection is, and what follows |
//! | this | writes that down before anything is said or done; answers commands |
//! | `worker`, on `gw-handoff` | sockets (`departing`, `leaving`, `arriving`; of servers that know nothing of Godwit `unread`, `queued`, `newborn`), held packets (`waiting`, `returning`), where the data path sends (`places`) |
//! | [`Apps`] | the server processes that sockets come from and go to |

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use godwit_bpf::{FlowTable, KernelView};
use godwit_core::handoff::Written;
use godwit_sock::HoldTun;
use godwit_wire::{FlowId, ShareId};

use super::follow::Place as Stand;
use crate::apps::Apps;
use crate::clock;
use crate::config::Config;
use crate::events::EventLog;
use crate::input::Inbox;
use crate::peers::PeerSender;
use crate::wake::{self, Orders};

mod arriving;
mod asked;
mod debts;
mod departing;
mod error;
mod forwarding;
mod kernel;
mod leaving;
mod newborn;
mod orders;
mod places;
mod queued;
mod returning;
mod terms;
mod unread;
mod waiting;
mod wishes;
mod words;
mod worker;

pub use error::HandoffStartError;
pub(super) use newborn::Newborns;

use arriving::Arriving;
use debts::Debts;
use kernel::Kernel;
use leaving::Leaving;
use places::Places;
use terms::{Terms, shares};
use waiting::Waiting;
use wishes::Wishes;
use words::Speech;
use worker::{Job, Worker};

/// What is made while the agent may still make it.
#[derive(Debug)]
pub(super) struct Kit {
    view: KernelView,
    waiting: Waiting,
}

/// The hand for all of that.
#[derive(Debug)]
pub(super) struct Handoffs {
    /// `None` if no service of this node has connections that move.
    way: Option<Way>,
    wishes: Wishes,
}

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Way {
    places: Places,
    jobs: Orders<(ShareId, Job)>,
    thread: JoinHandle<Kit>,
}

/// What the thread needs of the agent.
pub(super) struct Means {
    pub(super) apps: Apps,
    pub(super) peers: PeerSender,
    pub(super) inbox: Inbox,
    pub(super) events: EventLog,
    pub(super) stand: Arc<Stand>,
    pub(super) flows: Arc<FlowTable>,
    pub(super) newborns: Newborns,
}

impl Kit {
    /// `None` if no service of this node needs it.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, HandoffStartError> {
        if !config.own_shares().any(|(_, service)| service.moves()) {
            return Ok(None);
        }
        // A name of its own for each agent of a namespace, of at most 15 bytes.
        let name = format!("gwhold{}", std::process::id());
        let tun = HoldTun::open(&name).map_err(HandoffStartError::Tun)?;
        Ok(Some(Self {
            view: KernelView::open()?,
            waiting: Waiting::new(tun),
        }))
    }

    pub(super) fn start(
        self,
        config: &Config,
        table: Arc<godwit_bpf::HandoffTable>,
        means: Means,
    ) -> io::Result<Way> {
        let places = Places::new(table);
        let (jobs, work) = wake::queue()?;
        let worker = Worker {
            places: places.clone(),
            waiting: self.waiting,
            apps: means.apps,
            kernel: Kernel::open(self.view, means.flows, means.stand)?,
            speech: Speech::new(means.inbox, means.peers, means.events),
            terms: Terms::new(config),
            leaving: Leaving::new(work.wake()),
            arriving: Arriving::new(means.newborns),
            returned: Vec::new(),
            debts: Debts::new(clock::now()),
            queued: BTreeMap::new(),
            swept: clock::now(),
        };
        let thread = thread::Builder::new()
            .name("gw-handoff".into())
            .spawn(move || worker.run(&work))?;
        Ok(Way {
            places,
            jobs,
            thread,
        })
    }
}

impl Handoffs {
    pub(super) fn new(way: Option<Way>) -> Self {
        Self {
            way,
            wishes: Wishes::default(),
        }
    }
}

impl Way {
    fn give(&self, share: ShareId, job: Job) {
        if self.jobs.give((share, job)).is_err() {
            tracing::error!("the thread that moves connections has ended");
        }
    }

    fn note(&self, flow: FlowId, written: Option<&Written>) -> bool {
        let noted = written.map_or(Ok(()), |written| self.places.note(flow, written));
        if let Err(error) = &noted {
            tracing::error!(flow = %flow.key, error = %error, "not written down");
        }
        noted.is_ok()
    }

    /// Waits until all that was ordered is done.
    fn end(self) -> Option<Kit> {
        drop(self.jobs);
        let kit = self.thread.join();
        if kit.is_err() {
            tracing::error!("the thread that moves connections has died");
        }
        kit.ok()
    }
}
