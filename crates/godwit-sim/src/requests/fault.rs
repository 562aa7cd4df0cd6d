//! Machines that die and come back, shares that move, twins that are made anew.

use godwit_core::request::{Connection, Input, Offer, Place, Socket};

use super::Rule;
use super::frame::Frame;
use super::node::{Id, Node};
use super::world::{World, server};

impl World {
    /// Anything happens.
    pub(super) fn step(&mut self) {
        if self.is_wrong() || self.is_lost {
            return;
        }
        self.now += 1;
        let count = self.nodes.len() as u64;
        let node = usize::try_from(self.random.below(count)).unwrap_or(0);
        match self.random.below(40) {
            0..=8 => self.say(),
            9..=13 => self.reply(),
            14..=16 => self.remind(node),
            17 => self.mend(node),
            18 if self.random.chance(400) => self.die(node),
            19 | 20 => self.come_back(node),
            21 => self.move_share(node),
            22 if self.random.chance(300) => self.is_deaf ^= true,
            23 => self.nodes[node].is_heard ^= true,
            24 => self.send(node, Frame::Syn),
            _ => self.deliver(),
        }
    }

    fn die(&mut self, node: Id) {
        let it = self.nodes[node];
        // One is off at a time.
        if self.nodes.iter().any(|it| !it.is_on) {
            return;
        }
        self.sums.faults += 1;
        self.tell(|_| format!("{node} dies"));
        self.at_risk |= it.connection.socket != Socket::None;
        self.at_risk |= it.connection.place != Place::Unknown;
        self.nodes[node] = Node::default();
        self.link.retain(|flight| flight.at != node);
        for share in 0..self.shares.len() {
            let other = self.other(share, node);
            if self.shares[share].owner == Some(node) {
                self.take_over(share, node, other);
            } else if self.shares[share].owner == Some(other) && self.is_of(share, node) {
                self.lose_standby(share, other);
            }
        }
        self.look();
    }

    fn is_of(&self, share: Id, node: Id) -> bool {
        self.is_ring && (node == share || node == (share + 1) % self.nodes.len())
    }

    fn take_over(&mut self, share: Id, from: Id, to: Id) {
        let in_sync = self.shares[share].in_sync;
        let takes = self.is_of(share, from) && self.nodes[to].is_on;
        self.shares[share].owner = takes.then_some(to);
        self.shares[share].in_sync = false;
        self.tell(|_| format!("share {share} of {from} is at {to}: {takes}"));
        // A lease ends later than any frame lives.
        self.link.retain(|flight| !flight.frame.is_slip());
        if takes && in_sync {
            self.sums.takeovers += 1;
            self.begin_to_own(share, to);
        }
    }

    fn begin_to_own(&mut self, share: Id, node: Id) {
        if self.nodes[node].share == share {
            self.nodes[node].is_protected = false;
            // The copy is the last owner's.
            self.nodes[node].is_kept = false;
            let around = self.around(node, None, None);
            self.hear(node, Input::TakeOver, &around);
        }
    }

    fn lose_standby(&mut self, share: Id, owner: Id) {
        self.shares[share].in_sync = false;
        if self.nodes[owner].share == share {
            self.nodes[owner].is_protected = false;
        }
    }

    pub(super) fn come_back(&mut self, node: Id) {
        if self.nodes[node].is_on {
            return;
        }
        self.sums.faults += 1;
        self.tell(|_| format!("{node} comes back"));
        self.nodes[node] = Node {
            is_on: true,
            is_heard: true,
            born_at: self.now,
            ..Node::default()
        };
        for share in 0..self.shares.len() {
            let is_of = share == node || self.is_of(share, node);
            if is_of && self.shares[share].owner.is_none() {
                self.shares[share].owner = Some(node);
            }
        }
    }

    /// A standby gets in sync, or a connection its twin.
    pub(super) fn mend(&mut self, share: Id) {
        let Some(owner) = self.shares[share].owner.filter(|_| self.is_ring) else {
            return;
        };
        let standby = self.other(share, owner);
        if !self.nodes[standby].is_on || !self.nodes[owner].is_on {
            return;
        }
        self.shares[share].in_sync = true;
        let (there, here) = (self.nodes[standby], self.nodes[owner]);
        let is_its = here.share == share && here.connection.socket.is_owners();
        let has_twin = there.connection.socket == Socket::Twin && there.share == share;
        if !is_its || has_twin {
            return;
        }
        // What it took for protected is not, and its standby promises to make no late twin.
        self.nodes[owner].is_protected = false;
        let is_late = |frame: Frame| matches!(frame, Frame::Came { from, .. } if from == owner);
        self.link.retain(|flight| !is_late(flight.frame));
        let is_open = here.connection.place == Place::Asked && !self.breaks(Rule::NoTwinMeanwhile);
        if is_open || there.connection.socket != Socket::None {
            return;
        }
        self.nodes[owner].is_protected = true;
        self.nodes[standby].share = share;
        self.nodes[standby].read = here.read;
        let around = self.around(standby, Some(owner), None);
        self.hear(standby, Input::Installed, &around);
    }

    /// Who sends on to a share that moves, or its director, may not know yet that the connection
    /// has gone on. The next owner is told where it is.
    fn bequeath(&mut self, owner: Id, heir: Id) {
        let Node {
            connection: it,
            share,
            ..
        } = self.nodes[owner];
        let (from, number) = match it.place {
            Place::Gone => (it.to, it.number),
            // As another share's. The last number may be one that the heir is, or was, asked under.
            Place::Twin | Place::Told | Place::Here | Place::Asked => {
                (Some(server(share)), it.number.saturating_sub(1))
            }
            Place::Unknown | Place::Refused | Place::Coming => (None, 0),
        };
        let Some(from) = from.filter(|from| *from != server(heir)) else {
            return;
        };
        if self.breaks(Rule::Heirs) {
            return;
        }
        let request = it.request;
        let offer = Offer { number, request };
        let input = Input::AnswerByWay {
            offer,
            from,
            accepted: true,
        };
        let around = self.around(heir, Some(owner), None);
        self.hear(heir, input, &around);
    }

    /// A planned move, with all twins.
    fn move_share(&mut self, share: Id) {
        let it = self.shares[share];
        let Some(owner) = it.owner.filter(|_| it.in_sync && self.is_ring) else {
            return;
        };
        let standby = self.other(share, owner);
        let (there, here) = (self.nodes[standby], self.nodes[owner]);
        let is_its = here.share == share && here.connection.socket.is_owners();
        let has_twin = there.connection.socket == Socket::Twin && there.share == share;
        let is_whole = !is_its || (has_twin && here.is_protected);
        if !there.is_on || !(is_whole || self.breaks(Rule::MovesWithTwin)) {
            return;
        }
        self.sums.faults += 1;
        self.tell(|_| format!("share {share} moves from {owner} to {standby}"));
        if !is_its {
            // Of that share it has asked something, or its owner has, and does not know the answer.
            let waits = matches!(there.connection.place, Place::Asked | Place::Told);
            self.at_risk |= waits && there.connection.to == Some(server(share));
            self.bequeath(owner, standby);
        }
        self.shares[share].owner = Some(standby);
        // It takes longer than frames live.
        self.link.retain(|flight| !flight.frame.is_slip());
        if is_its {
            let around = self.around(owner, Some(standby), None);
            self.hear(owner, Input::StandBy, &around);
            self.nodes[owner].is_protected = false;
            if !has_twin {
                // Nobody would serve it.
                self.nodes[owner].connection = Connection::default();
                self.look();
            }
        }
        self.begin_to_own(share, standby);
        if is_its && has_twin {
            self.nodes[standby].is_protected = true;
        }
    }
}
