//! All servers, their shares, the link, and a client.

use godwit_core::request::{
    Around, Connection, Input, Mate, Offer, Place, Reason, Said, Server, Socket, Verdict,
};

use super::frame::{Flight, Frame};
use super::node::{Id, Node, Share};
use super::{Rule, Sums};
use crate::random::Random;

/// Frames that may be under way.
const MOST_FRAMES: usize = 40;

#[derive(Debug)]
pub(super) struct World {
    seed: u64,
    is_tracing: bool,
    pub(super) random: Random,
    pub(super) broken: Option<Rule>,
    pub(super) nodes: Vec<Node>,
    pub(super) shares: Vec<Share>,
    pub(super) link: Vec<Flight>,
    /// Servers have twins of each other.
    pub(super) is_ring: bool,
    /// The link carries nothing of what servers send each other.
    pub(super) is_deaf: bool,
    pub(super) is_calm: bool,
    /// The request that has no reply.
    pub(super) request: u32,
    /// The share where its client's frames go to.
    pub(super) led: Id,
    /// A machine that knew of the connection has died.
    pub(super) at_risk: bool,
    pub(super) is_lost: bool,
    /// Steps since the beginning.
    pub(super) now: u32,
    pub(super) sums: Sums,
    pub(super) story: Vec<String>,
    pub(super) violation: Option<String>,
}

/// A server as the model names it.
pub(super) fn server(id: Id) -> Server {
    Server(u8::try_from(id).unwrap_or(u8::MAX))
}

const fn id(server: Server) -> Id {
    server.0 as Id
}

impl World {
    pub(super) fn new(seed: u64, broken: Option<Rule>, is_tracing: bool) -> Self {
        let mut random = Random::new(seed);
        let count = usize::try_from(random.between(2, 5)).unwrap_or(2);
        let is_ring = random.chance(800);
        let node = Node {
            is_on: true,
            is_heard: true,
            ..Node::default()
        };
        let share = |owner| Share {
            owner: Some(owner),
            in_sync: is_ring,
        };
        let mut world = Self {
            seed,
            is_tracing,
            random,
            broken,
            nodes: vec![node; count],
            shares: (0..count).map(share).collect(),
            link: Vec::new(),
            is_ring,
            is_deaf: false,
            is_calm: false,
            request: 1,
            led: 0,
            at_risk: false,
            is_lost: false,
            now: 0,
            sums: Sums {
                histories: 1,
                ..Sums::default()
            },
            story: Vec::new(),
            violation: None,
        };
        world.nodes[0].connection = Connection::begun();
        if is_ring {
            world.nodes[0].is_protected = true;
            world.nodes[1].connection.socket = Socket::Twin;
        }
        world
    }

    pub(super) fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    pub(super) fn tell(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.is_tracing {
            let line = what(self);
            self.story.push(line);
        }
    }

    pub(super) const fn sums(&self) -> Sums {
        self.sums
    }

    pub(super) const fn is_wrong(&self) -> bool {
        self.violation.is_some()
    }

    pub(super) fn into_story(mut self) -> Vec<String> {
        self.story.extend(self.violation);
        self.story
    }

    /// The other one of the two that may own a share.
    pub(super) fn other(&self, share: Id, node: Id) -> Id {
        let backup = (share + 1) % self.nodes.len();
        if node == share { backup } else { share }
    }

    /// Who has what is of that share.
    pub(super) fn has(&self, share: Id) -> Option<Id> {
        self.shares[share].owner
    }

    /// The standby that a connection at that server has a twin at.
    pub(super) fn standby(&self, node: Id) -> Option<Id> {
        let share = self.nodes[node].share;
        let it = self.shares[share];
        let is_kept = self.nodes[node].is_protected && it.in_sync;
        (is_kept && it.owner == Some(node)).then(|| self.other(share, node))
    }

    pub(super) fn send(&mut self, at: Id, frame: Frame) {
        let lossy = !self.is_calm && self.random.chance(120);
        if lossy || (self.is_deaf && frame.is_slip()) {
            self.sums.faults += 1;
            return;
        }
        if self.link.len() < MOST_FRAMES && self.nodes[at].is_on {
            self.link.push(Flight { at, frame });
        }
        if !self.is_calm && self.random.chance(80) && self.nodes[at].is_on {
            self.sums.faults += 1;
            self.link.push(Flight { at, frame });
        }
    }

    /// How it is with whom an entry of this server's names, as its agent knows.
    fn mate(&self, node: Id, to: Option<Server>) -> Mate {
        let Some(to) = to.map(id) else {
            return Mate::Serves;
        };
        let is_off = !self.nodes[to].is_on;
        if self.breaks(Rule::InItsPlace) && is_off {
            return Mate::Dead;
        }
        match self.has(to) {
            // What it had is here.
            Some(owner) if owner == node => Mate::Ours,
            Some(owner) if self.nodes[owner].is_heard => Mate::Serves,
            None if is_off && !self.is_ring => Mate::Dead,
            Some(_) | None if self.breaks(Rule::Proved) => Mate::Dead,
            Some(_) | None => Mate::Silent,
        }
    }

    /// Who is to have a request, by its rule.
    fn target(&self, node: Id, request: u32) -> Option<Id> {
        let drawn = Random::new(self.seed ^ u64::from(request) << 32).draw();
        let target = usize::try_from(drawn).unwrap_or(0) % self.nodes.len();
        // Who has taken over what another one had is not asked for it.
        let owner = self.has(target).filter(|owner| *owner == target)?;
        let stays = self.nodes[node].read >= request || owner == node;
        (!stays && self.nodes[owner].is_heard).then_some(target)
    }

    pub(super) fn around(&mut self, node: Id, peer: Option<Id>, said: Option<u32>) -> Around {
        let it = self.nodes[node];
        let target = said.and_then(|request| self.target(node, request));
        let asks = if it.connection.place == Place::Asked {
            it.connection.to.map(id)
        } else {
            target
        };
        let asked = asks.and_then(|share| self.has(share));
        let standby = self.standby(node);
        let owns_home = self.has(node) == Some(node);
        let is_full = !self.is_calm && self.random.chance(200);
        let is_busy = !self.is_calm && self.random.chance(200);
        let pairs = |share: &Id| {
            let (one, two) = (*share, (*share + 1) % self.nodes.len());
            peer.is_some_and(|peer| [(one, two), (two, one)].contains(&(node, peer)))
        };
        let mut shares = (0..self.nodes.len()).filter(pairs).peekable();
        let is_pair = shares.peek().is_some();
        let stands_by = shares.any(|share| self.has(share) == peer);
        Around {
            target: target.map(server),
            mate: self.mate(node, it.connection.to),
            by_standby: standby.is_some() && standby != asked,
            unwilling: if !owns_home {
                Some(Reason::NotOwner)
            } else {
                is_full.then_some(Reason::NoListener)
            },
            in_place: false,
            twin_is_idle: !is_busy,
            ward: peer.filter(|_| is_pair && self.is_ring).map(server),
            stands_by: stands_by && self.is_ring,
        }
    }

    /// Something happens at a server; what becomes of it is done.
    pub(super) fn hear(&mut self, node: Id, input: Input, around: &Around) -> Verdict {
        let before = self.nodes[node].connection;
        if self.breaks(Rule::Numbered) && before.place != Place::Asked {
            self.nodes[node].connection.number = 0;
        }
        let standby = self.standby(node);
        let verdict = self.nodes[node].connection.hear(input, around);
        self.spoil(node, before, input, verdict);
        let after = self.nodes[node].connection;
        self.tell(|_| format!("{node}: {input:?} -> {verdict:?}; {after:?}"));
        let left = matches!(
            verdict,
            Verdict::Come | Verdict::MakeTwin { .. } | Verdict::Reset(_) | Verdict::LeaveLate(_)
        );
        if let Some(standby) = standby.filter(|_| left && before.place == Place::Asked) {
            self.take_twin_away(standby, node);
        }
        self.judge(before, input, verdict);
        verdict
    }

    /// What a rule that is broken makes of it.
    fn spoil(&mut self, node: Id, before: Connection, input: Input, verdict: Verdict) {
        let it = &mut self.nodes[node].connection;
        match self.broken {
            Some(Rule::OneAnswer) if matches!(verdict, Verdict::Refuse(_)) => {
                it.refused = before.refused;
                it.ruled_out = 0;
                if it.place == Place::Refused {
                    it.place = Place::Unknown;
                }
            }
            Some(Rule::ToldFirst) if matches!(input, Input::AskByWay { .. }) => *it = before,
            Some(Rule::TwinEnds) if matches!(verdict, Verdict::SendOnAndReset(_)) => {
                (it.place, it.socket) = (Place::Twin, Socket::Twin);
            }
            Some(Rule::Ruling) => it.ruled_out = 0,
            Some(_) | None => {}
        }
    }

    /// A request comes to a server, or something else of its client.
    pub(super) fn hear_client(
        &mut self,
        node: Id,
        request: Option<u32>,
        heard: u32,
        (by, hops): (Option<Id>, u8),
    ) {
        let Some(hops) = hops.checked_sub(1) else {
            return;
        };
        let Node {
            connection: it,
            read,
            ..
        } = self.nodes[node];
        let said = match (request, it.place) {
            // It acknowledges a reply that this server has not given.
            (_, Place::Asked) if heard > read => Said::AcknowledgesMore,
            (Some(request), _) => Said::Request(request),
            (None, _) => Said::Other,
        };
        let around = self.around(node, by, request);
        let of = |by: Id| {
            let known = it.to.filter(|to| self.has(id(*to)) == Some(by));
            known.unwrap_or_else(|| server(by))
        };
        let input = Input::Client(said, by.map(of));
        let verdict = self.hear(node, input, &around);
        match verdict {
            Verdict::Serve(_) => self.serve(node, request),
            Verdict::Ask { by_way } => self.ask_of_client(node, it.place, by_way),
            Verdict::SendOn(to) | Verdict::LeaveLate(to) => {
                // A server that sends it on has told, or was told.
                if it.place == Place::Gone && by.is_none() {
                    self.led = id(to);
                }
                let at = self.has(id(to)).unwrap_or_else(|| id(to));
                let by = Some(node);
                let frame = Frame::Client {
                    request,
                    heard,
                    by,
                    hops,
                };
                self.send(at, frame);
            }
            Verdict::ToOwner => {
                let share = self.nodes[node].share;
                if by.is_none() {
                    self.led = share;
                }
                if let Some(owner) = self.has(share).filter(|owner| *owner != node) {
                    self.send(
                        owner,
                        Frame::Client {
                            request,
                            heard,
                            by: None,
                            hops,
                        },
                    );
                }
            }
            Verdict::AskForRest
            | Verdict::Come
            | Verdict::AcceptAgain
            | Verdict::OnlyAnswer
            | Verdict::Refuse(_)
            | Verdict::Reset(_)
            | Verdict::SendOnAndReset(_)
            | Verdict::MakeTwin { .. }
            | Verdict::Feed
            | Verdict::Speak
            | Verdict::Drop(_)
            | Verdict::Settled(_)
            | Verdict::Remind
            | Verdict::Nothing => {}
        }
    }

    /// With its request, for the first time or once more.
    fn ask_of_client(&mut self, node: Id, before: Place, by_way: bool) {
        let it = &mut self.nodes[node];
        if before != Place::Asked {
            it.asked_at = self.now;
            it.is_put_again = false;
        }
        it.is_kept = true;
        self.ask(node, by_way);
    }

    /// A standby has not heard the answer: the agents take its twin away.
    fn take_twin_away(&mut self, standby: Id, owner: Id) {
        if self.breaks(Rule::TwinEnds) {
            return;
        }
        let it = self.nodes[standby];
        if it.connection.socket == Socket::Twin && it.share == self.nodes[owner].share {
            let around = self.around(standby, Some(owner), None);
            self.hear(standby, Input::Forget, &around);
        }
    }

    /// This server's TCP has it.
    pub(super) fn serve(&mut self, node: Id, request: Option<u32>) {
        if self.nodes[node].connection.socket == Socket::None {
            return self.reset_by_stranger(node);
        }
        let Some(request) = request else { return };
        let it = &mut self.nodes[node];
        it.read = it.read.max(request);
        if let Some(standby) = self.standby(node) {
            let from = node;
            self.send(standby, Frame::Fed { request, from });
        }
    }

    pub(super) fn ask(&mut self, node: Id, by_way: bool) {
        let it = self.nodes[node].connection;
        let Some(to) = it.to.map(id) else { return };
        self.nodes[node].by_way = by_way;
        let offer = Offer {
            number: it.number,
            request: it.request,
        };
        let standby = self.standby(node).filter(|_| by_way);
        let at = standby.or_else(|| self.has(to)).unwrap_or(to);
        let (from, by_way) = (node, standby);
        self.send(
            at,
            Frame::Ask {
                offer,
                from,
                to,
                by_way,
            },
        );
    }
}
