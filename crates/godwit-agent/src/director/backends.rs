//! Who the back-ends are: their numbers in the data path and in the core, and where
//! they are on the link. Pure.

use std::time::Duration;

use godwit_bpf::director::{Backend, BackendTable, Slot, Tunnel};
use godwit_core::director::{self, BackendId, Serving};
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{MacAddr, NodeName, ShareClaim, ShareId};

use crate::config::{Config, DirectorConfig, PeerConfig, Reach};
use crate::driver::pauses::is_paused;

/// The back-ends of all services; the core's [`BackendId`] is an index into this.
#[derive(Debug)]
pub(super) struct Backends(Vec<Known>);

/// One of them.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: NodeName,
    pub(super) peer: PeerId,
    pub(super) weight: u16,
    /// Its place in the data path's table: slots and entries of earlier directors name
    /// it by that.
    pub(super) number: u16,
    /// Where it is on the link, or the router before it, if that has been found.
    pub(super) mac: Option<MacAddr>,
    /// How frames come to it that is not on the link.
    pub(super) tunnel: Option<Tunnel>,
    /// What it serves, by the services' numbers, with its shares of them.
    pub(super) shares: Vec<(usize, ShareId)>,
    /// Another one takes over what it has of some service.
    pub(super) followed: bool,
    /// It says of a SYN whether it has the connection.
    pub(super) tells: bool,
    /// And is asked, as the data path has it.
    pub(super) is_asked: bool,
    /// Of its agent.
    pub(super) life: Life,
}

/// The start of an agent that is heard.
#[derive(Debug, Default)]
pub(super) struct Life {
    incarnation: Option<u64>,
    settles_until: Option<MonoTime>,
}

/// How long a new agent may take to look whether somebody listens.
const SETTLING: Duration = Duration::from_secs(1);

impl Life {
    /// Whether an agent was started anew a moment ago, where one ran before and its server
    /// took connections: that nobody listens is not true yet.
    pub(super) fn settles(&mut self, incarnation: u64, was_taking: bool, now: MonoTime) -> bool {
        let before = self.incarnation.replace(incarnation);
        if before.is_some_and(|before| before != incarnation) {
            self.settles_until = was_taking.then(|| now.saturating_add(SETTLING));
        }
        self.settles_until.is_some_and(|until| now < until)
    }
}

/// Whether a back-end serves its share, by its heartbeat and what it is believed to own of
/// that; `None`: it does not say. `is_all`: what it does not own now, it does not serve.
pub(super) fn serving(
    share: ShareId,
    beat: &[ShareClaim],
    owned: &[ShareClaim],
    is_all: bool,
) -> Option<Serving> {
    if is_paused(beat, share) {
        Some(Serving::Paused)
    } else if owned.iter().any(|claim| claim.share == share) {
        Some(Serving::Yes)
    } else {
        is_all.then_some(Serving::No)
    }
}

/// The tunnel from this director to a back-end.
fn tunnel(config: &Config, peer: &PeerConfig) -> Option<Tunnel> {
    let vni = config.director.as_ref()?.vni;
    (peer.reach == Reach::Vxlan).then(|| Tunnel {
        from: config.own_peer().data,
        to: peer.data,
        vni,
    })
}

impl Backends {
    /// All that the file names. `left` is what is in the data path's table.
    pub(super) fn new(config: &Config, left: &[(u16, Backend)]) -> Self {
        let mut all: Vec<Known> = Vec::new();
        for (service, it) in config.directed().enumerate() {
            for member in it.members() {
                let homes = config.homes().filter(|(_, other, _)| other.name == it.name);
                let mut own = homes.filter(|(_, _, home)| *home == member);
                let share = own.next().map(|(share, ..)| (service, share));
                if let Some(known) = all.iter_mut().find(|known| known.name == member) {
                    known.shares.extend(share);
                    known.followed |= it.is_ring();
                    continue;
                }
                let (Some(peer), Some(file)) = (config.peer_id(member), config.peer(member)) else {
                    continue;
                };
                let taken: Vec<_> = all.iter().map(|known| known.number).collect();
                let earlier = left.iter().find(|(_, backend)| backend.name == member);
                let number = earlier.map(|(number, _)| *number);
                let wanted = |name| config.directed().any(|it| it.has_member(name));
                let Some(number) = number.or_else(|| unused(left, &taken, wanted)) else {
                    continue;
                };
                all.push(Known {
                    name: member,
                    peer,
                    weight: file.weight,
                    number,
                    mac: earlier
                        .map(|(_, backend)| backend.mac)
                        .filter(|mac| *mac != MacAddr::ZERO),
                    tunnel: tunnel(config, file),
                    shares: share.into_iter().collect(),
                    followed: it.is_ring(),
                    tells: earlier.is_some_and(|(_, backend)| backend.tells),
                    is_asked: false,
                    life: Life::default(),
                });
            }
        }
        Self(all)
    }

    /// What the core is to know of them.
    pub(super) fn core_config(&self, config: &Config, own: &DirectorConfig) -> director::Config {
        let service = |service: usize| {
            let serve = |known: &Known| known.shares.iter().any(|(own, _)| *own == service);
            let members = self.iter().filter(move |(_, known)| serve(known));
            members.map(|(id, known)| (id, known.weight)).collect()
        };
        director::Config {
            size: own.table_size,
            grace: own.grace,
            heartbeat: config.detect.heartbeat,
            backends: self.0.iter().map(|known| known.name).collect(),
            services: (0..config.directed().count()).map(service).collect(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BackendId, &Known)> {
        (0..).map(BackendId).zip(&self.0)
    }

    pub(super) fn get(&self, id: BackendId) -> Option<&Known> {
        self.0.get(usize::from(id.0))
    }

    pub(super) fn get_mut(&mut self, id: BackendId) -> Option<&mut Known> {
        self.0.get_mut(usize::from(id.0))
    }

    pub(super) fn of_peer(&self, peer: PeerId) -> Option<BackendId> {
        self.iter()
            .find_map(|(id, known)| (known.peer == peer).then_some(id))
    }

    /// Whose share of which service it is, if another one may take that over.
    pub(super) fn post_of(&self, share: ShareId) -> Option<(usize, BackendId)> {
        self.iter().find_map(|(id, known)| {
            let mut own = known.shares.iter().filter(|_| known.followed);
            own.find_map(|(service, it)| (*it == share).then_some((*service, id)))
        })
    }

    pub(super) fn named(&self, name: &str) -> Option<BackendId> {
        self.iter()
            .find_map(|(id, known)| (known.name.as_str() == name).then_some(id))
    }

    /// It is there on the link; whether that is news.
    pub(super) fn find(&mut self, id: BackendId, mac: MacAddr) -> bool {
        let known = self.0.get_mut(usize::from(id.0));
        known.is_some_and(|known| known.mac.replace(mac) != Some(mac))
    }

    /// A slot as the core has it. Who is no back-end any more is nobody.
    pub(super) fn core_slot(&self, slot: Slot) -> director::Slot {
        let id = |number: Option<u16>| {
            let mut all = self.iter();
            let found = all.find(|(_, known)| Some(known.number) == number);
            found.map(|(id, _)| id)
        };
        director::Slot {
            now: id(slot.now),
            base: id(slot.base),
            mixed: slot.mixed,
        }
    }

    /// A slot as the data path has it.
    pub(super) fn slot(&self, slot: director::Slot) -> Slot {
        let number = |id: Option<BackendId>| Some(self.get(id?)?.number);
        Slot {
            now: number(slot.now),
            base: number(slot.base),
            mixed: slot.mixed,
        }
    }
}

/// A number that nobody ever had, as entries may still name who had it; if there is none
/// left, that of one who is no back-end any more.
fn unused(
    left: &[(u16, Backend)],
    taken: &[u16],
    is_wanted: impl Fn(NodeName) -> bool,
) -> Option<u16> {
    let mut fresh = 0..BackendTable::MAX;
    let is_fresh = |number: &u16| !left.iter().any(|(known, _)| known == number);
    let fresh = fresh.find(|number| is_fresh(number) && !taken.contains(number));
    let mut given_up = left.iter().filter(|(_, backend)| !is_wanted(backend.name));
    fresh.or_else(|| {
        let mut numbers = given_up.by_ref().map(|(number, _)| *number);
        numbers.find(|number| !taken.contains(number))
    })
}

#[cfg(test)]
mod tests {
    use godwit_wire::{Epoch, Role};

    use super::*;

    /// A machine that has started anew has no server yet; an agent that has, has one.
    #[test]
    fn a_new_agent_where_a_server_took_connections_has_a_moment() {
        let at = |ms: u64| MonoTime::from_nanos(ms * 1_000_000);
        let mut life = Life::default();
        assert!(!life.settles(1, true, at(0)), "the first that is heard");
        assert!(!life.settles(1, true, at(10)));
        assert!(life.settles(2, true, at(20)));
        assert!(life.settles(2, true, at(1019)));
        assert!(!life.settles(2, true, at(1020)), "it has had its time");
        assert!(!life.settles(3, false, at(2000)), "it was silent before");
    }

    #[test]
    fn a_server_that_stands_still_says_so_beside_what_it_owns() {
        let claim = |share, role| ShareClaim {
            share,
            role,
            epoch: Epoch::NONE,
        };
        let (web, ssh) = (ShareId(70_001), ShareId(70_002));
        let owned = [claim(web, Role::Owner)];
        let paused = [owned[0], claim(web.pause_of(), Role::None)];
        let table = [
            (web, &owned[..], true, Some(Serving::Yes)),
            (web, &paused, true, Some(Serving::Paused)),
            (web, &paused, false, Some(Serving::Paused)),
            (ssh, &paused, true, Some(Serving::No)),
            (ssh, &paused, false, None),
        ];
        for (share, beat, is_all, wanted) in table {
            let found = serving(share, beat, &owned, is_all);
            assert_eq!(found, wanted, "{share}, {is_all}");
        }
    }

    fn name(text: &str) -> NodeName {
        NodeName::new(text).expect("a name")
    }

    fn config(backups: &str) -> Config {
        let peer = |name: &str, role: &str, last: u8| {
            format!(
                "[[peer]]\nname = \"{name}\"\nrole = \"{role}\"\ncontrol = \"10.9.0.{last}:7\"\n"
            )
        };
        let service = |name: &str, port: u16, backups: &str| {
            format!(
                "[[service]]\nname = \"{name}\"\naddress = \"10.9.0.{port}:{port}\"\n\
                 standby = \"none\"\nfront = \"director\"\nprimary = \"b\"\nbackups = [{backups}]\n"
            )
        };
        let text = [
            "[node]\nname = \"d\"\ninterface = \"eth0\"\n".to_owned(),
            "[tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n".to_owned(),
            "[detect]\nfencing = \"none\"\n".to_owned(),
            "[director]\nseed = \"0000000000000001\"\ntable_size = 251\n".to_owned(),
            peer("a", "server", 1),
            peer("b", "server", 2),
            peer("c", "server", 3),
            peer("d", "director", 4),
            service("web", 80, backups),
            service("ssh", 22, "\"a\""),
        ];
        Config::parse("godwit.toml".as_ref(), &text.concat()).expect("valid")
    }

    fn left(number: u16, text: &str) -> (u16, Backend) {
        let backend = Backend {
            name: name(text),
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            tunnel: None,
            there: true,
            drained: false,
            followed: false,
            gone: false,
            tells: true,
        };
        (number, backend)
    }

    #[test]
    fn each_has_its_own_shares_of_what_it_serves() {
        let config = config("\"a\", \"c\"");
        let backends = Backends::new(&config, &[]);
        let shares = |text| {
            let id = backends.named(text).expect("it is one");
            let known = backends.get(id).expect("it is known");
            known.shares.to_vec()
        };
        let of = |service, home| ShareId::of_home(service, NodeName::new(home).expect("valid"));
        assert_eq!(shares("b"), [(0, of("web", "b")), (1, of("ssh", "b"))]);
        assert_eq!(shares("a"), [(0, of("web", "a")), (1, of("ssh", "a"))]);
        assert_eq!(shares("c"), [(0, of("web", "c"))]);
        assert_eq!(backends.named("d"), None);
        let own = config.director.as_ref().expect("it is there");
        let core = backends.core_config(&config, own);
        let count: Vec<_> = core.services.iter().map(Vec::len).collect();
        assert_eq!((count, core.backends.len()), (vec![3, 2], 3));
    }

    #[test]
    fn a_number_stays_with_its_name() {
        let before = [left(7, "c"), left(0, "gone"), left(1, "a")];
        let backends = Backends::new(&config("\"a\", \"c\""), &before);
        let number = |text| {
            let id = backends.named(text).expect("it is one");
            backends.get(id).expect("it is known").number
        };
        assert_eq!((number("a"), number("c")), (1, 7));
        assert_eq!(number("b"), 2, "entries may name who had 0");
        let slot = Slot {
            now: Some(7),
            base: Some(0),
            mixed: true,
        };
        let core = backends.core_slot(slot);
        assert_eq!((core.now, core.base), (backends.named("c"), None));
        assert_eq!(backends.slot(core).now, Some(7));
    }

    #[test]
    fn when_all_numbers_have_been_used_those_of_strangers_are() {
        let every: Vec<_> = (0..BackendTable::MAX)
            .map(|number| left(number, &format!("n{number}")))
            .collect();
        let backends = Backends::new(&config("\"a\""), &every);
        let numbers: Vec<_> = backends.iter().map(|(_, known)| known.number).collect();
        assert_eq!(numbers, [0, 1]);
    }
}
