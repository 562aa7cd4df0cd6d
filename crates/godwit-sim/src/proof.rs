//! Canaries, as `godwit-agent/src/driver/canary.rs` sends them and `gw_canary.h` answers
//! them, and nodes where no twin is born.
//!
//! ```text
//!  owner's agent                 standby
//!     ── asked ────────────────────► tap
//!     ◄── heard ─────────────────────┘ │ socket of its agent, if one is born
//!     ◄── born ────────────────────────┘
//! ```
//!
//! They go through the network of frames. Where no twin is born nothing else changes:
//! the twins that are there go on.

use std::collections::{BTreeMap, BTreeSet};

use godwit_core::{FlowEventKind, Proof};

use crate::fault::FaultKind;
use crate::flow::{Frame, Kind, Why};
use crate::host::{Half, node_of, peer_of};
use crate::mutant::Mutant;
use crate::network::Net;
use crate::plan::{MS, SERVERS};
use crate::world::{Happening, World};

/// How often each path is asked.
pub(crate) const ROUND_NS: u64 = 300 * MS;
/// The same until a path is proved for the first time, or [`YOUTH`] canaries were sent.
const HASTE_NS: u64 = 20 * MS;
/// How many canaries are sent in haste.
const YOUTH: u8 = 10;
/// How many are remembered: an answer may come late.
const NONCES: usize = 4;

/// One address of a share, as one standby hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) share: usize,
    pub(crate) standby: usize,
    pub(crate) path: u8,
}

/// What a canary is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Asked,
    Heard,
    Born,
}

/// A canary, or what has come of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Canary {
    way: Way,
    nonce: u64,
    word: Word,
}

/// `gw_canary_answer`: the latest that has come back.
#[derive(Debug, Clone, Copy, Default)]
struct Answer {
    heard: u64,
    born: u64,
}

/// One way, from the first canary on.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// The latest first; 0: none.
    nonces: [u64; NONCES],
    answer: Answer,
    /// What had come back when it was last looked.
    seen: Answer,
    /// How many are still sent in haste.
    youth: u8,
}

impl Asked {
    const NEW: Self = Self {
        nonces: [0; NONCES],
        answer: Answer { heard: 0, born: 0 },
        seen: Answer { heard: 0, born: 0 },
        youth: YOUTH,
    };

    fn ask(&mut self, nonce: u64) {
        self.nonces.rotate_right(1);
        self.nonces[0] = nonce;
        self.youth = self.youth.saturating_sub(1);
    }

    /// gw_canary_book
    fn book(&mut self, canary: Canary) {
        if self.nonces.contains(&canary.nonce) {
            match canary.word {
                Word::Asked => {}
                Word::Heard => self.answer.heard = canary.nonce,
                Word::Born => self.answer.born = canary.nonce,
            }
        }
    }

    /// What came of the latest canaries: an answer to one of them that is new.
    fn judge(&mut self) -> Proof {
        let is_new = |now: u64, before: u64| now != before && self.nonces.contains(&now);
        let proof = if is_new(self.answer.born, self.seen.born) {
            Proof::Born
        } else if is_new(self.answer.heard, self.seen.heard) {
            Proof::NotBorn
        } else {
            Proof::NotHeard
        };
        self.seen = self.answer;
        if proof == Proof::Born {
            self.youth = 0;
        }
        proof
    }
}

/// What the agent of one node asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Canaries {
    ways: BTreeMap<Way, Asked>,
}

/// Where no twin is born.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barren {
    pub(crate) until_ns: u64,
    /// At one address of each share only: a rule of a firewall.
    path: Option<u8>,
}

impl World {
    /// The first round of an agent that starts.
    pub(crate) fn begin_canaries(&mut self, node: usize) {
        if node < SERVERS {
            self.canaries[node] = Canaries::default();
            self.audit.forget_births(node);
            let life = self.hosts[node].life;
            let at_ns = self.now_ns + self.random.below(HASTE_NS);
            self.queue.push(at_ns, Happening::Round { node, life });
        }
    }

    /// Looks at what came back, and sends the next ones.
    pub(crate) fn canary_round(&mut self, node: usize, life: u64) {
        if self.hosts[node].life != life || self.hosts[node].agent.is_none() {
            return;
        }
        if self.hosts[node].thinks() {
            self.audit_standby(node);
            self.send_canaries(node);
        }
        let hasty = self.canaries[node].ways.values().any(|way| way.youth > 0);
        // One that sleeps is late for its round.
        let pause_ns = if hasty || !self.hosts[node].thinks() {
            HASTE_NS
        } else {
            ROUND_NS
        };
        self.queue
            .push(self.now_ns + pause_ns, Happening::Round { node, life });
    }

    fn send_canaries(&mut self, node: usize) {
        let wanted = self.wanted_ways(node);
        let ways = &mut self.canaries[node].ways;
        ways.retain(|way, _| wanted.contains(way));
        for way in wanted {
            self.judge_way(node, way);
            if !self.hosts[node].thinks() {
                // Stopped, or dead, of what came of it.
                return;
            }
            let nonce = self.new_name();
            let ways = &mut self.canaries[node].ways;
            ways.entry(way).or_insert(Asked::NEW).ask(nonce);
            let word = Word::Asked;
            self.send_canary(node, way.standby, Canary { way, nonce, word });
        }
    }

    fn wanted_ways(&self, node: usize) -> BTreeSet<Way> {
        let Some(agent) = &self.hosts[node].agent else {
            return BTreeSet::new();
        };
        let paths = self.plan.habits.paths;
        let ways = agent.to_prove().flat_map(|(share, peer)| {
            let (share, standby) = (Self::share_at(share), node_of(node, peer));
            (0..paths).map(move |path| Way {
                share,
                standby,
                path,
            })
        });
        ways.collect()
    }

    fn judge_way(&mut self, node: usize, way: Way) {
        let Some(asked) = self.canaries[node].ways.get_mut(&way) else {
            return;
        };
        let mut proof = asked.judge();
        if self.plan.mutant == Some(Mutant::BlindCanary) {
            proof = Proof::Born;
        }
        if proof != Proof::Born {
            self.trace(|_| format!("{node}: {way:?}: {proof:?}"));
        }
        let (share, peer) = (Self::share_id(way.share), peer_of(node, way.standby));
        self.input(node, |agent, now| {
            agent.handle_proof(share, peer, way.path, proof, now);
        });
    }

    fn send_canary(&mut self, from: usize, to: usize, canary: Canary) {
        let path = (Net::Data, from, to);
        let fate = self.network.fate(path, self.now_ns, &mut self.random);
        for at_ns in [fate.at_ns, fate.again_ns].into_iter().flatten() {
            self.queue
                .push(at_ns, Happening::Canary { from, to, canary });
        }
    }

    pub(crate) fn canary_arrives(&mut self, from: usize, to: usize, canary: Canary) {
        if !self.hosts[to].runs() {
            return;
        }
        if canary.word != Word::Asked {
            let asked = self.canaries[to].ways.get_mut(&canary.way);
            return asked.map_or((), |asked| asked.book(canary));
        }
        let word = Word::Heard;
        self.send_canary(to, from, Canary { word, ..canary });
        let Way { share, path, .. } = canary.way;
        // gw_canary_is_served, gw_canary_bear: the kernel has the agent's listener.
        let host = &self.hosts[to];
        let served = host.kernel.entries[share].listening && host.agent.is_some();
        if served && !self.is_barren_at(to, path) {
            self.audit.note_birth(from, canary.way, self.now_ns);
            let word = Word::Born;
            self.send_canary(to, from, Canary { word, ..canary });
        }
    }

    /// Whether no twin is born at that address of a node.
    pub(crate) fn is_barren_at(&self, node: usize, path: u8) -> bool {
        let barren = self.around[node].barren;
        barren.is_some_and(|it| {
            self.now_ns < it.until_ns && it.path.is_none_or(|failing| failing == path)
        })
    }

    /// Whether no twin of that client's connections is born.
    pub(crate) fn is_barren(&self, node: usize, slot: usize) -> bool {
        let paths = self.plan.habits.paths.max(1);
        let path = slot % self.plan.slots % usize::from(paths);
        self.is_barren_at(node, u8::try_from(path).unwrap_or(0))
    }

    /// gw_materialise: whether the kernel makes a socket. Without a listener it says that
    /// it can't, a packet that a rule drops says nothing.
    pub(crate) fn materialise(&mut self, node: usize, slot: usize) -> bool {
        let listening = self.hosts[node].kernel.entries[self.share_of(slot)].listening;
        let born = listening && !self.is_barren(node, slot);
        self.flow(node, slot).socket = born;
        if !listening {
            self.tell(node, slot, FlowEventKind::MaterialiseFailed);
        }
        born
    }

    /// Why an owner can't begin a flow with a segment; `None` if it can. A kernel has no
    /// socket of its own handshake before the third ACK either.
    pub(crate) fn why_unknown(&self, node: usize, half: Half, frame: Frame) -> Option<Why> {
        let barren = half.tapped && self.is_barren(node, frame.slot);
        if !half.not_in_sync && half.is_third_ack(frame) && !barren {
            return None;
        }
        let own = !half.tapped && half.irs == frame.irs;
        Some(if barren || own {
            Why::Unborn
        } else {
            Why::UnprotectedAtTakeover
        })
    }

    /// After a takeover the kernel knows nothing of a twin that was not born, and says so.
    pub(crate) fn reset_unborn(&mut self, node: usize, slot: usize) -> bool {
        let share = self.share_of(slot);
        let orphaned = self.is_orphaned(node, slot);
        let flow = self.hosts[node].kernel.flows[slot];
        let unborn = !flow.socket && !flow.is_over() && !orphaned;
        if unborn && self.can_speak(node, share) {
            let gone = Frame::bare(Kind::Reset(Why::Unborn), slot, flow.irs);
            self.speak(node, share, gone);
            self.end(node, slot);
        }
        unborn
    }

    /// At a node no twins are born for a while.
    pub(crate) fn prevent_births(&mut self, node: usize) {
        if self.around[node]
            .barren
            .is_some_and(|it| it.until_ns > self.now_ns)
        {
            return;
        }
        self.strike(FaultKind::NoBirths, false);
        let until_ns = self.now_ns + self.random.spread(100 * MS, 6_000 * MS);
        let paths = self.plan.habits.paths;
        let one = paths > 1 && self.random.chance(500);
        let path = one.then(|| u8::try_from(self.random.below(u64::from(paths))).unwrap_or(0));
        self.around[node].barren = Some(Barren { until_ns, path });
        self.trace(|world| {
            let ms = (until_ns - world.now_ns) / MS;
            format!("{node}: no twins are born for {ms} ms, path {path:?}")
        });
    }
}
