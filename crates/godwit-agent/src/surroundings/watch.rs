//! The thread that waits for events, and has sources look.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_core::MonoTime;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Look;
use super::certificates::Certificates;
use super::claims::Conflicts;
use super::clocks::Clock;
use super::file::File;
use super::firewall::Firewall;
use super::queues::AcceptQueues;
use super::revocations::Revocations;
use super::room::Room;
use super::sysctl::Sysctls;
use crate::clock;
use crate::config::{Config, PeerRole};
use crate::doctor::LiveHost;
use crate::input::{Inbox, Input};
use crate::peers::Identity;
use crate::realtime::be_ordinary;

/// Something that is looked at.
pub(super) trait Source: Send {
    /// What becomes readable when something may have changed; `None`: only time tells.
    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes what [`events`](Self::events) has; whether to look for it.
    fn take_events(&mut self) -> bool {
        false
    }

    /// When to look again without an event: cheap looks often, others seldom.
    fn period(&self) -> Duration;

    /// Looks.
    fn look(&mut self) -> Look;
}

/// A source, and what it said last.
struct Watched {
    source: Box<dyn Source>,
    due: MonoTime,
    last: Option<Look>,
}

/// Starts to watch what concerns this node. Call it in the network namespace of the
/// node.
///
/// # Errors
/// If there can be no thread, or no inotify.
pub(crate) fn spawn(config: &Arc<Config>, identity: Identity, inbox: Inbox) -> io::Result<()> {
    let sources = sources(config, identity, &inbox)?;
    let mut watched: Vec<_> = sources.into_iter().map(Watched::new).collect();
    thread::Builder::new()
        .name("gw-facts".into())
        .spawn(move || {
            be_ordinary();
            while wait(&mut watched).is_ok() {
                // Another life may follow in this process, with sources of its own.
                if inbox.is_closed() {
                    return;
                }
                for look in watched.iter_mut().filter_map(Watched::news) {
                    if inbox.send(Input::Facts(look)).is_err() {
                        return;
                    }
                }
            }
            tracing::error!("facts are not watched any more");
        })
        .map(drop)
}

fn sources(
    config: &Arc<Config>,
    identity: Identity,
    inbox: &Inbox,
) -> io::Result<Vec<Box<dyn Source>>> {
    let mut sources: Vec<Box<dyn Source>> = vec![
        Box::new(Certificates::new(config, identity.clone())?),
        Box::new(Clock::new()?),
        Box::new(Room::new(config)),
        Box::new(File::new(config)),
    ];
    if let Some(path) = config.tls.crl.clone() {
        sources.push(Box::new(Revocations::new(path, identity)?));
    }
    if config.own_peer().role == PeerRole::Server {
        sources.push(Box::new(Sysctls::new(config, LiveHost)?));
        sources.push(Box::new(Firewall::new(config)));
        sources.push(Box::new(AcceptQueues::new(config)));
        sources.push(Box::new(Conflicts::new(config, inbox.clone())));
    }
    Ok(sources)
}

impl Watched {
    fn new(source: Box<dyn Source>) -> Self {
        Self {
            source,
            due: MonoTime::ZERO,
            last: None,
        }
    }

    /// Looks if it is time to; what is new.
    fn news(&mut self) -> Option<Look> {
        let now = clock::now();
        if now < self.due {
            return None;
        }
        let look = self.source.look();
        self.due = now.saturating_add(self.source.period());
        if self.last.as_ref() == Some(&look) {
            return None;
        }
        self.last = Some(look.clone());
        Some(look)
    }
}

/// Waits until some source is due, by time or by an event.
fn wait(watched: &mut [Watched]) -> Result<(), Errno> {
    let now = clock::now();
    let due = watched.iter().map(|it| it.due.since(now)).min();
    // Rounded up, or the last millisecond would be spent in a loop.
    let patience = due.unwrap_or(Duration::from_secs(1)) + Duration::from_millis(1);
    let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut ready = Vec::new();
    {
        let mut fds = Vec::new();
        let mut owners = Vec::new();
        for (number, it) in watched.iter().enumerate() {
            if let Some(fd) = it.source.events() {
                fds.push(PollFd::new(fd, PollFlags::POLLIN));
                owners.push(number);
            }
        }
        match poll(&mut fds, patience) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        for (number, fd) in owners.into_iter().zip(&fds) {
            if fd.revents().is_some_and(|events| !events.is_empty()) {
                ready.push(number);
            }
        }
    }
    for number in ready {
        if let Some(it) = watched.get_mut(number)
            && it.source.take_events()
        {
            it.due = MonoTime::ZERO;
        }
    }
    Ok(())
}
