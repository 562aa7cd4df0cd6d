//! Everything of the agent that talks to the world, around the driver.
//!
//! Its threads are `gw-edge`, which is one asynchronous runtime, and those of the heartbeats;
//! the driver has the caller's (`docs/threads.md`).
//!
//! Start order: [`Prepared::load`] reads the configuration and certificates
//! and takes the control socket's place and all addresses, before anything is changed anywhere;
//! then the driver opens the data path; then [`Edge::start`] lets the world in.

mod error;
mod prepare;
mod sockets;
#[cfg(test)]
mod tests;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use godwit_wire::GoodbyeReason;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::config::Config;
use crate::control::{self, Office, Place, Restorer};
use crate::events::EventLog;
use crate::heartbeat::{HeartbeatCounters, HeartbeatKeys, Heartbeats, LeaseSender, ShareBoard};
use crate::input::{Inbox, Input};
use crate::logging;
use crate::metrics::{self, Exporter, Metrics, Sources};
use crate::peers::{self, Identity, PeerSender};
use crate::places::Places;
use crate::realtime::{Urgency, prefer};
use crate::reload::{Reloads, kept};
use crate::surroundings;
use crate::votes::{VoteBook, VoteWatch, Votes};

pub use error::StartError;
pub(crate) use prepare::Left;
pub use prepare::Prepared;
use sockets::{Sockets, cant_listen};

/// How long the last words may take: a goodbye to each peer, an answer to a client.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The running edge.
#[derive(Debug)]
pub struct Edge {
    /// Sends messages to peers.
    pub peers: PeerSender,
    /// Where they have said that they are.
    pub(crate) places: Places,
    /// Takes what heartbeats say of the shares.
    pub board: ShareBoard,
    /// Takes events.
    pub events: EventLog,
    /// Takes stalls.
    pub metrics: Metrics,
    /// Counts of heartbeats.
    pub heartbeats: Arc<HeartbeatCounters>,
    threads: Threads,
}

#[derive(Debug)]
struct Threads {
    heartbeats: Heartbeats,
    edge: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    identity: Identity,
    incarnation: u64,
    // Given up last: until then no second agent starts.
    place: Place,
    /// Kept for another life.
    sockets: Sockets,
}

impl Edge {
    /// Lets the world in: from here on inputs arrive in `inbox`. Gives the way to voters
    /// besides, which one thread has.
    ///
    /// # Errors
    /// If an address is taken or a thread can't be started.
    pub fn start(prepared: Prepared, inbox: Inbox) -> Result<(Self, LeaseSender), StartError> {
        let Prepared {
            config,
            life,
            identity,
            events,
            place,
            sockets,
            votes,
            waits,
        } = prepared;
        let own = sockets.for_a_life().map_err(StartError::Thread)?;
        let keys = Arc::new(HeartbeatKeys::new(&config, &life.secret, life.incarnation));
        for warning in &config.warnings {
            events.publish_own("config_warning", true, [("text", warning.as_str())]);
        }
        let metrics = Metrics::default();
        let watched = (identity.clone(), VoteWatch::new(votes.place()));
        let places = Places::default();
        surroundings::spawn(&config, watched, (places.clone(), inbox.clone()))
            .map_err(StartError::Thread)?;
        let means = (keys.clone(), inbox.clone());
        let heartbeats = Heartbeats::start(&config, life.incarnation, means, own.heartbeats)
            .map_err(StartError::Thread)?;
        let named = identity.clone();
        let tasks = Tasks {
            identity,
            keys,
            events: events.clone(),
            metrics: metrics.clone(),
            heartbeats: heartbeats.counters(),
            place: place.restorer(),
            listeners: (own.links, own.metrics),
            config: config.clone(),
            waits,
            inbox,
        };
        // Of a life before in this process.
        tasks.remove_socket();
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = mpsc::channel();
        let edge = thread::Builder::new()
            .name("gw-edge".into())
            .spawn(move || {
                prefer("gw-edge", Urgency::Words);
                tasks.run(&ready, stopped);
            })
            .map_err(StartError::Thread)?;
        let gone = || StartError::Thread(io::ErrorKind::BrokenPipe.into());
        let peers = started.recv().map_err(|_| gone())??;
        // From here on signals end it in order, and nothing was voted for before.
        let leases = heartbeats.leases(begin(&votes, &config)?);
        let started = Self {
            peers,
            places,
            board: heartbeats.board(),
            events,
            metrics,
            heartbeats: heartbeats.counters(),
            threads: Threads {
                heartbeats,
                edge,
                stop,
                identity: named,
                incarnation: life.incarnation,
                place,
                sockets,
            },
        };
        Ok((started, leases))
    }

    /// The same at a start that fails: no other life follows.
    pub(crate) fn stop(self) {
        let _ = self.shutdown();
    }

    /// Says what is queued, then ends all threads. Call it after the driver's end. No
    /// second agent starts as long as the place is kept.
    pub(crate) fn shutdown(self) -> Left {
        let Threads {
            heartbeats,
            edge,
            stop,
            identity,
            incarnation,
            place,
            sockets,
        } = self.threads;
        // Silence before the goodbye is acted upon would look like a failure.
        self.peers.close();
        // The edge may have ended by itself; then there is nothing to wait for.
        let _ = stop.send(());
        let _ = edge.join();
        drop(heartbeats);
        Left {
            place,
            sockets,
            events: self.events,
            identity,
            incarnation,
            votes: None,
        }
    }
}

/// From here on this agent votes, and its file is in force.
fn begin(votes: &Votes, config: &Config) -> Result<VoteBook, StartError> {
    let book = votes.begin().map_err(|source| StartError::Kernel {
        what: "can't write into the runtime directory",
        source,
    })?;
    kept::keep(config);
    Ok(book)
}

/// What the edge's thread starts from.
struct Tasks {
    config: Arc<Config>,
    /// The file that it was started with, if that may not be in force yet.
    waits: Option<Arc<Config>>,
    identity: Identity,
    keys: Arc<HeartbeatKeys>,
    inbox: Inbox,
    events: EventLog,
    metrics: Metrics,
    heartbeats: Arc<HeartbeatCounters>,
    place: Restorer,
    /// For links, and for scrapers.
    listeners: (TcpListener, Option<TcpListener>),
}

type Ready = mpsc::Sender<Result<PeerSender, StartError>>;

impl Tasks {
    fn remove_socket(&self) {
        // Not there is as good as removed; anything else shows at bind.
        let _ = std::fs::remove_file(self.place.socket());
    }

    fn run(self, ready: &Ready, stopped: oneshot::Receiver<()>) {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = ready.send(Err(StartError::Thread(error)));
                return;
            }
        };
        runtime.block_on(async {
            let busy = Arc::new(AtomicUsize::new(0));
            match self.start(busy.clone()) {
                Ok(peers) => {
                    // The starter waits for this, so it is there.
                    let _ = ready.send(Ok(peers.clone()));
                    let _ = stopped.await;
                    last_words(&peers, &busy).await;
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        });
    }

    fn start(self, busy: Arc<AtomicUsize>) -> Result<PeerSender, StartError> {
        let config = &self.config;
        let (links, metrics) = self.listeners;
        let exporter = metrics.map(Exporter::new).transpose();
        let exporter = exporter.map_err(StartError::Thread)?;
        let signals = Signals::new().map_err(StartError::Thread)?;
        let reloads = Reloads::new(config.clone(), self.inbox.clone());
        let office = Office {
            node: config.node.name.to_string(),
            config: config.clone(),
            reloads: reloads.clone(),
            inbox: self.inbox.clone(),
            events: self.events.clone(),
            busy,
            idle_limit: control::IDLE_LIMIT,
        };
        let socket = self.place.socket();
        let cant = |source| cant_listen(socket.display(), "control socket", source);
        control::serve(self.place, office).map_err(cant)?;
        let means = peers::Means {
            identity: self.identity,
            keys: self.keys,
            inbox: self.inbox.clone(),
            events: self.events.clone(),
        };
        let peers = peers::start(config, means, links).map_err(StartError::Thread)?;
        if let Some(next) = self.waits {
            tokio::spawn(reloads.clone().catch_up(next));
        }
        tokio::spawn(obey(signals, reloads, self.inbox.clone()));
        if let Some(exporter) = exporter {
            let sources = Sources {
                inbox: self.inbox,
                metrics: self.metrics,
                events: self.events,
                heartbeats: self.heartbeats,
                unlinked: peers.unlinked(),
            };
            tokio::spawn(metrics::serve(exporter, sources));
        }
        Ok(peers)
    }
}

/// Waits until every link and client has got what was meant for it.
async fn last_words(peers: &PeerSender, busy: &AtomicUsize) {
    let deadline = Instant::now() + LAST_WORDS;
    while (peers.has_links() || busy.load(Ordering::Relaxed) > 0) && Instant::now() < deadline {
        sleep(Duration::from_millis(2)).await;
    }
}

/// The signals that end an agent.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
}

/// What a signal wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    End(GoodbyeReason),
    Reload,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// What the next one means: SIGQUIT is for good (`systemctl stop`), the
    /// others come before a restart.
    async fn next(&mut self) -> Wanted {
        tokio::select! {
            _ = self.terminate.recv() => Wanted::End(GoodbyeReason::Restart),
            _ = self.interrupt.recv() => Wanted::End(GoodbyeReason::Restart),
            _ = self.quit.recv() => Wanted::End(GoodbyeReason::Shutdown),
            _ = self.hangup.recv() => Wanted::Reload,
        }
    }
}

async fn reload(reloads: Reloads) {
    match reloads.take().await {
        Ok(()) => tracing::info!("the changed file is taken"),
        Err(sentence) => tracing::error!("not reloaded: {sentence}"),
    }
}

/// The first signal asks the driver to end. The second one does not wait.
async fn obey(mut signals: Signals, reloads: Reloads, inbox: Inbox) {
    let reason = loop {
        match signals.next().await {
            Wanted::End(reason) => break reason,
            // Files may be long in coming; the end need not wait for them.
            Wanted::Reload => _ = tokio::spawn(reload(reloads.clone())),
        }
    };
    tracing::info!(%reason, "told to end");
    if reason == GoodbyeReason::Restart {
        reloads.foretell().await;
    }
    if inbox.send(Input::Stop { reason, done: None }).is_err() {
        return;
    }
    while signals.next().await == Wanted::Reload {}
    tracing::warn!("told again; ending at once");
    logging::flush();
    std::process::exit(1);
}
