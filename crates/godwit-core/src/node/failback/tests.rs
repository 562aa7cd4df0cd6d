//! Node `b` has shares 0 and 1, whose primary is `a`, before `a` has them.

use godwit_wire::{
    Epoch, Generation, Message, NodeName, PeerMessage, Role, Scope, ShareClaim, StandbyMessage,
};

use super::super::tests::{PEER, actions, config, hello, ms};
use super::*;
use crate::node::{Beat, Link, PeerAction, PeerConfig, Resume};

const BOTH: [ShareId; 2] = [ShareId(0), ShareId(1)];
const A_S_LIFE: u64 = 5 << 32;

/// `a` says at `at` ms that it does nothing for these.
fn beat(node: &mut Node, at: u64, has: &[ShareId]) {
    let claim = |share: &ShareId| ShareClaim {
        share: *share,
        role: Role::None,
        epoch: Epoch::NONE,
    };
    let beat = Beat {
        incarnation: A_S_LIFE,
        sequence: at,
        sent: None,
        shares: has.iter().map(claim).collect(),
    };
    node.handle_heartbeat(PEER, &beat, ms(at));
    node.handle_timeout(ms(at));
    assert!(node.poll_timeout().is_none_or(|due| due > ms(at)), "{at}");
}

fn mates() -> NodeConfig {
    let mut config = config();
    config.shares[0].mates = vec![ShareId(1)];
    config.shares[1].mates = vec![ShareId(0)];
    config
}

/// What it owns for want of `a`, when it has begun.
fn begins(config: &NodeConfig, has: &[ShareId]) -> (Node, Vec<ShareId>) {
    let mut node = Node::new(config, ms(0));
    for at in 1..400 {
        beat(&mut node, 10 * at, has);
    }
    let owns = node.share_status().all(|it| it.state == State::Owner);
    assert!(owns, "it begins");
    let begun = node.begun();
    (node, begun)
}

/// `a` gets in sync for a share. What is asked for then.
fn join(node: &mut Node, share: ShareId, at: u64) -> Vec<ShareId> {
    let mut status = node.share_status();
    let epoch = status.find(|it| it.id == share).expect("configured").epoch;
    let ready = |generation| {
        Message::Standby(
            Scope {
                share,
                epoch,
                generation,
            },
            StandbyMessage::Ready,
        )
    };
    drop(status);
    node.handle_message(PEER, &ready(Generation::NONE), ms(at));
    let offered = actions(node).into_iter().find_map(|action| {
        if let Action::Peer(_, PeerAction::Send(message)) = action
            && let Message::Standby(scope, StandbyMessage::Ready) = message
        {
            return Some(scope.generation);
        }
        None
    });
    let offered = offered.expect("it is admitted");
    node.handle_message(PEER, &ready(offered), ms(at));
    asked(node)
}

fn asked(node: &mut Node) -> Vec<ShareId> {
    let asked = actions(node).into_iter().filter_map(|action| {
        let Action::Move(share, MoveAction::Ask { wish }) = action else {
            return None;
        };
        assert_eq!((wish.cause, wish.force), (MoveCause::FirstHome, false));
        Some(share)
    });
    asked.collect()
}

fn link(node: &mut Node, at: u64) {
    node.handle_link(PEER, Link::Up, ms(at));
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(hello())), ms(at));
    beat(node, at, &BOTH);
    actions(node);
}

/// One that has it in its file, and does not begin, had a chance.
#[test]
fn what_the_primary_names_does_not_begin_for_want_of_it() {
    for has in [&[][..], &BOTH[..1], &BOTH[1..], &BOTH] {
        let (_, begun) = begins(&config(), has);
        let lacks: Vec<_> = BOTH.into_iter().filter(|it| !has.contains(it)).collect();
        assert_eq!(begun, lacks);
    }
}

/// Behind a director heartbeats do not name what nobody listens for.
#[test]
fn what_the_primary_names_over_its_link_counts() {
    let mut node = Node::new(&config(), ms(0));
    node.handle_link(PEER, Link::Up, ms(1));
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(hello())), ms(1));
    let claim = ShareClaim {
        share: ShareId(1),
        role: Role::None,
        epoch: Epoch::NONE,
    };
    node.handle_message(PEER, &Message::Claim(claim), ms(1));
    for at in 1..400 {
        beat(&mut node, 10 * at, &[]);
    }
    assert!(node.share_status().all(|it| it.state == State::Owner));
    assert_eq!(node.begun(), [ShareId(0)]);
}

#[test]
fn a_primary_that_is_not_heard_may_have_failed() {
    let mut node = Node::new(&config(), ms(0));
    for at in 1..400 {
        node.handle_timeout(ms(10 * at));
    }
    assert!(node.share_status().all(|it| it.state == State::Owner));
    assert_eq!(node.begun(), []);
}

/// `c` had it first, and failed: who takes over is not who had it for want of `a`.
#[test]
fn what_another_node_has_owned_has_had_a_home() {
    let mut config = config();
    let name = NodeName::new("c").expect("a literal");
    config.peers.push(PeerConfig { name });
    config.shares.truncate(1);
    config.shares[0].backups.push(name);
    let mut node = Node::new(&config, ms(0));
    for at in 1..400 {
        beat(&mut node, 10 * at, &[]);
        let beat = Beat {
            incarnation: A_S_LIFE,
            sequence: at,
            sent: None,
            shares: vec![ShareClaim {
                share: ShareId(0),
                role: Role::Owner,
                epoch: Epoch::new(5, 3),
            }],
        };
        if at < 200 {
            node.handle_heartbeat(PeerId(1), &beat, ms(10 * at));
        }
    }
    assert!(node.share_status().all(|it| it.state == State::Owner));
    assert_eq!(node.begun(), []);
}

#[test]
fn what_an_agent_resumes_has_begun_if_an_earlier_life_says_so() {
    let mut config = config();
    config.shares[0].resume = Some(Resume {
        role: Role::Owner,
        epoch: Epoch::new(7, 2),
        generation: Generation::NONE,
        expiry: None,
        other: None,
    });
    let node = Node::new(&config, ms(0));
    assert_eq!(node.begun(), []);
    assert_eq!(node.beginning(&BOTH).begun(), [ShareId(0)], "it owns that");
}

/// An address is in one place: a move of one alone would be refused.
#[test]
fn shares_of_one_address_wait_for_each_other() {
    let (mut node, begun) = begins(&mates(), &[]);
    assert_eq!(begun, BOTH);
    link(&mut node, 4_000);
    assert_eq!(join(&mut node, ShareId(1), 4_001), []);
    beat(&mut node, 4_010, &BOTH);
    // Whoever asks takes the others along.
    assert_eq!(join(&mut node, ShareId(0), 4_011), [ShareId(0)]);
    let (mut node, _) = begins(&config(), &[]);
    link(&mut node, 4_000);
    assert_eq!(join(&mut node, ShareId(1), 4_001), [ShareId(1)], "no mates");
}

#[test]
fn shares_stay_if_one_of_their_address_has_had_a_home_or_is_to_be_elsewhere() {
    let (_, begun) = begins(&mates(), &BOTH[..1]);
    assert_eq!(begun, []);
    let mut config = mates();
    let name = |text: &str| NodeName::new(text).expect("a literal");
    config.shares[1].primary = name("b");
    config.shares[1].backups = vec![name("a")];
    let (_, begun) = begins(&config, &[]);
    assert_eq!(begun, []);
}

/// The link may come later than what an earlier life knew to be in sync.
#[test]
fn nothing_is_asked_for_before_the_primary_is_there() {
    let mut config = config();
    config.shares[0].resume = Some(Resume {
        role: Role::Owner,
        epoch: Epoch::new(7, 2),
        generation: Generation(1),
        expiry: None,
        other: None,
    });
    let mut node = Node::new(&config, ms(0)).beginning(&BOTH[..1]);
    beat(&mut node, 10, &BOTH);
    assert_eq!(asked(&mut node), []);
    link(&mut node, 20);
    beat(&mut node, 1_020, &BOTH);
    assert_eq!(asked(&mut node), [ShareId(0)]);
}
