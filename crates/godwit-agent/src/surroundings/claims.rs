//! Who else on the link has a service's address, or a peer's own.
//!
//! Peers may say that they have a service's address. Who a peer is counts as it has said over its
//! link ([`crate::places`]), and of one that says nothing as it is found. What frames say goes into [`Claims`], which decides; the driver announces the address
//! if this node owns it ([`Input::Claimed`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use godwit_bpf::MARK_SPOKEN;
use godwit_core::claims::{ClaimAction, Claimant, Claims};
use godwit_core::fitness::Consequence;
use godwit_core::{MonoTime, PeerId};
use godwit_sock::{
    ClaimWatch, Devices, FrameSender, Heard, addresses as all_addresses, ask_neighbour, neighbour,
};
use godwit_wire::{ArpOperation, ArpPacket, MacAddr, NeighbourSolicitation};

use super::watch::Source;
use crate::clock;
use crate::config::{Config, PeerConfig, PeerRole, Reach};
use crate::facts::{Look, Wrong};
use crate::input::{Inbox, Input};
use crate::places::Places;

const NAME: &str = "address_conflict";

/// How often is looked for the interface; a claim is an event.
const PERIOD: Duration = Duration::from_secs(1);

/// Most claimants that a warning names.
const NAMED: usize = 4;

/// The addresses of this node's services.
pub(super) struct Conflicts {
    interface: String,
    services: BTreeSet<IpAddr>,
    /// Groups of multicast taps: owners say that their addresses are there.
    groups: Vec<MacAddr>,
    /// Mates and directors.
    peers: Vec<Mate>,
    places: Places,
    claims: Claims,
    ears: Option<Ears>,
    inbox: Inbox,
}

/// One who may say that it has a service's address.
struct Mate {
    id: PeerId,
    address: IpAddr,
    /// Whether it is on this link, and no router speaks for it.
    is_near: bool,
    /// Where it was found last: a node that has lost its own addresses finds nobody, and its
    /// peers are still no strangers.
    found: Option<MacAddr>,
    /// Since when that is not where it has said that it is.
    doubted: Option<MonoTime>,
}

impl Mate {
    /// What the kernel has of it, once that contradicts it for so long that it is no news under
    /// way.
    fn doubt(&mut self, said: Option<MacAddr>, now: MonoTime) -> Option<Claimant> {
        let mac = self.found.filter(|_| said.is_some() && said != self.found);
        let Some(mac) = mac else {
            self.doubted = None;
            return None;
        };
        let since = *self.doubted.get_or_insert(now);
        let address = self.address;
        (now.since(since) >= PERIOD).then_some(Claimant { address, mac })
    }
}

/// What belongs to one interface, until it is made anew.
struct Ears {
    ifindex: u32,
    mac: MacAddr,
    watch: ClaimWatch,
    frames: FrameSender,
}

impl Conflicts {
    pub(super) fn new(config: &Config, places: Places, inbox: Inbox) -> Self {
        let shares = || config.own_shares().map(|(_, service)| service);
        let services: BTreeSet<_> = shares().flat_map(|service| service.ips()).collect();
        Self {
            interface: config.node.interface.to_string(),
            claims: Claims::new(services.iter().copied(), clock::now()),
            services,
            groups: shares().filter_map(|service| service.group()).collect(),
            peers: mates(config).collect(),
            places,
            ears: None,
            inbox,
        }
    }

    /// Listens on the interface of that name; finds the peers.
    fn follow(&mut self) -> io::Result<()> {
        let devices = Devices::read()?;
        let device = devices.named(&self.interface);
        let place = device.and_then(|device| Some((device.index, device.mac?)));
        let Some((ifindex, mac)) = place else {
            self.ears = None;
            return Ok(());
        };
        match &mut self.ears {
            Some(ears) if ears.ifindex == ifindex => ears.mac = mac,
            _ => {
                self.ears = Some(Ears {
                    ifindex,
                    mac,
                    watch: ClaimWatch::open(ifindex, &self.interface)?,
                    frames: FrameSender::open(ifindex, MARK_SPOKEN)?,
                });
            }
        }
        let own = devices.iter().filter_map(|device| device.mac);
        let mut mates: BTreeSet<_> = own.chain(self.groups.iter().copied()).collect();
        for peer in &mut self.peers {
            peer.found = neighbour(ifindex, peer.address)?.or(peer.found);
        }
        let (peers, said) = confirmed(&self.peers, |peer| self.places.of(peer).said());
        mates.extend(peers);
        self.claims.handle_mates(mates, said);
        self.doubt();
        Ok(())
    }

    /// What the kernel goes by was said by somebody, perhaps before this agent listened.
    fn doubt(&mut self) {
        let now = clock::now();
        for peer in &mut self.peers {
            let said = self.claims.place(peer.address);
            if let Some(lie) = peer.doubt(said, now) {
                self.claims.handle_claim(lie, now);
            }
        }
    }

    /// Whether it matters who has an address.
    fn minds(&self, address: IpAddr) -> bool {
        self.services.contains(&address) || self.claims.place(address).is_some()
    }

    fn carry_out(&mut self, action: ClaimAction) {
        let Some(ears) = &self.ears else {
            return;
        };
        match action {
            ClaimAction::FindMates => {
                for peer in &self.peers {
                    // One that is not on this link has made no claim here.
                    let _ = ask_neighbour(ears.ifindex, peer.address);
                }
            }
            ClaimAction::Defend(Claimant { address, mac }) => {
                // The inbox is closed: this source ends with the next look.
                let _ = self.inbox.send(Input::Claimed { address, mac });
            }
            ClaimAction::Ask(address) => {
                if let Err(error) = ears.ask(address) {
                    tracing::debug!(%error, %address, "not asked for on the link");
                }
            }
        }
    }
}

impl Ears {
    /// As a probe, in nobody's name (RFC 5227 section 2.1.1), or with a link-local address.
    fn ask(&self, address: IpAddr) -> io::Result<()> {
        let frame = match address {
            IpAddr::V4(target) => ArpPacket {
                operation: ArpOperation::Request,
                sender_mac: self.mac,
                sender: [0, 0, 0, 0].into(),
                target_mac: MacAddr::ZERO,
                target,
            }
            .broadcast_frame(),
            IpAddr::V6(target) => {
                let here = all_addresses()?.into_iter();
                let here = here.filter(|(ifindex, _)| *ifindex == self.ifindex);
                let link_local = here.filter_map(|(_, address)| match address {
                    IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(v6),
                    IpAddr::V6(_) | IpAddr::V4(_) => None,
                });
                let Some(source) = link_local.into_iter().next() else {
                    return Ok(());
                };
                let mac = self.mac;
                let question = NeighbourSolicitation {
                    source,
                    mac,
                    target,
                };
                question.multicast_frame()
            }
        };
        self.frames.send(&frame)
    }
}

/// Where those are who may say that they have a service's address; a witness may not.
fn mates(config: &Config) -> impl Iterator<Item = Mate> {
    let may = |(_, peer): &(PeerId, &PeerConfig)| peer.role != PeerRole::Witness;
    let peers = (0..).map(PeerId).zip(config.others()).filter(may);
    let is_near = |peer: &PeerConfig| {
        let mut both = [config.own_peer(), peer].into_iter();
        both.all(|it| it.reach != Reach::Vxlan)
    };
    peers.map(move |(id, peer)| Mate {
        id,
        address: peer.data,
        is_near: is_near(peer),
        found: None,
        doubted: None,
    })
}

/// The MAC addresses of those who may have a service's address, and where each of them that has
/// said so is.
fn confirmed(
    mates: &[Mate],
    said: impl Fn(PeerId) -> Option<MacAddr>,
) -> (BTreeSet<MacAddr>, BTreeMap<IpAddr, MacAddr>) {
    let said = |mate: &Mate| said(mate.id).filter(|_| mate.is_near);
    let at = mates.iter().filter_map(|mate| said(mate).or(mate.found));
    let places = mates.iter().filter_map(|it| Some((it.address, said(it)?)));
    (at.collect(), places.collect())
}

/// The first of them, and how many more.
fn named(all: &[String]) -> String {
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>();
    match all.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// One sentence for all of them; of a peer's own address with where it has said that it is.
fn judge(conflicts: &[(Claimant, Option<MacAddr>)]) -> Option<Wrong> {
    let (mut services, mut peers) = (Vec::new(), Vec::new());
    for (Claimant { address, mac }, said) in conflicts {
        match said {
            None => services.push(format!("{address} at {mac}")),
            Some(said) => peers.push(format!(
                "{address} at {mac}, which has said it is at {said}"
            )),
        }
    }
    let kinds = [("a service", services), ("a peer", peers)].into_iter();
    let found = kinds.filter(|(_, all)| !all.is_empty());
    let found = found.map(|(whose, all)| format!("an address of {whose}: {}", named(&all)));
    let found = found.collect::<Vec<_>>().join("; ");
    if found.is_empty() {
        return None;
    }
    Some(Wrong {
        name: NAME.into(),
        share: None,
        consequence: Consequence::Say,
        found: format!("another machine has {found}"),
        advice: "take the address from that machine (the switch's table of MAC addresses says \
                 where it is)"
            .into(),
    })
}

impl Source for Conflicts {
    fn name(&self) -> &'static str {
        "claims"
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.ears.as_ref().map(|ears| ears.watch.as_fd())
    }

    fn take_events(&mut self) -> bool {
        let now = clock::now();
        let heard = self.ears.as_ref().map(|ears| ears.watch.take());
        for heard in heard.unwrap_or_default() {
            match heard {
                Heard::Claim(address, mac) if self.minds(address) => {
                    self.claims.handle_claim(Claimant { address, mac }, now);
                }
                Heard::Question(address, asker) => {
                    self.claims.handle_question(address, asker, now);
                }
                Heard::Claim(..) => {}
            }
        }
        self.claims.is_pending(now)
    }

    fn period(&self) -> Duration {
        let due = self.claims.poll_timeout();
        due.map_or(PERIOD, |due| due.since(clock::now()).min(PERIOD))
    }

    fn look(&mut self) -> Look {
        if let Err(error) = self.follow() {
            tracing::debug!(%error, "claims of addresses are not heard");
        }
        self.claims.handle_timeout(clock::now());
        while let Some(action) = self.claims.poll_action() {
            self.carry_out(action);
        }
        let conflicts = self.claims.conflicts();
        let place = |it: Claimant| self.claims.place(it.address);
        let conflicts: Vec<_> = conflicts.map(|it| (it, place(it))).collect();
        Look {
            source: "claims",
            watched: vec![NAME.into()],
            wrong: judge(&conflicts).into_iter().collect(),
            days_left: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_is_no_mate() {
        let text = include_str!("../../../../packaging/godwit.toml");
        let witness = "[[peer]]\nname = \"w\"\nrole = \"witness\"\ncontrol = \"10.9.0.13:7400\"\n";
        let text = format!("{text}\n{witness}");
        let config = Config::parse("godwit.toml".as_ref(), &text).expect("it is valid");
        let mates: Vec<_> = mates(&config).map(|it| (it.address, it.is_near)).collect();
        assert_eq!(mates, [(IpAddr::from([10, 9, 0, 12]), true)]);
    }

    /// A peer has told its MAC address, and another machine answers for it: that is no peer.
    #[test]
    fn a_mate_is_where_it_has_said_and_else_where_it_is_found() {
        let mac = |number| MacAddr([2, 0, 0, 0, 0, number]);
        let mate = |number: u8| Mate {
            id: PeerId(number.into()),
            address: [10, 9, 0, number].into(),
            is_near: number != 3,
            found: Some(mac(0xee)),
            doubted: None,
        };
        let mates = [mate(1), mate(2), mate(3)];
        let (all, said) = confirmed(&mates[..1], |_| Some(mac(1)));
        assert_eq!(all, BTreeSet::from([mac(1)]));
        assert_eq!(said, BTreeMap::from([(mates[0].address, mac(1))]));
        let (all, said) = confirmed(&mates[1..2], |_| None);
        assert_eq!((all, said), (BTreeSet::from([mac(0xee)]), BTreeMap::new()));
        // For one behind a router that one answers.
        let (all, said) = confirmed(&mates[2..], |_| Some(mac(3)));
        assert_eq!((all, said), (BTreeSet::from([mac(0xee)]), BTreeMap::new()));
    }

    /// The kernel hears of a new card a little before or after its node's word comes.
    #[test]
    fn what_the_kernel_believes_for_a_second_against_a_peer_s_word_is_a_claim() {
        let at = |ms: u64| MonoTime::from_nanos(ms * 1_000_000);
        let [old, new] = [1, 2].map(|number| MacAddr([2, 0, 0, 0, 0, number]));
        let address = IpAddr::from([10, 9, 0, 12]);
        let mut mate = Mate {
            id: PeerId(0),
            address,
            is_near: true,
            found: Some(old),
            doubted: None,
        };
        assert_eq!(mate.doubt(None, at(0)), None);
        assert_eq!(mate.doubt(Some(new), at(5000)), None);
        assert_eq!(mate.doubt(Some(new), at(5999)), None);
        let lie = Claimant { address, mac: old };
        assert_eq!(mate.doubt(Some(new), at(6000)), Some(lie));
        mate.found = Some(new);
        assert_eq!(mate.doubt(Some(new), at(7000)), None);
        mate.found = Some(old);
        assert_eq!(mate.doubt(Some(new), at(8000)), None, "another time");
    }

    #[test]
    fn a_warning_names_address_and_machine_and_has_an_end() {
        assert_eq!(judge(&[]), None);
        let claimant = |number| Claimant {
            address: [10, 9, 0, 100].into(),
            mac: MacAddr([2, 0, 0, 0, 0, number]),
        };
        let of_service = |number| (claimant(number), None);
        let one = judge(&[of_service(7)]).expect("wrong").found;
        assert!(one.ends_with(": 10.9.0.100 at 02:00:00:00:00:07"), "{one}");
        let of_peer = (claimant(8), Some(MacAddr([2, 0, 0, 0, 0, 9])));
        let both = judge(&[of_peer, of_service(7)]).expect("wrong").found;
        assert_eq!(
            both,
            "another machine has an address of a service: 10.9.0.100 at 02:00:00:00:00:07; an address \
             of a peer: 10.9.0.100 at 02:00:00:00:00:08, which has said it is at 02:00:00:00:00:09"
        );
        let many: Vec<_> = (0..9).map(of_service).collect();
        let many = judge(&many).expect("wrong").found;
        assert!(many.ends_with("at 02:00:00:00:00:03 and 5 more"), "{many}");
    }
}
