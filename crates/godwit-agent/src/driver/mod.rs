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
//! | `gw-driver` | this, the node, the typed maps | after [`Input::Stop`] |
//! | `gw-events` | the ring buffer's reading end | when the inbox is closed |
//! | `gw-devices` | a netlink socket that hears of interfaces | when the inbox is closed |
//! | `gw-census` | counts of busy flows | when the inbox is closed |
//! | `gw-neighbours` | where peers are on the link | when the driver is gone |
//!
//! Nothing here blocks for longer than a map scan.

mod addresses;
mod carry;
mod detach;
mod devices;
mod digest;
mod install;
mod leash;
mod neighbours;
mod report;
mod revive;
mod segments;
mod shares;
mod twins;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use godwit_bpf::{Datapath, Events, RawEvent};
use godwit_core::{Command, FlowEvent, FlowEventKind, MonoTime, Node};
use godwit_sock::{FrameSender, SegmentSender};
use godwit_wire::{GoodbyeReason, MacAddr};
use tokio::sync::oneshot;

use crate::clock;
use crate::config::Config;
use crate::events::EventLog;
use crate::heartbeat::ShareBoard;
use crate::input::{Inbox, Input, Query};
use crate::metrics::Metrics;
use crate::peers::PeerSender;

pub use detach::DetachError;
pub use install::{InstallError, Installed, pin_name};

use digest::Digest;
use neighbours::Resolver;
use shares::Shares;
use twins::Farewells;

/// How often interfaces are looked at whose coming was not heard.
const HOUSEKEEPING: Duration = Duration::from_secs(10);

/// Inputs that are fed before the clock is looked at: about a millisecond.
const BATCH: usize = 256;

/// How often flows without a socket are looked for.
const SWEEP: Duration = Duration::from_secs(120);

/// What the driver needs besides what [`Installed`] has.
#[derive(Debug)]
pub struct Surroundings {
    /// Where input comes from.
    pub inputs: Receiver<Input>,
    /// The same queue's writing end, for the ring buffer's thread.
    pub inbox: Inbox,
    /// The way to peers.
    pub peers: PeerSender,
    /// What heartbeats say.
    pub board: ShareBoard,
    /// What people hear of.
    pub events: EventLog,
    /// What machines read.
    pub metrics: Metrics,
}

/// The running driver.
#[derive(Debug)]
pub struct Driver {
    config: Arc<Config>,
    node: Node,
    incarnation: u64,
    started: MonoTime,
    datapath: Datapath,
    shares: Shares,
    resolver: Resolver,
    /// Of the service interface.
    ifindex: u32,
    /// Of the service interface.
    mac: MacAddr,
    /// Segments to clients; the kernel routes them.
    segments: SegmentSender,
    /// Frames to the standby and to the whole link.
    frames: FrameSender,
    /// Frames to our own kernel, turned round by the gate.
    injected: FrameSender,
    digest: Digest,
    farewells: Farewells,
    peers: PeerSender,
    board: ShareBoard,
    events: EventLog,
    metrics: Metrics,
    housekeeping: MonoTime,
    next_sweep: MonoTime,
}

/// How the driver came to its end.
#[derive(Debug)]
enum Next {
    Continue,
    Stop(GoodbyeReason, Option<oneshot::Sender<()>>),
}

impl Driver {
    /// Runs until it is told to stop.
    pub fn run(mut self, inputs: &Receiver<Input>) {
        self.drain();
        loop {
            let next = self.step(inputs);
            self.drain();
            if let Next::Stop(reason, done) = next {
                self.quit(reason);
                if let Some(done) = done {
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
                return;
            }
        }
    }

    /// What is queued first, then time: a heartbeat that has arrived must not
    /// be judged as missing. A steady stream of input can't stop the clock.
    fn step(&mut self, inputs: &Receiver<Input>) -> Next {
        let mut waited = inputs.recv_timeout(self.patience());
        for _ in 0..BATCH {
            match waited {
                Ok(input) => {
                    if let stop @ Next::Stop(..) = self.feed(input) {
                        return stop;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    return Next::Stop(GoodbyeReason::Shutdown, None);
                }
            }
            self.drain();
            waited = inputs.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        let now = clock::now();
        if self.node.poll_timeout().is_some_and(|due| due <= now) {
            self.node.handle_timeout(now);
        }
        self.tick(now);
        Next::Continue
    }

    fn patience(&self) -> Duration {
        let now = clock::now();
        let core = self
            .node
            .poll_timeout()
            .map_or(HOUSEKEEPING, |due| due.since(now));
        core.min(self.digest.due().since(now))
            .min(self.housekeeping.since(now))
    }

    fn feed(&mut self, input: Input) -> Next {
        let now = clock::now();
        match input {
            Input::Heartbeat { peer, beat, at } => self.node.handle_heartbeat(peer, &beat, at),
            Input::Message { peer, message } => self.node.handle_message(peer, &message, now),
            Input::Link { peer, link } => {
                // What was under way on the old link is lost.
                self.digest.forget();
                self.resolver.hurry();
                self.node.handle_link(peer, link, now);
            }
            Input::Flow(event) => self.feed_flow(event, now),
            Input::Neighbour { peer, mac } => self.find_peer(peer, mac),
            Input::Census(census) => self.apply_census(&census),
            Input::Devices => self.guard_others(),
            Input::Query(Query::Status(answer)) => self.answer_status(answer, now),
            Input::Query(Query::Flows(answer)) => self.answer_flows(answer, now),
            Input::Stop { reason, done } => return Next::Stop(reason, done),
        }
        Next::Continue
    }

    fn feed_flow(&mut self, event: FlowEvent, now: MonoTime) {
        if event.kind == FlowEventKind::Ended {
            self.digest.note_end(event);
        }
        self.node.handle_flow_event(event, now);
    }

    /// What is due by the clock and is none of the core's business.
    fn tick(&mut self, now: MonoTime) {
        if self.digest.due() <= now {
            for (share, changes) in self.digest.collect(&self.datapath, &self.shares, now) {
                self.node.handle_changes(share, &changes, now);
            }
            for event in self.digest.overdue() {
                tracing::warn!(flow = %event.flow.key, kind = ?event.kind, "a report of the data path was lost");
                self.node.handle_flow_event(event, now);
            }
        }
        self.farewells.carry_out(&self.datapath, now);
        if self.housekeeping <= now {
            self.housekeeping = now.saturating_add(HOUSEKEEPING);
            if self.next_sweep <= now {
                self.next_sweep = now.saturating_add(SWEEP);
                self.sweep(now);
            }
            self.guard_others();
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.node.poll_action() {
            self.carry_out(action);
        }
        while let Some(event) = self.node.poll_event() {
            self.note_takeover(&event);
            self.events.publish(&event);
        }
        self.board.post(self.node.share_claims().collect());
    }

    fn quit(mut self, reason: GoodbyeReason) {
        self.node
            .handle_command(Command::Goodbye(reason), clock::now());
        self.drain();
        if reason == GoodbyeReason::Detach
            && let Err(error) = detach::detach(&self.config, self.ifindex, self.datapath)
        {
            tracing::error!(error = %error, "not everything could be detached");
        }
    }
}

/// Reads the ring buffer until the driver is gone.
fn forward_events(events: &Events, inbox: &Inbox) {
    loop {
        for raw in events.wait(Duration::from_millis(200)) {
            let Some(event) = flow_event(raw) else {
                continue;
            };
            if inbox.send(Input::Flow(event)).is_err() {
                return;
            }
        }
    }
}

/// A kind that this version does not know comes from a later data path.
fn flow_event(raw: RawEvent) -> Option<FlowEvent> {
    let kind = FlowEventKind::try_from(raw.kind).ok()?;
    Some(FlowEvent {
        share: raw.share,
        flow: raw.flow,
        generation: raw.generation,
        kind,
    })
}

fn spawn_event_reader(events: Events, inbox: Inbox) -> std::io::Result<()> {
    thread::Builder::new()
        .name("gw-events".into())
        .spawn(move || forward_events(&events, &inbox))
        .map(drop)
}
