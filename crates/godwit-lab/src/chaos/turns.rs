//! Who owned which service when, as agents tell, and what follows for whoever speaks.
//!
//! A node may speak for a service from the moment at which it became its owner until
//! another one does. A share that is *given back* (its server died, it was moved) is
//! taken over without waiting for the queues of its old owner: what that one let out
//! before may still come out of them, within `egress_residence`
//! (`docs/adr/0014-a-released-lease-does-not-wait-for-queues.md`).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use godwit_wire::MacAddr;

use super::disturb;
use super::world::{Program, RESIDENCE};
use crate::cluster::EventReport;
use crate::host::{Host, Network};

/// An agent that is held up between reading two clocks tells a moment that is later
/// than the true one by so much.
pub(super) const TOLD_LATE: Duration = Duration::from_millis(20);

/// The owners of all services, from the start of a run on.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<String, Vec<Turn>>);

/// A node became the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    at: SystemTime,
    to: MacAddr,
    /// By its owner before.
    given_back: bool,
}

/// What a node is that speaks for a service at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The owner.
    Owner,
    /// The last owner, which has given it back so lately that this may have been
    /// said before.
    GivenBack,
    /// Another one has owned it since that moment; since ever if `None`.
    Replaced(Option<SystemTime>),
}

impl Turns {
    /// Who owns `program`'s service at the start.
    pub(super) fn begin(&mut self, program: Program, owner: Host) {
        let turn = Turn {
            at: UNIX_EPOCH,
            to: owner.mac(Network::Data),
            given_back: false,
        };
        self.0.insert(program.service().to_owned(), vec![turn]);
    }

    /// Takes down `events` of both servers, within half a day of `moment`.
    pub(super) fn hear(&mut self, events: &[EventReport], moment: SystemTime) {
        for event in events {
            let turn = turn(event, moment);
            let turns = event.service.as_ref().and_then(|s| self.0.get_mut(s));
            if let Some((turns, turn)) = turns.zip(turn) {
                turns.push(turn);
            }
        }
        for turns in self.0.values_mut() {
            turns.sort_by_key(|turn| turn.at);
            // A move is told by both, and an epoch may be raised.
            turns.dedup_by_key(|turn| turn.to);
        }
    }

    /// What the node at `from` was at `at` for the service at `port`.
    pub(super) fn standing(&self, port: u16, from: MacAddr, at: SystemTime) -> Standing {
        let from = disturb::first(from);
        let turns = Program::at(port).and_then(|program| self.0.get(program.service()));
        let turns = turns.map(Vec::as_slice).unwrap_or_default();
        let (past, future) = turns.split_at(turns.partition_point(|turn| turn.at <= at));
        let is_owner = past.last().is_some_and(|turn| turn.to == from);
        let mut soon = future.iter().take_while(|turn| turn.at <= at + TOLD_LATE);
        if is_owner || soon.any(|turn| turn.to == from) {
            return Standing::Owner;
        }
        let Some(last) = past.iter().rposition(|turn| turn.to == from) else {
            return Standing::Replaced(None);
        };
        match past.get(last + 1) {
            Some(next) if next.given_back && at <= next.at + RESIDENCE => Standing::GivenBack,
            next => Standing::Replaced(next.map(|next| next.at)),
        }
    }
}

/// The turn that an event tells of.
fn turn(event: &EventReport, moment: SystemTime) -> Option<Turn> {
    let (to, given_back) = new_owner(event)?;
    let host = Host::SERVERS.into_iter().find(|host| host.name() == to)?;
    Some(Turn {
        at: event.at(moment)?,
        to: host.mac(Network::Data),
        given_back,
    })
}

/// Who became the owner of a share, if an event tells of that, and whether the owner before
/// gave it back.
pub(super) fn new_owner(event: &EventReport) -> Option<(&str, bool)> {
    match event.event.as_str() {
        "role_changed" if event.state.as_deref() == Some("owner") => {
            let reason = event.reason.as_deref();
            let given_back = ["owner_released", "moved", "moved_back"];
            let given_back = reason.is_some_and(|reason| given_back.contains(&reason));
            Some((event.node.as_str(), given_back))
        }
        // A new owner that dies at once takes its own word of it along.
        "share_moved" => Some((event.to.as_deref()?, true)),
        _ => None,
    }
}

/// Events as tests of judges have them.
#[cfg(test)]
pub(super) mod told {
    use super::*;

    /// 2026-11-22 19:18:51 UTC.
    pub(in crate::chaos) fn moment() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_375_131)
    }

    pub(in crate::chaos) fn after(millis: u64) -> SystemTime {
        moment() + Duration::from_millis(millis)
    }

    /// So long after the moment `node` says that it owns `share` now.
    pub(in crate::chaos) fn owns(
        node: &str,
        share: &str,
        millis: u64,
        reason: &str,
    ) -> EventReport {
        EventReport {
            time: format!("2026-11-22T19:18:51.{millis:03}000Z"),
            reason: Some(reason.to_owned()),
            state: Some("owner".to_owned()),
            ..EventReport::of(node, "role_changed", Some(share))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::told::{after, moment, owns};
    use super::*;

    const A: MacAddr = Host::A.mac(Network::Data);
    const B: MacAddr = Host::B.mac(Network::Data);

    fn heard(events: &[EventReport]) -> Turns {
        let mut turns = Turns::default();
        turns.begin(Program::Own, Host::A);
        turns.begin(Program::Redis, Host::A);
        turns.hear(events, moment());
        turns
    }

    fn is_owner(turns: &Turns, port: u16, from: MacAddr, millis: u64) -> bool {
        turns.standing(port, from, after(millis)) == Standing::Owner
    }

    #[test]
    fn each_service_has_an_owner_of_its_own() {
        let turns = heard(&[owns("b", "web", 500, "owner_failed")]);
        assert!(is_owner(&turns, 80, A, 400) && !is_owner(&turns, 80, B, 400));
        assert!(is_owner(&turns, 80, B, 501) && !is_owner(&turns, 80, A, 501));
        assert!(is_owner(&turns, 6379, A, 501) && !is_owner(&turns, 6379, B, 501));
        assert!(is_owner(&turns, 80, B, 490), "told a little late");
        let replaced = Standing::Replaced(Some(after(500)));
        assert_eq!(turns.standing(80, A, after(501)), replaced);
        let nobody = Standing::Replaced(None);
        assert_eq!(turns.standing(80, MacAddr::ZERO, after(501)), nobody);
    }

    #[test]
    fn what_was_given_back_may_come_out_of_queues() {
        for reason in ["owner_released", "moved", "owner_failed"] {
            let turns = heard(&[owns("b", "web", 500, reason)]);
            let given_back = reason != "owner_failed";
            let standing = turns.standing(80, A, after(525));
            assert_eq!(standing == Standing::GivenBack, given_back, "{reason}");
            let late = turns.standing(80, A, after(526));
            assert_eq!(late, Standing::Replaced(Some(after(500))), "{reason}");
        }
    }

    #[test]
    fn a_move_whose_new_owner_died_is_told_by_the_old_one() {
        let moved = EventReport {
            to: Some("b".to_owned()),
            time: "2026-11-22T19:18:51.100000Z".to_owned(),
            ..EventReport::of("a", "share_moved", Some("web"))
        };
        let turns = heard(&[moved, owns("a", "web", 300, "owner_failed")]);
        assert!(is_owner(&turns, 80, B, 200) && !is_owner(&turns, 80, A, 200));
        assert!(is_owner(&turns, 80, A, 300) && !is_owner(&turns, 80, B, 300));
    }
}
