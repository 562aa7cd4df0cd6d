//! Connections that hang because a server that they need is not reached over the data network:
//! a request is on its way to it, or it has the connection, and this node sends on what the
//! client says.

use std::time::Duration;

use godwit_bpf::{Transfer, TransferTable};
use godwit_core::MonoTime;
use godwit_wire::{MacAddr, NodeName};

/// A path is given up some time after it has ended. A client says again what is not
/// acknowledged, more and more seldom.
const BEFORE: Duration = Duration::from_secs(1);

/// A server to which no path is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unreached {
    pub(super) name: NodeName,
    pub(super) mac: MacAddr,
    pub(super) since: MonoTime,
}

/// Connections that wait for one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Waiting {
    asked: u32,
    away: u32,
}

impl Waiting {
    /// One of which the client is silent waits for nothing.
    fn note(&mut self, server: &Unreached, transfer: &Transfer) {
        let heard = MonoTime::from_nanos(transfer.heard_ns).saturating_add(BEFORE);
        if transfer.to == server.mac {
            self.asked += u32::from(transfer.asked);
            self.away += u32::from(!transfer.asked && heard >= server.since);
        }
    }

    fn say(self, server: &Unreached) -> Option<String> {
        let count = self.asked + self.away;
        (count > 0).then(|| {
            format!(
                "{count} connections wait for peer {}, which the link does not reach: {} with a \
                 request that is on its way there, {} that are there",
                server.name, self.asked, self.away
            )
        })
    }
}

/// What is to be said of each server that is not reached.
pub(super) fn say(servers: &[Unreached], transfers: &TransferTable) -> Vec<String> {
    if servers.is_empty() {
        return Vec::new();
    }
    let mut waiting = vec![Waiting::default(); servers.len()];
    let scanned = transfers.for_each(|transfer| {
        for (server, waiting) in servers.iter().zip(&mut waiting) {
            waiting.note(server, &transfer);
        }
    });
    if let Err(error) = scanned {
        tracing::error!(%error, "connections that are elsewhere can't be read");
    }
    let all = servers.iter().zip(waiting);
    all.filter_map(|(server, it)| it.say(server)).collect()
}

#[cfg(test)]
mod tests {
    use godwit_wire::{Endpoint, FlowKey};

    use super::*;
    use crate::testing::node;

    fn transfer(last: u8, asked: bool, heard_s: u64) -> Transfer {
        let end: Endpoint = std::net::SocketAddr::from(([10, 0, 0, 1], 80)).into();
        Transfer {
            flow: FlowKey {
                client: end,
                service: end,
            },
            to: MacAddr([2, 0, 0, 0, 0, last]),
            asked,
            heard_ns: heard_s * 1_000_000_000,
        }
    }

    #[test]
    fn who_needs_a_server_that_is_not_reached_is_counted() {
        let server = Unreached {
            name: node("b"),
            mac: MacAddr([2, 0, 0, 0, 0, 7]),
            since: MonoTime::from_nanos(60_000_000_000),
        };
        let mut waiting = Waiting::default();
        waiting.note(&server, &transfer(8, true, 61));
        waiting.note(&server, &transfer(8, false, 61));
        waiting.note(&server, &transfer(7, false, 10));
        assert_eq!(
            waiting.say(&server),
            None,
            "another's, and one that is silent"
        );
        waiting.note(&server, &transfer(7, true, 10));
        waiting.note(&server, &transfer(7, false, 59));
        waiting.note(&server, &transfer(7, false, 61));
        assert_eq!(waiting, Waiting { asked: 1, away: 2 });
        let said = waiting.say(&server).expect("three wait");
        assert!(said.starts_with("3 connections wait for peer b,"), "{said}");
    }
}
