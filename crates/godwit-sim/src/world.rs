//! A cluster, its clients and the network between them, on one true clock.
//!
//! Whatever happens is an entry of one queue. What must hold is checked where
//! it could be broken: see `audit.rs`.

use godwit_core::{FlowEvent, Link, MonoTime, ServerExit};
use godwit_wire::{Endpoint, FlowId, FlowKey, LeaseDatagram, NodeName, SeqNumber, ShareId};

use crate::audit::Audit;
use crate::client::Client;
use crate::facts::Around;
use crate::fault::Faults;
use crate::flow::Frame;
use crate::host::{Claims, Host, Input};
use crate::link::Links;
use crate::network::Network;
use crate::out;
use crate::plan::{MS, Plan, SERVERS};
use crate::proof::{Canaries, Canary};
use crate::queue::Queue;
use crate::random::Random;
use crate::tally::Tally;

/// One thing that happens.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A frame arrives at a node, or at the clients; `from` is who sent it.
    Frame {
        from: usize,
        to: usize,
        frame: Frame,
    },
    /// A frame leaves the queues of a host.
    Exit {
        node: usize,
        share: usize,
        epoch: u64,
        frame: Frame,
    },
    Beat {
        from: usize,
        to: usize,
        incarnation: u64,
        /// Its number, and when it was sent by the sender's clock.
        sent: (u64, MonoTime),
        claims: Claims,
    },
    Lease {
        from: usize,
        to: usize,
        incarnation: u64,
        datagram: LeaseDatagram,
    },
    /// Something for an agent of that life.
    Tell {
        node: usize,
        life: u64,
        input: Input,
    },
    /// The next message of a control link.
    Message {
        from: usize,
        to: usize,
        link: u64,
    },
    /// One end of a control link notices that it is gone.
    Broken {
        node: usize,
        other: usize,
        link: u64,
    },
    /// Two agents try to connect.
    Dial {
        one: usize,
        two: usize,
    },
    /// A deadline of an agent.
    Wake {
        node: usize,
        life: u64,
    },
    /// Heartbeats and digests.
    Tick {
        node: usize,
        life: u64,
    },
    WakeUp {
        node: usize,
        nap: u64,
    },
    Boot {
        node: usize,
    },
    Start {
        node: usize,
    },
    /// The file of a node is changed, or its agent asked again to read it.
    Edit {
        node: usize,
    },
    /// A planned restart may be due.
    Part {
        node: usize,
        life: u64,
    },
    Listen {
        node: usize,
        share: usize,
    },
    Stonith {
        by: usize,
        life: u64,
        target: usize,
    },
    /// The watchdog of a flow.
    Watch {
        node: usize,
        slot: usize,
        irs: u32,
    },
    /// A retransmission timer of a service.
    Repeat {
        node: usize,
        slot: usize,
        irs: u32,
    },
    /// A retransmission timer of a client.
    ClientRepeat {
        slot: usize,
        irs: u32,
    },
    ClientOpen {
        slot: usize,
    },
    /// An agent looks for its canaries, and sends more.
    Round {
        node: usize,
        life: u64,
    },
    /// A canary arrives, or what has come of it.
    Canary {
        from: usize,
        to: usize,
        canary: Canary,
    },
    /// The fact that is wrong at a node is right again.
    Right {
        node: usize,
    },
    /// Somebody wants a connection to be at the other server.
    Wish,
    /// The next fault of a storm.
    Harm {
        storm: u32,
    },
}

/// Everything there is.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now_ns: u64,
    pub(crate) random: Random,
    pub(crate) queue: Queue<Happening>,
    pub(crate) network: Network,
    pub(crate) links: Links,
    pub(crate) hosts: Vec<Host>,
    /// What is wrong around each server.
    pub(crate) around: Vec<Around>,
    pub(crate) canaries: Vec<Canaries>,
    pub(crate) clients: Vec<Client>,
    /// Where clients send what is for a share.
    pub(crate) paths: Vec<usize>,
    pub(crate) audit: Audit,
    pub(crate) faults: Faults,
    pub(crate) tally: Tally,
    /// Counts starts and connections: names for what must not be mixed up.
    pub(crate) names: u64,
    pub(crate) storming: bool,
    pub(crate) storm: u32,
    /// Whether clients open new connections.
    pub(crate) open: bool,
    tracing: bool,
    /// What was found wrong first.
    pub(crate) violation: Option<String>,
}

impl World {
    pub(crate) fn new(plan: Plan, seed: u64, tracing: bool) -> Self {
        let count = plan.clients();
        let mut world = Self {
            now_ns: 1_000 * MS,
            random: Random::new(seed ^ 0x5bd1_e995),
            queue: Queue::new(),
            network: Network::new(&plan),
            links: Links::new(plan.nodes),
            hosts: (0..plan.nodes).map(|_| Host::new(&plan)).collect(),
            around: vec![Around::default(); SERVERS],
            canaries: vec![Canaries::default(); SERVERS],
            clients: vec![Client::default(); count],
            paths: vec![0; plan.shares + 1],
            audit: Audit::new(plan.shares, count),
            faults: Faults::default(),
            tally: Tally::default(),
            names: 0,
            storming: false,
            storm: 0,
            open: true,
            tracing,
            violation: None,
            plan,
        };
        world.tally.histories = 1;
        for node in 0..world.plan.nodes {
            let at_ns = world.now_ns + world.random.below(50 * MS);
            world.queue.push(at_ns, Happening::Boot { node });
        }
        if world.plan.singles > 0 {
            world.queue.push(world.now_ns + 1_000 * MS, Happening::Wish);
        }
        for slot in 0..count {
            let at_ns = world.now_ns + world.random.below(500 * MS);
            world.queue.push(at_ns, Happening::ClientOpen { slot });
        }
        world
    }

    /// Lets everything happen that is due until `end_ns`, or until something is
    /// wrong.
    pub(crate) fn run_until(&mut self, end_ns: u64) {
        while self.violation.is_none()
            && let Some((at_ns, what)) = self.queue.pop_until(end_ns)
        {
            // What slept until now comes late.
            self.now_ns = self.now_ns.max(at_ns);
            self.tally.steps += 1;
            self.happen(what);
        }
        self.now_ns = self.now_ns.max(end_ns);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Frame { from, to, frame } => self.frame_arrives(from, to, frame),
            Happening::Exit {
                node,
                share,
                epoch,
                frame,
            } => {
                if self.hosts[node].up {
                    self.leave_host(node, share, epoch, frame);
                }
            }
            Happening::Beat {
                from,
                to,
                incarnation,
                sent,
                claims,
            } => self.beat_arrives((from, to), incarnation, sent, claims),
            Happening::Lease {
                from,
                to,
                incarnation,
                datagram,
            } => {
                if self.is_authentic(from, to, incarnation) {
                    self.give(to, Input::Lease(from, datagram));
                }
            }
            Happening::Tell { node, life, input } => {
                if self.hosts[node].life == life {
                    self.give(node, input);
                }
            }
            Happening::Message { from, to, link } => self.message_arrives(from, to, link),
            Happening::Broken { node, other, link } => self.link_breaks(node, other, link),
            Happening::Dial { one, two } => self.dial(one, two),
            Happening::Wake { node, life } => self.wake(node, life),
            Happening::Tick { node, life } => self.tick(node, life),
            Happening::WakeUp { node, nap } => {
                if self.hosts[node].rest.nap == nap {
                    self.wake_up(node);
                }
            }
            Happening::Boot { node } => self.boot(node),
            Happening::Start { node } => self.start(node),
            Happening::Edit { node } => self.edit(node),
            Happening::Part { node, life } => {
                if self.hosts[node].life == life {
                    self.part(node);
                }
            }
            Happening::Listen { node, share } => self.listen(node, share),
            Happening::Stonith { by, life, target } => self.power_off(by, life, target),
            Happening::Watch { node, slot, irs } => self.watchdog(node, slot, irs),
            Happening::Repeat { node, slot, irs } => self.repeat(node, slot, irs),
            Happening::ClientRepeat { slot, irs } => self.client_repeats(slot, irs),
            Happening::ClientOpen { slot } => self.client_opens(slot),
            Happening::Round { node, life } => self.canary_round(node, life),
            Happening::Canary { from, to, canary } => self.canary_arrives(from, to, canary),
            Happening::Right { node } => self.facts_end(node),
            Happening::Wish => self.wish(),
            Happening::Harm { storm } => {
                if self.storming && self.storm == storm {
                    let gap_ns = self.do_harm();
                    self.queue
                        .push(self.now_ns + gap_ns, Happening::Harm { storm });
                }
            }
        }
    }

    /// What the simulator finds wrong. The first finding ends the history.
    pub(crate) fn violate(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.violation.is_none() {
            let text = what(self);
            self.trace(|_| format!("VIOLATION: {text}"));
            self.violation = Some(text);
        }
    }

    pub(crate) fn trace(&self, what: impl FnOnce(&Self) -> String) {
        if self.tracing {
            let ms = self.now_ns / MS;
            let ns = self.now_ns % MS;
            out::line(&format!("{ms:>6}.{ns:06}  {}", what(self)));
        }
    }

    /// A name that nothing had before.
    pub(crate) const fn new_name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(crate) fn share_of(&self, slot: usize) -> usize {
        slot / self.plan.slots
    }

    pub(crate) fn slots_of(&self, share: usize) -> std::ops::Range<usize> {
        share * self.plan.slots..(share + 1) * self.plan.slots
    }

    pub(crate) fn share_id(share: usize) -> ShareId {
        ShareId(u32::try_from(share).unwrap_or(0))
    }

    /// The share of that number.
    pub(crate) fn share_at(id: ShareId) -> usize {
        usize::try_from(id.0).unwrap_or(0)
    }

    /// The node that owns a share when the cluster starts.
    pub(crate) const fn primary(share: usize) -> usize {
        share % SERVERS
    }

    /// Takes something to an agent of this host, if there is one by then.
    pub(crate) fn tell_later(&mut self, node: usize, delay_ns: u64, input: Input) {
        let life = self.hosts[node].life;
        let at_ns = self.now_ns + delay_ns;
        self.queue
            .push(at_ns, Happening::Tell { node, life, input });
    }

    /// From the ring buffer of a data path to its agent.
    pub(crate) fn report(&mut self, node: usize, event: FlowEvent) {
        let delay_ns = self.random.between(5_000, 200_000);
        self.tell_later(node, delay_ns, Input::Flow(event));
    }

    pub(crate) fn report_exit(&mut self, node: usize, exit: ServerExit) {
        let delay_ns = self.random.between(5_000, 200_000);
        self.tell_later(node, delay_ns, Input::Exit(exit));
    }

    pub(crate) fn tell_link(&mut self, node: usize, other: usize, link: Link) {
        self.give(node, Input::Link(other, link));
    }
}

pub(crate) fn name(node: usize) -> NodeName {
    NodeName::new(["a", "b", "w", "x", "y"][node]).expect("a literal")
}

/// The flow of a slot's connection, as agents speak of it.
pub(crate) fn flow_id(slot: usize, irs: u32) -> FlowId {
    let port = u16::try_from(1 + slot).unwrap_or(u16::MAX);
    let v4 = |last: u8| std::net::Ipv4Addr::new(10, 9, 0, last).to_ipv6_mapped();
    FlowId {
        key: FlowKey {
            client: Endpoint::new(v4(10), port),
            service: Endpoint::new(v4(100), 80),
        },
        irs: SeqNumber(irs),
    }
}

/// Where a flow that agents speak of has its place.
pub(crate) fn slot_of(flow: FlowId) -> (usize, u32) {
    (usize::from(flow.key.client.port) - 1, flow.irs.0)
}
