//! Connections that somebody wants to go to another server: which, whereto, and the answer.

use std::collections::{BTreeMap, BTreeSet};

use godwit_bpf::{Phase, Whereabouts};
use godwit_core::handoff::{Course, HandoffError};
use godwit_core::{Command, MonoTime, PeerId};
use godwit_wire::{FlowId, ShareId};

use super::Handoffs;
use super::wishes::Asker;
use crate::config::ServiceConfig;
use crate::driver::ground::Ground;
use crate::moves::{FLOWS_SCHEMA, FlowMoves, FlowWish, MoveRefused, Selection};

impl Handoffs {
    pub(in crate::driver) fn start(&mut self, ground: &mut Ground, wish: FlowWish, now: MonoTime) {
        let (share, to, flows) = match self.select(ground, &wish) {
            Ok(selected) => selected,
            // Whoever asked may have gone.
            Err(refused) => return drop(wish.reply.send(Err(refused))),
        };
        let parties = self.parties(ground, share, &flows);
        let asker = Asker {
            waits: parties.iter().flatten().copied().collect(),
            report: FlowMoves {
                schema: FLOWS_SCHEMA.into(),
                from: ground.config.node.name.to_string(),
                to: wish.to,
                moved: Vec::new(),
                stayed: Vec::new(),
            },
            reply: wish.reply,
        };
        if asker.waits.is_empty() {
            return asker.answer();
        }
        self.wishes.0.push(asker);
        for flows in parties {
            if flows.len() > 1 {
                let keys: Vec<_> = flows.iter().map(|flow| flow.key).collect();
                ground.apps.form_party(&keys);
            }
            let command = Command::MoveFlows { share, flows, to };
            ground.node.handle_command(command, now);
        }
    }

    /// A connection has gone, or has not.
    pub(super) fn end_wishes(
        &mut self,
        ground: &Ground,
        flow: FlowId,
        outcome: Result<Course, HandoffError>,
    ) {
        ground.apps.leave_party(flow.key);
        for mut asker in std::mem::take(&mut self.wishes.0) {
            if asker.waits.remove(&flow) {
                asker.note(flow, outcome);
            }
            if asker.waits.is_empty() {
                asker.answer();
            } else {
                self.wishes.0.push(asker);
            }
        }
    }

    fn select(
        &self,
        ground: &Ground,
        wish: &FlowWish,
    ) -> Result<(ShareId, PeerId, Vec<FlowId>), MoveRefused> {
        let to = target(ground, &wish.to)?;
        let (share, service, flows) = match &wish.which {
            Selection::Flow(name) => {
                let found = moving_shares(ground).find_map(|(share, service)| {
                    let flows = self.flows_of(ground, share);
                    let found = flows
                        .into_iter()
                        .find(|flow| flow.key.to_string() == *name)?;
                    Some((share, service, vec![found]))
                });
                found.ok_or_else(|| no_such_flow(ground, name))?
            }
            Selection::Some(service, part) => {
                let mut shares = moving_shares(ground);
                let found = shares.find(|(_, config)| config.name.as_str() == service);
                let (share, config) = found.ok_or_else(|| no_such_service(ground, service))?;
                let mut flows = self.flows_of(ground, share);
                let count = part.of(flows.len());
                flows.truncate(count);
                (share, config, flows)
            }
        };
        let name = ground
            .config
            .others()
            .nth(usize::from(to.0))
            .map(|peer| peer.name);
        if !name.is_some_and(|name| service.has_member(name)) {
            let sentence = format!(
                "node {} is not a server of service {}",
                wish.to, service.name
            );
            return Err(refused("not_a_member", sentence));
        }
        Ok((share, to, flows))
    }

    /// What goes together: with each of `flows` the others of its session, chosen or
    /// not. One of another service is in their way, as no handoff has both.
    fn parties(&self, ground: &Ground, share: ShareId, flows: &[FlowId]) -> Vec<Vec<FlowId>> {
        let alone = |flow: &FlowId| vec![*flow];
        let sessions = ground.apps.sessions();
        if sessions.is_empty() {
            return flows.iter().map(alone).collect();
        }
        let here: BTreeMap<_, _> = self
            .flows_of(ground, share)
            .into_iter()
            .map(|flow| (flow.key, flow))
            .collect();
        let (mut parties, mut placed) = (Vec::new(), BTreeSet::new());
        for flow in flows {
            let session = sessions.iter().find(|it| it.contains(&flow.key));
            let party: Vec<_> = match session {
                Some(keys) => keys
                    .iter()
                    .filter_map(|key| here.get(key))
                    .copied()
                    .collect(),
                None => alone(flow),
            };
            if placed.insert(*flow) {
                placed.extend(&party);
                parties.push(party);
            }
        }
        parties
    }

    /// The connections that this node has, those that came from elsewhere first.
    fn flows_of(&self, ground: &Ground, share: ShareId) -> Vec<FlowId> {
        let ours = super::shares(&ground.config);
        let entries = self.way.as_ref().map(|it| it.places.all());
        let (mut flows, mut placed) = (Vec::new(), BTreeSet::new());
        for entry in entries.unwrap_or_default() {
            placed.insert(entry.flow.key);
            if entry.whereabouts == Whereabouts::Here
                && ours.get(&entry.flow.key.service) == Some(&share)
            {
                flows.push(entry.flow);
            }
        }
        let scanned = ground.datapath.flows.for_each(|flow| {
            let is_ours = flow.share == share && flow.phase != Phase::Ended;
            if is_ours && !placed.contains(&flow.id.key) {
                flows.push(flow.id);
            }
        });
        if let Err(error) = scanned {
            tracing::error!(error = %error, "can't read the flows to move");
        }
        flows
    }
}

fn target(ground: &Ground, name: &str) -> Result<PeerId, MoveRefused> {
    if name == ground.config.node.name.as_str() {
        let sentence = "the connections are looked for on this node, and are here already";
        return Err(refused("already_there", sentence.into()));
    }
    let others = ground.config.others().map(|peer| peer.name);
    let found = others.zip(0..).find(|(other, _)| other.as_str() == name);
    found
        .map(|(_, id)| PeerId(id))
        .ok_or_else(|| refused("unknown_node", format!("there is no node {name:?}")))
}

fn moving_shares(ground: &Ground) -> impl Iterator<Item = (ShareId, &ServiceConfig)> {
    ground.config.own_shares().filter(|(_, it)| it.moves())
}

fn no_such_flow(ground: &Ground, name: &str) -> MoveRefused {
    let twins = ground.config.own_shares().any(|(_, it)| !it.moves());
    let hint = if twins {
        "; connections of services with twins move together (--service)"
    } else {
        ""
    };
    refused(
        "unknown_flow",
        format!("this node has no connection {name:?} that moves by itself{hint}"),
    )
}

fn no_such_service(ground: &Ground, name: &str) -> MoveRefused {
    let sentence = if ground
        .config
        .own_shares()
        .any(|(_, it)| it.name.as_str() == name)
    {
        format!("connections of service {name} have twins and move together")
    } else {
        format!("this node serves no service {name:?}")
    };
    refused("unknown_service", sentence)
}

fn refused(reason: &'static str, sentence: String) -> MoveRefused {
    MoveRefused { reason, sentence }
}
