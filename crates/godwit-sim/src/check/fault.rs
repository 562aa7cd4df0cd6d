//! What may come in the way of the usual course of things.
//!
//! A fault is tried only where it makes a difference that it comes now and not
//! earlier: what happens to a machine, just before it does something; what happens
//! to a wire, just before something arrives on it.

use godwit_core::{Command, ServerExit};
use godwit_wire::Role;

use super::cluster::{Cluster, Step, Stop};
use super::machine::{NODES, SERVERS, SHARE};
use super::wire::Block;
use crate::world::name;

/// One thing that comes in the way, and for how many steps of time it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A datagram is lost.
    Lose(usize),
    /// What is sent from one node to another is lost, on control links late.
    Cut(usize, usize, u8),
    /// A node hears nobody, and nobody hears it.
    Isolate(usize, u8),
    /// What is under way on a wire comes late; 0: after all else.
    Late(usize, u8),
    /// A control link breaks.
    Break(usize, usize),
    /// A machine goes dark.
    Crash(usize, u8),
    /// All machines but that of an owner go dark.
    Blackout(usize, u8),
    /// An agent does not run.
    Pause(usize, u8),
    /// The agent that acts next is stopped before that many actions are done.
    Stop(usize, Stop),
    /// The server process of a node dies.
    ServerDeath(usize, u8),
    /// An owner gives its lease back.
    Release(usize),
    /// Somebody wants the share to be at the other server. No fault.
    Move(usize),
}

impl Cluster {
    /// Everything that may come in the way of the next step.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let step = self.usual();
        match step {
            Step::Arrive(wire) => self.faults_of_wire(wire, &mut faults),
            Step::Wake(node) => self.faults_of_node(node, &mut faults),
            Step::Check(_) | Step::Dial(..) | Step::Thaw | Step::Tick => {}
        }
        if self.bounds.between {
            let mut next = self.clone();
            next.take(step);
            let outages = &self.bounds.outages;
            for at in 0..next.acted.1 {
                for ticks in outages {
                    faults.push(Fault::Stop(at, Stop::Kill(*ticks)));
                    faults.push(Fault::Stop(at, Stop::Pause(*ticks)));
                }
            }
        }
        faults
    }

    fn faults_of_wire(&self, wire: usize, faults: &mut Vec<Fault>) {
        let (from, to, messages) = Self::ends(wire);
        let outages = &self.bounds.outages;
        if self.runs(to) {
            faults.extend(outages.iter().map(|ticks| Fault::Crash(to, *ticks)));
        }
        faults.push(Fault::Late(wire, 0));
        if messages {
            faults.extend(outages.iter().map(|ticks| Fault::Late(wire, *ticks)));
            faults.push(Fault::Break(from, to));
        } else {
            faults.push(Fault::Lose(wire));
            // One that is late by a step is as good as many that are.
            faults.push(Fault::Late(wire, 1));
            faults.extend(outages.iter().map(|ticks| Fault::Cut(from, to, *ticks)));
        }
    }

    fn faults_of_node(&self, node: usize, faults: &mut Vec<Fault>) {
        if !self.runs(node) {
            return;
        }
        for ticks in &self.bounds.outages {
            if node < SERVERS && self.owns(node) {
                faults.push(Fault::Blackout(node, *ticks));
            }
            faults.push(Fault::Isolate(node, *ticks));
            faults.push(Fault::Crash(node, *ticks));
            faults.push(Fault::Pause(node, *ticks));
            if node < SERVERS && self.machines[node].entry.listening {
                faults.push(Fault::ServerDeath(node, *ticks));
            }
        }
        if node < SERVERS && self.owns(node) {
            faults.push(Fault::Release(node));
        }
    }

    /// Whether somebody may want the share to move now.
    pub(super) fn may_move(&self) -> Option<Fault> {
        let Step::Wake(node) = self.usual() else {
            return None;
        };
        let asks = self.moves > 0 && self.may_move_from(node);
        asks.then_some(Fault::Move(node))
    }

    /// Whether a node can be asked to hand the share over.
    pub(super) fn may_move_from(&self, node: usize) -> bool {
        node < SERVERS && self.runs(node) && self.owns(node)
    }

    /// Somebody asks an owner to hand the share over.
    pub(super) fn hand_over(&mut self, node: usize) {
        let to = name(1 - node);
        let force = false;
        let share = SHARE;
        self.command(node, Command::Move { share, to, force });
    }

    /// Lets it come.
    pub(super) fn suffer(&mut self, fault: Fault) {
        self.trail.note(fault);
        if fault != Fault::Move(0) && fault != Fault::Move(1) {
            if self.faults > 0 {
                self.ghost().remit();
            }
            self.faults += 1;
        }
        match fault {
            Fault::Lose(wire) => self.lose(wire),
            Fault::Cut(from, to, ticks) => self.cut(from, to, ticks),
            Fault::Isolate(node, ticks) => {
                for other in (0..NODES).filter(|other| *other != node) {
                    self.cut(node, other, ticks);
                    self.cut(other, node, ticks);
                }
            }
            Fault::Late(wire, ticks) => self.block(wire, Block::Late(ticks)),
            Fault::Break(one, two) => self.break_link(one, two),
            Fault::Crash(node, ticks) => {
                if self.faults == 1 && self.owns(node) {
                    self.ghost().owe(node);
                }
                self.darken(node, ticks);
            }
            Fault::Blackout(node, ticks) => {
                let others = (0..NODES).filter(|other| *other != node);
                others.for_each(|other| self.darken(other, ticks));
            }
            Fault::Pause(node, ticks) => self.paused[node] = ticks,
            Fault::Stop(at, stop) => {
                let step = self.usual();
                self.take_until(step, at, stop);
            }
            Fault::ServerDeath(node, ticks) => self.end_server(node, ticks),
            Fault::Release(node) => self.command(node, Command::Release(SHARE)),
            Fault::Move(node) => {
                self.moves -= 1;
                self.hand_over(node);
            }
        }
    }

    fn cut(&mut self, from: usize, to: usize, ticks: u8) {
        for messages in [false, true] {
            self.block(Self::wire(from, to, messages), Block::Cut(ticks));
        }
    }

    fn end_server(&mut self, node: usize, ticks: u8) {
        self.unserved[node] = ticks;
        let now = self.times.now(node);
        let entry = &mut self.machine(node).entry;
        entry.listening = false;
        if entry.role == Role::Owner && !entry.generation.is_none() {
            entry.released = Some(now);
        }
        let exit = ServerExit {
            share: SHARE,
            server: true,
            kept: 1,
            listener_lost: true,
            movable: true,
        };
        self.feed(node, |agent, now| agent.handle_server_exit(exit, now));
    }
}
