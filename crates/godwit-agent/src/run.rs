//! One agent from start to end.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use godwit_bpf::{MUTANT, PinDir};
use godwit_wire::NodeName;

use crate::added;
use crate::agent_error::{AgentError, GIVEN_UP};
use crate::apps::{AppSocket, Apps};
use crate::config::{Config, PeerRole};
use crate::director;
use crate::driver::{Installed, Remains, Surroundings, detach_other, pin_name};
use crate::edge::{Edge, Left, Prepared, StartError};
use crate::input::{Inbox, Inputs};
use crate::logging;
use crate::privileges;
use crate::realtime::{Urgency, be_ordinary, prefer};
use crate::reload::Fresh;
use crate::stonith::Stonith;
use crate::undo::Step;

/// Runs an agent until a signal or a command ends it. Nothing is attached
/// before everything that can be wrong with the configuration is known.
///
/// # Errors
/// If it can't start; then nothing of it is left behind.
pub fn run(config: &Path) -> Result<(), AgentError> {
    let prepared = Prepared::load(config, PeerRole::Server)?;
    if let Some(mutant) = MUTANT {
        // Only a chaos run may ever see this.
        tracing::error!("THIS BUILD IS BROKEN ON PURPOSE ({mutant}): never use it");
    }
    let (inbox, inputs) = Inbox::new();
    // While this process has all its privileges, and no real-time thread.
    let app_socket = prepared.app_socket()?;
    let stonith = Stonith::start(&prepared.config, &inbox).map_err(StartError::Stonith)?;
    let installed = Installed::new(prepared.config.clone())?;
    let installed = Step::new(installed, Installed::remove);
    privileges::give_up(&installed.config)?;
    logging::start().map_err(StartError::Thread)?;
    let queue = (inbox, inputs);
    let mut ended = live(prepared, installed.keep(), (&app_socket, stonith), queue)?;
    while let Some((next, remains)) = ended.next {
        let (prepared, installed) = again((ended.config, next), remains, ended.left)?;
        let means = (&app_socket, Stonith::default());
        ended = live(prepared, installed, means, Inbox::new())?;
    }
    Ok(())
}

/// How one life of an agent has ended.
struct Ended {
    config: Arc<Config>,
    left: Left,
    /// The changed file, and what another life begins with.
    next: Option<(Fresh, Remains)>,
}

/// One life, from the first word to peers to the last.
fn live(
    prepared: Prepared,
    installed: Installed,
    (app_socket, stonith): (&AppSocket, Stonith),
    (inbox, inputs): (Inbox, Inputs),
) -> Result<Ended, AgentError> {
    let (life, votes) = (prepared.life.clone(), prepared.votes.clone());
    let memory = prepared.votes.found().cloned();
    let config = prepared.config.clone();
    let services = config.services.iter();
    let services = services.flat_map(|service| service.addresses.clone());
    let services: Vec<_> = services.collect();
    let installed = Step::new(installed, Installed::remove);
    let (edge, leases) = Edge::start(prepared, inbox.clone())?;
    let edge = Step::new(edge, Edge::stop);
    let started = app_socket.try_clone();
    let apps = started.and_then(|socket| Apps::start(socket, services, inbox.clone()));
    let apps = apps.map_err(StartError::Thread)?;
    let (edge, installed) = (edge.keep(), installed.keep());
    let node = installed.node_config(&life, memory.as_ref());
    let surroundings = Surroundings {
        inputs,
        inbox: inbox.clone(),
        peers: edge.peers.clone(),
        places: edge.places.clone(),
        board: edge.board.clone(),
        leases,
        events: edge.events.clone(),
        metrics: edge.metrics.clone(),
        stonith,
        apps: apps.clone(),
        memory,
    };
    let run = installed
        .into_driver(node, surroundings)
        .map(|(driver, inputs)| {
            prefer("gw-driver", Urgency::Decisions);
            let end = driver.run(&inputs);
            inbox.close();
            let last = votes.close(end.bound_until, end.memory.as_ref());
            // Here the queue closes: nobody waits for an answer any more.
            (end.next, last)
        });
    drop(apps);
    let mut left = edge.shutdown();
    let (next, last) = run?;
    left.votes = Some(last);
    Ok(Ended { config, left, next })
}

/// Another life with the changed file; if that can't be carried out, with the old one.
fn again(
    (old, (next, identity)): (Arc<Config>, Fresh),
    remains: Remains,
    left: Left,
) -> Result<(Prepared, Installed), AgentError> {
    be_ordinary();
    let (installed, identity) = match Installed::again(next, remains) {
        Ok(installed) => (installed, identity),
        Err(failed) => {
            let (error, remains) = *failed;
            tracing::error!(%error, "the changed file can't be carried out");
            let mut old = Config::clone(&old);
            old.warnings.push(format!("{GIVEN_UP}: {error}"));
            let back = Installed::again(Arc::new(old), remains);
            let back = back.map_err(|failed| AgentError::from(failed.0))?;
            (back, left.identity())
        }
    };
    let prepared = Prepared::again((installed.config.clone(), identity), left)?;
    Ok((prepared, installed))
}

/// Takes away what an agent that no longer runs has left: a standby's twins
/// end silently, an owner's connections go on. Returns whether there was
/// anything.
///
/// # Errors
/// If it can't be taken away.
pub fn detach(config: &Arc<Config>) -> Result<bool, AgentError> {
    if config.own_peer().role == PeerRole::Director {
        return director::detach(config);
    }
    if PinDir::existing(&pin_name(config)?)?.is_none() {
        return Ok(false);
    }
    // Programs of this version take over first: the twins stay silent.
    Installed::new(config.clone())?.detach()?;
    Ok(true)
}

/// The addresses that stay after [`detach`], for connections that were this node's: as
/// `10.0.0.1 on lo`.
pub fn left_behind(config: &Config) -> Vec<String> {
    let services = config.own_shares();
    let services: BTreeSet<_> = services.flat_map(|(_, service)| service.ips()).collect();
    let added = godwit_sock::added_addresses().unwrap_or_default();
    added::names(added.iter().filter(|(_, it)| services.contains(it)))
}

/// The same after [`detach_node`]; nothing where another agent may have them.
pub fn left_behind_by(node: NodeName) -> Vec<String> {
    let cookie = godwit_sock::netns_cookie();
    let left =
        cookie.and_then(|cookie| added::left_over(&BTreeSet::new(), &format!("n{cookie}-{node}")));
    added::names(&left.unwrap_or_default())
}

/// Takes away what the agent of a node that no longer runs has left in this network namespace,
/// whether or not the node is in any file. Returns whether there was anything.
///
/// # Errors
/// If its agent runs, or it can't be taken away.
pub fn detach_node(node: NodeName) -> Result<bool, AgentError> {
    Ok(detach_other(node)?)
}
