//! A director: it gives the connections of services to back-ends (docs/director.md).
//!
//! What places frames is a program in the kernel; this fills its tables, from what
//! heartbeats say of the back-ends. The core decides
//! ([`Roster`](godwit_core::director::Roster)). While no director runs the program goes
//! on with what it was told last, and the next one goes on from there.
//!
//! | thread | owner of | ends |
//! |---|---|---|
//! | `gw-director` | this, the node, the tables | after [`Input::Stop`](crate::input::Input::Stop) |
//! | `gw-neighbours` | where back-ends are on the link | when this has ended |
//! | `gw-devices` | nothing: it tells of changes of the interface | when this has ended |
//! | `gw-exceptions` | nothing: it tells what the program writes down of connections | when this has ended |

mod backends;
mod fellows;
mod front;
mod install;
mod load;
mod place;
mod report;
mod shared;
mod tables;

use std::path::Path;
use std::sync::Arc;

use godwit_wire::GoodbyeReason;

use crate::clock;
use crate::config::{Config, PeerRole};
use crate::driver::InstallError;
use crate::driver::devices::spawn_watch;
use crate::driver::neighbours::Resolver;
use crate::edge::{Edge, Prepared};
use crate::input::Inbox;
use crate::privileges;
use crate::realtime::{Urgency, prefer};
use crate::run::AgentError;

use front::Front;
use install::Installed;

pub use load::{FrameCosts, frame_costs};
pub use report::{BackendDrain, BackendReport, DirectedReport, DirectorReport, DrainWish};

/// Runs a director until a signal or a command ends it.
///
/// # Errors
/// If it can't start; then nothing is left behind that was not there before.
pub fn direct(config: &Path) -> Result<(), AgentError> {
    let prepared = Prepared::load(config, PeerRole::Director)?;
    let (config, life) = (prepared.config.clone(), prepared.life);
    let votes = prepared.votes.clone();
    let installed = Installed::new(config.clone())?;
    let roster = match installed.roster(clock::now()) {
        Ok(roster) => roster,
        Err(error) => {
            installed.remove();
            return Err(error.into());
        }
    };
    if let Err(error) = privileges::give_up(&config) {
        installed.remove();
        return Err(error.into());
    }
    let (inbox, inputs) = Inbox::new();
    let edge = match Edge::start(prepared, inbox.clone()) {
        Ok(edge) => edge,
        Err(error) => {
            installed.remove();
            return Err(error.into());
        }
    };
    let resolver = match Resolver::of_backends(&config, installed.interface.index, inbox.clone()) {
        Ok(resolver) => resolver,
        Err(error) => {
            edge.shutdown();
            installed.remove();
            return Err(InstallError::Thread(error).into());
        }
    };
    if let Err(error) = spawn_watch(inbox.clone()) {
        edge.shutdown();
        installed.remove();
        return Err(InstallError::Devices(error).into());
    }
    if let Err(error) = installed.read_exceptions(&inbox) {
        edge.shutdown();
        installed.remove();
        return Err(error.into());
    }
    prefer("gw-director", Urgency::Decisions);
    let mut front = Front::new(installed, roster, &life, &edge, (resolver, inbox));
    let end = front.run(&inputs);
    votes.close(end.bound_until);
    let programs = front.into_programs();
    let removed = match end.reason {
        GoodbyeReason::Restart => Ok(()),
        GoodbyeReason::Shutdown | GoodbyeReason::Detach => install::take_away(&config, programs),
    };
    // Whoever asked may have gone.
    let _ = end.done.map(|done| done.send(()));
    drop(inputs);
    edge.shutdown();
    Ok(removed?)
}

/// Takes away what a director that no longer runs has left; its connections break.
/// Returns whether there was anything.
///
/// # Errors
/// If it can't be taken away.
pub(crate) fn detach(config: &Arc<Config>) -> Result<bool, AgentError> {
    install::detach(config)
}
