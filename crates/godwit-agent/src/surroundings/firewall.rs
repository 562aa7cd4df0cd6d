//! Firewall rules that drop what a service, its twins, or connections after a takeover
//! consist of.
//!
//! The rules of nftables are read anew when the kernel says that they have changed; those
//! of iptables-legacy, of which it says nothing, once a second where there are any.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use godwit_core::fitness::Consequence;
use godwit_sock::{Devices, Drops, Refusal, RulesetWatch, legacy_refusals, refusals};
use godwit_wire::ShareId;

use super::watch::Source;
use crate::config::Config;
use crate::doctor::{self, Host, LiveHost};
use crate::facts::{Look, Wrong};

/// What makes no event of the rules is looked at that often: it is to be said in a second.
const PERIOD: Duration = Duration::from_millis(800);

/// Rules that could not be read are tried again that soon.
const AGAIN: Duration = Duration::from_millis(50);

/// The rules of this namespace.
pub(super) struct Firewall {
    interface: String,
    /// Index of the interface when the rules were read.
    ifindex: u32,
    services: Vec<(ShareId, SocketAddr)>,
    /// Those that a director gives frames to: nobody looks for their addresses here.
    fronted: BTreeSet<SocketAddr>,
    /// `None` where the kernel has no nftables.
    events: Option<RulesetWatch>,
    /// What was read last; `None` before and after a change.
    rules: Option<Vec<Refusal>>,
}

impl Firewall {
    pub(super) fn new(config: &Config) -> Self {
        let shares = config.own_shares();
        let services = shares.flat_map(|(share, service)| {
            let addresses = service.addresses.iter();
            addresses.map(move |address| (share, *address))
        });
        let fronted = config
            .own_shares()
            .filter(|(_, service)| service.is_fronted());
        let fronted = fronted.flat_map(|(_, service)| service.addresses.iter().copied());
        Self {
            fronted: fronted.collect(),
            interface: config.node.interface.to_string(),
            ifindex: 0,
            services: services.collect(),
            events: RulesetWatch::open().ok(),
            rules: None,
        }
    }

    /// What drops packets of services, in rules of either kind.
    fn read(&mut self, ifindex: u32) -> io::Result<Vec<Refusal>> {
        if self.ifindex != ifindex {
            (self.ifindex, self.rules) = (ifindex, None);
        }
        let interface = (&*self.interface, ifindex);
        let mut services: Vec<_> = self.services.iter().map(|(_, at)| *at).collect();
        services.sort_unstable();
        services.dedup();
        if self.events.is_some() && self.rules.is_none() {
            self.rules = Some(refusals(interface, &services)?);
        }
        let mut all = self.rules.clone().unwrap_or_default();
        all.extend(legacy_refusals(interface, &services)?);
        Ok(all)
    }

    /// The same of each share at an address.
    fn of_shares(
        &self,
        address: SocketAddr,
        (name, consequence, found, advice): (&'static str, Consequence, String, String),
    ) -> impl Iterator<Item = Wrong> {
        let shares = self.services.iter().filter(move |(_, at)| *at == address);
        shares.map(move |(share, _)| {
            wrong(
                name,
                Some(*share),
                consequence,
                found.clone(),
                advice.clone(),
            )
        })
    }

    fn judge(&self, host: &impl Host, rules: &[Refusal], bridge: Option<&str>) -> Vec<Wrong> {
        let mut all = Vec::new();
        let twins = doctor::harm_to_twins(host, rules);
        all.extend(twins.map(|(_, found, advice)| {
            let consequence = Consequence::NoTwins;
            wrong("conntrack", None, consequence, found, advice)
        }));
        let harms = |rule: &&Refusal| {
            let is_asked = !self.fronted.contains(&rule.service);
            rule.drops == Drops::Service || rule.drops == Drops::Neighbours && is_asked
        };
        for rule in rules.iter().filter(|rule| rule.is_certain).filter(harms) {
            let (found, advice) = doctor::harm_to_clients(rule);
            let what = ("firewall", Consequence::NoService, found, advice);
            all.extend(self.of_shares(rule.service, what));
        }
        let concerns = |rule: &&Refusal| {
            rule.drops != Drops::Neighbours || !self.fronted.contains(&rule.service)
        };
        for rule in rules
            .iter()
            .filter(|rule| !rule.is_certain)
            .filter(concerns)
        {
            let (found, advice) = doctor::doubt(rule);
            let what = (doctor::PERHAPS, Consequence::Say, found, advice);
            all.extend(self.of_shares(rule.service, what));
        }
        // One of a service, though it has several addresses.
        let mut said = BTreeSet::new();
        all.retain(|it| said.insert((it.name.clone(), it.share)));
        all.extend(
            doctor::harm_by_settings(host, bridge)
                .map(|(name, found, advice)| wrong(name, None, Consequence::Say, found, advice)),
        );
        all
    }
}

fn wrong(
    name: &str,
    share: Option<ShareId>,
    consequence: Consequence,
    found: String,
    advice: String,
) -> Wrong {
    Wrong {
        name: name.into(),
        share,
        consequence,
        found,
        advice,
    }
}

impl Source for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(RulesetWatch::as_fd)
    }

    fn take_events(&mut self) -> bool {
        let changed = self.events.as_ref().is_some_and(RulesetWatch::take);
        if changed {
            self.rules = None;
        }
        changed
    }

    fn period(&self) -> Duration {
        let is_unread = self.events.is_some() && self.rules.is_none();
        if is_unread { AGAIN } else { PERIOD }
    }

    fn look(&mut self) -> Look {
        let devices = Devices::read().unwrap_or_default();
        let device = devices.named(&self.interface);
        let rules = self.read(device.map_or(0, |device| device.index));
        let rules = rules.unwrap_or_else(|error| {
            tracing::debug!(%error, "firewall rules can't be read");
            self.rules.clone().unwrap_or_default()
        });
        let bridge = device.and_then(|device| devices.bridge_of(device));
        Look {
            source: "firewall",
            watched: [
                "conntrack",
                "firewall",
                doctor::PERHAPS,
                "conntrack_loose",
                "bridge_nf",
            ]
            .map(str::to_owned)
            .to_vec(),
            wrong: self.judge(&LiveHost, &rules, bridge),
            days_left: Default::default(),
        }
    }
}
