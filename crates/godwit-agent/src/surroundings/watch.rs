//! The thread that waits for events, and has sources look.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use godwit_core::MonoTime;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::Inotify;

use super::certificates::Certificates;
use super::claims::Conflicts;
use super::clocks::Clock;
use super::file::File;
use super::firewall::Firewall;
use super::left::LeftAddresses;
use super::queues::AcceptQueues;
use super::revocations::Revocations;
use super::room::Room;
use super::sysctl::Sysctls;
use crate::clock;
use crate::config::{Config, PeerRole};
use crate::descriptors::Sight;
use crate::doctor::LiveHost;
use crate::facts::Look;
use crate::input::{DriverGone, Inbox, Input};
use crate::peers::Identity;
use crate::places::Places;
use crate::realtime::be_ordinary;
use crate::votes::VoteWatch;

/// Something that is looked at.
pub(super) trait Source: Send {
    /// Its name, as its looks have it.
    fn name(&self) -> &'static str;

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

type Sources = Vec<Box<dyn Source>>;

impl Source for VoteWatch {
    fn name(&self) -> &'static str {
        "votes"
    }

    /// One stat(2).
    fn period(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn look(&mut self) -> Look {
        Self::look(self)
    }
}

/// A source, and what it said last.
struct Watched {
    source: Box<dyn Source>,
    due: MonoTime,
    sight: Sight,
    last: Option<Look>,
}

/// Starts to watch what concerns this node. Call it in the network namespace of the
/// node.
///
/// # Errors
/// If there can be no thread, or no inotify.
pub(crate) fn spawn(
    config: &Arc<Config>,
    (identity, votes): (Identity, VoteWatch),
    (places, inbox): (Places, Inbox),
) -> io::Result<()> {
    let sources = kernel_sources(config, places, &inbox)?;
    watch("gw-facts", move || sources, inbox.clone())?;
    let events = [Certificates::events()?, Certificates::events()?];
    let config = config.clone();
    let sources = move || file_sources(&config, (identity, events), votes);
    watch("gw-files", sources, inbox)
}

/// Looks, in a thread of that name, at what `sources` makes there.
fn watch(
    name: &'static str,
    sources: impl FnOnce() -> Sources + Send + 'static,
    inbox: Inbox,
) -> io::Result<()> {
    thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            be_ordinary();
            let mut watched: Vec<_> = sources().into_iter().map(Watched::new).collect();
            while wait(&mut watched).is_ok() {
                // Another life may follow in this process, with sources of its own.
                if inbox.is_closed() {
                    return;
                }
                for it in &mut watched {
                    if it.turn(&inbox).is_err() {
                        return;
                    }
                }
            }
            tracing::error!("facts are not watched any more");
        })
        .map(drop)
}

/// What lies in files that people have named: their file systems may hang, and what the
/// kernel says is heard all the same.
fn file_sources(
    config: &Arc<Config>,
    (identity, events): (Identity, [Inotify; 2]),
    votes: VoteWatch,
) -> Sources {
    let [certificates, lists] = events;
    let mut sources: Sources = vec![
        Box::new(Certificates::new(config, identity.clone(), certificates)),
        Box::new(Room::new(config)),
        Box::new(File::new(config)),
        Box::new(votes),
    ];
    if let Some(path) = config.tls.crl.clone() {
        sources.push(Box::new(Revocations::new(path, identity, lists)));
    }
    sources
}

fn kernel_sources(config: &Arc<Config>, places: Places, inbox: &Inbox) -> io::Result<Sources> {
    let mut sources: Sources = vec![Box::new(Clock::new()?)];
    if config.own_peer().role == PeerRole::Server {
        sources.push(Box::new(Sysctls::new(config, LiveHost)?));
        sources.push(Box::new(Firewall::new(config)));
        sources.push(Box::new(AcceptQueues::new(config)));
        sources.push(Box::new(LeftAddresses::new(config, inbox.clone())));
        sources.push(Box::new(Conflicts::new(config, places, inbox.clone())));
    }
    Ok(sources)
}

impl Watched {
    fn new(source: Box<dyn Source>) -> Self {
        Self {
            sight: Sight::new(source.name()),
            source,
            due: MonoTime::ZERO,
            last: None,
        }
    }

    /// Looks if it is time to, and tells what is new.
    fn turn(&mut self, inbox: &Inbox) -> Result<(), DriverGone> {
        let now = clock::now();
        if now < self.due {
            return Ok(());
        }
        self.due = now.saturating_add(self.source.period());
        if !self.sight.sees(inbox)? {
            return Ok(());
        }
        let look = self.source.look();
        // What was taken meanwhile may have been missing.
        if !self.sight.sees(inbox)? {
            return Ok(());
        }
        self.due = now.saturating_add(self.source.period());
        if !self.sight.opens() && self.last.as_ref() == Some(&look) {
            return Ok(());
        }
        self.last = Some(look.clone());
        inbox.send(Input::Facts(look.into()))
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
