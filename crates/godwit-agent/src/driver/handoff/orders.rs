//! What the core wants of handoffs: written down, and given to the worker.

use godwit_bpf::{HandoffEntry, Order as FlowOrder, Whereabouts};
use godwit_core::handoff::{Order, Place, Written};
use godwit_core::node::{HandoffReport, HandoffWork};
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{FlowId, HandoffId, HandoffRefusal, MacAddr, Role, ShareId};

use super::returning::Return;
use super::worker::Job;
use super::{Handoffs, Kit, Way, places, shares};
use crate::clock;
use crate::driver::ground::Ground;
use crate::flows::{FlowStateName, Handed};

impl Handoffs {
    pub(in crate::driver) fn carry_out(
        &mut self,
        ground: &mut Ground,
        share: ShareId,
        work: HandoffWork,
    ) {
        match work {
            HandoffWork::Obey { order, written } => {
                self.obey(ground, share, (order, written.as_ref()))
            }
            HandoffWork::State { id, part } => self.give_job(share, Job::Part(id, part)),
            HandoffWork::Held { flow, packet } => {
                self.give_job(share, Job::PutBack(flow, packet));
            }
            HandoffWork::Ended { flow, outcome } => self.end_wishes(ground, flow, outcome),
        }
    }

    fn give_job(&self, share: ShareId, job: Job) {
        if let Some(way) = &self.way {
            way.give(share, job);
        }
    }

    /// First it is written down, then it is done.
    fn obey(
        &self,
        ground: &mut Ground,
        share: ShareId,
        (order, written): (Order, Option<&Written>),
    ) {
        if let Some(way) = &self.way {
            way.note(order.flow(), written);
        }
        let refused = |ground: &mut Ground, report| {
            let now = clock::now();
            ground.node.handle_handoff_report(share, report, now);
        };
        match order {
            Order::Hold { id, from } => match hold_refusal(ground, share, id) {
                Some(reason) => refused(ground, HandoffReport::Held(id, Err(reason))),
                None => self.give_job(share, Job::Hold(id, ground.shares.mac(from))),
            },
            Order::Freeze { id, to } => match ground.shares.mac(to) {
                Some(at) => {
                    let iss = ground.flow(id.flow).map(|flow| flow.iss);
                    self.give_job(share, Job::Freeze(id, (to, at), iss));
                }
                None => {
                    let reason = HandoffRefusal::WrongService;
                    refused(ground, HandoffReport::Frozen(id, Err(reason)));
                }
            },
            // The state, which the worker has sent by now: the other words are messages.
            Order::Say { .. } => {}
            Order::Restore(id) => self.give_job(share, Job::Restore(id)),
            Order::Commit { .. } => {}
            Order::Place(id) => self.give_job(share, Job::Place(id)),
            Order::Thaw(id) | Order::Reclaim(id) => {
                self.give_job(share, Job::Thaw(id.flow));
            }
            Order::Lose(id) => self.give_job(share, Job::Lose(id.flow)),
            Order::Release(id) => {
                ground.give(share, id.flow, FlowOrder::Forget);
                self.give_job(share, Job::Release(id.flow));
            }
            Order::Discard { id, from, moved } => {
                let away = moved.and_then(|to| ground.shares.mac(to));
                let to = Some(from);
                self.give_job(share, Job::Discard(id, Return { to, away }));
            }
            Order::Forget(flow) => self.give_job(share, Job::Forget(flow)),
            Order::Look { id, from } => self.give_job(share, Job::Look(id, from)),
        }
    }

    /// What an earlier agent has left: the core hears what was decided, and what was
    /// not is undone.
    pub(in crate::driver) fn resume(&self, ground: &mut Ground, now: MonoTime) {
        let Some(way) = &self.way else {
            return;
        };
        let shares = shares(&ground.config);
        for entry in way.places.all() {
            let Some(share) = shares.get(&entry.flow.key.service) else {
                // Of a service that is not in the file any more: nobody looks for it.
                way.places.remove(entry.flow);
                continue;
            };
            let (flow, share) = (entry.flow, *share);
            let written = places::written(&entry.note);
            let is_held = matches!(entry.whereabouts, Whereabouts::Held { .. });
            // It was in the agent's hands, between its queue and its queue.
            let is_lost = is_held && was_given_back(ground, flow, &written);
            // What was held otherwise has said nothing here, and its socket has ended with
            // the agent that had made it: its origin may have it back.
            if !is_held || is_lost || written.place != Place::Here {
                let resumed = HandoffReport::Resumed(flow, written);
                ground.node.handle_handoff_report(share, resumed, now);
            }
            let decided_away = match written.place {
                Place::Committed { to, .. } | Place::Moved { to, .. } => Some(to),
                Place::Elsewhere | Place::Here => None,
            };
            let epoch = written.spent;
            match (entry.whereabouts, decided_away) {
                (Whereabouts::Held { .. }, _) if is_lost => {
                    self.give_job(share, Job::EndHalfBorn(flow));
                }
                (Whereabouts::Held { .. }, away) => {
                    let away = away.and_then(|to| ground.shares.mac(to));
                    // Who was about to give it away nobody has written down.
                    let how = Return { to: None, away };
                    self.give_job(share, Job::Discard(HandoffId { flow, epoch }, how));
                }
                (Whereabouts::Away { .. }, None) => self.give_job(share, Job::Thaw(flow)),
                // The last agent may have died before it had ended its socket.
                (Whereabouts::Away { .. }, Some(_))
                    if matches!(written.place, Place::Moved { .. }) =>
                {
                    self.give_job(share, Job::Release(flow));
                }
                (Whereabouts::Born { .. }, _) => self.give_job(share, Job::EndHalfBorn(flow)),
                (Whereabouts::Away { .. }, Some(_)) | (Whereabouts::Here, _) => {}
            }
        }
    }

    /// Connections that were handed over, for people.
    pub(in crate::driver) fn handed(&self, ground: &Ground) -> Vec<(ShareId, Handed)> {
        let entries = self.way.as_ref().map(|it| it.places.all());
        let shares = shares(&ground.config);
        let name = |to: PeerId| {
            let peer = ground.config.others().nth(usize::from(to.0));
            peer.map(|peer| peer.name.to_string())
        };
        let handed = |entry: HandoffEntry| {
            let share = *shares.get(&entry.flow.key.service)?;
            let at = match places::written(&entry.note).place {
                Place::Moved { to, .. } | Place::Committed { to, .. } => name(to),
                Place::Elsewhere | Place::Here => None,
            };
            let handed = Handed {
                flow: entry.flow.key,
                state: match entry.whereabouts {
                    Whereabouts::Held { .. } | Whereabouts::Born { .. } => FlowStateName::Coming,
                    Whereabouts::Away { .. } => FlowStateName::Away,
                    Whereabouts::Here => FlowStateName::Here,
                },
                at,
                heard: entry.heard.map(MonoTime::from_nanos),
            };
            Some((share, handed))
        };
        entries
            .unwrap_or_default()
            .into_iter()
            .filter_map(handed)
            .collect()
    }

    /// After the last words: nothing is left half-way.
    pub(in crate::driver) fn end(&mut self) -> Option<Kit> {
        self.way.take().and_then(Way::end)
    }

    /// A peer may be elsewhere on the link: what is forwarded to it follows.
    pub(in crate::driver) fn follow_peer(&self, peer: PeerId, mac: MacAddr) {
        let Some(way) = &self.way else {
            return;
        };
        for entry in way.places.all() {
            let to = match places::written(&entry.note).place {
                Place::Committed { to, .. } | Place::Moved { to, .. } => to,
                Place::Elsewhere | Place::Here => continue,
            };
            if to == peer
                && let Whereabouts::Away { to: known, .. } = entry.whereabouts
                && known != mac
                && let Err(error) = way.places.away_again(entry.flow, mac)
            {
                tracing::error!(flow = %entry.flow.key, error = %error, "not forwarded");
            }
        }
    }
}

/// Why a connection can't come, as far as this thread knows.
fn hold_refusal(ground: &Ground, share: ShareId, id: HandoffId) -> Option<HandoffRefusal> {
    let service = id.flow.key.service;
    let ours = shares(&ground.config).get(&service) == Some(&share);
    let entry = ground.shares.get(share).map(|share| share.entry.role);
    match (ours, entry) {
        (false, _) | (_, None) => Some(HandoffRefusal::WrongService),
        (true, Some(Role::Owner)) => None,
        (true, Some(_)) => Some(HandoffRefusal::NotInForce),
    }
}

/// Of one that is held: whether it was this node's, by its handshake or because it
/// came and that was heard of, and not about to come.
fn was_given_back(ground: &Ground, flow: FlowId, written: &Written) -> bool {
    match (written.place, written.arrival) {
        (Place::Here, Some(arrival)) => arrival.settled,
        (Place::Elsewhere, None) => ground.flow(flow).is_some(),
        (Place::Here | Place::Elsewhere, _)
        | (Place::Committed { .. } | Place::Moved { .. }, _) => false,
    }
}
