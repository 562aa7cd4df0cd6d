//! Where requests are served best: what the data path is told of a service's rules and
//! of the other servers, so that it can hand connections to them (`gw_transfer.h`).
//!
//! A server is asked while its heartbeats arrive and it says in them that it serves its
//! own share, which it does not while nobody listens there, nor while all who do stand still
//! (`pauses.rs`). What it is asked it may refuse all the same; this only saves the question.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use godwit_bpf::{MapError, Mate, PlacingRule, PlacingTable};
use godwit_core::detector::State;
use godwit_core::{Beat, MonoTime, PeerId, PeerStatus, Power};
use godwit_wire::{Epoch, Heartbeat, MacAddr, NodeName, Role, ShareId, node_id};

use super::super::ground::Ground;
use super::super::pauses::is_paused;
use super::super::unreached::Unreached;
use super::paths::Paths;
use crate::config::{Config, RuleConfig};
use crate::tagging::Tagging;

/// The services whose requests have rules, of which this node has a share.
#[derive(Debug, Default)]
pub(super) struct Placing {
    placed: Vec<Placed>,
    /// What the kernel has refused is tried again then.
    again: MonoTime,
    paths: Paths,
}

/// How long a refusal of the kernel's is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a path may not be proved before people hear of it: within a second of when it
/// carried nothing any more, at the latest.
const UNPROVED: Duration = Duration::from_millis(200);

/// One of them.
#[derive(Debug)]
struct Placed {
    share: ShareId,
    /// Its servers stand by for each other.
    is_ring: bool,
    /// The number of this node's name.
    node: u32,
    /// The same of all servers of the service.
    members: Vec<u32>,
    rules: Vec<PlacingRule>,
    mates: Vec<Side>,
    written: bool,
}

/// Another server of it.
#[derive(Debug)]
struct Side {
    peer: PeerId,
    name: NodeName,
    node: u32,
    /// Its own share.
    home: ShareId,
    /// It has said that it serves that.
    serves: bool,
    /// Who owns it, where others may take it over, and under which epoch.
    owner: Option<(Epoch, PeerId)>,
    told: Option<Mate>,
}

impl Placing {
    pub(super) fn new(config: &Config) -> Self {
        let node = node_id(config.node.name).get();
        let ruled = config.own_shares().filter(|(_, it)| it.is_placed());
        let placed = ruled.map(|(share, service)| {
            let homes = config.homes().filter(|(_, it, _)| it.name == service.name);
            let mates = homes.filter_map(|(home, _, name)| {
                Some(Side {
                    peer: config.peer_id(name)?,
                    name,
                    node: node_id(name).get(),
                    home,
                    serves: false,
                    owner: None,
                    told: None,
                })
            });
            let members = service.members().map(|it| node_id(it).get());
            let rules = service.rules.iter().map(RuleConfig::placing);
            Placed {
                share,
                is_ring: service.is_ring(),
                node,
                members: members.collect(),
                rules: rules.collect(),
                mates: mates.collect(),
                written: false,
            }
        });
        Self {
            placed: placed.collect(),
            again: MonoTime::ZERO,
            paths: Paths::default(),
        }
    }

    /// Servers that would be asked if the link carried what we send them, for a second by now.
    pub(super) fn unproved(&self, share: ShareId, now: MonoTime) -> Vec<NodeName> {
        let placed = self.placed.iter().filter(|placed| placed.share == share);
        let sides = placed.flat_map(|placed| &placed.mates);
        let is_unproved = |side: &&Side| {
            let Some(Mate::Unproved(mac)) = side.told else {
                return false;
            };
            let span = self.paths.unproved_for(mac, now);
            span.is_some_and(|span| span >= UNPROVED)
        };
        sides.filter(is_unproved).map(|side| side.name).collect()
    }

    /// Servers that the link does not carry anything to, or from, though they may live; since
    /// when.
    pub(super) fn unreached(&self, now: MonoTime) -> Vec<Unreached> {
        let sides = self.placed.iter().flat_map(|placed| &placed.mates);
        let unreached = sides.filter_map(|side| {
            let told = side.told.filter(|told| !matches!(told, Mate::Dead(_)))?;
            let span = self.paths.unproved_for(told.mac(), now)?;
            let since = now.saturating_sub(span);
            let (name, mac) = (side.name, told.mac());
            (span >= UNPROVED).then_some(Unreached { name, mac, since })
        });
        let by_name: BTreeMap<_, _> = unreached.map(|it| (it.name, it)).collect();
        by_name.into_values().collect()
    }

    /// The link is another one than the paths were proved on.
    pub(super) fn doubt_paths(&mut self, now: MonoTime) {
        self.paths.doubt(now);
        // It is written before anything else is asked.
        self.again = self.again.min(now);
    }

    /// What another server does for its shares.
    pub(super) fn note_beat(&mut self, peer: PeerId, beat: &Beat) {
        // One that tells of as many as it can may do more.
        let is_whole = beat.shares.len() < Heartbeat::MAX_SHARES;
        let sides = self.placed.iter_mut().flat_map(|it| &mut it.mates);
        for side in sides {
            let claims = beat.shares.iter().filter(|claim| claim.share == side.home);
            let claim = claims.into_iter().find(|claim| claim.role == Role::Owner);
            let known = side.owner.map_or(Epoch::NONE, |(epoch, _)| epoch);
            if let Some(claim) = claim.filter(|claim| claim.epoch >= known) {
                side.owner = Some((claim.epoch, peer));
            }
            if side.peer != peer {
                continue;
            }
            let paused = is_paused(&beat.shares, side.home);
            if paused || claim.is_some() || is_whole {
                side.serves = claim.is_some() && !paused;
            }
        }
    }

    /// The servers that are asked for a share's requests; `None` if those have no rules.
    pub(super) fn asked(&self, share: ShareId) -> Option<Vec<String>> {
        let placed = self.placed.iter().find(|placed| placed.share == share)?;
        let is_open = |side: &&Side| matches!(side.told, Some(Mate::Open(_)));
        let name = |side: &Side| side.name.to_string();
        Some(placed.mates.iter().filter(is_open).map(name).collect())
    }

    /// Who answers for a server's connections, by the number of its name.
    pub(super) fn whom(&self, share: ShareId, node: u32) -> Option<PeerId> {
        let placed = self.placed.iter().find(|placed| placed.share == share)?;
        let side = placed.mates.iter().find(|side| side.node == node)?;
        let owner = side.owner.map(|(_, owner)| owner);
        Some(owner.filter(|_| placed.is_ring).unwrap_or(side.peer))
    }

    /// Whether that peer is the server of that number, and not one in its place.
    pub(super) fn is_itself(&self, share: ShareId, node: u32, peer: PeerId) -> bool {
        let mut placed = self.placed.iter().filter(|placed| placed.share == share);
        placed.any(|it| it.mates.iter().any(|it| (it.node, it.peer) == (node, peer)))
    }

    /// Where the other servers of a share are on the link, as far as is known.
    pub(super) fn macs(&self, share: ShareId) -> impl Iterator<Item = MacAddr> {
        let placed = self.placed.iter().filter(move |it| it.share == share);
        placed
            .flat_map(|it| &it.mates)
            .filter_map(|side| Some(side.told?.mac()))
    }

    /// Where all other servers are on the link, each once.
    fn all_macs(&self) -> Vec<MacAddr> {
        let sides = self.placed.iter().flat_map(|placed| &placed.mates);
        let macs = sides.filter_map(|side| Some(side.told?.mac()));
        macs.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Writes what has changed.
    fn refresh(
        &mut self,
        peers: &BTreeMap<PeerId, PeerStatus>,
        (mac, owns): (impl Fn(PeerId) -> Option<MacAddr>, impl Fn(ShareId) -> bool),
        table: &PlacingTable,
    ) -> Result<(), MapError> {
        let mut moved = false;
        let paths = &self.paths;
        for placed in &mut self.placed {
            if !placed.written {
                let numbers: Vec<_> = placed.mates.iter().map(|side| side.node).collect();
                table.forget_mates(placed.share, &numbers)?;
                table.set(
                    placed.share,
                    Some(placed.node),
                    &placed.members,
                    &placed.rules,
                )?;
                placed.written = true;
            }
            for side in &mut placed.mates {
                let (Some(at), Some(peer)) = (mac(side.peer), peers.get(&side.peer)) else {
                    continue;
                };
                let taker = side.owner.map(|(_, owner)| owner);
                let taker = taker.filter(|owner| *owner != side.peer);
                let now = mate(side.serves, (peer.liveness, peer.power), at);
                let now = match (placed.is_ring, taker.and_then(&mac)) {
                    (false, _) => now,
                    (true, _) if owns(side.home) => Mate::Dead(at),
                    (true, Some(by)) => Mate::TakenOver { own: at, by },
                    // Somebody will have what it had.
                    (true, None) if now == Mate::Dead(at) => Mate::Closed(at),
                    (true, None) => now,
                };
                let now = if now == Mate::Open(at) && !paths.is_proved(at) {
                    Mate::Unproved(at)
                } else {
                    now
                };
                if side.told == Some(now) {
                    continue;
                }
                moved |= side.told.is_some_and(|told| told.mac() != at);
                table.set_mate(placed.share, side.node, now)?;
                side.told = Some(now);
            }
        }
        if moved {
            let sides = self.placed.iter().flat_map(|placed| &placed.mates);
            let macs: Vec<_> = sides.filter_map(|side| Some(side.told?.mac())).collect();
            table.forget(&macs)?;
        }
        Ok(())
    }
}

/// Whether a server is to be asked.
fn mate(serves: bool, (liveness, power): (State, Power), mac: MacAddr) -> Mate {
    match power {
        Power::Off => Mate::Dead(mac),
        Power::Unknown | Power::Cutting | Power::Stuck { .. } => {
            if serves && liveness.is_alive() {
                Mate::Open(mac)
            } else {
                Mate::Closed(mac)
            }
        }
    }
}

impl Placing {
    /// Keeps the data path's picture of the other servers up to date.
    pub(super) fn place(&mut self, ground: &Ground, tagging: &Tagging, now: MonoTime) {
        if self.placed.is_empty() || now < self.again {
            return;
        }
        let peers = (0..).map(PeerId).zip(ground.node.peer_status()).collect();
        let macs = self.all_macs();
        let link = (
            &ground.voice.frames,
            &ground.datapath.requests.placing,
            tagging,
        );
        self.paths.prove((ground.voice.mac, &macs), link, now);
        let shares = &ground.shares;
        let owns = |share| {
            let share = shares.get(share);
            share.is_some_and(|share| share.entry.role == Role::Owner)
        };
        let mac = |peer| shares.mac(peer);
        let written = self.refresh(&peers, (mac, owns), &ground.datapath.requests.placing);
        if let Err(error) = written {
            self.again = now.saturating_add(PAUSE);
            tracing::error!(error = %error, "where requests are served best can't be written");
        }
    }
}

/// No requests of a service are placed by an earlier agent's rules.
pub(super) fn forget_others(config: &Config, table: &PlacingTable) -> Result<(), MapError> {
    let plain = config.own_shares().filter(|(_, it)| !it.is_placed());
    for (share, _) in plain {
        table.set(share, None, &[], &[])?;
        table.forget_mates(share, &[])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use godwit_wire::ShareClaim;

    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_server_that_stands_still_is_not_asked_until_it_goes_on() {
        let home = ShareId(70_001);
        let side = Side {
            peer: PeerId(0),
            name: NodeName::new("b").expect("a name"),
            node: 1,
            home,
            serves: false,
            owner: None,
            told: None,
        };
        let placed = Placed {
            share: ShareId(70_000),
            is_ring: true,
            node: 0,
            members: Vec::new(),
            rules: Vec::new(),
            mates: vec![side],
            written: true,
        };
        let mut placing = Placing {
            placed: vec![placed],
            ..Placing::default()
        };
        let claim = |share, role| ShareClaim {
            share,
            role,
            epoch: Epoch::new(1, 1),
        };
        let (owned, paused) = (claim(home, Role::Owner), claim(home.pause_of(), Role::None));
        let mut full = vec![claim(ShareId(70_002), Role::Shadow); Heartbeat::MAX_SHARES - 1];
        full.push(paused);
        for (shares, serves) in [
            (vec![owned], true),
            (vec![owned, paused], false),
            (vec![owned], true),
            (full, false),
        ] {
            let beat = Beat {
                incarnation: 1,
                sequence: 1,
                sent: None,
                shares,
            };
            placing.note_beat(PeerId(0), &beat);
            assert_eq!(placing.placed[0].mates[0].serves, serves);
        }
    }

    /// Silence is no proof: what a silent server was asked for may have been answered.
    #[test]
    fn only_who_lives_and_serves_is_asked_and_only_who_is_off_is_dead() {
        for liveness in State::ALL {
            for serves in [false, true] {
                let is_open = serves && liveness == State::Alive;
                let on = if is_open {
                    Mate::Open(MAC)
                } else {
                    Mate::Closed(MAC)
                };
                for power in [
                    Power::Unknown,
                    Power::Cutting,
                    Power::Stuck {
                        until: MonoTime::ZERO,
                    },
                ] {
                    assert_eq!(mate(serves, (liveness, power), MAC), on);
                }
                let off = mate(serves, (liveness, Power::Off), MAC);
                assert_eq!(off, Mate::Dead(MAC));
            }
        }
    }
}
