//! Connections of services with rules (`docs/requests.md`): which server each is served best by,
//! how loaded the servers are, and what they ask each other.
//!
//! | part | has |
//! |---|---|
//! | `placing` | what the data path knows of the other servers |
//! | `paths` | whether frames arrive there |
//! | `questions` | connections that were offered, and no answer came |
//! | `heirs` | connections that have gone on from a share that moves |
//! | `load` | how loaded this server is; `stalls` reads the pressure |
//! | `tags` | keys of what servers send each other |

mod heirs;
mod load;
mod paths;
mod placing;
mod questions;
mod stalls;
mod tags;

use godwit_bpf::{MapError, PlacingTable, SteeringTable, Unanswered};
use godwit_core::{Beat, MonoTime, PeerId};
use godwit_wire::{FlowId, Hello, MacAddr, NodeName, QuestionWord, ShareId, TagWord};

use super::ground::Ground;
use super::unreached::Unreached;
use crate::config::Config;
use crate::tagging::Tagging;
pub(super) use heirs::bequeath;
use load::Loads;
use placing::Placing;
use questions::Questions;

/// The hand for all of that.
#[derive(Debug)]
pub(super) struct Requests {
    placing: Placing,
    questions: Questions,
    loads: Loads,
    tagging: Tagging,
}

impl Requests {
    pub(super) fn new(ground: &Ground, now: MonoTime) -> Self {
        let config = &ground.config;
        Self {
            placing: Placing::new(config),
            questions: Questions::default(),
            loads: Loads::new(config, now),
            tagging: Tagging::take_up(config, &ground.datapath.trusts),
        }
    }

    /// When [`Requests::tick`] has something to measure.
    pub(super) fn due(&self) -> Option<MonoTime> {
        self.loads.due()
    }

    /// Keeps the data path's picture of the other servers up to date, and theirs of this one.
    pub(super) fn tick(&mut self, ground: &Ground, now: MonoTime) {
        self.placing.place(ground, &self.tagging, now);
        if self.loads.due().is_some_and(|due| due <= now) {
            let ways = (&self.placing, &self.tagging);
            self.loads.weigh(ground, ways, now);
        }
    }

    pub(super) fn note_beat(&mut self, peer: PeerId, beat: &Beat) {
        self.placing.note_beat(peer, beat);
    }

    /// The link is another one.
    pub(super) fn doubt_paths(&mut self, now: MonoTime) {
        self.placing.doubt_paths(now);
    }

    /// A question of ours has no answer.
    pub(super) fn ask_after(&mut self, ground: &Ground, question: Unanswered) {
        self.questions.ask_after(ground, &self.placing, question);
    }

    /// A peer speaks of a question: of its own, or of one of ours.
    pub(super) fn hear_of_question(
        &mut self,
        ground: &Ground,
        peer: PeerId,
        question: (FlowId, u32),
        word: QuestionWord,
    ) {
        self.questions
            .hear(ground, &self.placing, peer, question, word);
    }

    /// A peer tells a key, or uses ours.
    pub(super) fn hear_of_tags(&mut self, ground: &Ground, peer: PeerId, word: TagWord) {
        tags::hear_of_tags(ground, &mut self.tagging, peer, word);
    }

    /// A peer has introduced itself over a new link.
    pub(super) fn greet(&mut self, ground: &Ground, peer: PeerId, hello: &Hello, now: MonoTime) {
        self.questions.greet(peer, hello.incarnation, now);
        tags::offer_tags(ground, &mut self.tagging, peer, hello);
    }

    /// A peer is there on the link. Before the data path hears anything else of it.
    pub(super) fn find(&mut self, ground: &Ground, peer: PeerId, mac: MacAddr) {
        tags::find_tagged(ground, &mut self.tagging, peer, mac);
    }

    /// Servers that are not given connections, since what is sent there does not arrive.
    pub(super) fn unreached(&self, now: MonoTime) -> Vec<Unreached> {
        self.placing.unreached(now)
    }

    /// Those of one share.
    pub(super) fn unproved(&self, share: ShareId, now: MonoTime) -> Vec<NodeName> {
        self.placing.unproved(share, now)
    }

    /// The servers that are asked for a share's requests; `None` if those have no rules.
    pub(super) fn asked(&self, share: ShareId) -> Option<Vec<String>> {
        self.placing.asked(share)
    }

    /// The load of a service in percent, if it counts.
    pub(super) fn load(&self, share: ShareId) -> Option<u8> {
        self.loads.of(share)
    }

    /// How what a peer sends is proved.
    pub(super) const fn tagging(&self) -> &Tagging {
        &self.tagging
    }
}

/// No requests are placed by an earlier agent's rules.
pub(super) fn forget_others(config: &Config, table: &PlacingTable) -> Result<(), MapError> {
    placing::forget_others(config, table)
}

/// From here on connections begin by this agent's word.
pub(super) fn introduce(config: &Config, table: &SteeringTable) -> Result<(), MapError> {
    load::introduce(config, table)
}
