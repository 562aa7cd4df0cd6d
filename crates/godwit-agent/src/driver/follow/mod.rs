//! This node's place on the link, followed as long as the agent runs.
//!
//! The kernel tells of changes (rtnetlink(7)); what there is now is read anew then, and
//! once a second for what it does not tell (programs on tcx). The interface is known by
//! its name: when it is made anew, the programs are attached to the new one. Its MAC
//! address and this node's own addresses are told to the data path, service addresses
//! that are gone are put back, programs that have come before Godwit's are passed, new
//! interfaces are guarded.
//!
//! A thread of its own does that, for the kernel waits for frames under way whenever a
//! chain of programs changes. The driver hears of what concerns it
//! ([`Input::Place`], [`Input::LinkChanged`], [`Input::Announce`]), and what is wrong
//! ([`Input::Facts`]).

mod facts;
mod link;
mod look;
mod place;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use godwit_bpf::{Hooks, Identity};
use godwit_core::MonoTime;
use godwit_sock::{Changes, FrameSender, NetworkWatch};
use godwit_wire::MacAddr;

use super::neighbours::{self, Resolver};
use crate::clock;
use crate::config::Config;
use crate::descriptors::Sight;
use crate::doctor::Scope;
use crate::facts::Look;
use crate::input::{DriverGone, Inbox, Input};
use crate::realtime::{Urgency, prefer};

use facts::Found;
use link::Link;

pub(crate) use place::Place;

/// How often is looked for what the kernel does not tell of: it is to be said in a second.
const ROUND: Duration = Duration::from_millis(800);

/// When the link is told where this node and its services are, after a change: switches
/// and neighbours may miss the first time.
const ANNOUNCEMENTS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
];

/// What a follower begins with.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) config: Arc<Config>,
    pub(super) hooks: Hooks,
    pub(super) place: Arc<Place>,
    pub(super) identity: Identity,
    pub(super) frames: FrameSender,
    pub(super) resolver: Resolver,
    pub(super) inbox: Inbox,
    /// Why births of twins are not watched.
    pub(super) births: Option<String>,
    /// Whether the link is to hear at once where this node and its services are.
    pub(super) announces: bool,
}

/// The running follower; to be stopped before anything is taken away.
#[derive(Debug, Clone)]
pub(super) struct Follow(Arc<Mutex<Option<Follower>>>);

#[derive(Debug)]
struct Follower {
    /// Name of the service interface.
    interface: String,
    addresses: Addresses,
    /// What its queue is measured by.
    scope: Scope,
    /// Groups of multicast taps.
    groups: Vec<MacAddr>,
    hooks: Hooks,
    place: Arc<Place>,
    identity: Identity,
    frames: FrameSender,
    resolver: Resolver,
    inbox: Inbox,
    /// Where the kernel has found those that this node relies on.
    neighbours: BTreeMap<IpAddr, Option<MacAddr>>,
    /// When the next look is due.
    due: MonoTime,
    /// Since when the link is told where this node is, and how often it was.
    announced: Option<(MonoTime, usize)>,
    /// What the link was when it was last looked at.
    link: Option<Link>,
    /// Whether the interface is gone, or takes no program.
    is_lost: bool,
    /// What was found besides, and what was said of it last.
    found: Found,
    said: Option<Look>,
    /// Whether it can be looked at all.
    sight: Sight,
    /// When programs that had come before Godwit's were passed.
    passed: VecDeque<MonoTime>,
}

/// Addresses that are to be here.
#[derive(Debug)]
struct Addresses {
    /// As long as the programs are attached.
    services: Vec<IpAddr>,
    /// Those of this node: peers rely on them.
    own: Vec<IpAddr>,
    /// Whether the interface has had addresses of its own: of IPv4, and of IPv6.
    families: Option<[bool; 2]>,
}

impl Follow {
    /// Follows until the driver is gone, or [`Follow::stop`].
    pub(super) fn spawn(start: Start) -> io::Result<Self> {
        let watch = NetworkWatch::open()?;
        let follower = Follower::new(start);
        let shared = Self(Arc::new(Mutex::new(Some(follower))));
        let follow = shared.clone();
        thread::Builder::new()
            .name("gw-devices".into())
            .spawn(move || {
                prefer("gw-devices", Urgency::Decisions);
                follow.run(&watch);
            })?;
        Ok(shared)
    }

    fn run(&self, watch: &NetworkWatch) {
        let mut changes = Changes {
            place: true,
            ..Changes::default()
        };
        loop {
            let patience = {
                let mut follower = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(follower) = follower.as_mut() else {
                    return;
                };
                match follower.turn(&changes) {
                    Ok(patience) => patience,
                    Err(DriverGone) => return,
                }
            };
            changes = watch.wait(patience).unwrap_or_else(|error| {
                tracing::error!(%error, "the network is looked at once a second only");
                thread::sleep(patience);
                Changes::default()
            });
        }
    }

    /// Nothing is attached or put back any more when this returns.
    /// What it has attached programs with is for another life in this process.
    pub(super) fn stop(&self) -> Option<Hooks> {
        let follower = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut follower = follower;
        follower.take().map(|follower| follower.hooks)
    }
}

impl Follower {
    fn new(start: Start) -> Self {
        let config = &start.config;
        let shares = || config.own_shares().map(|(_, service)| service);
        let relied_on = neighbours::relied_on(config).into_iter();
        Self {
            interface: config.node.interface.to_string(),
            addresses: Addresses {
                services: shares().flat_map(|service| service.ips()).collect(),
                own: vec![config.own_peer().control.ip(), config.own_peer().data],
                families: None,
            },
            scope: Scope::of(config),
            groups: shares().filter_map(|service| service.group()).collect(),
            hooks: start.hooks,
            place: start.place,
            identity: start.identity,
            frames: start.frames,
            resolver: start.resolver,
            inbox: start.inbox,
            neighbours: relied_on.map(|at| (at, None)).collect(),
            due: clock::now(),
            announced: start.announces.then(|| (clock::now(), 0)),
            is_lost: false,
            found: Found {
                births: start.births,
                ..Found::default()
            },
            said: None,
            sight: Sight::new(facts::SOURCE),
            link: None,
            passed: VecDeque::new(),
        }
    }

    /// Deals with what has changed; says how long there is nothing to do.
    fn turn(&mut self, changes: &Changes) -> Result<Duration, DriverGone> {
        let now = clock::now();
        if changes.place || changes.lost || self.due <= now {
            self.look(now)?;
            self.due = now.saturating_add(ROUND);
        }
        self.note_neighbours(changes);
        self.announce(now)?;
        let due = self.announcement().map_or(self.due, |at| at.min(self.due));
        Ok(due.since(clock::now()))
    }

    /// One that is somewhere else than it was is looked for at once.
    fn note_neighbours(&mut self, changes: &Changes) {
        let mut moved = changes.lost;
        for (ifindex, address, mac) in &changes.neighbours {
            if *ifindex == self.place.ifindex()
                && let Some(known) = self.neighbours.get_mut(address)
            {
                moved |= known.replace(*mac) != Some(*mac);
            }
        }
        if moved {
            self.resolver.hurry();
        }
    }

    fn announcement(&self) -> Option<MonoTime> {
        let (since, done) = self.announced?;
        let after = ANNOUNCEMENTS.get(done)?;
        Some(since.saturating_add(*after))
    }

    /// Says where this node is, if that is due; the driver says it of the services.
    fn announce(&mut self, now: MonoTime) -> Result<(), DriverGone> {
        if self.announcement().is_none_or(|due| due > now) {
            return Ok(());
        }
        if let Some((_, done)) = &mut self.announced {
            *done += 1;
        }
        self.announce_self();
        self.inbox.send(Input::Announce)
    }
}
