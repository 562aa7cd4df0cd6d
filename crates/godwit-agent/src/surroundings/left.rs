//! Addresses that an earlier agent has left on this machine.
//!
//! `godwit agent --detach` leaves an owner's connections alone, and they need their address. If
//! the next file does not have that service, nobody else takes the address away: this machine
//! would answer for it beside its owner for ever. What Godwit adds is marked in the kernel
//! ([`crate::added`]), so it is known again.
//!
//! One that connections use stays as long as they do. Two looks see it unused before it goes:
//! another life of this agent may just have begun, with a file that has the service.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use godwit_core::fitness::Consequence;
use godwit_sock::{connections_at, remove_address};

use super::watch::Source;
use crate::added::{At, left_over, names};
use crate::config::Config;
use crate::driver::pin_name;
use crate::facts::Look;
use crate::input::Inbox;

/// One dump of addresses, and of sockets while there are such.
const PERIOD: Duration = Duration::from_secs(1);

const FACT: &str = "left_address";

/// What is no service's of this node.
pub(super) struct LeftAddresses {
    services: BTreeSet<IpAddr>,
    /// The folder of this agent's pins.
    own: Option<String>,
    inbox: Inbox,
    /// Those that nobody used at the look before.
    unused: BTreeSet<At>,
}

impl LeftAddresses {
    pub(super) fn new(config: &Config, inbox: Inbox) -> Self {
        let services = config.own_shares();
        Self {
            services: services.flat_map(|(_, service)| service.ips()).collect(),
            own: pin_name(config).ok(),
            inbox,
            unused: BTreeSet::new(),
        }
    }

    /// Those that stay, of those that are there and are used.
    fn settle(
        &mut self,
        left: &BTreeSet<At>,
        used: &BTreeSet<IpAddr>,
        mut remove: impl FnMut(At) -> io::Result<()>,
    ) -> Vec<At> {
        let all = left.iter().copied();
        let (stay, unused): (BTreeSet<At>, BTreeSet<At>) =
            all.partition(|(_, address)| used.contains(address));
        let mut stay = Vec::from_iter(stay);
        let before = std::mem::replace(&mut self.unused, unused.clone());
        for at in unused.intersection(&before).copied() {
            match remove(at) {
                Ok(()) => tracing::info!(address = %at.1, "an earlier agent had left it: removed"),
                Err(error) => {
                    tracing::debug!(%error, address = %at.1, "an earlier agent has left it");
                    stay.push(at);
                }
            }
        }
        stay
    }

    fn look_at(&mut self) -> io::Result<Option<String>> {
        let Some(own) = &self.own else {
            return Ok(None);
        };
        let left = left_over(&self.services, own)?;
        if left.is_empty() {
            self.unused.clear();
            return Ok(None);
        }
        let used = connections_at(&left.iter().map(|(_, address)| *address).collect())?;
        let used = used.into_keys().collect();
        let is_closed = self.inbox.is_closed();
        let stay = self.settle(&left, &used, |(ifindex, address)| {
            if is_closed {
                return Ok(());
            }
            remove_address(ifindex, address)
        });
        let found = (!stay.is_empty()).then(|| {
            format!(
                "an earlier agent has left {}, which no service of this node has: connections \
                 without Godwit use it, and this machine answers for it on the link",
                names(&stay).join(", ")
            )
        });
        Ok(found)
    }
}

impl Source for LeftAddresses {
    fn name(&self) -> &'static str {
        FACT
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn look(&mut self) -> Look {
        let found = self.look_at().unwrap_or_else(|error| {
            tracing::debug!(%error, "what an earlier agent has left can't be seen");
            None
        });
        let advice = "it is removed when they have ended; if another machine has the service, \
                      remove it now (ip addr del ADDRESS dev INTERFACE), which ends them";
        Look::of_one(FACT, Consequence::Say, found, advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    const AT: At = (1, IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 120)));

    fn left_addresses() -> LeftAddresses {
        let (inbox, _inputs) = Inbox::new();
        LeftAddresses::new(&Pair::new().a, inbox)
    }

    #[test]
    fn what_is_used_stays_and_the_rest_goes_with_the_second_look() {
        let mut source = left_addresses();
        let (left, used) = ([AT].into(), [AT.1].into());
        let mut removed = Vec::new();
        for _ in 0..3 {
            let stay = source.settle(&left, &used, |_| panic!("it is used"));
            assert_eq!(stay, [AT]);
        }
        for gone in [0, 1] {
            let stay = source.settle(&left, &BTreeSet::new(), |at| {
                removed.push(at);
                Ok(())
            });
            assert!(stay.is_empty());
            assert_eq!(removed.len(), gone, "two looks");
        }
        // Used again: it begins anew.
        source.settle(&BTreeSet::new(), &BTreeSet::new(), |_| panic!("it is gone"));
        source.settle(&left, &BTreeSet::new(), |_| panic!("the first look"));
        source.settle(&left, &used, |_| panic!("it is used"));
        source.settle(&left, &BTreeSet::new(), |_| panic!("the first look"));
    }

    #[test]
    fn what_can_not_be_removed_is_said() {
        let mut source = left_addresses();
        let left = [AT].into();
        source.settle(&left, &BTreeSet::new(), |_| Ok(()));
        let stay = source.settle(&left, &BTreeSet::new(), |_| {
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert_eq!(stay, [AT]);
        assert_eq!(names(&stay), ["10.9.0.120 on lo"]);
        let stay = source.settle(
            &left,
            &BTreeSet::new(),
            |_| Err(io::ErrorKind::Other.into()),
        );
        assert_eq!(stay, [AT], "until it is gone");
    }
}
