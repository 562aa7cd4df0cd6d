//! Who else on the link has a service's address.
//!
//! What frames say goes into [`Claims`], which decides; the driver announces the address
//! if this node owns it ([`Input::Claimed`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use godwit_bpf::MARK_SPOKEN;
use godwit_core::claims::{ClaimAction, Claimant, Claims};
use godwit_core::fitness::Consequence;
use godwit_sock::{
    ClaimWatch, Devices, FrameSender, Heard, addresses as all_addresses, ask_neighbour, neighbour,
};
use godwit_wire::{ArpOperation, ArpPacket, MacAddr, NeighbourSolicitation};

use super::watch::Source;
use super::{Look, Wrong};
use crate::clock;
use crate::config::{Config, PeerConfig, PeerRole};
use crate::input::{Inbox, Input};

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
    /// Where mates and directors are to be, and where they were found last: a node that has
    /// lost its own addresses finds nobody, and its mates are still no strangers.
    peers: BTreeMap<IpAddr, Option<MacAddr>>,
    claims: Claims,
    ears: Option<Ears>,
    inbox: Inbox,
}

/// What belongs to one interface, until it is made anew.
struct Ears {
    ifindex: u32,
    mac: MacAddr,
    watch: ClaimWatch,
    frames: FrameSender,
}

impl Conflicts {
    pub(super) fn new(config: &Config, inbox: Inbox) -> Self {
        let shares = || config.own_shares().map(|(_, service)| service);
        let services: BTreeSet<_> = shares().flat_map(|service| service.ips()).collect();
        Self {
            interface: config.node.interface.to_string(),
            claims: Claims::new(services.iter().copied(), clock::now()),
            services,
            groups: shares().filter_map(|service| service.group()).collect(),
            peers: mates(config).map(|mate| (mate, None)).collect(),
            ears: None,
            inbox,
        }
    }

    /// Listens on the interface of that name; finds the mates.
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
        for (peer, place) in &mut self.peers {
            *place = neighbour(ifindex, *peer)?.or(*place);
            mates.extend(*place);
        }
        self.claims.handle_mates(mates);
        Ok(())
    }

    fn carry_out(&mut self, action: ClaimAction) {
        let Some(ears) = &self.ears else {
            return;
        };
        match action {
            ClaimAction::FindMates => {
                for peer in self.peers.keys() {
                    // One that is not on this link has made no claim here.
                    let _ = ask_neighbour(ears.ifindex, *peer);
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
fn mates(config: &Config) -> impl Iterator<Item = IpAddr> {
    let may = |peer: &&PeerConfig| peer.role != PeerRole::Witness;
    config.others().filter(may).map(|peer| peer.data)
}

/// One sentence for all of them.
fn judge(conflicts: &[Claimant]) -> Option<Wrong> {
    if conflicts.is_empty() {
        return None;
    }
    let named = conflicts.iter().take(NAMED);
    let named = named.map(|it| format!("{} at {}", it.address, it.mac));
    let mut named = named.collect::<Vec<_>>().join(", ");
    if conflicts.len() > NAMED {
        named += &format!(" and {} more", conflicts.len() - NAMED);
    }
    Some(Wrong {
        name: NAME.into(),
        share: None,
        consequence: Consequence::Say,
        found: format!("another machine has an address of a service: {named}"),
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
                Heard::Claim(address, mac) if self.services.contains(&address) => {
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
        let conflicts: Vec<_> = self.claims.conflicts().collect();
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
        assert_eq!(
            mates(&config).collect::<Vec<_>>(),
            [IpAddr::from([10, 9, 0, 12])]
        );
    }

    #[test]
    fn a_warning_names_address_and_machine_and_has_an_end() {
        assert_eq!(judge(&[]), None);
        let claimant = |number| Claimant {
            address: [10, 9, 0, 100].into(),
            mac: MacAddr([2, 0, 0, 0, 0, number]),
        };
        let one = judge(&[claimant(7)]).expect("wrong").found;
        assert!(one.ends_with(": 10.9.0.100 at 02:00:00:00:00:07"), "{one}");
        let many: Vec<_> = (0..9).map(claimant).collect();
        let many = judge(&many).expect("wrong").found;
        assert!(many.ends_with("at 02:00:00:00:00:03 and 5 more"), "{many}");
    }
}
