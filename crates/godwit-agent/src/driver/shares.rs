//! What this node's data path is told of each share. Pure: the driver writes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use godwit_bpf::{Expiry, Front, Keepers, Moves, ShareEntry};
use godwit_core::twin::leash;
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{Epoch, Generation, MacAddr, NodeName, Role, ShareId};

use super::bereft::Bereft;
use super::logs;
use super::resets::Resets;
use super::revive::Revival;
use crate::config::{self, Config, Gate, Reach};
use crate::input::Census;
use crate::status::TakeoverReport;

/// The shares of this node, by number.
#[derive(Debug)]
pub(super) struct Shares {
    /// Where each peer is on the link, as it was last heard.
    macs: BTreeMap<PeerId, MacAddr>,
    shares: BTreeMap<ShareId, Share>,
}

/// One share.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) name: String,
    /// Those that this node answers for while it owns the share.
    pub(super) addresses: Vec<IpAddr>,
    /// Its twins stand still until they are served (ADR 18).
    pub(super) kept: bool,
    /// What the data path is told.
    pub(super) entry: ShareEntry,
    /// The longest leash of a flow.
    leash: u32,
    /// The longest log of a flow.
    log_cap: u32,
    /// The other side of the tap.
    peer: Option<PeerId>,
    /// What the entry will say when the peer's address on the link is known:
    /// a tap that leads nowhere protects nothing.
    withheld: Option<Generation>,
    /// Who is spoken to after the takeover.
    pub(super) revival: Revival,
    /// When this agent last took it over.
    pub(super) taken_over: Option<MonoTime>,
    pub(super) last_takeover: Option<LastTakeover>,
    /// Connections that this agent has reset.
    pub(super) resets: Resets,
    /// Connections that nobody serves any more.
    pub(super) bereft: Bereft,
}

/// The last takeover by this agent.
#[derive(Debug, Clone)]
pub(super) struct LastTakeover {
    pub(super) report: TakeoverReport,
    pub(super) at: MonoTime,
}

/// What the core wants of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) role: Role,
    pub(super) epoch: Epoch,
    pub(super) generation: Generation,
    /// The other side of the tap. A takeover names none: the old peer's address
    /// stays, for what it may still send.
    pub(super) peer: Option<PeerId>,
    /// Until when an owner may speak.
    pub(super) expiry: Expiry,
}

impl Shares {
    /// `left` is what an earlier agent has left of each share, and the other side of that if
    /// it is known.
    /// `keepers` are the ports where twins are kept.
    pub(super) fn new(
        config: &Config,
        keepers: Option<Keepers>,
        left: impl Fn(ShareId) -> Option<(ShareEntry, Option<NodeName>)>,
    ) -> Self {
        let mut macs = BTreeMap::new();
        let mut shares = BTreeMap::new();
        for (id, service) in config.own_shares() {
            let (left, other) = left(id).unzip();
            let (other, leash) = (other.flatten(), service.leash_in_force());
            let moves = match service.moves() {
                false => Moves::Not,
                true if service.primary == config.node.name && !service.is_fronted() => Moves::Home,
                true => Moves::Guest,
            };
            let home = config.home_of(id).unwrap_or(service.primary);
            let standbys = service.standbys_of(home);
            // The list of backups may have been another one.
            let is_listed = |name| home == name || standbys.contains(&name);
            let has_part = |name| other.map_or_else(|| is_listed(name), |it| it == name);
            let mates: Vec<_> = (0..)
                .map(PeerId)
                .zip(config.others())
                .filter(|(_, peer)| has_part(peer.name))
                .collect();
            if let (Some(left), [(peer, _)]) = (&left, &mates[..])
                && left.peer_mac != MacAddr::ZERO
            {
                macs.insert(*peer, left.peer_mac);
            }
            let entry = ShareEntry {
                role: Role::None,
                epoch: Epoch::NONE,
                generation: Generation::NONE,
                peer_mac: MacAddr::ZERO,
                group: service.group(),
                leash: left.map_or(leash, |left| left.leash.min(leash)),
                lag_limit: service.lag.lag_limit,
                gate: service.gate_in_force() == Gate::Ack,
                takeovers: left.map_or(0, |left| left.takeovers),
                turn: left.map_or(0, |left| left.turn),
                expiry: Expiry::Never,
                log_mode: service.log_mode(),
                log_cap: service.reprotect_cap,
                moves,
                front: match service.front {
                    config::Front::None => Front::Nobody,
                    // What is told does not come through a tunnel, and a router learns nothing.
                    config::Front::Director if config.own_peer().reach == Reach::Link => {
                        Front::Told
                    }
                    config::Front::Director | config::Front::Router => Front::Deaf,
                },
                continued: left.map_or(Generation::NONE, |left| left.continued),
                keepers: keepers.filter(|_| service.is_kept()).unwrap_or_default(),
            };
            let share = Share {
                name: config.share_name(id, service),
                addresses: match moves {
                    Moves::Not | Moves::Home if !service.is_fronted() => service.ips(),
                    Moves::Not | Moves::Home | Moves::Guest => Vec::new(),
                },
                kept: service.is_kept(),
                entry,
                leash,
                log_cap: service.reprotect_cap,
                peer: None,
                withheld: None,
                revival: Revival::default(),
                taken_over: None,
                last_takeover: None,
                resets: Resets::default(),
                bereft: Bereft::default(),
            };
            shares.insert(id, share);
        }
        Self { macs, shares }
    }

    pub(super) fn get(&self, share: ShareId) -> Option<&Share> {
        self.shares.get(&share)
    }

    pub(super) fn get_mut(&mut self, share: ShareId) -> Option<&mut Share> {
        self.shares.get_mut(&share)
    }

    /// A share whose clients have not all been spoken to since the takeover.
    pub(super) fn revival_under_way(&mut self) -> Option<(ShareId, &mut Revival)> {
        let mut revivals = self
            .shares
            .iter_mut()
            .map(|(id, share)| (*id, &mut share.revival));
        revivals.find(|(_, revival)| revival.is_under_way())
    }

    /// The other shares that have an address in common with this one.
    pub(super) fn mates(&self, of: ShareId) -> Vec<ShareId> {
        let Some(share) = self.shares.get(&of) else {
            return Vec::new();
        };
        let others = self.shares.iter().filter(|(id, other)| {
            **id != of
                && other
                    .addresses
                    .iter()
                    .any(|ip| share.addresses.contains(ip))
        });
        others.map(|(id, _)| *id).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ShareId, &Share)> {
        self.shares.iter().map(|(id, share)| (*id, share))
    }

    /// Whether this part makes the standby of a share its owner.
    pub(super) fn is_takeover(&self, share: ShareId, part: Part) -> bool {
        let role = self.get(share).map(|share| share.entry.role);
        role == Some(Role::Shadow) && part.role == Role::Owner
    }

    /// The data path plays the owner of a share since a moment ago: who was heard
    /// before was heard by a twin.
    pub(super) fn note_takeover(&mut self, share: ShareId, now: MonoTime) {
        if let Some(share) = self.shares.get_mut(&share) {
            share.taken_over = Some(now);
        }
    }

    /// Gives a share another part: its entry is to be written then.
    pub(super) fn set(&mut self, share: ShareId, part: Part) -> Option<&Share> {
        let share = self.shares.get_mut(&share)?;
        let entry = &mut share.entry;
        match (entry.role, part.role) {
            (Role::Shadow, Role::Owner) => {
                // With a standby from the start it was handed over.
                if part.generation.is_none() {
                    entry.takeovers += 1;
                }
                entry.turn = entry.turn.wrapping_add(1);
                entry.continued = entry.generation;
            }
            (Role::Owner, Role::Shadow) => entry.turn = entry.turn.wrapping_add(1),
            (Role::Owner | Role::Shadow | Role::None, _) => {}
        }
        if part.role != Role::Owner {
            entry.continued = Generation::NONE;
        }
        (entry.role, entry.epoch, entry.expiry) = (part.role, part.epoch, part.expiry);
        share.peer = part.peer.or(share.peer);
        let known = share.peer.and_then(|peer| self.macs.get(&peer));
        if part.peer.is_some() && known.is_none() {
            (entry.peer_mac, entry.generation) = (MacAddr::ZERO, Generation::NONE);
            share.withheld = Some(part.generation);
        } else {
            entry.peer_mac = known.copied().unwrap_or(entry.peer_mac);
            entry.generation = part.generation;
            share.withheld = None;
        }
        Some(share)
    }

    /// Where a peer is on the link, if it was found.
    pub(super) fn mac(&self, peer: PeerId) -> Option<MacAddr> {
        self.macs.get(&peer).copied()
    }

    /// Divides each service's budget over its busy flows, and what there is for logs over
    /// those of services with eager snapshots: the shares whose entries are to be written.
    pub(super) fn apply_census(&mut self, census: &Census) -> Vec<ShareId> {
        let mut changed = Vec::new();
        let is_latest = |id: &ShareId| {
            self.shares
                .get(id)
                .is_some_and(|it| logs::is_latest(&it.entry))
        };
        let used = census.logs.iter().filter(|(id, _)| is_latest(id));
        let used = used.map(|(_, logs)| logs).sum();
        for (id, share) in &mut self.shares {
            let entry = &mut share.entry;
            if logs::is_latest(entry) {
                let cap = logs::fair(share.log_cap, used);
                if cap != entry.log_cap {
                    entry.log_cap = cap;
                    changed.push(*id);
                }
            }
            let busy = census.busy.get(&(*id, entry.generation));
            let busy = busy.copied().unwrap_or(0);
            let leash = leash::next(entry.role, entry.leash, share.leash, busy);
            // The budget is kept to; a little more for each is not worth a write.
            let grows = leash > entry.leash + entry.leash / 8 || leash == share.leash;
            if grows || leash < entry.leash {
                if leash != entry.leash && !changed.contains(id) {
                    changed.push(*id);
                }
                entry.leash = leash;
            }
        }
        changed
    }

    /// A peer is there on the link: the shares whose entries are to be written.
    pub(super) fn learn(&mut self, peer: PeerId, mac: MacAddr) -> Vec<ShareId> {
        if self.macs.insert(peer, mac) == Some(mac) {
            return Vec::new();
        }
        let concerned = self
            .shares
            .iter_mut()
            .filter(|(_, share)| share.peer == Some(peer));
        concerned
            .map(|(id, share)| {
                share.entry.peer_mac = mac;
                if let Some(generation) = share.withheld.take() {
                    share.entry.generation = generation;
                }
                *id
            })
            .collect()
    }
}

impl Share {
    /// The peer that can't be reached on the link, if it is needed.
    pub(super) fn unresolved(&self) -> Option<PeerId> {
        self.peer.filter(|_| self.withheld.is_some())
    }
}

#[cfg(test)]
mod tests {
    use godwit_bpf::{LOG_CHUNKS, LogMode};

    use super::*;
    use crate::testing::Pair;

    const SHARE: ShareId = ShareId::of_service("web");
    const PEER: PeerId = PeerId(0);
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const NOW: MonoTime = MonoTime::ZERO;

    fn shares() -> Shares {
        Shares::new(&Pair::new().a, None, |_| None)
    }

    const fn part(role: Role, generation: u32, peer: Option<PeerId>) -> Part {
        Part {
            role,
            epoch: Epoch::new(1, 1),
            generation: Generation(generation),
            peer,
            expiry: Expiry::Never,
        }
    }

    fn entry(shares: &Shares) -> &ShareEntry {
        &shares.get(SHARE).expect("a's only share").entry
    }

    #[test]
    fn a_standby_that_is_nowhere_protects_nothing_until_it_is_found() {
        let mut shares = shares();
        for role in [Role::Owner, Role::Shadow] {
            let mut shares = self::shares();
            shares.set(SHARE, part(role, 4, Some(PEER)));
            assert_eq!(
                (entry(&shares).role, entry(&shares).generation),
                (role, Generation::NONE)
            );
            assert_eq!(shares.get(SHARE).and_then(Share::unresolved), Some(PEER));
            assert_eq!(shares.learn(PEER, MAC), [SHARE]);
            assert_eq!(entry(&shares).generation, Generation(4));
            assert_eq!(entry(&shares).peer_mac, MAC);
            assert_eq!(shares.get(SHARE).and_then(Share::unresolved), None);
        }
        // Known ahead of time, it is in force at once.
        assert!(shares.learn(PEER, MAC).is_empty());
        shares.set(SHARE, part(Role::Owner, 4, Some(PEER)));
        assert_eq!(entry(&shares).generation, Generation(4));
        assert!(shares.learn(PEER, MAC).is_empty(), "nothing new");
    }

    #[test]
    fn what_is_withheld_is_forgotten_with_the_part_it_belongs_to() {
        let mut shares = shares();
        shares.set(SHARE, part(Role::Owner, 4, Some(PEER)));
        shares.set(SHARE, part(Role::Owner, 0, None));
        assert_eq!(shares.get(SHARE).and_then(Share::unresolved), None);
        shares.learn(PEER, MAC);
        assert_eq!(entry(&shares).generation, Generation::NONE);
    }

    #[test]
    fn a_takeover_keeps_the_old_peer_and_counts() {
        let mut shares = shares();
        shares.learn(PEER, MAC);
        shares.set(SHARE, part(Role::Shadow, 4, Some(PEER)));
        assert!(shares.is_takeover(SHARE, part(Role::Owner, 0, None)));
        assert!(!shares.is_takeover(SHARE, part(Role::Shadow, 5, Some(PEER))));
        shares.set(SHARE, part(Role::Owner, 0, None));
        assert_eq!(
            (entry(&shares).peer_mac, entry(&shares).takeovers),
            (MAC, 1)
        );
        shares.note_takeover(SHARE, NOW);
        assert_eq!(shares.get(SHARE).and_then(|s| s.taken_over), Some(NOW));
        // It comes back with another card.
        assert_eq!(shares.learn(PEER, OTHER), [SHARE]);
        assert_eq!(entry(&shares).peer_mac, OTHER);
    }

    #[test]
    fn a_planned_move_is_a_turn_and_no_takeover() {
        let mut shares = shares();
        shares.learn(PEER, MAC);
        let counts = |shares: &Shares| (entry(shares).turn, entry(shares).takeovers);
        shares.set(SHARE, part(Role::Owner, 4, Some(PEER)));
        assert_eq!(counts(&shares), (0, 0), "as at start");
        shares.set(SHARE, part(Role::Shadow, 4, Some(PEER)));
        shares.set(SHARE, part(Role::Owner, 4, Some(PEER)));
        assert_eq!(counts(&shares), (2, 0));
        shares.set(SHARE, part(Role::Owner, 0, None));
        assert_eq!(counts(&shares), (2, 0), "it lost its standby");
        shares.set(SHARE, part(Role::Shadow, 5, Some(PEER)));
        shares.set(SHARE, part(Role::Owner, 0, None));
        assert_eq!(counts(&shares), (4, 1), "that was a takeover");
    }

    #[test]
    fn an_owner_knows_whose_twins_it_goes_on_with() {
        let mut shares = shares();
        shares.learn(PEER, MAC);
        let mut after = |role, generation| {
            shares.set(SHARE, part(role, generation, Some(PEER)));
            entry(&shares).continued.0
        };
        assert_eq!(after(Role::Owner, 3), 0, "it has none");
        assert_eq!(after(Role::Shadow, 4), 0);
        assert_eq!(after(Role::Owner, 0), 4, "a takeover");
        assert_eq!(after(Role::Owner, 5), 4, "with another standby");
        assert_eq!(after(Role::Shadow, 5), 0);
        assert_eq!(after(Role::Owner, 5), 5, "it was handed to it");
        assert_eq!(after(Role::None, 0), 0);
        assert_eq!(after(Role::Owner, 0), 0, "its twins have ended");
    }

    fn census(stay: u32, busy: u32) -> Census {
        Census {
            busy: BTreeMap::from([((SHARE, Generation(stay)), busy)]),
            ..Census::default()
        }
    }

    /// Others would find no room in the map.
    #[test]
    fn logs_that_are_kept_for_good_leave_room_for_others() {
        let mut shares = shares();
        let full = Census {
            logs: BTreeMap::from([(SHARE, LOG_CHUNKS / 160)]),
            ..Census::default()
        };
        let cap = entry(&shares).log_cap;
        assert_eq!(shares.apply_census(&full), [], "it gives its own back");
        shares.get_mut(SHARE).expect("it is there").entry.log_mode = LogMode::Latest;
        assert_eq!(shares.apply_census(&full), [SHARE]);
        assert_eq!(entry(&shares).log_cap, 78 * 400);
        assert_eq!(shares.apply_census(&full), [], "as before");
        assert_eq!(shares.apply_census(&Census::default()), [SHARE]);
        assert_eq!(entry(&shares).log_cap, cap);
    }

    #[test]
    fn many_busy_flows_have_a_shorter_leash_each() {
        let mut shares = shares();
        shares.learn(PEER, MAC);
        shares.set(SHARE, part(Role::Shadow, 4, Some(PEER)));
        let census = |busy| census(4, busy);
        assert_eq!(shares.apply_census(&census(4)), []);
        assert_eq!(shares.apply_census(&census(32)), [SHARE]);
        assert_eq!(entry(&shares).leash, 512 << 10);
        assert_eq!(shares.apply_census(&census(31)), [], "about the same");
        // Flows of another generation have no twins.
        let other = self::census(3, 32);
        for _ in 0..3 {
            assert_eq!(shares.apply_census(&other), [SHARE]);
        }
        assert_eq!(entry(&shares).leash, 4 << 20);
        assert_eq!(shares.apply_census(&other), []);
    }

    /// Small steps up to many flows end at the budget too.
    #[test]
    fn one_more_busy_flow_does_not_exceed_the_budget() {
        for role in [Role::Owner, Role::Shadow] {
            let mut shares = shares();
            shares.learn(PEER, MAC);
            shares.set(SHARE, part(role, 4, Some(PEER)));
            for busy in 1..=40 {
                shares.apply_census(&census(4, busy));
                let leash = entry(&shares).leash;
                assert!(leash * busy <= 16 << 20, "{role:?}, {busy}: {leash}");
            }
        }
    }

    #[test]
    fn an_earlier_agent_knew_where_the_peer_is() {
        let left = ShareEntry {
            peer_mac: MAC,
            takeovers: 3,
            ..*entry(&shares())
        };
        let mut shares = Shares::new(&Pair::new().a, None, |_| Some((left, None)));
        shares.set(SHARE, part(Role::Owner, 4, Some(PEER)));
        assert_eq!(
            (entry(&shares).peer_mac, entry(&shares).takeovers),
            (MAC, 3)
        );
        assert_eq!(entry(&shares).generation, Generation(4));
        let other = Some("c".parse().expect("a name"));
        let shares = Shares::new(&Pair::new().a, None, |_| Some((left, other)));
        assert_eq!(shares.mac(PEER), None, "that was somebody else's place");
    }
}
