//! An owner whose file has no fence, seen by a standby whose file has one.
//!
//! A new `fencing`, or new `voters`, come to one node after the other. An owner that has the
//! new file may need no lease any more. Its standby, and the voters, see the last one end:
//!
//! ```text
//!  a, its file without a fence     b and w, their file with one
//!     proposes its last lease ────► both have it for 10 s
//!     owns, proposes nothing        that lease is over, and a goes on speaking
//! ```
//!
//! So the end of a lease says nothing there: while `b` hears `a`, it does not stand for the
//! share, and while a voter hears `a`, it promises the share to nobody. Once `a` is silent, `b`
//! is elected. Voters say whether anybody has owned since. Whether `b` was in sync they may not
//! know, if it joined anew meanwhile; that `a` has said to `b` alone.

use godwit_wire::{Generation, LeaseDatagram, LeaseMessage, NodeName, Refusal, Role};

use super::Node;
use super::context::Context;
use super::peer::PeerSide;
use super::share::ShareSide;
use crate::PeerId;
use crate::share::{Ownership, Reason, State};

impl Node {
    /// Takes down who proposes a lease, whatever voters it counts. True if that is news.
    pub(super) fn note_proposals(&mut self, peer: PeerId, datagram: &LeaseDatagram) -> bool {
        let Some(side) = self.peer_mut(peer) else {
            return false;
        };
        if (datagram.sender, datagram.incarnation) != (side.name, side.incarnation) {
            return false;
        }
        let mut any = false;
        for message in &datagram.messages {
            if let LeaseMessage::Propose { share, lease, .. } = message
                && lease.holder == side.name
            {
                any |= side.proposes.insert(*share);
            }
        }
        any
    }

    /// What a voter says to a candidate while it hears that another node owns without leases.
    pub(super) fn refuse_beside_unleased(
        &self,
        candidate: NodeName,
        message: &LeaseMessage,
    ) -> Option<LeaseMessage> {
        let LeaseMessage::Prepare { share, epoch, .. } = *message else {
            return None;
        };
        let heard = |side: &&PeerSide| {
            side.name != candidate && side.detector.state().is_alive() && side.config_differs
        };
        let mut others = self.peers.iter().filter(heard);
        let (by, holder) = others.find_map(|side| {
            let said = self.scrutiny.said(share, side.name)?;
            let owns = said.role == Role::Owner && said.incarnation == side.incarnation;
            (owns && !side.proposes.contains(&share)).then_some((said.epoch, side.name))
        })?;
        Some(LeaseMessage::Refused {
            share,
            epoch,
            number: 0,
            refusal: Refusal::Held,
            by,
            holder: Some(holder),
            remaining_ns: 0,
        })
    }
}

impl ShareSide {
    /// Whether the owner owns without leases: its file is another one, and this life of its
    /// agent has proposed none.
    pub(super) fn is_unleased(&self, owner: Ownership, side: &PeerSide) -> bool {
        let said = self.said(owner.peer);
        let owns = said.is_none_or(|said| said.role == Role::Owner && said.epoch == owner.epoch);
        self.lease.is_some() && side.config_differs && owns && !side.proposes.contains(&self.id)
    }

    /// It is heard: whatever lease has ended, it speaks on. But it may ask to be relieved.
    pub(super) fn leave_to_unleased(&mut self, owner: Ownership) {
        if self.machine.wish() != Some(Reason::OwnerServerLost) {
            self.machine.handle_owner_seen(owner.peer);
        }
    }

    /// The owner says that this node is in sync, or may be, under that generation.
    pub(super) fn note_offer(
        &mut self,
        owner: Ownership,
        generation: Generation,
        context: &Context<'_>,
    ) {
        if let (Some(lease), Some(side)) = (&mut self.lease, context.peer(owner.peer)) {
            lease.offer = Some((generation, side.incarnation));
        }
    }

    /// Whether our twins are from an owner without leases, which has told nobody else.
    pub(super) fn is_unvoted(&self, context: &Context<'_>) -> bool {
        let State::Shadow { owner, generation } = self.machine.state() else {
            return false;
        };
        let offer = self.lease.as_ref().and_then(|lease| lease.offer);
        context.peer(owner.peer).is_some_and(|side| {
            offer == Some((generation, side.incarnation)) && self.is_unleased(owner, side)
        })
    }
}
