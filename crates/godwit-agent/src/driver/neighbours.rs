//! Where peers are on the link: asked for ahead of time and off the driver's
//! thread, so that no role ever waits for an answer. Who answers may be anybody: of a peer that
//! has said over its link where it is, that counts.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use godwit_core::PeerId;
use godwit_sock::{Devices, ask_neighbour, leave_out, neighbour, next_hop, take_in};
use godwit_wire::{MacAddr, NodeName};

use super::follow::Place;
use crate::config::{Config, PeerConfig, PeerRole, Reach};
use crate::input::{Inbox, Input};
use crate::places::Places;
use crate::wake::{self, Orders, Work};

/// How soon a question is repeated that had no answer; doubled up to [`ROUND`].
const IMPATIENCE: Duration = Duration::from_millis(10);

/// How often the kernel's table is looked at.
const ROUND: Duration = Duration::from_secs(1);

/// Every so many rounds peers are asked although they are known: they may have
/// got another card.
const REFRESH: u32 = 10;

/// Has the peers asked for at once.
#[derive(Debug, Clone)]
pub(crate) struct Resolver {
    wish: Orders<()>,
    pub(crate) places: Places,
}

impl Resolver {
    /// Starts the thread that asks.
    pub(super) fn spawn(
        config: &Config,
        place: Arc<Place>,
        (places, inbox): (Places, Inbox),
    ) -> io::Result<Self> {
        Self::start(spoken_with(config), (place, places), inbox, true)
    }

    /// The same of a director: it looks for its back-ends, and hears for none of them.
    pub(crate) fn of_backends(
        config: &Config,
        ifindex: u32,
        places: Places,
        inbox: Inbox,
    ) -> io::Result<Self> {
        let serves = |name| config.directed().any(|service| service.has_member(name));
        let mut backends = found(config, serves);
        for backend in &mut backends {
            let is_it = |peer: &&PeerConfig| config.peer_id(peer.name) == Some(backend.id);
            let peer = config.peers.iter().find(is_it);
            backend.is_far = peer.is_some_and(|peer| peer.reach == Reach::Vxlan);
        }
        let place = Arc::new(Place::new(ifindex, MacAddr::ZERO));
        Self::start(backends, (place, places), inbox, false)
    }

    fn start(
        peers: Vec<Candidate>,
        (place, places): (Arc<Place>, Places),
        inbox: Inbox,
        overhears: bool,
    ) -> io::Result<Self> {
        let (wish, wishes) = wake::queue()?;
        let mut search = Search {
            ifindex: place.ifindex(),
            place,
            places: places.clone(),
            peers,
            inbox,
            overhears,
        };
        thread::Builder::new()
            .name("gw-neighbours".into())
            .spawn(move || search.run(&wishes))?;
        Ok(Self { wish, places })
    }

    /// A peer says over its link where it is.
    pub(crate) fn hear(&self, peer: PeerId, mac: MacAddr) {
        self.places.hear(peer, mac);
        self.hurry();
    }

    /// A peer may be there, or elsewhere, since a moment ago.
    pub(crate) fn hurry(&self) {
        if self.wish.give(()).is_err() {
            tracing::error!("peers are no longer looked for on the link");
        }
    }
}

/// Addresses of those that share a service with this node.
pub(super) fn relied_on(config: &Config) -> Vec<IpAddr> {
    let candidates = candidates(config);
    candidates.iter().map(|peer| peer.address).collect()
}

/// The same, and the directors of its services: what they are told has tags.
fn spoken_with(config: &Config) -> Vec<Candidate> {
    let mut all = candidates(config);
    let is_directed = config.own_shares().any(|(_, it)| it.is_directed());
    let is_far = config.own_peer().reach == Reach::Vxlan;
    if is_directed && !is_far {
        let is_director = |name| {
            let peer = config.peer(name);
            peer.is_some_and(|peer| peer.role == PeerRole::Director && peer.reach != Reach::Vxlan)
        };
        let directors = found(config, is_director);
        all.extend(directors.into_iter().map(|it| Candidate {
            is_director: true,
            ..it
        }));
    }
    all
}

/// Those that share a service with this node: others need not be on the link.
fn candidates(config: &Config) -> Vec<Candidate> {
    found(config, |name| {
        config
            .own_shares()
            .any(|(_, service)| service.has_member(name))
    })
}

fn found(config: &Config, is_wanted: impl Fn(NodeName) -> bool) -> Vec<Candidate> {
    let peers = (0..).map(PeerId).zip(config.others());
    let mates = peers.filter(|(_, peer)| is_wanted(peer.name));
    mates
        .map(|(id, peer)| Candidate {
            id,
            address: peer.data,
            is_far: false,
            is_director: false,
            known: None,
        })
        .collect()
}

struct Candidate {
    id: PeerId,
    address: IpAddr,
    /// It is not on the link: who is looked for is the router before it.
    is_far: bool,
    /// What is for it nobody else takes in.
    is_director: bool,
    known: Option<MacAddr>,
}

impl Candidate {
    /// Whose address on the link is wanted.
    fn on_link(&self, ifindex: u32) -> IpAddr {
        if !self.is_far {
            return self.address;
        }
        match next_hop(ifindex, self.address) {
            Ok(hop) => hop.unwrap_or(self.address),
            Err(error) => {
                tracing::warn!(%error, to = %self.address, "can't look for the way");
                self.address
            }
        }
    }
}

struct Search {
    place: Arc<Place>,
    /// Where peers have said that they are.
    places: Places,
    /// Where it was at the last look.
    ifindex: u32,
    peers: Vec<Candidate>,
    inbox: Inbox,
    /// Whether the card takes in what is meant for them.
    overhears: bool,
}

impl Search {
    /// Ends with the driver.
    fn run(&mut self, wishes: &Work<()>) {
        let mut pause = IMPATIENCE;
        let mut round = 0_u32;
        while let Some(complete) = self.look(round.is_multiple_of(REFRESH)) {
            pause = if complete {
                ROUND
            } else {
                ROUND.min(pause * 2)
            };
            match wishes.next_within(pause) {
                Ok(()) => {
                    // One wish is as good as many.
                    while wishes.next().is_ok() {}
                    (pause, round) = (IMPATIENCE, 0);
                }
                Err(RecvTimeoutError::Timeout) => round = round.wrapping_add(1),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// One look at all of them; says whether all are known. `None`: the driver
    /// has ended.
    fn look(&mut self, ask_all: bool) -> Option<bool> {
        let mut complete = true;
        if self.ifindex != self.place.ifindex() {
            // A new interface's filter takes in nobody's frames yet.
            self.ifindex = self.place.ifindex();
            self.peers.iter_mut().for_each(|peer| peer.known = None);
        }
        for peer in &mut self.peers {
            let address = peer.on_link(self.ifindex);
            let found = neighbour(self.ifindex, address).unwrap_or_else(|error| {
                tracing::warn!(%error, "can't read the neighbour table");
                None
            });
            if found.is_none() || ask_all {
                // No way to it, as long as the interface is down: asked again.
                let _ = ask_neighbour(self.ifindex, address);
            }
            complete &= found.is_some();
            let place = match peer.is_far {
                true => found,
                false => self.places.of(peer.id).place(found),
            };
            // One that has fallen silent is where it was.
            let Some(mac) = place.filter(|_| place != peer.known) else {
                continue;
            };
            let old = peer.known.replace(mac);
            if self.overhears
                && !peer.is_director
                && let Err(error) = hear_for(self.ifindex, old, mac)
            {
                tracing::info!(%error, peer = %peer.address, "the card takes in nothing for it");
            }
            let input = Input::Neighbour { peer: peer.id, mac };
            self.inbox.send(input).ok()?;
        }
        Some(complete)
    }
}

/// What the switch floods because the peer's link is down must pass our card's
/// filter: the tap takes it for the peer's twins. Without that a takeover waits
/// for the clients' retransmissions, no more.
///
/// A bridge hears floods anyway, and would take what is said to it here for its
/// own address: frames to the peer would end in it.
fn hear_for(ifindex: u32, old: Option<MacAddr>, new: MacAddr) -> io::Result<()> {
    if has_table_of_its_own(ifindex)? {
        return Ok(());
    }
    if let Some(old) = old {
        leave_out(ifindex, old)?;
    }
    take_in(ifindex, new)
}

fn has_table_of_its_own(ifindex: u32) -> io::Result<bool> {
    let devices = Devices::read()?;
    let kind = devices
        .get(ifindex)
        .and_then(|device| device.kind.as_deref());
    Ok(matches!(kind, Some("bridge" | "openvswitch" | "vxlan")))
}

/// The card's filter as it was before there was an agent.
pub(super) fn forget(config: &Config, ifindex: u32) {
    if !matches!(has_table_of_its_own(ifindex), Ok(false)) {
        return;
    }
    for peer in config.others() {
        // One that can't be found any more was never heard for, or its address
        // in the filter does no harm.
        if let Ok(Some(mac)) = neighbour(ifindex, peer.data) {
            let _ = leave_out(ifindex, mac);
        }
    }
}
