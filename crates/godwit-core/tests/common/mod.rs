//! Two nodes, a virtual clock and a network that can be cut.
//!
//! Time moves in steps of one millisecond. In each step links come up, messages
//! arrive, heartbeats are sent and timeouts fire, in that order, and every node
//! is drained after every input. What must hold at all times is asserted in
//! [`World::observe`], so that every test checks it.
#![allow(dead_code, reason = "each test uses a part of the harness")]

mod contract;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use godwit_core::node::{FlowNews, PeerNews, Resume, ShareNews};
use godwit_core::share::State;
use godwit_core::{
    Action, Beat, Command, Event, EventKind, Fencing, FlowAction, FlowCheck, FlowEvent,
    FlowEventKind, FlowPolicy, LeaseConfig, Link, Listening, MonoTime, MoveAction, MoveError, Node,
    NodeConfig, PeerAction, PeerConfig, PeerId, Proof, RejoinAction, ServerExit, ShareAction,
    ShareConfig, TwinAction,
};
use godwit_wire::{
    Endpoint, Epoch, FlowId, FlowKey, Generation, GoodbyeReason, Message, NodeName, Role,
    SeqNumber, ShareId,
};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const SHARE: ShareId = ShareId(3);
/// Each node has one peer.
pub(crate) const PEER: PeerId = PeerId(0);

const MS: u64 = 1_000_000;
/// From LinkUp at one end until messages flow: a TLS handshake.
const LINK_DELAY_MS: u64 = 5;
const LATENCY_MS: u64 = 1;
const HEARTBEAT_MS: u64 = 10;
/// How often canaries are sent.
pub(crate) const CANARY_MS: u64 = 300;
/// How long an owner waits for a taker when its server has died.
pub(crate) const HOLD_MS: u64 = 120;

pub(crate) fn flow(port: u16) -> FlowId {
    let endpoint = |text: &str| text.parse::<Endpoint>().expect("a literal");
    FlowId {
        key: FlowKey {
            client: Endpoint::new(endpoint("10.9.0.10:1").addr, port),
            service: endpoint("10.9.0.100:80"),
        },
        irs: SeqNumber(77),
    }
}

/// What the data path of a node was last told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) role: Role,
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
}

const NOTHING: Entry = Entry {
    role: Role::None,
    epoch: Epoch::NONE,
    generation: Generation::NONE,
};

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) node: Option<Node>,
    /// Number of the last start.
    starts: u64,
    beats: u64,
    /// The greatest generation that flows of this data path may have.
    latest: Generation,
    pub(crate) entry: Entry,
    /// Flows that must not be served at a takeover.
    pub(crate) marked: BTreeSet<FlowId>,
    pub(crate) actions: Vec<Action>,
    pub(crate) events: Vec<Event>,
    /// Stopped with SIGSTOP: takes no input, but is not dead.
    pub(crate) stopped: bool,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: MonoTime,
    pub(crate) sides: [Side; 2],
    /// Counts all starts: a later one has a greater incarnation.
    starts: u64,
    /// Whether anything gets through.
    pub(crate) cable: bool,
    /// Whether messages on the control link come through; heartbeats do.
    pub(crate) words_pass: bool,
    /// Whether heartbeats of this side get through.
    pub(crate) beats_pass: [bool; 2],
    /// Of nodes that start from now on.
    pub(crate) policy: FlowPolicy,
    link_at: Option<MonoTime>,
    linked: bool,
    wire: VecDeque<(MonoTime, usize, Message)>,
    /// Who has claimed which epoch, ever.
    claims: BTreeMap<Epoch, usize>,
    /// The last generation that an owner wrote.
    last_stay: (Epoch, Generation),
    /// What an owner finds that looks at its flows before a move.
    pub(crate) check: FlowCheck,
    /// Of nodes that start from now on: along how many paths standbys prove themselves.
    pub(crate) paths: u8,
    /// What becomes of a canary, path by path.
    pub(crate) canaries: [Proof; 2],
    /// Canaries that were sent.
    pub(crate) canaries_sent: u32,
}

pub(crate) fn name(side: usize) -> NodeName {
    NodeName::new(["a", "b"][side]).expect("a literal")
}

pub(crate) fn config(side: usize, starts: u64, resume: Option<Resume>) -> NodeConfig {
    NodeConfig {
        name: name(side),
        // The first two start in the same second: epochs must differ all the same.
        incarnation: (1000 + starts.max(2)) << 32 | starts,
        peers: vec![PeerConfig {
            name: name(1 - side),
        }],
        shares: vec![ShareConfig {
            id: SHARE,
            name: "web".into(),
            primary: name(A),
            mates: Vec::new(),
            backups: vec![name(B)],
            fencing: Fencing::None,
            server_lost_hold: Duration::from_millis(HOLD_MS),
            policy: FlowPolicy::default(),
            flap_limit: 0,
            failback: None,
            paths: 0,
            moves_within: None,
            resume,
        }],
        lease: LeaseConfig::default(),
        heartbeat: Duration::from_millis(HEARTBEAT_MS),
        misses: 3,
        startup_grace: NodeConfig::STARTUP_GRACE,
        heartbeat_key: [7; 32],
        config_digest: [8; 32],
    }
}

impl World {
    /// Two machines that are off.
    pub(crate) fn dark() -> Self {
        let side = || Side {
            node: None,
            starts: 0,
            beats: 0,
            latest: Generation::NONE,
            entry: NOTHING,
            marked: BTreeSet::new(),
            actions: Vec::new(),
            events: Vec::new(),
            stopped: false,
        };
        Self {
            now: MonoTime(0),
            sides: [side(), side()],
            starts: 0,
            cable: true,
            words_pass: true,
            beats_pass: [true; 2],
            policy: FlowPolicy::default(),
            link_at: None,
            linked: false,
            wire: VecDeque::new(),
            claims: BTreeMap::new(),
            last_stay: (Epoch::NONE, Generation::NONE),
            check: FlowCheck::default(),
            paths: 0,
            canaries: [Proof::Born; 2],
            canaries_sent: 0,
        }
    }

    /// Both nodes started at once, nothing has happened yet.
    pub(crate) fn booted() -> Self {
        let mut world = Self::dark();
        world.boot(A);
        world.boot(B);
        world
    }

    /// `a` owns, `b` is in sync.
    pub(crate) fn in_sync() -> Self {
        Self::in_sync_with(FlowPolicy::default())
    }

    /// As [`World::in_sync`], for flows whose twins do not keep step.
    pub(crate) fn in_sync_with(policy: FlowPolicy) -> Self {
        let mut world = Self::dark();
        world.policy = policy;
        world.boot(A);
        world.boot(B);
        // Until the last announcement of the cold start is over.
        world.run(3000);
        assert_eq!(world.state(A), State::Owner);
        assert!(world.is_in_sync(A, B));
        world
    }

    /// Switches a machine on, with an empty data path.
    pub(crate) fn boot(&mut self, side: usize) {
        self.sides[side].entry = NOTHING;
        self.sides[side].marked.clear();
        self.sides[side].latest = Generation::NONE;
        self.start(side, None);
    }

    /// Starts the agent again; the data path was not touched.
    pub(crate) fn resume(&mut self, side: usize) {
        let Entry {
            role,
            epoch,
            generation,
        } = self.sides[side].entry;
        self.start(
            side,
            Some(Resume {
                role,
                epoch,
                generation,
                expiry: None,
                other: None,
            }),
        );
        let latest = self.sides[side].latest;
        self.input(side, |node, now| {
            node.handle_inherited_flows(SHARE, latest, now)
        });
    }

    fn start(&mut self, side: usize, resume: Option<Resume>) {
        self.starts += 1;
        let mut config = config(side, self.starts, resume);
        config.shares[0].policy = self.policy;
        config.shares[0].paths = self.paths;
        let this = &mut self.sides[side];
        this.starts = self.starts;
        this.beats = 0;
        this.stopped = false;
        this.node = Some(Node::new(&config, self.now));
        self.drop_link();
        self.drain(side);
    }

    /// The machine goes dark. Its peer is not told.
    pub(crate) fn crash(&mut self, side: usize) {
        self.kill_agent(side);
        self.sides[side].entry = NOTHING;
    }

    /// The agent is gone; the data path goes on.
    pub(crate) fn kill_agent(&mut self, side: usize) {
        self.sides[side].node = None;
        self.wire.retain(|(_, to, _)| *to != side);
        self.linked = false;
        self.link_at = None;
    }

    /// Carries out `godwit agent` ending.
    pub(crate) fn goodbye(&mut self, side: usize, reason: GoodbyeReason) {
        let now = self.now;
        if let Some(node) = &mut self.sides[side].node {
            node.handle_command(Command::Goodbye(reason), now);
        }
        self.drain(side);
        self.run(2);
        self.kill_agent(side);
    }

    /// The control link breaks; both ends notice, and dial again.
    pub(crate) fn drop_link(&mut self) {
        self.wire.clear();
        self.link_at = None;
        self.linked = false;
        for side in [A, B] {
            self.input(side, |node, now| node.handle_link(PEER, Link::Down, now));
        }
    }

    pub(crate) fn flow_event(&mut self, side: usize, port: u16, kind: FlowEventKind) {
        let event = FlowEvent {
            share: SHARE,
            flow: flow(port),
            generation: self.sides[side].entry.generation,
            kind,
        };
        self.input(side, |node, now| node.handle_flow_event(event, now));
    }

    /// A server must not go back behind where its standby is not known to stand;
    /// whether it might be served until it is let go.
    pub(crate) fn commit_fails(&mut self, side: usize, port: u16) -> bool {
        let mut might = false;
        self.input(side, |node, now| {
            might = node.handle_commit_failed(SHARE, flow(port), now);
        });
        might
    }

    /// A server process dies; `kept` of its flows could go on elsewhere.
    pub(crate) fn server_exit(&mut self, side: usize, kept: u32, listener_lost: bool) {
        let exit = ServerExit {
            share: SHARE,
            server: true,
            kept,
            listener_lost,
            movable: true,
        };
        self.input(side, |node, now| node.handle_server_exit(exit, now));
    }

    /// A process ends that had one connection, or that was meant to end.
    pub(crate) fn connection_exit(&mut self, side: usize) {
        let exit = ServerExit {
            share: SHARE,
            server: false,
            kept: 0,
            listener_lost: false,
            movable: true,
        };
        self.input(side, |node, now| node.handle_server_exit(exit, now));
    }

    /// The agent looks whether something listens.
    pub(crate) fn listens(&mut self, side: usize, listening: Listening) {
        self.input(side, |node, now| {
            node.handle_listening(SHARE, listening, now);
        });
    }

    pub(crate) fn listening(&mut self, side: usize, listening: bool) {
        self.input(side, |node, now| {
            node.handle_listening(SHARE, listening, now)
        });
    }

    pub(crate) fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.step();
        }
    }

    pub(crate) fn step(&mut self) {
        self.now = MonoTime(self.now.0 + MS);
        self.bring_up_link();
        self.deliver();
        self.beat();
        self.send_canaries();
        for side in [A, B] {
            let now = self.now;
            let due = |node: &Node| node.poll_timeout().is_some_and(|due| due <= now);
            if self.sides[side].node.as_ref().is_some_and(due) {
                self.input(side, Node::handle_timeout);
                let node = self.sides[side].node.as_ref();
                let spins = node.is_some_and(due) && !self.sides[side].stopped;
                assert!(!spins, "{side} is due again at once, for ever");
            }
        }
    }

    fn bring_up_link(&mut self) {
        // A handshake needs both ends; a stopped one does not take part.
        let takes_part = |side: &Side| side.node.is_some() && !side.stopped;
        let both = self.sides.iter().all(takes_part);
        if !self.cable || !both || self.linked {
            return;
        }
        match self.link_at {
            None => self.link_at = Some(MonoTime(self.now.0 + LINK_DELAY_MS * MS)),
            Some(at) if at <= self.now => {
                self.linked = true;
                for side in [A, B] {
                    self.input(side, |node, now| node.handle_link(PEER, Link::Up, now));
                }
            }
            Some(_) => {}
        }
    }

    fn deliver(&mut self) {
        // As TCP does: what a cut holds back arrives when it is mended.
        let ready = |(due, to, _): &(MonoTime, usize, Message)| {
            let passes = self.cable && self.words_pass;
            passes && *due <= self.now && !self.sides[*to].stopped
        };
        let (now, later) = self.wire.drain(..).partition::<VecDeque<_>, _>(ready);
        self.wire = later;
        for (_, to, message) in now {
            self.input(to, |node, now| node.handle_message(PEER, &message, now));
        }
    }

    fn beat(&mut self) {
        if !self.now.0.is_multiple_of(HEARTBEAT_MS * MS) {
            return;
        }
        for side in [A, B] {
            let this = &mut self.sides[side];
            let Some(node) = this.node.as_ref().filter(|_| !this.stopped) else {
                continue;
            };
            this.beats += 1;
            let beat = Beat {
                incarnation: config(side, this.starts, None).incarnation,
                sequence: this.beats,
                sent: None,
                shares: node.share_claims().collect(),
            };
            if self.cable && self.beats_pass[side] {
                self.input(1 - side, |node, now| {
                    node.handle_heartbeat(PEER, &beat, now)
                });
            }
        }
    }

    /// As the driver of an agent does. The answer is there before the next one is sent.
    fn send_canaries(&mut self) {
        if !self.now.0.is_multiple_of(CANARY_MS * MS) {
            return;
        }
        for side in [A, B] {
            let node = self.sides[side].node.as_ref();
            let asked = node.is_some_and(|node| node.to_prove().next().is_some());
            if !asked || self.sides[side].stopped {
                continue;
            }
            for path in 0..self.paths {
                self.canaries_sent += 1;
                let proof = self.canaries[usize::from(path)];
                self.input(side, |node, now| {
                    node.handle_proof(SHARE, PEER, path, proof, now);
                });
            }
        }
    }

    /// Asks `side` to hand the share to the other one.
    pub(crate) fn ask_move(&mut self, side: usize, force: bool) {
        let to = name(1 - side);
        self.input(side, |node, now| {
            let share = SHARE;
            node.handle_command(Command::Move { share, to, force }, now);
        });
    }

    /// How the moves ended that `side` was asked for.
    pub(crate) fn moves(&self, side: usize) -> Vec<Result<NodeName, MoveError>> {
        let ended = |action: &Action| {
            if let Action::Move(_, MoveAction::Ended { outcome }) = action {
                Some(*outcome)
            } else {
                None
            }
        };
        self.sides[side].actions.iter().filter_map(ended).collect()
    }

    pub(crate) fn input(&mut self, side: usize, act: impl FnOnce(&mut Node, MonoTime)) {
        let now = self.now;
        let this = &mut self.sides[side];
        if let Some(node) = this.node.as_mut().filter(|_| !this.stopped) {
            act(node, now);
        }
        self.drain(side);
    }

    fn drain(&mut self, side: usize) {
        let mut batch = Vec::new();
        while let Some(action) = self.sides[side].node.as_mut().and_then(Node::poll_action) {
            self.observe(side, &action);
            if let (Action::Move(share, MoveAction::CheckFlows { .. }), Some(node)) =
                (&action, self.sides[side].node.as_mut())
            {
                node.handle_flow_check(*share, self.check, self.now);
            }
            if let (&Action::Move(share, MoveAction::Ask { wish }), Some(node)) =
                (&action, self.sides[side].node.as_mut())
            {
                let (to, force) = (wish.to, wish.force);
                node.handle_command(Command::Move { share, to, force }, self.now);
            }
            batch.push(action);
        }
        contract::check_order(&batch);
        for action in &batch {
            if let Action::Peer(_, PeerAction::Send(message)) = action
                && self.linked
            {
                let due = MonoTime(self.now.0 + LATENCY_MS * MS);
                self.wire.push_back((due, 1 - side, message.clone()));
            }
        }
        self.sides[side].actions.extend(batch);
        while let Some(event) = self.sides[side].node.as_mut().and_then(Node::poll_event) {
            self.sides[side].events.push(event);
        }
    }

    /// What must hold for every action, whatever the test does.
    fn observe(&mut self, side: usize, action: &Action) {
        match action {
            Action::Share(_, action) => self.observe_share_action(side, action),
            Action::Twin(_, TwinAction::MarkDemoted { flow, .. }) => self.mark(side, *flow, true),
            Action::Rejoin(_, RejoinAction::Restore { restore, .. }) => {
                self.mark(side, restore.flow(), true);
            }
            Action::Rejoin(_, RejoinAction::Admit { flow }) => self.mark(side, *flow, false),
            Action::Flow(_, FlowAction::Ungate { flow, .. }) => {
                // A gate opens only when the other node will not serve the flow.
                let other = &self.sides[1 - side];
                let serves = other.entry.role == Role::Shadow && !other.marked.contains(flow);
                assert!(!serves, "{flow} is let go while its twin may be served");
            }
            Action::Handoff(..) => {
                assert_eq!(self.sides[side].entry.role, Role::Owner, "an owner speaks");
            }
            Action::Lease(_) | Action::Peer(_, PeerAction::Stonith) => {
                panic!("there is no fence here");
            }
            Action::Move(_, action) => contract::observe_move(self.sides[side].entry, action),
            Action::Flow(_, FlowAction::ResendHandshake { .. })
            | Action::Twin(
                _,
                TwinAction::End { .. } | TwinAction::Poke { .. } | TwinAction::Compare { .. },
            )
            | Action::Rejoin(
                _,
                RejoinAction::Begin { .. }
                | RejoinAction::FeedLog { .. }
                | RejoinAction::Protect { .. }
                | RejoinAction::Feed { .. },
            )
            | Action::Snapshot(..)
            | Action::Peer(_, PeerAction::Send(_)) => {}
        }
    }

    fn observe_share_action(&mut self, side: usize, action: &ShareAction) {
        let entry = self.sides[side].entry;
        match action {
            ShareAction::Set {
                role,
                epoch,
                generation,
                ..
            } => {
                let entry = Entry {
                    role: *role,
                    epoch: *epoch,
                    generation: *generation,
                };
                self.observe_share(side, entry);
            }
            ShareAction::ReleaseGate { generation } => {
                assert_ne!(
                    entry.generation, *generation,
                    "gates open after the map is written"
                );
            }
            ShareAction::EndFlows { .. } => {
                assert_eq!(entry.role, Role::None, "they end silently");
            }
            ShareAction::Announce
            | ShareAction::Revive { .. }
            | ShareAction::Silence
            | ShareAction::Reopen => {
                assert_eq!(entry.role, Role::Owner, "an owner speaks");
            }
            ShareAction::SetExpiry { .. } => panic!("there is no fence here"),
        }
    }

    fn observe_share(&mut self, side: usize, entry: Entry) {
        let this = &mut self.sides[side];
        // Marks are kept with their flows: they last as long as the generation, however often the
        // share is written.
        if (this.entry.role, this.entry.generation) != (entry.role, entry.generation) {
            this.marked.clear();
        }
        this.entry = entry;
        this.latest = this.latest.max(entry.generation);
        if entry.role == Role::Owner {
            let claimant = *self.claims.entry(entry.epoch).or_insert(side);
            assert_eq!(claimant, side, "two owners under epoch {}", entry.epoch);
            let stay = (entry.epoch, entry.generation);
            if !entry.generation.is_none() {
                assert!(stay >= self.last_stay, "generations only grow");
                self.last_stay = stay;
            }
        }
    }

    /// Whether a twin must not be served.
    fn mark(&mut self, side: usize, flow: FlowId, marked: bool) {
        let set = &mut self.sides[side].marked;
        if marked {
            set.insert(flow);
        } else {
            set.remove(&flow);
        }
    }

    pub(crate) fn state(&self, side: usize) -> State {
        let node = self.sides[side].node.as_ref().expect("runs");
        node.share_status().next().expect("one share").state
    }

    pub(crate) fn owners(&self) -> Vec<usize> {
        let owns = |side: &usize| self.sides[*side].entry.role == Role::Owner;
        [A, B].into_iter().filter(owns).collect()
    }

    /// Whether owner and standby agree that the standby is in sync.
    pub(crate) fn is_in_sync(&self, owner: usize, standby: usize) -> bool {
        let (owner, standby) = (self.sides[owner].entry, self.sides[standby].entry);
        owner.role == Role::Owner
            && standby.role == Role::Shadow
            && !owner.generation.is_none()
            && owner.generation == standby.generation
            && owner.epoch == standby.epoch
    }

    pub(crate) fn takeovers(&self, side: usize) -> Vec<ShareNews> {
        self.share_news(side, |news| {
            matches!(news, ShareNews::TakeoverStarted { .. })
        })
    }

    pub(crate) fn share_news(
        &self,
        side: usize,
        wanted: impl Fn(&ShareNews) -> bool,
    ) -> Vec<ShareNews> {
        let news = |event: &Event| match &event.kind {
            EventKind::Share { news, .. } if wanted(news) => Some(*news),
            EventKind::Share { .. } | EventKind::Peer { .. } | EventKind::Flow { .. } => None,
        };
        self.sides[side].events.iter().filter_map(news).collect()
    }

    pub(crate) fn peer_news(&self, side: usize) -> Vec<PeerNews> {
        let news = |event: &Event| match &event.kind {
            EventKind::Peer { news, .. } => Some(*news),
            EventKind::Share { .. } | EventKind::Flow { .. } => None,
        };
        self.sides[side].events.iter().filter_map(news).collect()
    }

    pub(crate) fn flow_news(&self, side: usize) -> Vec<FlowNews> {
        let news = |event: &Event| match &event.kind {
            EventKind::Flow { news, .. } => Some(*news),
            EventKind::Share { .. } | EventKind::Peer { .. } => None,
        };
        self.sides[side].events.iter().filter_map(news).collect()
    }

    pub(crate) fn forget_log(&mut self) {
        for side in &mut self.sides {
            side.actions.clear();
            side.events.clear();
        }
    }

    /// The log of a side without what goes to the peer.
    pub(crate) fn local_actions(&self, side: usize) -> Vec<Action> {
        let local = |action: &&Action| !matches!(action, Action::Peer(_, PeerAction::Send(_)));
        self.sides[side]
            .actions
            .iter()
            .filter(local)
            .cloned()
            .collect()
    }
}
