//! Reads how far twins have come, for what is compared with their owners
//! ([`godwit_core::twin::compare`]).

use std::time::Duration;

use godwit_bpf::{Datapath, FlowState, Phase};
use godwit_core::MonoTime;
use godwit_core::twin::compare::{Answer, Comparisons, Finding, compare_sums};
use godwit_wire::{FlowId, Role, Said, ShareId};

use super::ground::Ground;

/// Looks at the twins that a comparison is due for.
pub(super) fn compare(ground: &mut Ground, comparisons: &mut Comparisons, now: MonoTime) {
    if !comparisons.is_due(now) {
        return;
    }
    if ground.node.peer_status().any(|peer| peer.config_differs) {
        // With other masks there are other sums.
        comparisons.forget_all();
        return;
    }
    let (shares, config, datapath) = (&ground.shares, &ground.config, &ground.datapath);
    let limits = |id: ShareId| -> Option<Duration> {
        let shadow = shares.get(id)?.entry.role == Role::Shadow;
        let (_, service) = config.shares().find(|(share, _)| *share == id)?;
        shadow.then_some(service.divergence.divergence_limit)
    };
    let look = |flow, said| look(datapath, flow, said);
    for (share, flow, reason) in comparisons.judge(look, limits, now) {
        ground.node.handle_divergence(share, flow, reason, now);
    }
}

fn look(datapath: &Datapath, flow: FlowId, said: Said) -> Finding {
    let Some(state) = twin(datapath, flow) else {
        return Finding::Gone;
    };
    match said {
        Said::Length { rcv_nxt, end } => {
            let answer = Answer {
                rcv_nxt: state.rcv_nxt,
                snd_una: state.snd_una,
                shown_end: state.shown_end,
            };
            answer.compare(rcv_nxt, end)
        }
        Said::Content { upto, sum } => match datapath.twins.outputs.get(flow.key) {
            Ok(Some(output)) if output.irs == flow.irs => {
                let latest = output.latest().map(|latest| latest.upto);
                compare_sums(upto, sum, output.sum_at(upto), latest)
            }
            Ok(_) => Finding::Behind,
            Err(_) => Finding::Gone,
        },
    }
}

fn twin(datapath: &Datapath, flow: FlowId) -> Option<FlowState> {
    let state = datapath.flows.get(flow.key).ok().flatten()?;
    let serves = state.phase == Phase::Twin && !state.not_in_sync;
    (state.id.irs == flow.irs && serves).then_some(state)
}
