//! Two nodes whose connections go from one to the other by themselves: messages,
//! orders and reports, whichever step is cut off.

use std::collections::VecDeque;
use std::time::Duration;

use godwit_core::handoff::{HandoffError, Order, Place, Step};
use godwit_core::node::{HandoffReport, HandoffWork};
use godwit_core::{
    Action, Command, Fencing, FlowEvent, FlowEventKind, FlowPolicy, LeaseConfig, Link, MonoTime,
    Node, NodeConfig, PeerAction, PeerConfig, PeerId, ShareConfig,
};
use godwit_wire::{
    FlowId, FlowKey, Generation, HandoffId, HandoffMessage, HandoffStep, Message, NodeName,
    SeqNumber, ShareId,
};

const PEER: PeerId = PeerId(0);
/// The share of each node: that of the other is none of its own.
const SHARES: [ShareId; 2] = [ShareId(0), ShareId(1)];

fn flow() -> FlowId {
    let end = |text: &str| text.parse().expect("a literal");
    FlowId {
        key: FlowKey {
            client: end("10.9.0.10:40000"),
            service: end("10.9.0.100:80"),
        },
        irs: SeqNumber(7),
    }
}

/// What a node's driver has done for the only connection.
#[derive(Debug, Default)]
struct Driver {
    /// Whether a socket speaks.
    speaks: bool,
    /// Whether a socket is there that does not.
    silent: bool,
    /// What came of it.
    state: Vec<u8>,
    written: Option<Place>,
    outcomes: Vec<Result<(), HandoffError>>,
}

struct World {
    nodes: [Node; 2],
    drivers: [Driver; 2],
    wires: [VecDeque<Message>; 2],
    now: MonoTime,
    /// Messages of handoffs that get through before the link breaks.
    budget: Option<usize>,
    linked: bool,
    /// The second node does not hear that links end.
    deaf: bool,
}

fn name(node: usize) -> NodeName {
    NodeName::new(["a", "b"][node]).expect("a literal")
}

fn config(node: usize) -> NodeConfig {
    let share = |home: usize| ShareConfig {
        id: SHARES[home],
        name: "web".into(),
        primary: name(home),
        mates: Vec::new(),
        backups: Vec::new(),
        fencing: Fencing::None,
        server_lost_hold: Duration::ZERO,
        policy: FlowPolicy::default(),
        flap_limit: 0,
        failback: None,
        paths: 0,
        moves_within: Some(SHARES[0]),
        resume: None,
    };
    NodeConfig {
        name: name(node),
        incarnation: 1000 << 32,
        peers: vec![PeerConfig {
            name: name(1 - node),
        }],
        shares: vec![share(0), share(1)],
        lease: LeaseConfig::default(),
        heartbeat: Duration::from_millis(10),
        misses: 3,
        startup_grace: NodeConfig::STARTUP_GRACE,
        heartbeat_key: [7; 32],
        config_digest: [8; 32],
    }
}

impl World {
    fn new() -> Self {
        let now = MonoTime::ZERO;
        let mut world = Self {
            nodes: [0, 1].map(|node| Node::new(&config(node), now)),
            drivers: [Driver::default(), Driver::default()],
            wires: Default::default(),
            now,
            budget: None,
            linked: false,
            deaf: false,
        };
        world.drivers[0].speaks = true;
        world.connect();
        world.pass(Duration::from_secs(1));
        world
    }

    fn connect(&mut self) {
        self.linked = true;
        for node in [0, 1] {
            self.nodes[node].handle_link(PEER, Link::Up, self.now);
        }
        self.run();
    }

    fn cut(&mut self) {
        self.linked = false;
        self.wires = Default::default();
        for node in (0..2).filter(|node| *node == 0 || !self.deaf) {
            self.nodes[node].handle_link(PEER, Link::Down, self.now);
        }
    }

    /// The origin alone hears that the link has ended.
    fn begin_on_a_link_that_is_replaced(&mut self) {
        self.deaf = true;
        self.begin(0);
        self.deaf = false;
        self.budget = None;
        self.connect();
    }

    fn begin(&mut self, node: usize) {
        let (share, flows) = (SHARES[node], vec![flow()]);
        let to = PEER;
        let wish = Command::MoveFlows { share, flows, to };
        self.nodes[node].handle_command(wish, self.now);
        self.run();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now.saturating_add(time);
        loop {
            let due = |node: &Node| node.poll_timeout().filter(|due| *due <= end);
            let Some(due) = self.nodes.iter().filter_map(due).min() else {
                break;
            };
            self.now = self.now.max(due);
            for node in [0, 1] {
                self.nodes[node].handle_timeout(self.now);
            }
            self.run();
            self.now = self.now.saturating_add(Duration::from_millis(1));
        }
        self.now = self.now.max(end);
    }

    /// Until nothing is under way.
    fn run(&mut self) {
        loop {
            for node in [0, 1] {
                while let Some(action) = self.nodes[node].poll_action() {
                    self.carry_out(node, action);
                }
                while self.nodes[node].poll_event().is_some() {}
            }
            let to = [0, 1].into_iter().find(|to| !self.wires[*to].is_empty());
            let Some(to) = to else {
                return;
            };
            let Some(message) = self.wires[to].pop_front() else {
                return;
            };
            if matches!(message, Message::Handoff(_))
                && let Some(budget) = &mut self.budget
            {
                let Some(left) = budget.checked_sub(1) else {
                    self.cut();
                    continue;
                };
                *budget = left;
            }
            self.nodes[to].handle_message(PEER, &message, self.now);
        }
    }

    fn carry_out(&mut self, node: usize, action: Action) {
        if let Action::Peer(_, PeerAction::Send(message)) = action {
            if self.linked {
                self.wires[1 - node].push_back(message);
            }
        } else if let Action::Handoff(share, work) = action {
            assert_eq!(share, SHARES[node]);
            self.work(node, work);
        }
    }

    fn work(&mut self, node: usize, work: HandoffWork) {
        let driver = &mut self.drivers[node];
        match work {
            HandoffWork::State { part, .. } => driver.state.extend(part),
            HandoffWork::Held { .. } => {}
            HandoffWork::Ended { outcome, .. } => driver.outcomes.push(outcome.map(drop)),
            HandoffWork::Obey { order, written } => {
                driver.written = written.map(|written| written.place);
                self.obey(node, order);
            }
        }
    }

    fn obey(&mut self, node: usize, order: Order) {
        let driver = &mut self.drivers[node];
        let report = match order {
            Order::Say { id, step, .. } => {
                assert_eq!(step, Step::State, "the others are messages");
                return self.say_state(node, id);
            }
            Order::Hold { id, .. } => HandoffReport::Held(id, Ok(())),
            Order::Freeze { id, .. } => {
                (driver.speaks, driver.silent) = (false, true);
                HandoffReport::Frozen(id, Ok(self.now))
            }
            Order::Restore(id) => {
                assert_eq!(driver.state, b"state");
                driver.silent = true;
                HandoffReport::Restored(id, Ok(()))
            }
            Order::Place(id) => {
                assert!(driver.silent, "{order:?}");
                (driver.speaks, driver.silent) = (true, false);
                HandoffReport::Placed(id)
            }
            Order::Thaw(_) | Order::Reclaim(_) => {
                assert!(driver.silent, "{order:?}");
                return (driver.speaks, driver.silent) = (true, false);
            }
            Order::Release(_) | Order::Lose(_) | Order::Discard { .. } => {
                driver.state.clear();
                return driver.silent = false;
            }
            Order::Look { id, from } if !driver.speaks => HandoffReport::Absent { id, from },
            Order::Commit { .. } | Order::Forget(_) | Order::Look { .. } => return,
        };
        self.nodes[node].handle_handoff_report(SHARES[node], report, self.now);
    }

    fn say_state(&mut self, node: usize, id: HandoffId) {
        for (last, part) in [(false, b"sta".to_vec()), (true, b"te".to_vec())] {
            let step = HandoffStep::State { last, part };
            let message = Message::Handoff(HandoffMessage {
                share: SHARES[0],
                epoch: godwit_wire::Epoch::NONE,
                id,
                step,
            });
            self.carry_out(node, Action::Peer(PEER, PeerAction::Send(message)));
        }
    }

    fn speakers(&self) -> [bool; 2] {
        [0, 1].map(|node| self.drivers[node].speaks)
    }
}

/// There and back, and each time it is written down where it is.
#[test]
fn a_connection_goes_to_and_fro() {
    let mut world = World::new();
    for hop in 0..6 {
        let (from, to) = (hop % 2, 1 - hop % 2);
        world.begin(from);
        assert_eq!(world.drivers[from].outcomes.pop(), Some(Ok(())), "{hop}");
        assert_eq!(world.speakers(), [to == 0, to == 1]);
        let away = world.drivers[from].written;
        assert!(matches!(away, Some(Place::Moved { .. })), "{away:?}");
        assert_eq!(world.drivers[to].written, Some(Place::Here));
        world.drivers[to].state.clear();
    }
    // It ends where it is, and nobody forwards it any more.
    let over = HandoffReport::Ended(flow());
    world.nodes[0].handle_handoff_report(SHARES[0], over, world.now);
    world.run();
    for driver in &world.drivers {
        assert_eq!(driver.written, None);
    }
}

/// A link that breaks before any message of a handoff: somebody speaks, nobody
/// else does, and the next attempt succeeds.
#[test]
fn whichever_word_is_lost_one_side_has_it() {
    for budget in 0..9 {
        let mut world = World::new();
        world.budget = Some(budget);
        world.begin(0);
        world.pass(Duration::from_secs(2));
        assert_eq!(world.linked, budget > 7, "{budget} messages are all");
        let committed = world.speakers() == [false, false];
        world.budget = None;
        world.connect();
        world.pass(Duration::from_secs(2));
        let at = world.speakers().iter().position(|speaks| *speaks);
        let at = at.unwrap_or_else(|| panic!("{budget}: nobody has it"));
        assert!(!committed || at == 1 || budget < 6, "{budget}");
        assert!(!world.speakers()[1 - at], "{budget}: two voices");
        world.drivers[1 - at].state.clear();
        world.begin(at);
        if world.drivers[at].outcomes.last() == Some(&Err(HandoffError::AlreadyMoving)) {
            // Its origin had not heard that it came, and has by now.
            world.begin(at);
        }
        assert_eq!(world.drivers[at].outcomes.pop(), Some(Ok(())), "{budget}");
        assert!(world.speakers()[1 - at], "{budget}");
    }
}

#[test]
fn what_can_not_begin_is_answered() {
    let mut world = World::new();
    world.cut();
    world.begin(0);
    assert_eq!(
        world.drivers[0].outcomes.pop(),
        Some(Err(HandoffError::LinkLost))
    );
    world.connect();
    world.begin(0);
    let ended = FlowEvent {
        share: SHARES[0],
        flow: flow(),
        generation: Generation::NONE,
        kind: FlowEventKind::Ended,
    };
    // What is left of its time here ends: it is elsewhere, and forwarded.
    world.nodes[0].handle_flow_event(ended, world.now);
    world.run();
    assert_eq!(world.drivers[0].outcomes.pop(), Some(Ok(())));
    world.begin(0);
    assert_eq!(
        world.drivers[0].outcomes.pop(),
        Some(Err(HandoffError::NotHere))
    );
}

/// Its end can't be told without a link, and is asked for when its client is silent.
#[test]
fn what_ended_unheard_is_forwarded_until_it_is_asked_for() {
    let silent = HandoffReport::Silent {
        flow: flow(),
        lasted: Duration::from_secs(60),
        patience: Duration::from_secs(1800),
    };
    let mut world = World::new();
    world.begin(0);
    let ask = |world: &mut World| {
        world.nodes[0].handle_handoff_report(SHARES[0], silent, world.now);
        world.run();
        world.drivers[0].written.is_some()
    };
    assert!(ask(&mut world), "it is there");
    world.cut();
    world.drivers[1].speaks = false;
    world.nodes[1].handle_handoff_report(SHARES[1], HandoffReport::Ended(flow()), world.now);
    world.run();
    assert_eq!(world.drivers[1].written, None);
    assert!(ask(&mut world), "nobody knows");
    world.connect();
    assert!(!ask(&mut world), "it is over");
}

/// At the target it is none of the services any more whose connections move.
#[test]
fn what_went_to_a_service_that_moves_nothing_any_more_is_over() {
    let mut world = World::new();
    world.begin(0);
    world.cut();
    let mut other = config(1);
    other.shares.truncate(1);
    other.shares[0].backups.push(name(1));
    other.shares[0].moves_within = None;
    world.nodes[1] = Node::new(&other, world.now);
    world.connect();
    assert!(world.drivers[0].written.is_some(), "nobody has asked");
    let silent = HandoffReport::Silent {
        flow: flow(),
        lasted: Duration::from_secs(60),
        patience: Duration::from_secs(1800),
    };
    world.nodes[0].handle_handoff_report(SHARES[0], silent, world.now);
    world.run();
    assert_eq!(world.drivers[0].written, None);
}

/// The target has spoken, and its machine is started anew before that is heard.
#[test]
fn what_a_target_without_memory_refuses_is_lost() {
    let mut world = World::new();
    world.budget = Some(6);
    world.begin(0);
    assert!(!world.linked && world.speakers() == [false, true]);
    world.drivers[1] = Driver::default();
    let anew = NodeConfig {
        incarnation: 1001 << 32,
        ..config(1)
    };
    world.nodes[1] = Node::new(&anew, world.now);
    world.budget = None;
    world.connect();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.speakers(), [false, false]);
    let lost = Err(HandoffError::TargetRestarted);
    assert_eq!(world.drivers[0].outcomes.pop(), Some(lost));
    assert_eq!(world.drivers[0].written, None);
}

/// A target that has missed the end of a link waits for nothing that was said on it.
#[test]
fn a_new_link_ends_what_was_under_way_on_the_old_one() {
    let mut world = World::new();
    world.budget = Some(4);
    world.begin_on_a_link_that_is_replaced();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.speakers(), [true, false]);
    assert!(!world.drivers[1].silent, "it holds nothing");
    world.drivers[1].state.clear();
    world.begin(0);
    assert_eq!(world.drivers[0].outcomes.pop(), Some(Ok(())));
}
