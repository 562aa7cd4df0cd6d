//! The listeners of services: the queues in which connections wait until the server accepts
//! them, and whether twins can be born there at all.
//!
//! Where a queue is full the kernel turns clients away, and on a standby twins: then new
//! connections are not protected although the standby is in sync. At a listener that speaks
//! MPTCP the kernel makes no twin, although its clients speak plain TCP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use godwit_core::fitness::Consequence;
use godwit_sock::{AcceptQueue, Listeners};
use godwit_wire::ShareId;

use super::watch::Source;
use crate::config::Config;
use crate::facts::{Look, Wrong};

/// One dump of the listeners. What is full twice in a row is said, so within a second: a
/// burst of clients fills a queue for a moment.
const PERIOD: Duration = Duration::from_millis(450);

const FACT: &str = "accept_queue";

const MPTCP: &str = "mptcp";

/// The listeners of this node's services.
pub(super) struct AcceptQueues {
    addresses: Vec<(ShareId, SocketAddr)>,
    /// Those whose twins are born at them.
    twins: BTreeSet<ShareId>,
    /// The addresses whose queues were full at the look before.
    before: Vec<SocketAddr>,
}

impl AcceptQueues {
    pub(super) fn new(config: &Config) -> Self {
        let shares = config.own_shares();
        let addresses = shares.flat_map(|(share, service)| {
            let addresses = service.addresses.iter();
            addresses.map(move |address| (share, *address))
        });
        let twins = config.own_shares();
        let twins = twins.filter(|(_, service)| !service.moves() && !service.is_kept());
        Self {
            addresses: addresses.collect(),
            twins: twins.map(|(share, _)| share).collect(),
            before: Vec::new(),
        }
    }

    fn judge(&mut self, queues: &[Vec<AcceptQueue>]) -> Vec<Wrong> {
        let mut full = Vec::new();
        let mut wrong = Vec::new();
        for ((share, address), queues) in self.addresses.iter().zip(queues) {
            let Some(queue) = queues.first().filter(|_| are_full(queues)) else {
                continue;
            };
            full.push(*address);
            if self.before.contains(address) {
                wrong.push(say(*share, *address, *queue));
            }
        }
        self.before = full;
        wrong
    }
}

impl AcceptQueues {
    /// Services with a listener that speaks MPTCP, each once.
    fn judge_protocol(&self, queues: &[Vec<AcceptQueue>]) -> Vec<Wrong> {
        let mut wrong: Vec<Wrong> = Vec::new();
        for ((share, address), queues) in self.addresses.iter().zip(queues) {
            let is_known = wrong.iter().any(|it| it.share == Some(*share));
            if is_known || queues.iter().all(|queue| !queue.is_mptcp) {
                continue;
            }
            let consequence = if self.twins.contains(share) {
                Consequence::NoTwins
            } else {
                Consequence::Say
            };
            wrong.push(Wrong {
                name: MPTCP.into(),
                share: Some(*share),
                consequence,
                found: format!(
                    "the server that listens at {address} speaks MPTCP: the kernel takes no twin \
                     there, and no connection that another server hands over"
                ),
                advice: "have it listen with plain TCP (GODEBUG=multipathtcp=0 for Go, no \
                         `mptcp` in its configuration), or set net.mptcp.enabled to 0 and \
                         restart it"
                    .into(),
            });
        }
        wrong
    }
}

/// Where several listen (`SO_REUSEPORT`) the next connection may find room at another.
fn are_full(queues: &[AcceptQueue]) -> bool {
    queues.iter().all(|queue| !queue.has_room())
}

fn say(share: ShareId, address: SocketAddr, queue: AcceptQueue) -> Wrong {
    let AcceptQueue { waiting, most, .. } = queue;
    Wrong {
        name: FACT.into(),
        share: Some(share),
        consequence: Consequence::Say,
        found: format!(
            "{waiting} connections wait to be accepted at {address}, which has room for {most}: \
             new clients are turned away, and twins of new connections"
        ),
        advice: "see why the server does not accept them, or raise its backlog and \
                 net.core.somaxconn"
            .into(),
    }
}

impl Source for AcceptQueues {
    fn name(&self) -> &'static str {
        FACT
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn look(&mut self) -> Look {
        let addresses: Vec<_> = self.addresses.iter().map(|(_, at)| *at).collect();
        let wrong = match Listeners::queues_of(&addresses) {
            Ok(queues) => {
                let mut wrong = self.judge(&queues);
                wrong.extend(self.judge_protocol(&queues));
                wrong
            }
            Err(error) => {
                tracing::debug!(%error, "accept queues are not known");
                Vec::new()
            }
        };
        Look {
            source: FACT,
            watched: vec![FACT.into(), MPTCP.into()],
            wrong,
            days_left: [].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn queue(waiting: u32) -> AcceptQueue {
        AcceptQueue {
            inode: 7,
            cookie: 7,
            waiting,
            most: 1,
            rcvbuf: 0,
            is_mptcp: false,
        }
    }

    /// One of several is enough: the kernel may choose it for a twin.
    #[test]
    fn a_listener_that_speaks_mptcp_has_no_twins() {
        let at = |port| SocketAddr::from(([10, 0, 0, 100], port));
        let (web, mail) = (ShareId(3), ShareId(4));
        let queues = AcceptQueues {
            addresses: vec![(web, at(80)), (web, at(443)), (mail, at(25))],
            twins: BTreeSet::from([web]),
            before: Vec::new(),
        };
        let plain = queue(0);
        let mptcp = AcceptQueue {
            is_mptcp: true,
            ..plain
        };
        let said = |found: [Vec<AcceptQueue>; 3]| {
            let wrong = queues.judge_protocol(&found).into_iter();
            let said = wrong.map(|it| (it.share, it.consequence));
            said.collect::<Vec<_>>()
        };
        assert_eq!(said([vec![plain], Vec::new(), vec![plain]]), []);
        let (no_twins, say) = (Consequence::NoTwins, Consequence::Say);
        let one = vec![plain, mptcp];
        assert_eq!(
            said([vec![plain], one.clone(), vec![plain]]),
            [(Some(web), no_twins)]
        );
        assert_eq!(
            said([one.clone(), one.clone(), one]),
            [(Some(web), no_twins), (Some(mail), say)]
        );
    }

    #[test]
    fn what_is_full_twice_is_said_until_there_is_room() {
        let address = SocketAddr::from(([10, 0, 0, 100], 80));
        let mut queues = AcceptQueues {
            addresses: vec![(ShareId(3), address)],
            twins: BTreeSet::new(),
            before: Vec::new(),
        };
        let full = [vec![queue(2)]];
        assert_eq!(queues.judge(&full), [], "a burst");
        let said = queues.judge(&full);
        assert_eq!(said, [say(ShareId(3), address, queue(2))]);
        assert_eq!(queues.judge(&[vec![queue(1)]]), [], "there is room");
        assert_eq!(queues.judge(&full), []);
        let beside = [vec![queue(2), queue(0)]];
        assert_eq!(queues.judge(&beside), [], "another listener has room");
        assert_eq!(queues.judge(&[Vec::new()]), [], "nobody listens");
        assert_eq!(queues.judge(&[Vec::new()]), [], "that is another fact");
    }
}
