//! Planned moves: who asks, what the flows look like, and the last words of an
//! owner to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use godwit_bpf::{FlowState, Order, Phase};
use godwit_core::{Command, FlowCheck, MonoTime, MoveAction, MoveError, MoveWish};
use godwit_wire::{FlowId, NodeName, Role, ShareId, UnprotectedReason};
use tokio::sync::oneshot;

use super::flow_feed::FlowFeed;
use super::ground::Ground;
use super::requests::bequeath;
use super::resets::{ResetReason, reset};
use super::revive::answer_half_open;
use super::segments;
use super::sweep::Sweep;
use super::unlisted::Strays;
use crate::clock;
use crate::clock::ms;
use crate::moves::{MoveRefused, MoveReport, SCHEMA, Wish};

/// A client that has spoken within this is about to speak again.
const BUSY_NS: u64 = 1_000_000_000;

/// Who waits for which shares to move, and what is remembered meanwhile.
#[derive(Debug)]
pub(super) struct Moves {
    strays: Arc<Strays>,
    askers: Vec<Asker>,
    leaving: BTreeMap<ShareId, Leaving>,
}

impl Moves {
    pub(super) fn new(strays: Arc<Strays>) -> Self {
        Self {
            strays,
            askers: Vec::new(),
            leaving: BTreeMap::new(),
        }
    }

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

/// What moves are lent.
pub(super) struct Lent<'a> {
    pub(super) feed: FlowFeed<'a>,
    pub(super) sweep: &'a Sweep,
}

impl Lent<'_> {
    fn ground(&mut self) -> &mut Ground {
        self.feed.ground
    }
}

impl Moves {
    pub(super) fn carry_out(&mut self, lent: &mut Lent<'_>, share: ShareId, action: MoveAction) {
        match action {
            MoveAction::CheckFlows { peer: _ } => self.check_flows(lent, share),
            MoveAction::ResetUnprotected => self.reset_unprotected(lent.ground(), share),
            MoveAction::HandOver => self.hand_over(lent.ground(), share),
            MoveAction::Resume => resume(lent.ground(), share),
            MoveAction::Ask { wish } => self.ask(lent.ground(), share, wish),
            MoveAction::Ended { outcome } => self.end(lent, share, outcome),
        }
    }

    pub(super) fn start(&mut self, ground: &mut Ground, wish: Wish, now: MonoTime) {
        let (share, to) = match understand(ground, &wish) {
            Ok(understood) => understood,
            // Whoever asked may have gone.
            Err(refused) => return drop(wish.reply.send(Err(refused))),
        };
        let waits = that_move_with(ground, share);
        if self.is_waited_for(&waits) {
            let refused = say(&wish.service, &wish.to, MoveError::AlreadyMoving);
            return drop(wish.reply.send(Err(refused)));
        }
        let report = MoveReport {
            schema: SCHEMA.into(),
            from: ground.config.node.name.to_string(),
            to: to.to_string(),
            services: Vec::new(),
            flows: 0,
            silent_ms: 0.0,
        };
        self.askers.push(Asker {
            waits: waits.clone(),
            ready: BTreeSet::new(),
            report,
            refused: None,
            reply: wish.reply,
        });
        let force = wish.force;
        for share in waits {
            let command = Command::Move { share, to, force };
            ground.node.handle_command(command, now);
        }
    }

    /// The shares of one address move without anybody asking. All of them ask for that at the
    /// same time: one asker is enough.
    fn ask(&mut self, ground: &mut Ground, share: ShareId, wish: MoveWish) {
        let MoveWish { to, force, cause } = wish;
        if self.is_waited_for(&that_move_with(ground, share)) {
            return;
        }
        let service = ground.name_of(share);
        let fields = [("service", service.as_str()), ("to", to.as_str())];
        ground.events.publish_own(cause.as_str(), true, fields);
        let (reply, _nobody) = oneshot::channel();
        let wish = Wish {
            service,
            to: to.to_string(),
            force,
            reply,
        };
        self.start(ground, wish, clock::now());
    }

    /// The standby of a share is ready to own it. Shares of one address move
    /// together or not at all: their flows are looked at when all are ready.
    fn check_flows(&mut self, lent: &mut Lent<'_>, share: ShareId) {
        let mut askers = self.askers.iter_mut();
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
            bequeath(lent.ground(), *share);
            let check = self.look_at_flows(lent, *share);
            sum.unprotected += check.unprotected;
            sum.confirming += check.confirming;
        }
        for share in together {
            let node = &mut lent.ground().node;
            node.handle_flow_check(share, sum, clock::now());
        }
    }

    /// Looks whether all flows of a share have a twin that may be served, and
    /// says of each to the peer what this node has.
    fn look_at_flows(&mut self, lent: &mut Lent<'_>, share: ShareId) -> FlowCheck {
        let now = clock::now();
        let ground = &*lent.feed.ground;
        let generation = ground.shares.get(share).map(|share| share.entry.generation);
        let (mut check, mut leaving) = (FlowCheck::default(), Leaving::default());
        let (mut busy, mut unprotected) = (Vec::new(), Vec::new());
        let scanned = ground.datapath.flows.for_each(|flow| {
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
            say_what_we_have(ground, &flow);
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows to move");
            check.unprotected += 1;
        }
        let over = lent.sweep.let_go_ghosts(&mut lent.feed, &unprotected, now);
        leaving.flows -= over.len() as u64;
        leaving.unprotected = unprotected.iter().map(|flow| flow.id).collect();
        leaving.unprotected.retain(|flow| !over.contains(flow));
        check.unprotected += u32::try_from(leaving.unprotected.len()).unwrap_or(u32::MAX);
        // No segment of theirs can be let go with a flow: they end when the address is elsewhere.
        let mut services = lent.feed.ground.config.own_shares();
        let service = services.find(|(id, _)| *id == share);
        check.unprotected += service.map_or(0, |(_, it)| self.strays.at(&it.addresses));
        // Neither before nor behind them.
        check.confirming += lent.feed.snapshots.commits_under_way(share);
        busy.sort_unstable_by_key(|(heard_ns, _)| std::cmp::Reverse(*heard_ns));
        leaving.busy = busy.into_iter().map(|(_, flow)| flow).collect();
        tracing::debug!(share = share.0, ?check, "flows looked at");
        self.leaving.insert(share, leaving);
        check
    }

    /// At a forced move, while we still own: the gate lets it out as long as the
    /// fence is open. Whoever does not hear of it hears it from the new owner.
    fn reset_unprotected(&mut self, ground: &mut Ground, share: ShareId) {
        let Some(leaving) = self.leaving.get_mut(&share) else {
            return;
        };
        let unprotected = std::mem::take(&mut leaving.unprotected);
        let found = unprotected.into_iter().filter_map(|flow| ground.flow(flow));
        let found: Vec<_> = found.map(|it| (it, ResetReason::Unprotected)).collect();
        reset(ground, share, &found);
    }

    /// We are silent: what has happened to busy flows since they were looked at.
    fn hand_over(&mut self, ground: &Ground, share: ShareId) {
        let Some(leaving) = self.leaving.get_mut(&share) else {
            return;
        };
        leaving.silent_since = Some(clock::now());
        let busy = std::mem::take(&mut leaving.busy);
        for flow in busy.into_iter().filter_map(|flow| ground.flow(flow)) {
            say_what_we_have(ground, &flow);
        }
    }

    /// The move of a share has come to its end: whoever waited for it hears.
    fn end(&mut self, lent: &mut Lent<'_>, share: ShareId, outcome: Result<NodeName, MoveError>) {
        let leaving = self.leaving.remove(&share).unwrap_or_default();
        let silent = leaving.silent_since.map(|since| clock::now().since(since));
        if outcome.is_ok() {
            turn_flows(lent.ground(), share);
            lent.feed
                .snapshots
                .end_committed_twins(lent.feed.ground, share);
        }
        let name = lent.ground().name_of(share);
        let (mut rest, mut stay) = (Vec::new(), Vec::new());
        for mut asker in std::mem::take(&mut self.askers) {
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
        self.askers = rest;
        for share in stay.into_iter().filter(|mate| *mate != share) {
            self.check_flows(lent, share);
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

/// One node has an address, so all services of that address move together.
fn that_move_with(ground: &Ground, share: ShareId) -> BTreeSet<ShareId> {
    let mut all: BTreeSet<_> = ground.shares.mates(share).into_iter().collect();
    all.retain(|mate| {
        let entry = ground.shares.get(*mate).map(|mate| mate.entry.role);
        entry == Some(Role::Owner)
    });
    all.insert(share);
    all
}

fn understand(ground: &Ground, wish: &Wish) -> Result<(ShareId, NodeName), MoveRefused> {
    let refused = |reason, sentence| Err(MoveRefused { reason, sentence });
    let service = &wish.service;
    let known = ground
        .shares
        .iter()
        .find(|(_, share)| share.name == *service);
    let Some((share, _)) = known else {
        return refused(
            "unknown_service",
            format!("this node serves no service {service:?}"),
        );
    };
    if ground
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
    let nodes = std::iter::once(ground.config.node.name)
        .chain(ground.config.others().map(|peer| peer.name));
    match nodes.into_iter().find(|node| node.as_str() == wish.to) {
        Some(to) => Ok((share, to)),
        None => refused("unknown_node", format!("there is no node {:?}", wish.to)),
    }
}

/// To the next owner: acknowledgement, window, what was sent, and our clock.
fn say_what_we_have(ground: &Ground, flow: &FlowState) {
    if let Some(packet) = segments::owner_word(flow) {
        ground.say_to_standby(flow, &packet);
    }
}

/// We speak: every twin is ours now, and those that were shut may send.
fn resume(ground: &mut Ground, share: ShareId) {
    let now = clock::now();
    let (mut twins, mut unserved) = (Vec::new(), Vec::new());
    let scanned = ground.datapath.flows.for_each(|flow| {
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
        ground.give(flow.share, flow.id, Order::Turn);
        if now.0.saturating_sub(flow.heard_ns) < BUSY_NS {
            ground.inject(flow, segments::opened_window(flow));
        }
    }
    reset(ground, share, &unserved);
    answer_half_open(ground, share, now);
}

/// Flows follow their share with their next segment; those that are idle
/// now, so that they are shown as what they are.
fn turn_flows(ground: &Ground, share: ShareId) {
    let mut flows = Vec::new();
    let scanned = ground.datapath.flows.for_each(|flow| {
        if flow.share == share {
            flows.push(flow.id);
        }
    });
    if let Err(error) = scanned {
        tracing::error!(error = %error, "can't read the flows that have moved");
    }
    for flow in flows {
        ground.give(share, flow, Order::Turn);
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
