//! Mechanisms that can be taken away, to see that the checker notices.

use clap::ValueEnum;
use godwit_core::EventKind;
use godwit_core::MonoTime;
use godwit_core::node::PeerNews;
use godwit_wire::{
    Generation, LeaseDatagram, LeaseMessage, Message, MoveStep, NodeName, Role, StandbyMessage,
};

use super::cluster::Cluster;
use super::machine::{NODES, SERVERS, SHARE};
use super::time::TERM_NS;
use crate::host::peer_of;
use crate::world::name;

/// One mechanism that is missing. The core is never touched: it is told less
/// than is true, or more, or the model of the data path does less than it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Flaw {
    /// Data paths let an owner speak beyond the end of its lease.
    NoFence,
    /// Voters that restart vote at once: they have forgotten what they promised.
    NoQuarantine,
    /// An owner lets a standby that is silent go before a majority knows.
    NoWait,
    /// A standby is called in sync before a majority knows.
    EarlyJoin,
    /// Voters take the lease of a silent owner for given back.
    NoTerm,
    /// Agents believe that all clocks are right.
    NoDrift,
    /// An owner that has handed its share over goes on speaking.
    NoSilence,
    /// The target of a move owns as soon as it is ready.
    EarlyCommit,
}

impl Cluster {
    /// What [`Flaw::NoWait`] and [`Flaw::NoTerm`] make of a peer that falls silent.
    pub(super) fn misjudge(&mut self, node: usize, event: &EventKind) {
        let EventKind::Peer {
            peer,
            news: PeerNews::Down { .. },
        } = event
        else {
            return;
        };
        match self.bounds.flaw {
            Some(Flaw::NoWait) => {
                let entry = &mut self.machine(node).entry;
                if entry.role == Role::Owner && *peer == name(1 - node) {
                    entry.generation = Generation::NONE;
                }
            }
            Some(Flaw::NoTerm) => self.forge_release(*peer),
            Some(
                Flaw::NoFence
                | Flaw::NoQuarantine
                | Flaw::EarlyJoin
                | Flaw::NoDrift
                | Flaw::NoSilence
                | Flaw::EarlyCommit,
            )
            | None => {}
        }
    }

    fn forge_release(&mut self, silent: NodeName) {
        let Some(owner) = (0..SERVERS).find(|node| name(*node) == silent) else {
            return;
        };
        let epoch = self.machines[owner].entry.epoch;
        for node in (0..NODES).filter(|node| *node != owner) {
            let datagram = LeaseDatagram {
                sender: silent,
                incarnation: self.machines[owner].incarnation,
                receiver: self.machines[node].incarnation,
                sequence: self.machines[owner].said[node] + 1,
                voters: godwit_core::lease::voters_digest(&[0, 1, 2].map(name)),
                messages: vec![LeaseMessage::Release {
                    share: SHARE,
                    epoch,
                    number: self.times.now(owner).0 + TERM_NS,
                }],
            };
            let peer = peer_of(node, owner);
            self.feed(node, |agent, now| agent.handle_lease(peer, &datagram, now));
        }
    }

    /// What [`Flaw::EarlyJoin`] and [`Flaw::EarlyCommit`] make of a message.
    pub(super) fn overdo(&mut self, node: usize, message: &Message) {
        match (self.bounds.flaw, message) {
            (Some(Flaw::EarlyCommit), Message::Move(_, MoveStep::Ready { successor })) => {
                let expiry = self.times.now(node).0 + TERM_NS;
                let entry = &mut self.machine(node).entry;
                (entry.role, entry.epoch) = (Role::Owner, *successor);
                entry.expiry = Some(MonoTime(expiry));
            }
            (Some(Flaw::EarlyJoin), Message::Standby(scope, StandbyMessage::Ready)) => {
                let entry = &mut self.machine(node).entry;
                if entry.role == Role::Owner {
                    entry.generation = scope.generation;
                }
            }
            _ => {}
        }
    }
}
