//! Connections whose owner is gone, and that nobody continues.
//!
//! A node that loses a share to nobody ends the share's sockets in silence: another node may
//! have twins. If none has, somebody begins the share anew, and the clients are to hear of it.
//! Most would by themselves: they speak, and the kernel of the new owner resets what it does
//! not know. One that only listens would wait for ever.
//!
//! ```text
//!  nobody owns        the sockets end, and are remembered here
//!  another node owns  they are its business: forgotten
//!  this node begins   each client is reset (`begun_anew`)
//! ```

use std::mem;

use godwit_bpf::{FlowState, Phase};
use godwit_core::node::ShareNews;
use godwit_core::share::State;
use godwit_core::{EndReason, Event, EventKind};
use godwit_wire::ShareId;

use super::ground::Ground;
use super::resets::{ResetReason, Resets, tell_resets};
use super::segments;
use crate::clock;

/// As many are remembered of each share, some 4 MiB. Clients of the others are reset when
/// they speak, and are counted all the same.
const MOST: usize = 1 << 14;

/// Those of one share.
#[derive(Debug)]
pub(super) struct Bereft<T = FlowState> {
    flows: Vec<T>,
    /// Those that there was no room for.
    more: u64,
}

impl<T> Default for Bereft<T> {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            more: 0,
        }
    }
}

impl<T> Bereft<T> {
    /// Nobody serves it any more.
    pub(super) fn keep(&mut self, flow: T) {
        if self.flows.len() < MOST {
            self.flows.push(flow);
        } else {
            self.more += 1;
        }
    }

    /// The part of this node has changed. Those whose clients are to hear that it begins anew,
    /// and how many more there were.
    fn follow(&mut self, prev: State, state: State) -> Option<(Vec<T>, u64)> {
        let stays = match state {
            State::Owner => false,
            State::Starting { .. } | State::Quitting => true,
            // Without having been in sync: it is about to own.
            State::Standby { owner } => owner.is_some() && owner == prev.owner(),
            State::Shadow { .. } => false,
        };
        if stays {
            return None;
        }
        let Self { flows, more } = mem::take(self);
        let begins = state == State::Owner
            && match prev {
                State::Starting { .. } | State::Standby { .. } => true,
                State::Shadow { .. } | State::Owner | State::Quitting => false,
            };
        let any = !flows.is_empty() || more > 0;
        (begins && any).then_some((flows, more))
    }
}

/// Whether the end of a socket here, for that reason, may be the end of its connection.
pub(super) fn is_bereft(flow: &FlowState, reason: EndReason) -> bool {
    let is_over = flow.parted || flow.phase == Phase::Ended;
    reason == EndReason::NobodyOwns && !is_over
}

/// What was remembered of a share that this node begins anew.
#[derive(Debug)]
pub(super) struct Lost {
    share: ShareId,
    flows: Vec<FlowState>,
    more: u64,
}

/// Follows a change of this node's part. The clients of what is given back are to be told
/// ([`tell`]).
pub(super) fn note_beginning(ground: &mut Ground, event: &Event) -> Option<Lost> {
    let EventKind::Share {
        share,
        news: ShareNews::RoleChanged { prev, state, .. },
    } = event.kind
    else {
        return None;
    };
    let known = ground.shares.get_mut(share)?;
    let (flows, more) = known.bereft.follow(prev, state)?;
    Some(Lost { share, flows, more })
}

/// Resets the connections; this node owns the share.
pub(super) fn tell(ground: &mut Ground, Lost { share, flows, more }: &Lost) {
    let now = clock::now();
    for flow in flows {
        ground.speak(flow, segments::reset(flow));
        if flow.twin {
            ground.speak(flow, segments::last_probe(flow, now));
        }
    }
    let count = more.saturating_add(flows.len() as u64);
    let reason = ResetReason::BegunAnew;
    tracing::info!(
        share = share.0,
        count,
        "connections of before the beginning are reset"
    );
    let mut resets = Resets::default();
    resets.count_many(reason, count);
    tell_resets(ground, *share, &resets);
}

#[cfg(test)]
mod tests {
    use godwit_core::share::Ownership;
    use godwit_core::{MonoTime, PeerId};
    use godwit_wire::{Epoch, Generation};

    use super::*;

    const STARTING: State = State::Starting {
        until: MonoTime::ZERO,
    };

    fn owned_by(peer: u16) -> Ownership {
        Ownership {
            peer: PeerId(peer),
            epoch: Epoch(7),
        }
    }

    fn standby(peer: u16) -> State {
        State::Standby {
            owner: Some(owned_by(peer)),
        }
    }

    fn shadow(peer: u16) -> State {
        State::Shadow {
            owner: owned_by(peer),
            generation: Generation(3),
        }
    }

    /// What is told after these states.
    fn told(states: &[State]) -> Option<(Vec<u32>, u64)> {
        let mut bereft = Bereft::default();
        bereft.keep(5);
        let steps = states.windows(2);
        let told = steps.map(|step| bereft.follow(step[0], step[1]));
        told.last().flatten()
    }

    #[test]
    fn clients_are_told_by_who_begins_anew_and_by_nobody_else() {
        let all = Some((vec![5], 0));
        assert_eq!(told(&[State::Owner, STARTING, State::Owner]), all);
        assert_eq!(told(&[shadow(1), STARTING, State::Owner]), all);
        assert_eq!(told(&[shadow(1), standby(1), State::Owner]), all);
        let took_over = [State::Owner, STARTING, standby(1), State::Owner];
        assert_eq!(told(&took_over), None, "another owned meanwhile");
        assert_eq!(told(&[STARTING, standby(1), shadow(1), State::Owner]), None);
        assert_eq!(told(&[shadow(1), standby(2), State::Owner]), None);
        assert_eq!(told(&[State::Owner, STARTING, State::Quitting]), None);
    }

    #[test]
    fn so_many_are_remembered_and_all_are_counted() {
        let mut bereft = Bereft::default();
        (0..MOST + 3).for_each(|flow| bereft.keep(flow));
        let (flows, more) = bereft.follow(STARTING, State::Owner).expect("told");
        assert_eq!((flows.len(), more), (MOST, 3));
        assert_eq!(bereft.follow(STARTING, State::Owner), None, "once");
    }
}
