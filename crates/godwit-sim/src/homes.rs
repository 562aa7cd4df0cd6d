//! Two shares of one address, of which the second comes into the files of nodes one after
//! the other: `godwit reload`, and what drivers do because an address is in one place
//! (`godwit-agent/src/driver/{moves,servers}.rs`).

use std::collections::BTreeSet;

use godwit_core::node::ShareNews;
use godwit_core::share::State;
use godwit_core::{Command, FlowCheck, MoveWish, ServerExit};
use godwit_wire::{NodeName, Role, ShareId};

use crate::host::Host;
use crate::mutant::Mutant;
use crate::plan::{MS, Plan, SERVERS};
use crate::random::Random;
use crate::world::{Happening, World};

/// The share that is added at the address of share 0. Another node is its primary.
const ADDED: usize = 1;

/// How long an administrator waits until the file of the next node is changed, at most.
const NEXT_FILE_NS: u64 = 5_000 * MS;

/// The same, at least, if nothing is to be disturbed: an agent is back and in sync by then.
const BACK_NS: u64 = 2_000 * MS;

/// How often an agent that can't read its file yet is asked to again.
const ASK_AGAIN_NS: u64 = 50 * MS;

/// When a share is added.
#[derive(Debug, Clone)]
pub(crate) struct Addition {
    /// In or behind which storm; with one more than there are: when all faults are over.
    pub(crate) storm: u32,
    /// How long behind the beginning of that, node by node.
    after_ns: Vec<u64>,
}

impl Addition {
    /// What a history that may add a share does. It draws from numbers of its own: other
    /// histories are as they were.
    pub(crate) fn drawn(seed: u64, plan: &Plan) -> Option<Self> {
        let mut random = Random::new(seed ^ 0x7f4a_7c15_9e37_79b9);
        let forced = plan.mutant == Some(Mutant::NoHomes);
        if plan.shares <= ADDED || !(forced || random.chance(500)) {
            return None;
        }
        let storm = u32::try_from(random.below(u64::from(plan.weather.storms) + 2)).unwrap_or(0);
        let first_ns = random.spread(MS, 3_000 * MS);
        let second_ns = first_ns + random.spread(50 * MS, NEXT_FILE_NS);
        let mut after_ns = vec![first_ns, second_ns];
        if random.chance(500) {
            after_ns.swap(0, 1);
        }
        // Who only votes needs the file as well.
        after_ns.resize_with(plan.nodes, || random.spread(MS, second_ns));
        let mut this = Self { storm, after_ns };
        if this.is_calm(plan) {
            this.take_turns(&mut random);
        }
        Some(this)
    }

    /// Whether nothing goes wrong meanwhile.
    fn is_calm(&self, plan: &Plan) -> bool {
        self.storm > plan.weather.storms
    }

    /// One node after the other, each when the one before is back.
    fn take_turns(&mut self, random: &mut Random) {
        let mut order: Vec<_> = self.after_ns.iter_mut().collect();
        order.sort();
        let mut at_ns = 0;
        for after_ns in order {
            *after_ns = at_ns;
            at_ns += random.between(BACK_NS, NEXT_FILE_NS);
        }
    }
}

/// The file of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    /// Whether the share is in it that is added.
    pub(crate) written: bool,
    /// Whether it was when the agent read it last.
    pub(crate) read: bool,
}

impl File {
    pub(crate) const fn new(plan: &Plan) -> Self {
        let whole = plan.addition.is_none();
        Self {
            written: whole,
            read: whole,
        }
    }
}

/// Shares of one address that are to move together, or not at all.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    waits: BTreeSet<usize>,
    /// Of these, those whose standbys could take them.
    ready: BTreeSet<usize>,
    refused: bool,
}

impl World {
    /// Whether all agents run, so that one may be disturbed.
    pub(crate) fn all_think(&self) -> bool {
        self.hosts.iter().all(Host::thinks)
    }

    /// The files of nodes begin to be changed.
    pub(crate) fn begin_addition(&mut self, storm: u32) {
        let addition = self.plan.addition.as_ref().filter(|it| it.storm == storm);
        let after_ns = addition.map_or_else(Vec::new, |it| it.after_ns.clone());
        for (node, after_ns) in after_ns.into_iter().enumerate() {
            self.queue
                .push(self.now_ns + after_ns, Happening::Edit { node });
        }
    }

    /// The file of a node is changed, and its agent asked to read it. One that does not run
    /// finds it when it starts.
    pub(crate) fn edit(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        let is_new = !host.file.written;
        host.file.written = true;
        let (runs, thinks) = (host.agent.is_some(), host.thinks());
        let ready = thinks && host.parting_ns.is_none();
        if is_new {
            self.trace(|_| format!("{node}: share {ADDED} is in the file"));
        }
        if !runs || self.hosts[node].file.read {
            return;
        }
        if ready {
            self.prepare_restart(node);
        }
        // It may be killed, or wait for its last words.
        self.queue
            .push(self.now_ns + ASK_AGAIN_NS, Happening::Edit { node });
    }

    /// Whether the file of a node has a share.
    pub(crate) fn has_share(&self, node: usize, share: usize) -> bool {
        share != ADDED || self.hosts[node].file.written
    }

    /// Whether the agents of all nodes know a share.
    pub(crate) fn is_added(&self, share: usize) -> bool {
        let knows = |node: usize| self.hosts[node].agent.is_some() && self.hosts[node].file.read;
        share != ADDED || self.plan.addition.is_none() || (0..self.plan.nodes).all(knows)
    }

    /// The other share of an address.
    pub(crate) fn mate(&self, share: usize) -> Option<usize> {
        let is_one = self.plan.addition.is_some() && share <= ADDED;
        is_one.then(|| ADDED - share)
    }

    /// What the core is told of them.
    pub(crate) fn mates(&self, node: usize, share: usize) -> Vec<ShareId> {
        let mate = self.mate(share).filter(|it| self.has_share(node, *it));
        let told = self.plan.mutant != Some(Mutant::NoHomes);
        let mates = mate.filter(|_| told).map(Self::share_id);
        mates.into_iter().collect()
    }

    /// An agent has been started: whom it follows.
    pub(crate) fn note_followed(&mut self, node: usize) {
        let agent = self.hosts[node].agent.as_ref();
        let shares = agent.into_iter().flat_map(|agent| agent.share_status());
        let states: Vec<_> = shares.map(|it| (it.id, it.state)).collect();
        self.audit.followed.retain(|(who, _)| *who != node);
        for (share, state) in states {
            self.follow(node, Self::share_at(share), state);
        }
    }

    fn follow(&mut self, node: usize, share: usize, state: State) {
        if state.owner().is_some() {
            self.audit.followed.insert((node, share));
        } else {
            self.audit.followed.remove(&(node, share));
        }
    }

    /// Nobody begins to own a share whose address is elsewhere, as far as is known.
    pub(crate) fn audit_role(&mut self, node: usize, share: ShareId, news: &ShareNews) {
        let &ShareNews::RoleChanged { prev, state, .. } = news else {
            return;
        };
        let share = Self::share_at(share);
        self.follow(node, share, state);
        let begins = matches!(prev, State::Starting { .. }) && state == State::Owner;
        let Some(mate) = self.mate(share).filter(|_| begins) else {
            return;
        };
        if self.audit.followed.contains(&(node, mate)) {
            self.violate(|_| {
                format!("{node} begins to own share {share}, and knows that share {mate} of its address is elsewhere")
            });
        } else if share == ADDED {
            self.tally.homes += u64::from(self.is_owner(node, mate));
        }
    }

    /// A share that was added when all was well is where its address is.
    pub(crate) fn audit_homes(&mut self) {
        let calm = |it: &Addition| it.is_calm(&self.plan);
        if !self.plan.addition.as_ref().is_some_and(calm) {
            return;
        }
        let owner = |share| (0..SERVERS).find(|node| self.is_owner(*node, share));
        let (one, other) = (owner(0), owner(ADDED));
        if one != other {
            self.violate(|_| {
                format!("nothing was wrong, and an address is at two nodes: {one:?} and {other:?}")
            });
        }
    }

    /// The shares of this one's address that are here.
    pub(crate) fn that_move_with(&self, node: usize, share: usize) -> BTreeSet<usize> {
        let mates = self.mate(share).filter(|mate| self.is_owner(node, *mate));
        mates.into_iter().chain([share]).collect()
    }

    /// Somebody wants a share to be at the other node: those that share its address as well.
    pub(crate) fn order_move(&mut self, node: usize, share: usize, to: NodeName, force: bool) {
        let waits = self.that_move_with(node, share);
        if self.mate(share).is_some() {
            let askers = &mut self.hosts[node].askers;
            if askers.iter().any(|asker| !asker.waits.is_disjoint(&waits)) {
                return;
            }
            askers.push(Asker {
                waits: waits.clone(),
                ready: BTreeSet::new(),
                refused: false,
            });
        }
        for share in waits {
            let share = Self::share_id(share);
            let command = Command::Move { share, to, force };
            self.trace(|_| format!("{node}: {command:?}"));
            self.answer(node, |agent, now| agent.handle_command(command, now));
        }
    }

    /// The agent orders by itself what a person may order.
    pub(crate) fn ask_move(&mut self, node: usize, share: ShareId, wish: MoveWish) {
        let MoveWish { to, force, .. } = wish;
        self.order_move(node, Self::share_at(share), to, force);
    }

    /// A share could move as far as its standby is concerned. Flows are looked at when all
    /// could that move with it.
    pub(crate) fn check_together(&mut self, node: usize, share: usize) {
        let mut askers = self.hosts[node].askers.iter_mut();
        let asker = askers.find(|asker| asker.waits.contains(&share));
        let (together, mate_stays) = match asker {
            None => (BTreeSet::from([share]), false),
            Some(asker) if asker.refused => (BTreeSet::from([share]), true),
            Some(asker) => {
                asker.ready.insert(share);
                if asker.ready != asker.waits {
                    return;
                }
                (std::mem::take(&mut asker.ready), false)
            }
        };
        let mut sum = FlowCheck {
            mate_stays,
            ..FlowCheck::default()
        };
        for share in &together {
            let check = self.check_flows(node, *share);
            sum.unprotected += check.unprotected;
            sum.confirming += check.confirming;
        }
        for share in together {
            let share = Self::share_id(share);
            self.answer(node, |agent, now| agent.handle_flow_check(share, sum, now));
        }
    }

    /// The move of a share has come to its end: what waits for it may stay where it is.
    pub(crate) fn end_move(&mut self, node: usize, share: usize, moved: bool) {
        let mut stay = BTreeSet::new();
        for asker in &mut self.hosts[node].askers {
            if asker.waits.remove(&share) {
                asker.refused |= !moved;
            }
            if asker.refused {
                stay.append(&mut asker.ready);
            }
        }
        let askers = &mut self.hosts[node].askers;
        askers.retain(|asker| !asker.waits.is_empty());
        stay.remove(&share);
        for mate in stay {
            self.check_together(node, mate);
        }
    }

    /// A server process has died: services of one address move together.
    pub(crate) fn pass_exit_on(&mut self, node: usize, exit: ServerExit) {
        let Some(mate) = self.mate(Self::share_at(exit.share)) else {
            return self.input(node, |agent, now| agent.handle_server_exit(exit, now));
        };
        let entry = self.hosts[node].kernel.entries[mate];
        let movable = entry.role != Role::Owner || !entry.generation.is_none();
        let own = ServerExit { movable, ..exit };
        let others = ServerExit {
            share: Self::share_id(mate),
            server: true,
            kept: 1,
            listener_lost: false,
            movable,
        };
        let concerned = exit.kept > 0 || exit.listener_lost;
        self.input(node, |agent, now| {
            agent.handle_server_exit(own, now);
            if concerned {
                agent.handle_server_exit(others, now);
            }
        });
    }
}
