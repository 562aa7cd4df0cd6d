//! A director: it gives the connections of services to back-ends (docs/director.md).
//!
//! What places frames is a program in the kernel; this fills its tables, from what
//! heartbeats say of the back-ends. The core decides
//! ([`Roster`](godwit_core::director::Roster)). While no director runs the program goes
//! on with what it was told last, and the next one goes on from there.
//!
//! Its thread, `gw-director`, owns this, the node and the tables. Others, which own nothing of
//! it, tell it of back-ends, of the interface and of connections (`docs/threads.md`).

mod backends;
mod error;
mod extent;
mod fellows;
mod front;
mod install;
mod load;
mod place;
mod reach;
mod report;
mod shared;
mod tables;
mod tags;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use godwit_wire::GoodbyeReason;

use crate::agent_error::{AgentError, GIVEN_UP};
use crate::clock;
use crate::config::{Config, PeerRole};
use crate::driver::neighbours::Resolver;
use crate::edge::{Edge, Left, Prepared, StartError};
use crate::input::Inbox;
use crate::logging;
use crate::machine_error::MachineError;
use crate::peers::Identity;
use crate::places::Places;
use crate::privileges;
use crate::realtime::{Urgency, be_ordinary, prefer};
use crate::reload::Fresh;
use crate::undo::Step;
use watch::spawn_watch;

pub(crate) use extent::{has_fellows, room};
use front::Front;
use install::{Installed, Remains};

pub use error::DirectError;
pub use load::{FrameCosts, frame_costs};

/// Runs a director until a signal or a command ends it.
///
/// # Errors
/// If it can't start; then nothing is left behind that was not there before.
pub fn direct(config: &Path) -> Result<(), AgentError> {
    let mut prepared = Prepared::load(config, PeerRole::Director)?;
    let installed = Installed::new(prepared.config.clone())?;
    let installed = Step::new(installed, Installed::remove);
    privileges::give_up(&prepared.config)?;
    logging::start().map_err(StartError::Thread)?;
    let mut installed = installed.keep();
    while let Some(ended) = live(prepared, installed)? {
        be_ordinary();
        let identity;
        (installed, identity) = again((ended.config, ended.next), ended.remains, &ended.left)?;
        prepared = Prepared::again((installed.config.clone(), identity), ended.left)?;
    }
    Ok(())
}

/// A life that another one follows, with a changed file.
struct Ended {
    config: Arc<Config>,
    next: Fresh,
    remains: Remains,
    left: Left,
}

/// One life, with one file.
fn live(prepared: Prepared, installed: Installed) -> Result<Option<Ended>, AgentError> {
    let memory = prepared.votes.found().cloned();
    let (config, life) = (prepared.config.clone(), prepared.life.clone());
    let votes = prepared.votes.clone();
    let installed = Step::new(installed, Installed::remove);
    let roster = installed.roster(clock::now())?;
    let (inbox, inputs) = Inbox::new();
    let (edge, leases) = Edge::start(prepared, inbox.clone())?;
    let edge = Step::new(edge, Edge::stop);
    let (resolver, reader) = start_threads(&config, &installed, (&edge.places, &inbox))?;
    let (edge, installed) = (edge.keep(), installed.keep());
    prefer("gw-director", Urgency::Decisions);
    let threads = (resolver, inbox.clone());
    let front = Front::new(installed, roster, &life, (&edge, leases), threads);
    let mut front = front.remembering(memory);
    let end = front.run(&inputs);
    inbox.close();
    // One at a time may read what the program writes down.
    let _ = reader.map(JoinHandle::join);
    let (next, remains, memory) = front.into_remains();
    let last = votes.close(end.bound_until, memory.as_ref());
    if let (GoodbyeReason::Restart, Some(next)) = (end.reason, next) {
        drop(inputs);
        let mut left = edge.shutdown();
        left.votes = Some(last);
        return Ok(Some(Ended {
            config,
            next,
            remains,
            left,
        }));
    }
    let removed = match end.reason {
        GoodbyeReason::Restart => Ok(()),
        GoodbyeReason::Shutdown | GoodbyeReason::Detach => {
            install::take_away(&config, remains.programs)
        }
    };
    // Whoever asked may have gone.
    let _ = end.done.map(|done| done.send(()));
    drop(inputs);
    edge.shutdown();
    removed?;
    Ok(None)
}

fn start_threads(
    config: &Config,
    installed: &Installed,
    (places, inbox): (&Places, &Inbox),
) -> Result<(Resolver, Option<JoinHandle<()>>), DirectError> {
    let ifindex = installed.interface.index;
    let resolver = Resolver::of_backends(config, ifindex, places.clone(), inbox.clone());
    let resolver = resolver.map_err(MachineError::Thread)?;
    spawn_watch(inbox.clone()).map_err(MachineError::Devices)?;
    Ok((resolver, installed.read_exceptions(inbox)?))
}

/// Another life with the changed file; if that can't be carried out, with the old one.
fn again(
    (old, (next, identity)): (Arc<Config>, Fresh),
    remains: Remains,
    left: &Left,
) -> Result<(Installed, Identity), DirectError> {
    match Installed::again(next, remains) {
        Ok(installed) => Ok((installed, identity)),
        Err(failed) => {
            let (error, remains) = *failed;
            tracing::error!(%error, "the changed file can't be carried out");
            let mut old = Config::clone(&old);
            old.warnings.push(format!("{GIVEN_UP}: {error}"));
            let back = Installed::again(Arc::new(old), remains).map_err(|failed| failed.0)?;
            Ok((back, left.identity()))
        }
    }
}

/// Takes away what a director that no longer runs has left; its connections break.
/// Returns whether there was anything.
///
/// # Errors
/// If it can't be taken away.
pub(crate) fn detach(config: &Arc<Config>) -> Result<bool, AgentError> {
    install::detach(config)
}
