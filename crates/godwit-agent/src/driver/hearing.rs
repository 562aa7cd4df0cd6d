//! Whether clients and this node's kernel still hear each other, by what the census sees of
//! flows ([`godwit_core::hearing`]); a fact for [`crate::surroundings`].
//!
//! Connections that were handed over one by one have no flow. Their entries say when a segment
//! came, genuine or forged, and no sequence number: nothing follows from that.

use std::collections::{BTreeMap, BTreeSet};

use godwit_bpf::{FlowState, Phase};
use godwit_core::MonoTime;
use godwit_core::fitness::Consequence;
use godwit_core::hearing::{Ears, Hearing, Sight, Trouble};
use godwit_wire::ShareId;

use super::logs;
use crate::facts::{Look, Wrong};

const SOURCE: &str = "hearing";

const UNANSWERED: &str = "unanswered";
const UNHEARD: &str = "unheard";

/// What was seen and said so far.
#[derive(Debug, Default)]
pub(super) struct Listener {
    ears: Ears,
    owned: BTreeSet<ShareId>,
    said: BTreeMap<ShareId, Hearing>,
}

impl Listener {
    pub(super) fn begin(&mut self) {
        self.ears.begin();
        self.owned.clear();
    }

    pub(super) fn saw(&mut self, flow: &FlowState, now: MonoTime) {
        let owns = match flow.phase {
            Phase::Confirming | Phase::Protected | Phase::Unprotected | Phase::Rejoining => true,
            Phase::Twin | Phase::Closed | Phase::Ended | Phase::Unknown(_) => false,
        };
        if !owns {
            return;
        }
        self.owned.insert(flow.share);
        let ending = flow.orphaned || flow.through || flow.own_fin || flow.client_fin;
        let in_order = logs::has_log(flow).then_some(flow.log.end);
        let own_val = flow.ts.map(|ts| ts.own_val);
        if ending || (in_order.is_none() && own_val.is_none()) {
            return;
        }
        let sight = Sight {
            share: flow.share,
            flow: flow.id.key,
            client_end: flow.client_end,
            in_order,
            rcv_nxt: flow.rcv_nxt,
            snd_una: flow.snd_una,
            snd_nxt: flow.snd_nxt,
            snd_edge: flow.snd_edge,
            own_val: own_val.unwrap_or(0),
            heard: MonoTime::from_nanos(flow.heard_ns),
        };
        self.ears.saw(&sight, now);
    }

    /// What is to be said, if it is news.
    pub(super) fn end(&mut self, now: MonoTime) -> Option<Look> {
        let owned = &self.owned;
        let found = self.ears.end(|share| owned.contains(&share), now);
        // Their number comes and goes; it is news when there were none.
        let is_news = |(share, hearing): (&ShareId, &Hearing)| {
            self.said.get(share).is_none_or(|said| {
                (said.trouble, said.flows == 0) != (hearing.trouble, hearing.flows == 0)
            })
        };
        let news = found.len() != self.said.len() || found.iter().any(is_news);
        news.then(|| {
            self.said = found;
            look(&self.said)
        })
    }
}

fn look(found: &BTreeMap<ShareId, Hearing>) -> Look {
    Look {
        source: SOURCE,
        watched: vec![UNANSWERED.to_owned(), UNHEARD.to_owned()],
        wrong: found.iter().map(|(share, it)| wrong(*share, *it)).collect(),
        days_left: BTreeMap::new(),
    }
}

fn wrong(share: ShareId, Hearing { trouble, flows }: Hearing) -> Wrong {
    let (name, found, advice) = match trouble {
        Trouble::Unanswered => (
            UNANSWERED,
            "clients speak, and this node's kernel answers none of them",
            "look for what takes their segments away behind Godwit: `nft list ruleset`, \
             programs of others (`bpftool net`, `bpftool cgroup tree`), routes and rules \
             (`ip rule`)",
        ),
        Trouble::Unheard => (
            UNHEARD,
            "clients go on speaking, and acknowledge nothing of what this node says",
            "look for what takes this node's segments away behind Godwit: programs of others \
             (`bpftool net`), neighbour entries (`ip neigh`), the link, routers on the way",
        ),
    };
    let (consequence, found) = if flows == 0 {
        let found = format!("{found}: so it was a minute ago, when the service left this node");
        (Consequence::NoMoves, found)
    } else {
        let found = format!("{found} ({flows} connections or more, and none is served)");
        (Consequence::HandOver, found)
    };
    Wrong {
        name: name.to_owned(),
        share: Some(share),
        consequence,
        found,
        advice: advice.to_owned(),
    }
}
