//! Node `b` with `web` (share 0, primary `a`) and `mail` (share 1, primary `b`) at one
//! address; `w` votes, or nobody else does.

use std::time::Duration;

use godwit_wire::{
    Epoch, Generation, Hello, Lease, LeaseDatagram, LeaseMessage, MAX_VERSION, MIN_VERSION,
    Message, NodeName, PeerMessage, Role, ShareClaim, ShareId, Standing,
};

use super::*;
use crate::PeerId;
use crate::lease::voters_digest;
use crate::node::{
    Action, Beat, Fencing, FlowPolicy, LeaseAction, LeaseConfig, Link, NodeConfig, PeerConfig,
    Resume, ShareConfig,
};

const A: PeerId = PeerId(0);
const W: PeerId = PeerId(1);
const WEB: ShareId = ShareId(0);
const MAIL: ShareId = ShareId(1);
const ME: u64 = 7 << 32;
const LIFE: u64 = 3 << 32;
const OWNED: Epoch = Epoch::new(5, 2);

fn name(text: &str) -> NodeName {
    NodeName::new(text).expect("a literal")
}

fn ms(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn config(fencing: Fencing, others: &[&str]) -> NodeConfig {
    let share = |id, mate, primary: &str, backup: &str| ShareConfig {
        id,
        name: String::new(),
        primary: name(primary),
        backups: vec![name(backup)],
        mates: vec![mate],
        fencing,
        server_lost_hold: Duration::from_millis(120),
        policy: FlowPolicy::default(),
        flap_limit: 0,
        failback: None,
        paths: 0,
        moves_within: None,
        resume: None,
    };
    let others = others.iter().map(|other| name(other));
    NodeConfig {
        name: name("b"),
        incarnation: ME,
        peers: others.clone().map(|name| PeerConfig { name }).collect(),
        shares: vec![share(WEB, MAIL, "a", "b"), share(MAIL, WEB, "b", "a")],
        lease: LeaseConfig {
            voters: others.chain([name("b")]).collect(),
            ..LeaseConfig::default()
        },
        heartbeat: Duration::from_millis(10),
        misses: 3,
        startup_grace: NodeConfig::STARTUP_GRACE,
        heartbeat_key: [1; 32],
        config_digest: [2; 32],
    }
}

const fn owned_until(expiry: Option<MonoTime>) -> Resume {
    Resume {
        role: Role::Owner,
        epoch: OWNED,
        generation: Generation::NONE,
        expiry,
        other: None,
    }
}

/// What the node asks of voters.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Promise(ShareId, Epoch),
    Accept(ShareId, Lease),
    Release(ShareId),
}

impl Request {
    fn of(message: LeaseMessage) -> Option<Self> {
        match message {
            LeaseMessage::Prepare { share, epoch, .. } => Some(Self::Promise(share, epoch)),
            LeaseMessage::Propose { share, lease, .. } => Some(Self::Accept(share, lease)),
            LeaseMessage::Release { share, .. } => Some(Self::Release(share)),
            LeaseMessage::Promise { .. }
            | LeaseMessage::Accepted { .. }
            | LeaseMessage::Refused { .. } => None,
        }
    }
}

/// The node, and what others say to it.
struct Talk {
    node: Node,
    voters: u64,
    said: u64,
}

impl Talk {
    fn new(config: &NodeConfig) -> Self {
        Self {
            node: Node::new(config, ms(0)),
            voters: voters_digest(&config.lease.voters),
            said: 0,
        }
    }

    fn greet(&mut self, peer: PeerId, life: u64, now: MonoTime) {
        let hello = Hello {
            name: self.node.peer_name(peer).expect("it is configured"),
            incarnation: life,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            heartbeat_key: [3; 32],
            config_digest: [2; 32],
        };
        self.node.handle_link(peer, Link::Down, now);
        self.node.handle_link(peer, Link::Up, now);
        self.node
            .handle_message(peer, &Message::Peer(PeerMessage::Hello(hello)), now);
    }

    fn say(&mut self, peer: PeerId, life: u64, message: LeaseMessage, now: MonoTime) {
        self.said += 1;
        let datagram = LeaseDatagram {
            sender: self.node.peer_name(peer).expect("it is configured"),
            incarnation: life,
            receiver: ME,
            sequence: self.said,
            voters: self.voters,
            messages: vec![message],
        };
        self.node.handle_lease(peer, &datagram, now);
    }

    fn beat(&mut self, peer: PeerId, life: u64, claims: &[ShareClaim], at: u64) {
        let beat = Beat {
            incarnation: life,
            sequence: at,
            sent: None,
            shares: claims.to_vec(),
        };
        self.node.handle_heartbeat(peer, &beat, ms(at));
        self.node.handle_timeout(ms(at));
    }

    /// What it has asked of a peer since this was called last.
    fn heard(&mut self, by: PeerId) -> Vec<Request> {
        let actions = std::iter::from_fn(|| self.node.poll_action());
        let mut requests = Vec::new();
        for action in actions {
            if let Action::Lease(LeaseAction::Send { peer, datagram }) = action
                && peer == by
            {
                requests.extend(datagram.messages.into_iter().filter_map(Request::of));
            }
        }
        requests
    }

    fn state(&self, share: ShareId) -> State {
        let mut shares = self.node.share_status();
        let found = shares.find(|it| it.id == share);
        found.expect("it is configured").state
    }
}

const fn says(share: ShareId, role: Role, epoch: Epoch) -> ShareClaim {
    ShareClaim { share, role, epoch }
}

const fn promise(share: ShareId, epoch: Epoch) -> LeaseMessage {
    let last = None;
    LeaseMessage::Promise { share, epoch, last }
}

const fn accepted(lease: &Lease, share: ShareId) -> LeaseMessage {
    let (epoch, number) = (lease.epoch, lease.number);
    LeaseMessage::Accepted {
        share,
        epoch,
        number,
    }
}

/// `b` owns `web`, and `mail` is new. `w` elects `b` for `mail`, late, and renews the lease of
/// `web` meanwhile or not. What `b` says then.
fn is_granted_mail(renews: bool) -> (Talk, Vec<Request>) {
    let mut config = config(Fencing::Lease, &["a", "w"]);
    config.shares[0].resume = Some(owned_until(Some(ms(60))));
    let mut talk = Talk::new(&config);
    talk.greet(W, LIFE, ms(0));
    let (mut asked, mut proposed) = (None, None);
    for at in 1..1000 {
        talk.beat(W, LIFE, &[], at);
        for request in talk.heard(W) {
            match request {
                Request::Promise(_, epoch) => {
                    asked.get_or_insert((epoch, at));
                }
                Request::Accept(MAIL, lease) => proposed = Some(lease),
                Request::Accept(_, lease) if renews || asked.is_none() => {
                    talk.say(W, LIFE, accepted(&lease, WEB), ms(at));
                }
                Request::Accept(..) | Request::Release(_) => {}
            }
        }
        if let Some((epoch, _)) = asked.filter(|(_, then)| at == then + 5) {
            talk.say(W, LIFE, promise(MAIL, epoch), ms(at));
        }
        if let (Some((_, then)), Some(lease)) = (asked, proposed.take()) {
            // Whoever decides has slept.
            let until = then + if renews { 7 } else { 62 };
            talk.say(W, LIFE, accepted(&lease, MAIL), ms(until));
            let said = talk.heard(W);
            return (talk, said);
        }
    }
    panic!("it does not want to begin");
}

#[test]
fn a_grant_that_is_under_way_when_the_address_is_elsewhere_is_given_back() {
    let (talk, _) = is_granted_mail(true);
    assert_eq!(talk.state(MAIL), State::Owner, "the address is here");
    let (talk, said) = is_granted_mail(false);
    assert!(matches!(talk.state(MAIL), State::Starting { .. }));
    assert!(said.contains(&Request::Release(MAIL)), "{said:?}");
}

/// Another node may own `web` by now: where `mail` begins is decided when that is known.
#[test]
fn nothing_begins_at_an_owner_whose_lease_has_ended() {
    let mut config = config(Fencing::Lease, &["a", "w"]);
    config.shares[0].resume = Some(owned_until(Some(ms(100))));
    let mut talk = Talk::new(&config);
    talk.greet(W, LIFE, ms(0));
    let asks = |request: &Request| matches!(request, Request::Promise(..));
    for at in 1..5000 {
        talk.beat(W, LIFE, &[], at);
        assert!(!talk.heard(W).iter().any(asks), "{at}");
    }
    assert_eq!(talk.state(WEB), State::Owner, "it may have it back");
}

/// `a` owned `web`, and its machine was booted; `b` owns `mail`. `a` leaves `web` to `b`, so it
/// does not ask for what the voters still call its own.
#[test]
fn an_endless_lease_that_its_holder_has_forgotten_is_not_in_the_way() {
    let mut config = config(Fencing::Stonith, &["a"]);
    config.shares[1].resume = Some(owned_until(None));
    let mut talk = Talk::new(&config);
    let (before, now) = (5 << 32, 6 << 32);
    talk.greet(A, before, ms(0));
    let (share, epoch, void) = (WEB, Epoch::new(5, 1), Epoch::NONE);
    let lease = Lease {
        holder: name("a"),
        epoch,
        number: 1,
        term_ns: Lease::ENDLESS,
        in_sync: Vec::new(),
    };
    let standing = Standing::Elected;
    let ask = LeaseMessage::Prepare { share, epoch, void };
    talk.say(A, before, ask, ms(1));
    let propose = LeaseMessage::Propose {
        share,
        lease,
        standing,
        void,
    };
    talk.say(A, before, propose, ms(2));
    talk.greet(A, now, ms(10));
    talk.said = 0;
    for at in 11..3000 {
        talk.beat(
            A,
            now,
            &[WEB, MAIL].map(|share| says(share, Role::None, Epoch::NONE)),
            at,
        );
        for request in talk.heard(A) {
            match request {
                Request::Promise(share, epoch) => {
                    talk.say(A, now, promise(share, epoch), ms(at));
                }
                Request::Accept(share, lease) => {
                    talk.say(A, now, accepted(&lease, share), ms(at));
                }
                Request::Release(_) => {}
            }
        }
    }
    assert_eq!(talk.state(WEB), State::Owner);
}

/// `a` owned `mail`, and has lost its lease to nobody. `b` owns `web`, so `a` waits for it to
/// begin; and `b`, whose vote was not asked for, followed `a`.
#[test]
fn who_says_for_long_that_it_is_no_owner_any_more_is_believed() {
    let mut config = config(Fencing::Lease, &["a", "w"]);
    config.shares[0].resume = Some(owned_until(Some(ms(60))));
    let mut talk = Talk::new(&config);
    talk.greet(A, LIFE, ms(0));
    talk.greet(W, LIFE, ms(0));
    let owned = Epoch::new(6, 2);
    let mut wants = None;
    for at in 1..4000 {
        talk.beat(W, LIFE, &[], at);
        let role = if at < 100 { Role::Owner } else { Role::None };
        talk.beat(A, LIFE, &[says(MAIL, role, owned)], at);
        for request in talk.heard(W) {
            match request {
                Request::Promise(share, _) => wants = wants.or(Some(share)),
                Request::Accept(share, lease) => {
                    talk.say(W, LIFE, accepted(&lease, share), ms(at));
                }
                Request::Release(_) => {}
            }
        }
        if at < 3000 {
            assert!(talk.state(MAIL).owner().is_some(), "{at}: it may be late");
        }
    }
    assert_eq!(wants, Some(MAIL), "{:?}", talk.state(MAIL));
}
