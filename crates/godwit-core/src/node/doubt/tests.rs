//! Node `w` votes on `web` (share 0, servers `a` and `b`); `d` is a director, `c` a server of
//! `mail` (share 1). One of them has a key that somebody else uses.

use std::time::Duration;

use godwit_wire::{
    Epoch, Hello, Lease, LeaseDatagram, LeaseMessage, MAX_VERSION, MIN_VERSION, Message,
    PeerMessage, Refusal, Role, ShareClaim, Standing,
};

use super::*;
use crate::lease::voters_digest;
use crate::node::{
    Beat, EventKind, Fencing, FlowPolicy, LeaseConfig, Link, NodeConfig, PeerConfig, ShareConfig,
};
use crate::{Action, LeaseAction};

const A: PeerId = PeerId(0);
const B: PeerId = PeerId(1);
const C: PeerId = PeerId(2);
const D: PeerId = PeerId(3);
const WEB: ShareId = ShareId(0);
const DAY: u32 = 24 * 3600;
/// In seconds since 1970, when all agents were started.
const BORN: u32 = 1_800_000_000;
const LIFE: u64 = (BORN as u64) << 32;

fn name(text: &str) -> NodeName {
    NodeName::new(text).expect("a literal")
}

fn ms(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn config(fencing: Fencing) -> NodeConfig {
    let share = |id, primary: &str, backup: &str| ShareConfig {
        id,
        name: String::new(),
        primary: name(primary),
        backups: vec![name(backup)],
        mates: Vec::new(),
        fencing,
        server_lost_hold: Duration::from_millis(120),
        policy: FlowPolicy::default(),
        flap_limit: 0,
        failback: None,
        paths: 0,
        moves_within: None,
        resume: None,
    };
    let peer = |text: &&str| PeerConfig { name: name(text) };
    NodeConfig {
        name: name("w"),
        incarnation: LIFE,
        peers: ["a", "b", "c", "d"].iter().map(peer).collect(),
        shares: vec![share(WEB, "a", "b"), share(ShareId(1), "c", "b")],
        lease: LeaseConfig {
            voters: ["a", "b", "w"].iter().map(|text| name(text)).collect(),
            ..LeaseConfig::default()
        },
        heartbeat: Duration::from_millis(10),
        misses: 3,
        startup_grace: NodeConfig::STARTUP_GRACE,
        heartbeat_key: [1; 32],
        config_digest: [2; 32],
    }
}

/// The voter, and what others say to it.
struct Voter {
    node: Node,
    voters: u64,
    said: u64,
}

impl Voter {
    fn new(fencing: Fencing) -> Self {
        let config = config(fencing);
        let mut this = Self {
            node: Node::new(&config, ms(0)),
            voters: voters_digest(&config.lease.voters),
            said: 0,
        };
        for peer in [A, B, C, D] {
            this.greet(peer, LIFE, [2; 32]);
        }
        while this.node.poll_event().is_some() {}
        this
    }

    fn greet(&mut self, peer: PeerId, life: u64, config_digest: [u8; 32]) {
        let hello = Hello {
            name: self.node.peer_name(peer).expect("it is configured"),
            incarnation: life,
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            heartbeat_key: [3; 32],
            config_digest,
        };
        self.node.handle_link(peer, Link::Up, ms(0));
        self.node
            .handle_message(peer, &Message::Peer(PeerMessage::Hello(hello)), ms(0));
    }

    /// What it answers.
    fn hear(&mut self, peer: PeerId, message: LeaseMessage, at: u64) -> Option<LeaseMessage> {
        self.said += 1;
        let datagram = LeaseDatagram {
            sender: self.node.peer_name(peer).expect("it is configured"),
            incarnation: LIFE,
            receiver: LIFE,
            sequence: self.said,
            voters: self.voters,
            messages: vec![message],
        };
        self.node.handle_lease(peer, &datagram, ms(at));
        let mut answer = None;
        while let Some(action) = self.node.poll_action() {
            if let Action::Lease(LeaseAction::Send { peer: to, datagram }) = action {
                assert_eq!(to, peer);
                answer = datagram.messages.into_iter().next();
            }
        }
        answer
    }

    fn beat(&mut self, peer: PeerId, life: u64, (role, epoch): (Role, Epoch), at: u64) {
        let claim = ShareClaim {
            share: WEB,
            role,
            epoch,
        };
        let beat = Beat {
            incarnation: life,
            sequence: at,
            sent: None,
            shares: vec![claim],
        };
        self.node.handle_heartbeat(peer, &beat, ms(at));
    }

    fn doubts(&self, peer: PeerId) -> Vec<(Doubt, u64)> {
        let mut all = self.node.peer_status();
        all.nth(usize::from(peer.0)).expect("it is a peer").doubts
    }

    /// `a` owns `web` under its first epoch, and is heard.
    fn leased(fencing: Fencing) -> Self {
        let mut this = Self::new(fencing);
        let epoch = Epoch::new(BORN, 1);
        this.beat(A, LIFE, (Role::None, Epoch::NONE), 1);
        assert!(is_promise(this.hear(A, prepare(epoch), 2)));
        let endless = fencing == Fencing::Stonith;
        let first = propose("a", epoch, Standing::Elected, endless);
        assert!(is_accepted(this.hear(A, first, 3)));
        this.beat(A, LIFE, (Role::Owner, epoch), 4);
        this
    }
}

fn prepare(epoch: Epoch) -> LeaseMessage {
    void_prepare(epoch, Epoch::NONE)
}

fn void_prepare(epoch: Epoch, void: Epoch) -> LeaseMessage {
    LeaseMessage::Prepare {
        share: WEB,
        epoch,
        void,
    }
}

fn propose(holder: &str, epoch: Epoch, standing: Standing, endless: bool) -> LeaseMessage {
    LeaseMessage::Propose {
        share: WEB,
        lease: Lease {
            holder: name(holder),
            epoch,
            number: 1,
            term_ns: if endless { Lease::ENDLESS } else { 60_000_000 },
            in_sync: Vec::new(),
        },
        standing,
        void: Epoch::NONE,
    }
}

fn is_promise(answer: Option<LeaseMessage>) -> bool {
    matches!(answer, Some(LeaseMessage::Promise { .. }))
}

fn is_accepted(answer: Option<LeaseMessage>) -> bool {
    matches!(answer, Some(LeaseMessage::Accepted { .. }))
}

fn is_held(answer: Option<LeaseMessage>) -> bool {
    matches!(
        answer,
        Some(LeaseMessage::Refused {
            refusal: Refusal::Held,
            ..
        })
    )
}

#[test]
fn only_a_server_of_the_share_is_promised_anything() {
    let mut voter = Voter::new(Fencing::Lease);
    for (peer, text) in [(C, "c"), (D, "d")] {
        for counter in 1..4 {
            let epoch = Epoch::new(BORN, counter);
            assert_eq!(voter.hear(peer, prepare(epoch), 1), None);
            for standing in Standing::ALL {
                let lease = propose(text, epoch, *standing, false);
                assert_eq!(voter.hear(peer, lease, 1), None, "{standing:?}");
            }
        }
        assert_eq!(voter.doubts(peer), [(Doubt::NoServer, 15)]);
    }
    assert!(is_promise(voter.hear(A, prepare(Epoch::new(BORN, 1)), 2)));
    assert!(voter.doubts(A).is_empty());
    let told = std::iter::from_fn(|| voter.node.poll_event());
    let told = told.filter(|event| matches!(event.kind, EventKind::Peer { .. }));
    assert_eq!(told.count(), 2, "of each once");
}

#[test]
fn an_epoch_out_of_turn_or_far_ahead_is_refused() {
    let mut voter = Voter::new(Fencing::Lease);
    for epoch in [
        Epoch(u64::MAX),
        Epoch::new(u32::MAX, 2),
        Epoch::new(BORN + DAY + 1, 2),
    ] {
        assert_eq!(voter.hear(B, prepare(epoch), 1), None, "{epoch}");
        let lease = propose("b", epoch, Standing::Unbroken, false);
        assert_eq!(voter.hear(B, lease, 1), None, "{epoch}");
    }
    assert_eq!(voter.doubts(B), [(Doubt::FarAhead, 6)]);
    assert_eq!(voter.hear(B, prepare(Epoch::new(BORN, 3)), 1), None);
    assert_eq!(voter.hear(B, prepare(Epoch::new(BORN, 0)), 1), None);
    assert_eq!(voter.doubts(B)[1], (Doubt::OutOfTurn, 2));
    // What is left to it can be exceeded.
    let furthest = Epoch::new(BORN + DAY, u32::MAX - 1);
    assert!(is_promise(voter.hear(B, prepare(furthest), 1)));
    let next = Epoch::new(BORN + DAY + 1, 1);
    assert_eq!(voter.hear(A, prepare(next), 900), None);
    assert!(
        is_promise(voter.hear(A, prepare(next), 1000)),
        "a second on"
    );
}

/// The clock of the voter's host was wrong when its agent was started.
#[test]
fn a_clock_that_is_set_later_is_believed() {
    let mut voter = Voter::new(Fencing::Lease);
    let later = Epoch::new(BORN + 400 * DAY, 1);
    assert_eq!(voter.hear(A, prepare(later), 1), None);
    voter.node.handle_day(BORN + 400 * DAY - 5, ms(2));
    assert!(is_promise(voter.hear(A, prepare(later), 2)));
    voter.node.handle_day(BORN, ms(3));
    assert!(is_promise(voter.hear(A, prepare(later), 3)), "set back");
}

/// It has another number of servers, perhaps, or others in front of it.
#[test]
fn the_turns_of_a_node_with_another_file_are_its_own() {
    let mut voter = Voter::new(Fencing::Lease);
    let epoch = Epoch::new(BORN, 3);
    assert_eq!(voter.hear(B, prepare(epoch), 1), None);
    voter.greet(B, LIFE, [9; 32]);
    assert!(is_promise(voter.hear(B, prepare(epoch), 2)));
}

/// The files change one after the other: `a` is no server of the share in ours any more.
#[test]
fn who_holds_a_lease_may_renew_it_whatever_the_file_says() {
    let voter = Voter::leased(Fencing::Lease);
    let mut changed = config(Fencing::Lease);
    changed.shares[0].primary = name("c");
    let memory = voter.node.into_memory();
    let mut voter = Voter::new(Fencing::Lease);
    voter.node = Node::new(&changed, ms(4)).remembering(memory);
    for peer in [A, B, C, D] {
        voter.greet(peer, LIFE, [9; 32]);
    }
    let renewal = propose("a", Epoch::new(BORN, 1), Standing::Unbroken, false);
    assert!(is_accepted(voter.hear(A, renewal, 5)));
    assert_eq!(voter.hear(A, prepare(Epoch::new(BORN, 3)), 6), None);
}

#[test]
fn void_is_not_taken_on_trust() {
    for fencing in [Fencing::Lease, Fencing::Stonith] {
        let mut voter = Voter::leased(fencing);
        let (owned, next) = (Epoch::new(BORN, 1), Epoch::new(BORN, 2));
        let ask = || void_prepare(next, owned);
        assert!(is_held(voter.hear(B, ask(), 5)), "{fencing:?}");
        assert_eq!(voter.doubts(B), [(Doubt::NotVoid, 1)]);
        // A lie about the holder by somebody else is none of its words.
        voter.beat(B, LIFE, (Role::Owner, next), 6);
        assert!(is_held(voter.hear(B, ask(), 7)), "{fencing:?}");
        // The holder has handed it over, and its release was lost.
        voter.beat(A, LIFE, (Role::Shadow, next), 8);
        assert!(is_promise(voter.hear(B, ask(), 9)), "{fencing:?}");
    }
}

#[test]
fn a_lease_is_void_that_its_holder_has_forgotten() {
    let mut voter = Voter::leased(Fencing::Stonith);
    let (owned, next) = (Epoch::new(BORN, 1), Epoch::new(BORN, 2));
    voter.greet(A, LIFE + 1, [2; 32]);
    voter.beat(A, LIFE + 1, (Role::None, Epoch::NONE), 5);
    assert!(is_promise(voter.hear(B, void_prepare(next, owned), 6)));
}

#[test]
fn who_is_said_to_be_powered_off_must_be_silent_here() {
    let (owned, next) = (Epoch::new(BORN, 1), Epoch::new(BORN, 2));
    for (fencing, believed) in [(Fencing::Stonith, true), (Fencing::Lease, false)] {
        let mut voter = Voter::leased(fencing);
        voter.node.handle_timeout(ms(36));
        assert_eq!(
            is_promise(voter.hear(B, void_prepare(next, owned), 37)),
            believed,
            "{fencing:?}: its term is not over"
        );
    }
}

#[test]
fn an_epoch_belongs_to_who_had_it_first() {
    let mut voter = Voter::leased(Fencing::Lease);
    for standing in Standing::ALL {
        let stolen = propose("b", Epoch::new(BORN, 1), *standing, false);
        let answer = voter.hear(B, stolen, 100);
        let is_refused = matches!(answer, Some(LeaseMessage::Refused { .. }));
        assert!(is_refused, "{standing:?}: {answer:?}");
    }
}

/// Its author may be dead: a term that begins when the renewal arrives would begin again and
/// again for as long as somebody has renewals.
#[test]
fn a_renewal_that_has_waited_on_the_way_is_none() {
    let epoch = Epoch::new(BORN, 1);
    let mut voter = Voter::leased(Fencing::Lease);
    let beat = Beat {
        incarnation: LIFE,
        sequence: 9,
        sent: Some(ms(9)),
        shares: Vec::new(),
    };
    voter.node.handle_heartbeat(A, &beat, ms(10));
    let mut renewal = propose("a", epoch, Standing::Unbroken, false);
    if let LeaseMessage::Propose { lease, .. } = &mut renewal {
        lease.number = ms(10).as_nanos();
    }
    assert_eq!(voter.hear(A, renewal.clone(), 144), None);
    assert_eq!(voter.doubts(A), [(Doubt::Late, 1)]);
    assert!(is_accepted(voter.hear(A, renewal, 143)));
}

#[test]
fn only_voters_and_servers_answer_candidates() {
    let mut config = config(Fencing::Lease);
    config.name = name("b");
    config.peers[1].name = name("w");
    let mut node = Node::new(&config, ms(0));
    let refused = |by| LeaseMessage::Refused {
        share: WEB,
        epoch: Epoch::new(BORN, 2),
        number: 0,
        refusal: Refusal::Superseded,
        by,
        holder: None,
        remaining_ns: 0,
    };
    assert!(node.examine(D, &refused(Epoch::NONE), ms(1)).is_none());
    // It would be exceeded by none.
    let saturated = refused(Epoch(u64::MAX));
    assert!(node.examine(B, &saturated, ms(1)).is_none());
    assert!(node.examine(B, &refused(Epoch::NONE), ms(1)).is_some());
    let doubts: Vec<_> = node.peer_status().map(|status| status.doubts).collect();
    assert_eq!(doubts[3], [(Doubt::NoVoter, 1)]);
    assert_eq!(doubts[1], [(Doubt::FarAhead, 1)]);
}

/// A server that heard of it would own under no other epoch ever after, which nobody takes.
#[test]
fn an_owner_of_far_ahead_is_not_followed() {
    let mut config = config(Fencing::Lease);
    config.name = name("b");
    config.peers[1].name = name("w");
    let mut node = Node::new(&config, ms(0));
    let far = Epoch::new(BORN + 2 * DAY, 1);
    let claim = ShareClaim {
        share: WEB,
        role: Role::Owner,
        epoch: far,
    };
    let beat = Beat {
        incarnation: LIFE,
        sequence: 1,
        sent: None,
        shares: vec![claim],
    };
    node.handle_heartbeat(A, &beat, ms(1));
    assert!(node.share_claims().all(|own| own.epoch < far));
    assert!(!node.considers_message(A, &Message::Claim(claim), ms(2)));
}

/// A director has no part in a share, and sends clients to whoever may own it.
#[test]
fn only_a_share_s_home_and_its_standbys_may_own_it() {
    let voter = Voter::new(Fencing::Lease);
    let claim = |role, epoch| ShareClaim {
        share: WEB,
        role,
        epoch,
    };
    let near = Epoch::new(BORN, 2);
    let may_own = |peer, claim| voter.node.may_own(peer, &claim, ms(1));
    assert!(may_own(A, claim(Role::Owner, near)));
    assert!(may_own(B, claim(Role::Owner, near)));
    assert!(!may_own(C, claim(Role::Owner, near)), "of another service");
    assert!(!may_own(D, claim(Role::Owner, near)), "a director");
    assert!(!may_own(B, claim(Role::Shadow, near)), "it does not say so");
    assert!(!may_own(B, claim(Role::Owner, Epoch(u64::MAX))));
}
