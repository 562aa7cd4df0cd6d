//! Two networks between nodes: one for frames of clients and twins, one for
//! what agents say to each other. Each direction of each pair fails by itself.

use crate::fault::FaultId;
use crate::plan::Plan;
use crate::random::Random;

/// Which network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Net {
    /// Heartbeats, lease datagrams, control links.
    Control,
    /// Frames. All clients are one more node, after the last.
    Data,
}

/// A spell of bad weather on a path.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spell {
    pub(crate) until_ns: u64,
    /// How many it can still spoil.
    pub(crate) left: u64,
    /// Per mille each.
    pub(crate) lost: u64,
    pub(crate) late: u64,
    pub(crate) twice: u64,
    pub(crate) delay_ns: u64,
    pub(crate) fault: FaultId,
}

/// One direction between two nodes.
#[derive(Debug, Clone, Copy, Default)]
struct Path {
    cut_until_ns: u64,
    cut: FaultId,
    spell: Spell,
    /// When the last one arrives: what is not delayed keeps its place.
    last_ns: u64,
}

/// What becomes of one frame or datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fate {
    /// When it arrives, if it does.
    pub(crate) at_ns: Option<u64>,
    /// When it arrives again.
    pub(crate) again_ns: Option<u64>,
    /// What made it so, if it was not chance.
    pub(crate) by: Option<FaultId>,
}

/// All paths.
#[derive(Debug)]
pub(crate) struct Network {
    /// Nodes and the clients.
    width: usize,
    paths: Vec<Path>,
    delay_ns: (u64, u64),
    loss: u64,
}

impl Network {
    pub(crate) fn new(plan: &Plan) -> Self {
        let width = plan.nodes + 1;
        Self {
            width,
            paths: vec![Path::default(); 2 * width * width],
            delay_ns: plan.delay_ns,
            loss: plan.loss,
        }
    }

    fn path(&mut self, net: Net, from: usize, to: usize) -> &mut Path {
        let plane = match net {
            Net::Control => 0,
            Net::Data => 1,
        };
        &mut self.paths[(plane * self.width + from) * self.width + to]
    }

    pub(crate) fn cut(&mut self, net: Net, from: usize, to: usize, until_ns: u64, by: FaultId) {
        let path = self.path(net, from, to);
        path.cut_until_ns = path.cut_until_ns.max(until_ns);
        path.cut = by;
    }

    pub(crate) fn worsen(&mut self, net: Net, from: usize, to: usize, spell: Spell) {
        self.path(net, from, to).spell = spell;
    }

    /// All is well from now on.
    pub(crate) fn heal(&mut self) {
        self.paths.fill(Path::default());
        self.loss = 0;
    }

    /// When a cut in that direction is mended; `None` if there is none.
    pub(crate) fn mended(&mut self, net: Net, from: usize, to: usize, now_ns: u64) -> Option<u64> {
        let until_ns = self.path(net, from, to).cut_until_ns;
        (now_ns < until_ns).then_some(until_ns)
    }

    pub(crate) fn delay(&self, random: &mut Random) -> u64 {
        random.between(self.delay_ns.0, self.delay_ns.1)
    }

    /// Sends one frame or datagram.
    pub(crate) fn fate(
        &mut self,
        (net, from, to): (Net, usize, usize),
        now_ns: u64,
        random: &mut Random,
    ) -> Fate {
        let at_ns = now_ns + self.delay(random);
        let loss = self.loss;
        let path = self.path(net, from, to);
        let at_ns = at_ns.max(path.last_ns);
        path.last_ns = at_ns;
        let mut fate = Fate {
            at_ns: Some(at_ns),
            again_ns: None,
            by: None,
        };
        if now_ns < path.cut_until_ns {
            (fate.at_ns, fate.by) = (None, Some(path.cut));
            return fate;
        }
        if now_ns < path.spell.until_ns && path.spell.left > 0 {
            let spell = path.spell;
            let what = random.below(1000);
            if what < spell.lost {
                (fate.at_ns, fate.by) = (None, Some(spell.fault));
            } else if what < spell.lost + spell.late {
                fate.at_ns = Some(at_ns + random.below(spell.delay_ns));
                fate.by = Some(spell.fault);
            } else if what < spell.lost + spell.late + spell.twice {
                fate.again_ns = Some(at_ns + random.below(spell.delay_ns));
                fate.by = Some(spell.fault);
            }
            path.spell.left -= u64::from(fate.by.is_some());
            return fate;
        }
        if loss > 0 && random.chance(loss) {
            fate.at_ns = None;
        }
        fate
    }
}
