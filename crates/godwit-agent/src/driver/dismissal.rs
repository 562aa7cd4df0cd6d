//! Ends every socket of a share on this node, some at a time: with ten thousand
//! of them it takes a tenth of a second, and the leases of other shares last half
//! of that.
//!
//! What the core wants of the same share meanwhile waits, in its order: a standby
//! is ready only when the twins of its earlier generation are gone. The share's role is
//! none all the while, so it has nobody to serve. If this node wins it meanwhile,
//! the rest is ended at once.

use std::collections::{BTreeMap, VecDeque};

use godwit_core::{Action, EndReason, ShareAction};
use godwit_sock::Destroyer;
use godwit_wire::{FlowId, Role, ShareId};

use super::bereft::is_bereft;
use super::ground::Ground;
use super::twins::{find, forget, note};

/// Sockets that are ended before the driver looks up: about two milliseconds.
const BATCH: usize = 128;

/// Shares whose sockets are being ended.
#[derive(Debug, Default)]
pub(super) struct Dismissals {
    under_way: BTreeMap<ShareId, Dismissal>,
}

#[derive(Debug)]
struct Dismissal {
    flows: Vec<FlowId>,
    /// What is to be done after it.
    then: VecDeque<Action>,
}

impl Dismissals {
    fn begin(&mut self, share: ShareId, flows: Vec<FlowId>) {
        let then = VecDeque::new();
        self.under_way.insert(share, Dismissal { flows, then });
    }

    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether this node has won a share whose sockets are still being ended. What it
    /// says about leases then may be that it gives that one back: not before it has
    /// begun, and ended, to speak under it.
    pub(super) fn keep_a_voice_waiting(&self) -> bool {
        let mut waiting = self.under_way.values().flat_map(|it| &it.then);
        let owner = Role::Owner;
        waiting.any(|action| matches!(action, Action::Share(_, ShareAction::Set { role, .. }) if *role == owner))
    }

    /// Keeps back what has to wait; gives back what need not.
    pub(super) fn postpone(&mut self, action: Action) -> Option<Action> {
        let waits_for = action
            .share()
            .and_then(|share| self.under_way.get_mut(&share));
        match waits_for {
            Some(dismissal) => {
                dismissal.then.push_back(action);
                None
            }
            None => Some(action),
        }
    }

    /// The next flows to end, of the first share. When they are its last, what has
    /// waited for them is to be done as soon as they have ended.
    fn next(&mut self) -> Option<(ShareId, Vec<FlowId>, VecDeque<Action>)> {
        let mut first = self.under_way.first_entry()?;
        let share = *first.key();
        let flows = &mut first.get_mut().flows;
        let batch = flows.split_off(flows.len().saturating_sub(BATCH));
        let then = match flows.is_empty() {
            true => first.remove().then,
            false => VecDeque::new(),
        };
        Some((share, batch, then))
    }
}

impl Dismissals {
    /// Begins to end every socket of a share, and gives back what has waited for that. The resets of our kernel go nowhere.
    #[must_use]
    pub(super) fn dismiss(
        &mut self,
        ground: &mut Ground,
        share: ShareId,
        reason: EndReason,
    ) -> VecDeque<Action> {
        let mut flows = Vec::new();
        let known = ground.shares.get_mut(share);
        let mut bereft = known.map(|known| &mut known.bereft);
        let scanned = ground.datapath.flows.for_each(|flow| {
            if flow.share == share {
                flows.push(flow.id);
                if let Some(bereft) = bereft.as_mut().filter(|_| is_bereft(&flow, reason)) {
                    bereft.keep(flow);
                }
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows to end");
        }
        if flows.is_empty() {
            return VecDeque::new();
        }
        let (count, reason) = (flows.len(), reason.as_str());
        tracing::info!(share = share.0, count, reason, "ending sockets");
        self.begin(share, flows);
        // With few of them that was it.
        self.go_on(ground)
    }

    /// Ends some more. What is given back has waited for the last of them.
    #[must_use]
    pub(super) fn go_on(&mut self, ground: &Ground) -> VecDeque<Action> {
        let Some((share, flows, then)) = self.next() else {
            return VecDeque::new();
        };
        match Destroyer::open(ground.voice.ifindex) {
            Ok(destroyer) => {
                let is_there = |it: &&FlowId| find(&ground.datapath, share, **it).is_some();
                for flow in flows.iter().filter(is_there) {
                    note(flow.key, destroyer.destroy(flow.key));
                }
            }
            Err(error) => {
                let count = flows.len();
                tracing::warn!(count, error = %error, "sockets not ended");
            }
        }
        for flow in flows {
            forget(&ground.datapath, share, flow);
        }
        then
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use godwit_core::{PeerAction, PeerId};
    use godwit_wire::{
        Epoch, FlowKey, Generation, GoodbyeReason, Message, PeerMessage, Scope, SeqNumber,
        StandbyMessage,
    };

    use super::*;

    const SHARE: ShareId = ShareId(1);

    fn flows(count: u32) -> Vec<FlowId> {
        let key = FlowKey {
            client: SocketAddr::from(([10, 9, 0, 10], 1)).into(),
            service: SocketAddr::from(([10, 9, 0, 100], 80)).into(),
        };
        let irs = (0..count).map(SeqNumber);
        irs.map(|irs| FlowId { key, irs }).collect()
    }

    fn ready(share: ShareId) -> Action {
        let message = Message::Standby(
            Scope {
                share,
                epoch: Epoch::NONE,
                generation: Generation(7),
            },
            StandbyMessage::Ready,
        );
        let peer = PeerId(0);
        Action::Peer(peer, PeerAction::Send(message))
    }

    #[test]
    fn every_flow_is_ended_once_and_in_batches() {
        let mut dismissals = Dismissals::default();
        let all = flows(300);
        dismissals.begin(SHARE, all.clone());
        let mut ended = Vec::new();
        while let Some((_, batch, then)) = dismissals.next() {
            assert!((1..=BATCH).contains(&batch.len()));
            assert!(then.is_empty());
            ended.extend(batch);
        }
        ended.sort_by_key(|flow| flow.irs.0);
        assert_eq!(ended, all);
        assert!(!dismissals.are_under_way());
    }

    /// Otherwise a standby would be taken in with twins of the earlier generation.
    #[test]
    fn what_is_of_the_share_waits_in_its_order() {
        let mut dismissals = Dismissals::default();
        dismissals.begin(SHARE, flows(200));
        let announce = Action::Share(SHARE, ShareAction::Announce);
        assert_eq!(dismissals.postpone(announce.clone()), None);
        assert_eq!(dismissals.postpone(ready(SHARE)), None);
        let (_, _, then) = dismissals.next().expect("200 are two batches");
        assert!(then.is_empty());
        let (_, _, then) = dismissals.next().expect("the second");
        assert_eq!(then, [announce.clone(), ready(SHARE)]);
        assert_eq!(dismissals.postpone(announce.clone()), Some(announce));
    }

    /// A lease that is given back before its share was taken up: for a moment two
    /// nodes would have it.
    #[test]
    fn a_share_that_was_won_meanwhile_is_taken_up_before_leases_are_spoken_of() {
        let mut dismissals = Dismissals::default();
        dismissals.begin(SHARE, flows(200));
        assert!(!dismissals.keep_a_voice_waiting());
        for (role, waits) in [(Role::Shadow, false), (Role::Owner, true)] {
            let action = Action::Share(
                SHARE,
                ShareAction::Set {
                    role,
                    epoch: Epoch(7),
                    generation: Generation::NONE,
                    peer: None,
                    expiry: None,
                },
            );
            assert_eq!(dismissals.postpone(action), None);
            assert_eq!(dismissals.keep_a_voice_waiting(), waits);
        }
    }

    /// That is what the batches are for.
    #[test]
    fn what_is_of_others_does_not_wait() {
        let mut dismissals = Dismissals::default();
        dismissals.begin(SHARE, flows(200));
        let goodbye = Action::Peer(
            PeerId(0),
            PeerAction::Send(Message::Peer(PeerMessage::Goodbye {
                reason: GoodbyeReason::Restart,
            })),
        );
        for action in [ready(ShareId(2)), goodbye] {
            assert_eq!(dismissals.postpone(action.clone()), Some(action));
        }
    }
}
