//! Control links: streams of messages, in order, that break late or never.

use std::collections::VecDeque;

use godwit_core::Link;
use godwit_wire::{Message, PeerMessage};

use crate::host::Input;
use crate::network::Net;
use crate::plan::MS;
use crate::world::{Happening, World};

/// A node without an answer for so long gives a link up (TCP_USER_TIMEOUT).
const USER_TIMEOUT_NS: u64 = 3_000 * MS;

/// One direction between two nodes.
#[derive(Debug, Default)]
struct Pipe {
    /// The link that the sending end believes in; 0: none.
    link: u64,
    /// Under way, each with the link that it is on.
    messages: VecDeque<(u64, Message)>,
    /// When the last of these arrives.
    clear_ns: u64,
}

/// All control links.
#[derive(Debug)]
pub(crate) struct Links {
    nodes: usize,
    pipes: Vec<Pipe>,
}

impl Links {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            pipes: (0..nodes * nodes).map(|_| Pipe::default()).collect(),
        }
    }

    fn pipe(&mut self, from: usize, to: usize) -> &mut Pipe {
        &mut self.pipes[from * self.nodes + to]
    }
}

impl World {
    pub(crate) fn send_message(&mut self, from: usize, to: usize, message: Message) {
        let now_ns = self.now_ns;
        let mut at_ns = now_ns + self.network.delay(&mut self.random) + self.random.below(100_000);
        if let Some(mended_ns) = self.network.mended(Net::Control, from, to, now_ns) {
            if mended_ns - now_ns > USER_TIMEOUT_NS {
                return;
            }
            // TCP tries again at growing intervals.
            at_ns = mended_ns + self.random.below(200 * MS);
        }
        let pipe = self.links.pipe(from, to);
        let link = pipe.link;
        if link == 0 {
            return;
        }
        at_ns = at_ns.max(pipe.clear_ns);
        pipe.clear_ns = at_ns;
        pipe.messages.push_back((link, message));
        self.queue
            .push(at_ns, Happening::Message { from, to, link });
    }

    pub(crate) fn message_arrives(&mut self, from: usize, to: usize, link: u64) {
        let now_ns = self.now_ns;
        if let Some(mended_ns) = self.network.mended(Net::Control, from, to, now_ns) {
            let at_ns = mended_ns + self.random.below(200 * MS);
            let pipe = self.links.pipe(from, to);
            // In order: whatever is behind it waits too.
            pipe.clear_ns = pipe.clear_ns.max(at_ns);
            self.queue
                .push(at_ns, Happening::Message { from, to, link });
            return;
        }
        // Each arrival takes the oldest, so that order is kept.
        let Some((link, message)) = self.links.pipe(from, to).messages.pop_front() else {
            return;
        };
        if self.links.pipe(to, from).link != link {
            return;
        }
        if let Message::Peer(PeerMessage::Hello(hello)) = &message {
            self.hosts[to].keys[from] = hello.incarnation;
        }
        self.give(to, Input::Message(from, message));
    }

    /// Both ends hear that the link is gone, each when it notices.
    pub(crate) fn drop_link(&mut self, one: usize, two: usize) {
        for (node, other) in [(one, two), (two, one)] {
            let link = self.links.pipe(node, other).link;
            let at_ns = self.now_ns + self.random.spread(50_000, 20 * MS);
            if link != 0 {
                self.queue
                    .push(at_ns, Happening::Broken { node, other, link });
            }
        }
    }

    pub(crate) fn link_breaks(&mut self, node: usize, other: usize, link: u64) {
        let pipe = self.links.pipe(node, other);
        if pipe.link != link {
            return;
        }
        pipe.link = 0;
        self.trace(|_| format!("{node}: link to {other} is down"));
        self.tell_link(node, other, Link::Down);
        self.dial_later(node, other);
    }

    pub(crate) fn dial_later(&mut self, one: usize, two: usize) {
        let at_ns = self.now_ns + self.random.between(2 * MS, 40 * MS);
        self.queue.push(at_ns, Happening::Dial { one, two });
    }

    /// A new link, if both agents run and hear each other. It replaces one that
    /// only one end believes in.
    pub(crate) fn dial(&mut self, one: usize, two: usize) {
        let ends = (
            self.links.pipe(one, two).link,
            self.links.pipe(two, one).link,
        );
        if ends.0 != 0 && ends.0 == ends.1 {
            return;
        }
        let now_ns = self.now_ns;
        let works = |world: &Self, node: usize| {
            world.hosts[node].agent.is_some() && world.hosts[node].thinks()
        };
        let cut = self
            .network
            .mended(Net::Control, one, two, now_ns)
            .is_some()
            || self
                .network
                .mended(Net::Control, two, one, now_ns)
                .is_some();
        // Only who knows that there is none dials.
        let wanted = ends.0 == 0 || ends.1 == 0;
        if !works(self, one) || !works(self, two) || cut || !wanted {
            let gone = [one, two]
                .iter()
                .any(|node| self.hosts[*node].agent.is_none());
            if !gone {
                self.dial_later(one, two);
            }
            return;
        }
        let link = self.new_name();
        for (from, to) in [(one, two), (two, one)] {
            self.links.pipe(from, to).link = link;
        }
        for (node, other) in [(one, two), (two, one)] {
            self.tell_link(node, other, Link::Up);
        }
    }

    /// An agent ends: its kernel says so to those who can hear it.
    pub(crate) fn close_links(&mut self, node: usize, aloud: bool) {
        for other in (0..self.plan.nodes).filter(|other| *other != node) {
            self.links.pipe(node, other).link = 0;
            let link = self.links.pipe(other, node).link;
            if link == 0 {
                continue;
            }
            let cut = self.network.mended(Net::Control, node, other, self.now_ns);
            let notices_ns = if aloud && cut.is_none() {
                self.network.delay(&mut self.random)
            } else {
                USER_TIMEOUT_NS
            };
            let at_ns = self.now_ns + notices_ns;
            self.queue.push(
                at_ns,
                Happening::Broken {
                    node: other,
                    other: node,
                    link,
                },
            );
        }
    }
}
