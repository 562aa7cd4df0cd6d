//! Planned moves: who asks, what the flows look like, and the last words of an
//! owner to the next.

use std::collections::{BTreeMap, BTreeSet};

use godwit_bpf::{FlowState, Order, Phase};
use godwit_core::{Command, FlowCheck, MonoTime, MoveAction, MoveError, MoveWish};
use godwit_wire::{FlowId, NodeName, Role, ShareId, UnprotectedReason};
use tokio::sync::oneshot;

use super::resets::{ResetReason, reset};
use super::revive::answer_half_open;
use super::{Driver, segments};
use crate::clock;
use crate::clock::ms;
use crate::moves::{MoveRefused, MoveReport, SCHEMA, Wish};

/// A client that has spoken within this is about to speak again.
const BUSY_NS: u64 = 1_000_000_000;

/// Who waits for which shares to move, and what is remembered meanwhile.
#[derive(Debug, Default)]
pub(super) struct Moves {
    askers: Vec<Asker>,
    leaving: BTreeMap<ShareId, Leaving>,
}

impl Moves {
    /// Whether one of these is on its way, or waits for another.
    fn is_waited_for(&self, shares: &BTreeSet<ShareId>) -> bool {
        let mut askers = self.askers.iter();
        askers.any(|asker| !asker.waits.is_disjoint(shares))
    }
}

/// Answered when the last of its shares has moved or has not.
#[derive(Debug)]
struct Asker {
    waits: BTreeSet<ShareId>,
    /// Of these, those that could move now as far as their standbys are
    /// concerned: they wait for the others.
    ready: BTreeSet<ShareId>,
    report: MoveReport,
    refused: Option<MoveRefused>,
    reply: oneshot::Sender<Result<MoveReport, MoveRefused>>,
}

/// A share that is on its way out.
#[derive(Debug, Default)]
struct Leaving {
    flows: u64,
    /// Flows whose clients spoke just now, the latest first.
    busy: Vec<FlowId>,
    /// Flows that the new owner has no twin of.
    unprotected: Vec<FlowId>,
    silent_since: Option<MonoTime>,
}

impl Driver {
    pub(super) fn carry_out_move(&mut self, share: ShareId, action: MoveAction) {
        match action {
            MoveAction::CheckFlows { peer: _ } => self.check_flows(share),
            MoveAction::ResetUnprotected => self.reset_unprotected(share),
            MoveAction::HandOver => self.hand_over(share),
            MoveAction::Resume => self.resume(share),
            MoveAction::Ask { wish } => self.ask_move(share, wish),
            MoveAction::Ended { outcome } => self.end_move(share, outcome),
        }
    }

    pub(super) fn start_move(&mut self, wish: Wish, now: MonoTime) {
        let (share, to) = match self.understand(&wish) {
            Ok(understood) => understood,
            // Whoever asked may have gone.
            Err(refused) => return drop(wish.reply.send(Err(refused))),
        };
        let waits = self.that_move_with(share);
        if self.moves.is_waited_for(&waits) {
            let refused = say(&wish.service, &wish.to, MoveError::AlreadyMoving);
            return drop(wish.reply.send(Err(refused)));
        }
        let report = MoveReport {
            schema: SCHEMA.into(),
            from: self.ground.config.node.name.to_string(),
            to: to.to_string(),
            services: Vec::new(),
            flows: 0,
            silent_ms: 0.0,
        };
        self.moves.askers.push(Asker {
            waits: waits.clone(),
            ready: BTreeSet::new(),
            report,
            refused: None,
            reply: wish.reply,
        });
        let force = wish.force;
        for share in waits {
            let command = Command::Move { share, to, force };
            self.ground.node.handle_command(command, now);
        }
    }

    /// The shares of one address move without anybody asking. All of them ask for that at the
    /// same time: one asker is enough.
    pub(super) fn ask_move(&mut self, share: ShareId, wish: MoveWish) {
        let MoveWish { to, force, cause } = wish;
        if self.moves.is_waited_for(&self.that_move_with(share)) {
            return;
        }
        let service = self.ground.name_of(share);
        let fields = [("service", service.as_str()), ("to", to.as_str())];
        self.ground.events.publish_own(cause.as_str(), true, fields);
        let (reply, _nobody) = oneshot::channel();
        let wish = Wish {
            service,
            to: to.to_string(),
            force,
            reply,
        };
        self.start_move(wish, clock::now());
    }

    /// One node has an address, so all services of that address move together.
    fn that_move_with(&self, share: ShareId) -> BTreeSet<ShareId> {
        let mut all: BTreeSet<_> = self.ground.shares.mates(share).into_iter().collect();
        all.retain(|mate| {
            let entry = self.ground.shares.get(*mate).map(|mate| mate.entry.role);
            entry == Some(Role::Owner)
        });
        all.insert(share);
        all
    }

    fn understand(&self, wish: &Wish) -> Result<(ShareId, NodeName), MoveRefused> {
        let refused = |reason, sentence| Err(MoveRefused { reason, sentence });
        let service = &wish.service;
        let known = self
            .ground
            .shares
            .iter()
            .find(|(_, share)| share.name == *service);
        let Some((share, _)) = known else {
            return refused(
                "unknown_service",
                format!("this node serves no service {service:?}"),
            );
        };
        if self
            .ground
            .config
            .own_shares()
            .any(|(id, it)| id == share && it.moves())
        {
            return refused(
                "moves_singly",
                format!(
                    "service {service} has no twins, its connections move one by one: \
                     say how many (--count, --percent)"
                ),
            );
        }
        let nodes = std::iter::once(self.ground.config.node.name)
            .chain(self.ground.config.others().map(|peer| peer.name));
        match nodes.into_iter().find(|node| node.as_str() == wish.to) {
            Some(to) => Ok((share, to)),
            None => refused("unknown_node", format!("there is no node {:?}", wish.to)),
        }
    }

    /// The standby of a share is ready to own it. Shares of one address move
    /// together or not at all: their flows are looked at when all are ready.
    pub(super) fn check_flows(&mut self, share: ShareId) {
        let mut askers = self.moves.askers.iter_mut();
        let asker = askers.find(|asker| asker.waits.contains(&share));
        // An asker may have gone with a reload.
        let (together, mate_stays) = match asker {
            None => (BTreeSet::from([share]), false),
            Some(asker) if asker.refused.is_some() => (BTreeSet::from([share]), true),
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
            let check = self.look_at_flows(*share);
            sum.unprotected += check.unprotected;
            sum.confirming += check.confirming;
        }
        for share in together {
            self.ground.node.handle_flow_check(share, sum, clock::now());
        }
    }

    /// Looks whether all flows of a share have a twin that may be served, and
    /// says of each to the peer what this node has.
    fn look_at_flows(&mut self, share: ShareId) -> FlowCheck {
        let now = clock::now();
        let generation = self
            .ground
            .shares
            .get(share)
            .map(|share| share.entry.generation);
        let (mut check, mut leaving) = (FlowCheck::default(), Leaving::default());
        let (mut busy, mut unprotected) = (Vec::new(), Vec::new());
        let scanned = self.ground.datapath.flows.for_each(|flow| {
            if flow.share != share || flow.phase == Phase::Ended {
                return;
            }
            leaving.flows += 1;
            let held = generation == Some(flow.generation) && !flow.generation.is_none();
            let gate_off = flow.why == Some(UnprotectedReason::GateOff);
            match flow.phase {
                Phase::Confirming | Phase::Rejoining if held => check.confirming += 1,
                Phase::Protected if held => {}
                Phase::Unprotected if held && gate_off => {}
                Phase::Confirming
                | Phase::Rejoining
                | Phase::Protected
                | Phase::Unprotected
                | Phase::Twin
                | Phase::Closed
                | Phase::Ended
                | Phase::Unknown(_) => {
                    unprotected.push(flow);
                    return;
                }
            }
            if now.0.saturating_sub(flow.heard_ns) < BUSY_NS {
                busy.push((flow.heard_ns, flow.id));
            }
            self.say_what_we_have(&flow);
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows to move");
            check.unprotected += 1;
        }
        let (sweep, mut feed) = self.sweep();
        let over = sweep.let_go_ghosts(&mut feed, &unprotected, now);
        leaving.flows -= over.len() as u64;
        leaving.unprotected = unprotected.iter().map(|flow| flow.id).collect();
        leaving.unprotected.retain(|flow| !over.contains(flow));
        check.unprotected += u32::try_from(leaving.unprotected.len()).unwrap_or(u32::MAX);
        // Neither before nor behind them.
        check.confirming += self.snapshots.commits_under_way(share);
        busy.sort_unstable_by_key(|(heard_ns, _)| std::cmp::Reverse(*heard_ns));
        leaving.busy = busy.into_iter().map(|(_, flow)| flow).collect();
        tracing::debug!(share = share.0, ?check, "flows looked at");
        self.moves.leaving.insert(share, leaving);
        check
    }

    /// To the next owner: acknowledgement, window, what was sent, and our clock.
    fn say_what_we_have(&self, flow: &FlowState) {
        if let Some(packet) = segments::owner_word(flow) {
            self.ground.say_to_standby(flow, &packet);
        }
    }

    /// At a forced move, while we still own: the gate lets it out as long as the
    /// fence is open. Whoever does not hear of it hears it from the new owner.
    pub(super) fn reset_unprotected(&mut self, share: ShareId) {
        let Some(leaving) = self.moves.leaving.get_mut(&share) else {
            return;
        };
        let unprotected = std::mem::take(&mut leaving.unprotected);
        let found = unprotected
            .into_iter()
            .filter_map(|flow| self.ground.flow(flow));
        let found: Vec<_> = found.map(|it| (it, ResetReason::Unprotected)).collect();
        reset(&mut self.ground, share, &found);
    }

    /// We are silent: what has happened to busy flows since they were looked at.
    pub(super) fn hand_over(&mut self, share: ShareId) {
        let Some(leaving) = self.moves.leaving.get_mut(&share) else {
            return;
        };
        leaving.silent_since = Some(clock::now());
        let busy = std::mem::take(&mut leaving.busy);
        for flow in busy.into_iter().filter_map(|flow| self.ground.flow(flow)) {
            self.say_what_we_have(&flow);
        }
    }

    /// We speak: every twin is ours now, and those that were shut may send.
    pub(super) fn resume(&mut self, share: ShareId) {
        let now = clock::now();
        let (mut twins, mut unserved) = (Vec::new(), Vec::new());
        let scanned = self.ground.datapath.flows.for_each(|flow| {
            if flow.share != share || !flow.twin || flow.phase == Phase::Ended {
                return;
            }
            if flow.not_in_sync || flow.cut_short || flow.phase == Phase::Closed {
                let reason = ResetReason::of_twin(&flow);
                unserved.push((flow, reason));
            } else {
                twins.push(flow);
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows to go on with");
        }
        twins.sort_unstable_by_key(|flow| std::cmp::Reverse(flow.heard_ns));
        for flow in &twins {
            self.ground.give(flow.share, flow.id, Order::Turn);
            if now.0.saturating_sub(flow.heard_ns) < BUSY_NS {
                self.ground.inject(flow, segments::opened_window(flow));
            }
        }
        reset(&mut self.ground, share, &unserved);
        answer_half_open(&self.ground, share, now);
    }

    /// The move of a share has come to its end: whoever waited for it hears.
    pub(super) fn end_move(&mut self, share: ShareId, outcome: Result<NodeName, MoveError>) {
        let leaving = self.moves.leaving.remove(&share).unwrap_or_default();
        let silent = leaving.silent_since.map(|since| clock::now().since(since));
        if outcome.is_ok() {
            self.turn_flows(share);
            self.snapshots.end_committed_twins(&self.ground, share);
        }
        let name = self.ground.name_of(share);
        let (mut rest, mut stay) = (Vec::new(), Vec::new());
        for mut asker in std::mem::take(&mut self.moves.askers) {
            if asker.waits.remove(&share) {
                match outcome {
                    Ok(_) => {
                        asker.report.services.push(name.clone());
                        asker.report.flows += leaving.flows;
                        let silent_ms = ms(silent.unwrap_or_default());
                        asker.report.silent_ms = asker.report.silent_ms.max(silent_ms);
                    }
                    Err(error) => asker.refuse(&name, error),
                }
            }
            if asker.refused.is_some() {
                stay.extend(std::mem::take(&mut asker.ready));
            }
            if asker.waits.is_empty() {
                asker.answer();
            } else {
                rest.push(asker);
            }
        }
        self.moves.askers = rest;
        for share in stay.into_iter().filter(|mate| *mate != share) {
            self.check_flows(share);
        }
    }

    /// Flows follow their share with their next segment; those that are idle
    /// now, so that they are shown as what they are.
    fn turn_flows(&self, share: ShareId) {
        let mut flows = Vec::new();
        let scanned = self.ground.datapath.flows.for_each(|flow| {
            if flow.share == share {
                flows.push(flow.id);
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows that have moved");
        }
        for flow in flows {
            self.ground.give(share, flow, Order::Turn);
        }
    }
}

impl Asker {
    /// The first reason counts: the other shares of the address stay because of it.
    fn refuse(&mut self, service: &str, error: MoveError) {
        let to = &self.report.to;
        self.refused.get_or_insert_with(|| say(service, to, error));
    }

    fn answer(self) {
        // Whoever asked may have gone.
        let _ = self.reply.send(match self.refused {
            Some(refused) => Err(refused),
            None => Ok(self.report),
        });
    }
}

/// A refusal as people read it.
pub(super) fn say(service: &str, to: &str, error: MoveError) -> MoveRefused {
    let because = match error {
        MoveError::NotOwner { owner: Some(owner) } => {
            format!("node {owner} owns it, ask there")
        }
        MoveError::NotOwner { owner: None } => "this node does not own it".into(),
        MoveError::AlreadyThere => "it is there already".into(),
        MoveError::AlreadyMoving => "it is being moved already".into(),
        MoveError::NotAMember => format!("node {to} is not one of its servers"),
        MoveError::TargetDown => format!("node {to} can't be reached"),
        MoveError::NotInSync => format!("node {to} is not in sync"),
        MoveError::NotInForce => "this node may not speak for it at present".into(),
        MoveError::Target(reason) => match reason.as_str() {
            "no_server" => {
                format!(
                    "nothing listens on node {to}, or it does not serve all clients at present \
                     (`godwit status` there says why)"
                )
            }
            "server_died" => format!("the server on node {to} has just died"),
            _ => format!("node {to} does not hold its connections"),
        },
        MoveError::TargetSilent => format!("node {to} does not answer"),
        MoveError::Unprotected { flows } => format!(
            "{flows} of its connections are not protected and would be lost; \
             --force resets them"
        ),
        MoveError::Mate => "another service of its address does not".into(),
        MoveError::TakenOver => {
            format!("node {to} took it over, as from an owner that fails")
        }
        MoveError::Interrupted => "this node stopped owning it, or took it back".into(),
    };
    MoveRefused {
        reason: error.as_str(),
        sentence: format!("service {service} does not move to {to}: {because}"),
    }
}
