//! A vote without a server: what makes two servers three voters.
//!
//! A witness has no data path and owns nothing. It hears the others, as an agent
//! does, and accepts or refuses leases.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use godwit_core::{Command, MonoTime, Node, PeerId};
use godwit_wire::GoodbyeReason;

use crate::agent_error::AgentError;
use crate::bystander::Bystander;
use crate::clock;
use crate::config::{Config, PeerRole};
use crate::edge::{Edge, Left, Prepared, StartError};
use crate::era::Era;
use crate::flows::Flows;
use crate::input::{Inbox, Input, Inputs, Query};
use crate::logging;
use crate::membership::{self, node_config};
use crate::moves::MoveRefused;
use crate::privileges;
use crate::realtime::{Urgency, be_ordinary, prefer};
use crate::reload::Fresh;
use crate::status::{PeerReport, Status};
use crate::surroundings::FactBoard;

/// Longest wait; nothing depends on it.
const IDLE: Duration = Duration::from_secs(1);

/// Runs a witness until a signal or a command ends it.
///
/// # Errors
/// If it can't start.
pub fn witness(config: &Path) -> Result<(), AgentError> {
    let mut prepared = Prepared::load(config, PeerRole::Witness)?;
    privileges::give_up(&prepared.config)?;
    logging::start().map_err(StartError::Thread)?;
    loop {
        let (left, next) = live(prepared)?;
        let Some(next) = next else {
            return Ok(());
        };
        be_ordinary();
        prepared = Prepared::again(next, left)?;
    }
}

/// What is left of a life, and the file of the next one.
type Life = (Left, Option<Fresh>);

/// One life, with one file; gives the changed one that another life is to begin with.
fn live(prepared: Prepared) -> Result<Life, AgentError> {
    let memory = prepared.votes.found().cloned();
    let (config, life) = (prepared.config.clone(), prepared.life.clone());
    let votes = prepared.votes.clone();
    let (inbox, inputs) = Inbox::new();
    let (edge, leases) = Edge::start(prepared, inbox.clone())?;
    let now = clock::now();
    let mut witness = Witness {
        node: membership::node(&config, &node_config(&config, &life), now).remembering(memory),
        incarnation: life.incarnation,
        era: Era::new(inbox.clone()),
        started: now,
        config,
        next: None,
        facts: FactBoard::default(),
        out: Bystander {
            peers: edge.peers.clone(),
            leases,
            events: edge.events.clone(),
        },
    };
    prefer("gw-witness", Urgency::Decisions);
    let bound_until = witness.run(&inputs);
    let last = votes.close(bound_until, witness.node.into_memory().as_ref());
    inbox.close();
    drop(inputs);
    let mut left = edge.shutdown();
    left.votes = Some(last);
    Ok((left, witness.next))
}

struct Witness {
    node: Node,
    incarnation: u64,
    era: Era,
    started: MonoTime,
    config: Arc<Config>,
    /// The changed file, if this process goes on with it.
    next: Option<Fresh>,
    facts: FactBoard,
    out: Bystander,
}

impl Witness {
    /// Returns until when its votes bind.
    fn run(&mut self, inputs: &Inputs) -> MonoTime {
        loop {
            self.drain();
            let now = clock::now();
            let patience = self.node.poll_timeout().map_or(IDLE, |due| due.since(now));
            match inputs.recv_timeout(patience.min(IDLE)) {
                Ok(Input::Stop { done, .. }) => {
                    let reason = match self.next {
                        Some(_) => GoodbyeReason::Restart,
                        None => GoodbyeReason::Shutdown,
                    };
                    let bound = self.say_goodbye(reason);
                    // Whoever asked may have gone.
                    let _ = done.map(|done| done.send(()));
                    return bound;
                }
                Ok(input) => self.feed(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return self.node.bound_until(clock::now());
                }
            }
            while let Some(input) = inputs.try_urgent() {
                self.feed(input);
                self.drain();
            }
            let now = clock::now();
            let people = (&*self.config, &self.out.events);
            self.facts.settle(people, &mut self.node, now);
            if let Some(look) = self.era.look(&mut self.node, &self.config, now) {
                self.facts.note(look.into(), people, &mut self.node, now);
            }
            if self.node.poll_timeout().is_some_and(|due| due <= now) {
                self.node.handle_timeout(now);
            }
        }
    }

    fn say_goodbye(&mut self, reason: GoodbyeReason) -> MonoTime {
        if let Some((next, _)) = &self.next {
            membership::take_leave(&mut self.node, next);
        }
        let goodbye = Command::Goodbye(reason);
        self.node.handle_command(goodbye, clock::now());
        self.drain();
        self.node.bound_until(clock::now())
    }

    fn feed(&mut self, input: Input) {
        let now = clock::now();
        match input {
            Input::Heartbeat { peer, beat, at } => self.node.handle_heartbeat(peer, &beat, at),
            Input::Lease { peer, datagram } => self.node.handle_lease(peer, &datagram, now),
            Input::Message { peer, message } => self.node.handle_message(peer, &message, now),
            Input::Several(inputs) => {
                for input in inputs {
                    self.feed(input);
                    self.drain();
                }
            }
            Input::Facts(seen) => {
                self.out.leases.note(&seen);
                let people = (&*self.config, &self.out.events);
                self.facts.note(seen, people, &mut self.node, now);
            }
            Input::Link { peer, link } => self.node.handle_link(peer, link, now),
            Input::Query(Query::Status(answer)) => {
                // Whoever asked may have gone.
                let _ = answer.send(self.status(now));
            }
            Input::Query(Query::Flows(answer)) => {
                let _ = answer.send(Flows::new(self.config.node.name.as_str(), Vec::new()));
            }
            // Of a data path, which a witness does not have.
            Input::Flow(_)
            | Input::Exit(_)
            | Input::ListenerClosed
            | Input::Stopped(_)
            | Input::Standstill(_)
            | Input::Unanswered(_)
            | Input::Neighbour { .. }
            | Input::Census(_)
            | Input::Gone(_)
            | Input::Handoff { .. }
            | Input::Devices
            | Input::Place { .. }
            | Input::LinkChanged
            | Input::Announce
            | Input::Claimed { .. }
            | Input::Exceptions(_)
            | Input::Stonith { .. }
            | Input::Commit(_)
            | Input::CommitHeld { .. }
            | Input::Unserved { .. }
            | Input::Stop { .. } => {}
            Input::Next { config, identity } => self.next = identity.map(|it| (config, it)),
            Input::MoveFlows(wish) => {
                let sentence = "a witness has no connections".into();
                let reason = "witness";
                let _ = wish.reply.send(Err(MoveRefused { reason, sentence }));
            }
            Input::Drain(wish) => wish.refuse(),
            Input::Move(wish) => {
                let sentence = "a witness serves nothing, so nothing can move".into();
                let reason = "witness";
                let _ = wish.reply.send(Err(MoveRefused { reason, sentence }));
            }
        }
    }

    fn drain(&mut self) {
        self.out.drain(&mut self.node);
    }

    /// Who holds what with this node's vote.
    fn leases(&self, now: MonoTime) -> BTreeMap<String, String> {
        let held = self.config.shares().filter_map(|(share, service)| {
            let holder = self.node.lease_holder(share, now)?;
            Some((self.config.share_name(share, service), holder.to_string()))
        });
        held.collect()
    }

    fn status(&self, now: MonoTime) -> Status {
        let mut status = Status::new(&self.config, self.incarnation, now.since(self.started));
        let own = self.config.own_peer().role;
        let peers = self.config.others().zip(self.node.peer_status());
        let reports = peers.zip((0..).map(PeerId)).map(|((config, peer), id)| {
            PeerReport::new(own, config, &peer, now).with_absence(self.out.peers.absence(id))
        });
        status.peers = reports.collect();
        status.leases = self.leases(now);
        status.facts = self.facts.reports(&self.config);
        status.conclude();
        status
    }
}
