//! What an agent asks of its data path and of the network.

use godwit_core::{Action, LeaseAction, MonoTime, MoveAction, PeerAction, ShareAction};
use godwit_wire::{Epoch, Generation, Role};

use super::Flaw;
use super::cluster::Cluster;
use super::machine::{Entry, Sockets};
use super::wire::{Item, What};
use crate::host::node_of;

impl Cluster {
    pub(super) fn carry_out(&mut self, node: usize, action: Action) {
        match action {
            Action::Share(_, action) => self.obey_share(node, action),
            Action::Move(_, MoveAction::CheckFlows { .. }) => self.machine(node).asked = true,
            Action::Lease(LeaseAction::Send { peer, datagram }) => {
                let to = node_of(node, peer);
                let machine = self.machine(node);
                machine.said[to] = datagram.sequence;
                let item = Item::new(machine.incarnation, What::Lease(datagram));
                self.put(Self::wire(node, to, false), item);
            }
            Action::Peer(peer, PeerAction::Send(message)) => {
                let to = node_of(node, peer);
                self.overdo(node, &message);
                if self.links[node][to] {
                    let item = Item::new(self.machines[node].incarnation, What::Message(message));
                    self.put(Self::wire(node, to, true), item);
                }
            }
            // Nothing follows from these for roles, leases and stays.
            Action::Lease(LeaseAction::KeepVotes { .. })
            | Action::Move(
                _,
                MoveAction::ResetUnprotected
                | MoveAction::HandOver
                | MoveAction::Resume
                | MoveAction::Ended { .. }
                | MoveAction::Ask { .. },
            )
            | Action::Flow(..)
            | Action::Twin(..)
            | Action::Rejoin(..)
            | Action::Snapshot(..)
            | Action::Handoff(..)
            | Action::Peer(_, PeerAction::Stonith) => {}
        }
        self.listen();
    }

    fn obey_share(&mut self, node: usize, action: ShareAction) {
        match action {
            ShareAction::Set {
                role,
                epoch,
                generation,
                expiry,
                peer: _,
            } => self.set_share(node, role, (epoch, generation), expiry),
            ShareAction::SetExpiry { expiry, .. } => self.machine(node).entry.expiry = Some(expiry),
            ShareAction::Silence => {
                self.machine(node).entry.released = Some(self.times.now(node));
            }
            ShareAction::Reopen => self.machine(node).entry.released = None,
            ShareAction::EndFlows { .. } => {
                if self.owns(node) {
                    self.violate(|| format!("{node} ends its sockets aloud"));
                }
                self.machine(node).entry.sockets = Sockets::None;
            }
            // As above.
            ShareAction::Announce
            | ShareAction::Revive { .. }
            | ShareAction::ReleaseGate { .. } => {}
        }
    }

    fn set_share(
        &mut self,
        node: usize,
        role: Role,
        (epoch, generation): (Epoch, Generation),
        expiry: Option<MonoTime>,
    ) {
        let flaw = self.bounds.flaw;
        let entry = &mut self.machine(node).entry;
        let before = *entry;
        if flaw == Some(Flaw::NoSilence) && before.role == Role::Owner && role == Role::Shadow {
            return;
        }
        entry.epoch = epoch;
        entry.generation = generation;
        entry.expiry = expiry;
        entry.role = role;
        entry.latest = before.latest.max(generation);
        if let Err(wrong) = entry.follow(before) {
            let sockets = before.sockets;
            self.violate(|| format!("{node} becomes {wrong} with {sockets:?}"));
        }
    }
}

impl Entry {
    /// What becomes of the sockets when the role is written; what it was `before`.
    fn follow(&mut self, before: Self) -> Result<(), String> {
        let stay = self.generation;
        let moved = before.role == Role::Owner && before.generation == stay;
        self.sockets = match (self.role, before.sockets) {
            (Role::None, sockets) => sockets,
            (Role::Shadow, Sockets::None) => Sockets::Twins(stay),
            (Role::Shadow, Sockets::Twins(old)) if old == stay => Sockets::Twins(stay),
            (Role::Shadow, Sockets::Own) if moved => Sockets::Twins(stay),
            (Role::Shadow, Sockets::Own | Sockets::Twins(_)) => {
                return Err(format!("a shadow of {stay}"));
            }
            (Role::Owner, _) => return self.own(before),
        };
        Ok(())
    }

    fn own(&mut self, before: Self) -> Result<(), String> {
        if before.role != Role::Owner {
            self.released = None;
            self.from = (Epoch::NONE, Generation::NONE);
        }
        self.sockets = Sockets::Own;
        match (before.role, before.sockets) {
            (_, Sockets::None) => {}
            (Role::Shadow, Sockets::Twins(stay)) => self.from = (before.epoch, stay),
            (Role::Owner, Sockets::Own) => {
                if before.epoch != self.epoch {
                    self.from = (before.epoch, before.generation);
                }
            }
            (Role::None | Role::Shadow, Sockets::Own)
            | (Role::None | Role::Owner, Sockets::Twins(_)) => return Err("the owner".to_owned()),
        }
        Ok(())
    }
}
