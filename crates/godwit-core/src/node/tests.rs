//! What a single node does; two of them are in `tests/pair.rs`.

use godwit_wire::{
    Endpoint, Epoch, FlowId, FlowKey, GoodbyeReason, MoveStep, PeerMessage, Role, Scope, SeqNumber,
    StandbyMessage,
};

use super::*;
use crate::fitness::{Consequence, FactId, Takes};
use crate::share::{Reason, State};

pub(super) const PEER: PeerId = PeerId(0);

fn name(text: &str) -> NodeName {
    NodeName::new(text).expect("a literal")
}

pub(super) fn ms(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

/// Node `b`, backup of shares 0 and 1, primary of nothing.
pub(super) fn config() -> NodeConfig {
    let share = |id| ShareConfig {
        id: ShareId(id),
        name: format!("service {id}"),
        primary: name("a"),
        mates: Vec::new(),
        backups: vec![name("b")],
        fencing: Fencing::None,
        server_lost_hold: Duration::from_millis(120),
        policy: FlowPolicy::default(),
        flap_limit: 0,
        failback: None,
        paths: 0,
        moves_within: None,
        resume: None,
    };
    NodeConfig {
        name: name("b"),
        incarnation: 7 << 32,
        peers: vec![PeerConfig { name: name("a") }],
        shares: vec![share(0), share(1)],
        lease: LeaseConfig::default(),
        heartbeat: Duration::from_millis(10),
        misses: 3,
        startup_grace: NodeConfig::STARTUP_GRACE,
        heartbeat_key: [1; 32],
        config_digest: [2; 32],
    }
}

pub(super) fn hello() -> Hello {
    Hello {
        name: name("a"),
        incarnation: 5 << 32,
        min_version: 1,
        max_version: 1,
        heartbeat_key: [3; 32],
        config_digest: [2; 32],
    }
}

fn owner_beat(sequence: u64, shares: u32) -> Beat {
    owned(sequence, shares, Epoch::new(5, 1))
}

fn owner_beat_of(sequence: u64, epoch: Epoch) -> Beat {
    owned(sequence, 1, epoch)
}

fn owned(sequence: u64, shares: u32, epoch: Epoch) -> Beat {
    let claim = |id| ShareClaim {
        share: ShareId(id),
        role: Role::Owner,
        epoch,
    };
    Beat {
        incarnation: 5 << 32,
        sequence,
        sent: None,
        shares: (0..shares).map(claim).collect(),
    }
}

pub(super) fn actions(node: &mut Node) -> Vec<Action> {
    std::iter::from_fn(|| node.poll_action()).collect()
}

fn peer_news(node: &mut Node) -> Vec<PeerNews> {
    std::iter::from_fn(|| node.poll_event())
        .filter_map(|event| match event.kind {
            EventKind::Peer { news, .. } => Some(news),
            EventKind::Share { .. } | EventKind::Flow { .. } => None,
        })
        .collect()
}

/// An agent that had died between `Set` (none) and `EndFlows` left sockets
/// of an earlier epoch, which served their clients at the next takeover.
#[test]
fn an_agent_that_resumes_nothing_ends_what_another_has_left() {
    let ends = |role: Option<Role>| {
        let mut config = config();
        config.shares.truncate(1);
        config.shares[0].resume = role.map(|role| Resume {
            role,
            epoch: Epoch::new(5, 1),
            generation: Generation(3),
            expiry: None,
            other: None,
        });
        let actions = actions(&mut Node::new(&config, ms(0)));
        let end =
            |action: &Action| matches!(action, Action::Share(_, ShareAction::EndFlows { .. }));
        assert!(matches!(
            actions[0],
            Action::Share(_, ShareAction::Set { .. })
        ));
        actions.iter().any(end)
    };
    assert!(ends(None) && ends(Some(Role::None)));
    assert!(!ends(Some(Role::Owner)) && !ends(Some(Role::Shadow)));
}

/// A service comes into the files of nodes one after the other, at the address of another
/// one. What the peer says of it, and whether this node begins to own it: share 1 is the new
/// one, of which this node is the primary.
#[test]
fn a_share_begins_where_its_address_is() {
    let begins = |mates: bool, owns: bool| {
        let mut config = config();
        config.shares[1].primary = name("b");
        config.shares[1].backups = vec![name("a")];
        if mates {
            config.shares[0].mates = vec![ShareId(1)];
            config.shares[1].mates = vec![ShareId(0)];
        }
        let mut node = Node::new(&config, ms(0));
        for beat in 1..=500 {
            let mut said = owner_beat(beat, u32::from(owns));
            let (share, role) = (ShareId(1), Role::None);
            let epoch = Epoch::NONE;
            said.shares.insert(0, ShareClaim { share, role, epoch });
            node.handle_heartbeat(PEER, &said, ms(beat * 10));
            node.handle_timeout(ms(beat * 10));
            assert!(node.poll_timeout().is_none_or(|due| due > ms(beat * 10)));
        }
        let roles = actions(&mut node).into_iter().filter_map(|action| {
            let Action::Share(share, ShareAction::Set { role, .. }) = action else {
                return None;
            };
            (share == ShareId(1)).then_some(role)
        });
        (roles.collect::<Vec<_>>().last() == Some(&Role::Owner), node)
    };
    assert!(begins(false, true).0, "it has an address of its own");
    assert!(begins(true, false).0, "its address is nowhere");
    let (begun, mut node) = begins(true, true);
    assert!(!begun, "its address is at the peer");
    // The peer has failed.
    for at in (5010..=5500).step_by(10) {
        node.handle_timeout(ms(at));
    }
    let roles = node.share_claims().map(|claim| claim.role);
    assert_eq!(roles.collect::<Vec<_>>(), [Role::Owner; 2]);
}

/// An address is in one place: whoever declines one of its shares declines all.
#[test]
fn shares_of_one_address_are_taken_over_together() {
    let takes = |mates: bool| {
        let mut config = config();
        if mates {
            config.shares[0].mates = vec![ShareId(1)];
            config.shares[1].mates = vec![ShareId(0)];
        }
        let mut node = Node::new(&config, ms(0));
        let fact = FactId {
            name: "server_stopped".into(),
            share: Some(ShareId(0)),
        };
        node.handle_fact(fact, Some(Consequence::NoServer), ms(1));
        [0, 1].map(|share| node.fitness(ShareId(share)).takes)
    };
    assert_eq!(takes(true), [Takes::Failed; 2]);
    assert_eq!(takes(false), [Takes::Failed, Takes::All]);
}

/// A node with a certificate of the cluster may own what it is configured to own; of
/// other services its word is nothing.
#[test]
fn only_a_member_of_a_share_is_believed() {
    let mut config = config();
    config.peers.push(PeerConfig { name: name("c") });
    config.shares[1].primary = name("c");
    let mut node = Node::new(&config, ms(0));
    node.handle_heartbeat(PEER, &owner_beat(1, 2), ms(10));
    actions(&mut node);
    node.handle_timeout(ms(42));
    let taken = actions(&mut node).into_iter().filter_map(|action| {
        let Action::Share(share, ShareAction::Set { role, .. }) = action else {
            return None;
        };
        (role == Role::Owner).then_some(share.0)
    });
    assert_eq!(
        taken.collect::<Vec<_>>(),
        [0],
        "its owner was seen, and failed"
    );
}

/// The owner is dead, and somebody on the way has kept a second of its heartbeats.
#[test]
fn heartbeats_that_come_late_are_silence() {
    let mut node = Node::new(&config(), ms(0));
    // Its clock began elsewhere.
    let sent = |beat: u64| ms(700_000 + beat * 10);
    let mut failed_at = None;
    for beat in 0..200 {
        let said = Beat {
            sent: Some(sent(beat)),
            ..owner_beat(beat + 1, 1)
        };
        // From the hundredth on each takes 2 ms longer than the one before.
        let at = beat * 10 + 2 * beat.saturating_sub(100);
        node.handle_timeout(ms(at));
        let down = |news: &PeerNews| matches!(news, PeerNews::Down { .. });
        if peer_news(&mut node).iter().any(down) {
            failed_at = Some(at);
            break;
        }
        node.handle_heartbeat(PEER, &said, ms(at));
    }
    let failed_at = failed_at.expect("the queue is noticed");
    assert!((1_700..1_900).contains(&failed_at), "{failed_at}");
    let status = node.peer_status().next().expect("a peer");
    assert!(status.late > 0 && status.ignored == 0, "{status:?}");
}

#[test]
fn all_shares_change_hands_before_any_is_announced_or_revived() {
    let mut node = Node::new(&config(), ms(0));
    node.handle_heartbeat(PEER, &owner_beat(1, 2), ms(10));
    actions(&mut node);
    node.handle_timeout(ms(42));
    let order: Vec<_> = actions(&mut node)
        .iter()
        .filter_map(|action| {
            if let Action::Share(share, ShareAction::Set { .. }) = action {
                return Some(("set", share.0));
            }
            if let Action::Share(share, ShareAction::Announce) = action {
                return Some(("announce", share.0));
            }
            if let Action::Share(share, ShareAction::Revive { .. }) = action {
                return Some(("revive", share.0));
            }
            None
        })
        .collect();
    let expected = [
        ("set", 0),
        ("set", 1),
        ("announce", 0),
        ("announce", 1),
        ("revive", 0),
        ("revive", 1),
    ];
    assert_eq!(order, expected);
}

#[test]
fn a_share_without_us_is_none_of_our_business() {
    let mut config = config();
    config.shares[1].backups = vec![name("c")];
    let node = Node::new(&config, ms(0));
    let shares: Vec<_> = node.share_status().map(|share| share.id).collect();
    assert_eq!(shares, [ShareId(0)]);
}

#[test]
fn hello_and_share_states_are_the_first_messages_of_a_link() {
    let mut node = Node::new(&config(), ms(0));
    actions(&mut node);
    node.handle_link(PEER, Link::Up, ms(1));
    let sent: Vec<_> = actions(&mut node)
        .iter()
        .map(|action| {
            let Action::Peer(_, PeerAction::Send(message)) = action else {
                panic!("{action:?}");
            };
            message.name()
        })
        .collect();
    assert_eq!(sent, ["hello"]);
    // Which numbers the peer has for shares is known from its own.
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(hello())), ms(2));
    let sent: Vec<_> = actions(&mut node)
        .iter()
        .filter_map(|action| {
            let Action::Peer(_, PeerAction::Send(message)) = action else {
                return None;
            };
            Some(message.name())
        })
        .collect();
    assert_eq!(sent, ["share_state", "share_state"]);
}

/// One file may have services that the other has not: nobody is to blame.
#[test]
fn with_another_file_a_peer_may_speak_of_other_shares() {
    let mut node = Node::new(&config(), ms(0));
    node.handle_link(PEER, Link::Up, ms(1));
    let other = Hello {
        config_digest: [9; 32],
        ..hello()
    };
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(other)), ms(2));
    let unknown = ShareClaim {
        share: ShareId(9),
        role: Role::Owner,
        epoch: Epoch::new(5, 1),
    };
    node.handle_message(PEER, &Message::Claim(unknown), ms(3));
    let news = [PeerNews::LinkUp, PeerNews::ConfigDiffers];
    assert_eq!(peer_news(&mut node), news);
}

#[test]
fn peers_that_misbehave_are_named_and_ignored() {
    let mut node = Node::new(&config(), ms(0));
    node.handle_link(PEER, Link::Up, ms(1));
    let stranger = Hello {
        name: name("mallory"),
        ..hello()
    };
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(stranger)), ms(2));
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(hello())), ms(3));
    let unknown = ShareClaim {
        share: ShareId(9),
        role: Role::Owner,
        epoch: Epoch::new(5, 1),
    };
    node.handle_message(PEER, &Message::Claim(unknown), ms(4));
    let misbehaved = |what| PeerNews::Misbehaved { what };
    let expected = [
        misbehaved("introduced itself under another name"),
        PeerNews::LinkUp,
        misbehaved("spoke of a share that is not common"),
    ];
    assert_eq!(peer_news(&mut node), expected);
    assert!(node.peer_status().all(|peer| peer.linked));
}

/// With TLS 1.3 who dials learns last that its certificate is refused: such a link ends
/// without a word, again and again.
#[test]
fn a_link_is_told_once_the_peer_has_said_hello() {
    let mut node = Node::new(&config(), ms(0));
    for at in 1..100 {
        node.handle_link(PEER, Link::Up, ms(2 * at));
        node.handle_link(PEER, Link::Down, ms(2 * at + 1));
    }
    assert_eq!(peer_news(&mut node), []);
    node.handle_link(PEER, Link::Up, ms(200));
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(hello())), ms(201));
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(hello())), ms(202));
    node.handle_link(PEER, Link::Down, ms(203));
    let news = [PeerNews::LinkUp, PeerNews::LinkDown];
    assert_eq!(peer_news(&mut node), news);
}

#[test]
fn without_a_common_version_a_link_is_of_no_use() {
    let mut node = Node::new(&config(), ms(0));
    node.handle_link(PEER, Link::Up, ms(1));
    let later = Hello {
        min_version: MAX_VERSION + 1,
        max_version: MAX_VERSION + 2,
        ..hello()
    };
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(later)), ms(2));
    let incompatible = PeerNews::Incompatible {
        min_version: MAX_VERSION + 1,
        max_version: MAX_VERSION + 2,
    };
    assert_eq!(peer_news(&mut node), [incompatible]);
    assert!(node.peer_status().all(|peer| !peer.linked));
}

#[test]
fn a_heartbeat_of_a_life_before_changes_nothing() {
    let mut node = Node::new(&config(), ms(0));
    node.handle_heartbeat(PEER, &owner_beat(2, 1), ms(10));
    node.handle_heartbeat(PEER, &owner_beat(1, 2), ms(11));
    let states: Vec<_> = node.share_status().map(|share| share.state).collect();
    assert!(matches!(states[0], State::Standby { owner: Some(_) }));
    assert!(matches!(states[1], State::Starting { .. }), "replayed");
}

/// Node `a`, owner of share 0, which hears `b` and has a link to it.
fn owner(inherited: Generation) -> Node {
    let mut config = config();
    config.name = name("a");
    config.peers[0].name = name("b");
    config.shares.truncate(1);
    let mut node = Node::new(&config, ms(0));
    node.handle_inherited_flows(ShareId(0), inherited, ms(0));
    node.handle_timeout(ms(300));
    node.handle_link(PEER, Link::Up, ms(301));
    let standby = Hello {
        name: name("b"),
        ..hello()
    };
    node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(standby)), ms(302));
    node.handle_heartbeat(PEER, &owner_beat(1, 0), ms(303));
    actions(&mut node);
    node
}

fn ready(node: &Node, generation: u32) -> Message {
    Message::Standby(
        Scope {
            share: ShareId(0),
            epoch: node.share_status().next().expect("one share").epoch,
            generation: Generation(generation),
        },
        StandbyMessage::Ready,
    )
}

/// An agent that is started twice in a second claims with the same incarnation: it
/// owned again under an epoch that it had owned under before.
#[test]
fn an_epoch_of_an_earlier_agent_is_not_used_again() {
    let mut config = config();
    let epoch = Epoch::new(5, 3);
    config.shares[0].resume = Some(Resume {
        role: Role::None,
        epoch,
        generation: Generation::NONE,
        expiry: None,
        other: None,
    });
    let node = Node::new(&config, ms(0));
    assert_eq!(node.share_status().next().expect("one share").epoch, epoch);
}

#[test]
fn an_inherited_flow_is_never_taken_for_a_later_one() {
    let mut node = owner(Generation(41));
    let request = ready(&node, 0);
    node.handle_message(PEER, &request, ms(304));
    let message = ready(&node, 42);
    let offer = Action::Peer(PEER, PeerAction::Send(message));
    assert_eq!(actions(&mut node), [offer]);
}

/// Each answer used to come with a new offer, so that none was ever confirmed.
#[test]
fn a_standby_that_asks_twice_gets_in_sync() {
    let mut node = owner(Generation::NONE);
    for at in [304, 305] {
        let request = ready(&node, 0);
        node.handle_message(PEER, &request, ms(at));
    }
    let confirmation = ready(&node, 1);
    node.handle_message(PEER, &confirmation, ms(306));
    let in_sync: Vec<_> = node
        .share_status()
        .flat_map(|share| share.in_sync)
        .collect();
    assert_eq!(in_sync, [name("b")]);
}

/// An owner that stood still in the middle of a move was taken over from. It called
/// that a move, and held itself to be in sync.
#[test]
fn a_share_has_moved_when_the_new_owner_says_that_the_stay_goes_on() {
    for (moved, expected) in [(true, Ok(name("b"))), (false, Err(MoveError::TakenOver))] {
        let mut node = handed_over();
        let (share, epoch) = (ShareId(0), Epoch::new(7, 9));
        let role = Role::Owner;
        let claim = Message::Claim(ShareClaim { share, role, epoch });
        node.handle_message(PEER, &claim, ms(310));
        assert_eq!(outcomes(&mut node), []);
        let word = if moved {
            move_ready(epoch, epoch)
        } else {
            ready(&node, 2)
        };
        node.handle_message(PEER, &word, ms(311));
        assert_eq!(outcomes(&mut node), [expected]);
    }
}

/// An old owner that had ended its twins took that word for an offer, and stood by
/// in a generation of which it had nothing.
#[test]
fn who_has_left_a_stay_does_not_join_it_again_when_it_goes_on() {
    let mut node = handed_over();
    node.handle_server_exit(
        ServerExit {
            share: ShareId(0),
            server: true,
            kept: 1,
            listener_lost: true,
            movable: true,
        },
        ms(309),
    );
    node.handle_listening(ShareId(0), true, ms(309));
    let epoch = Epoch::new(7, 9);
    node.handle_heartbeat(PEER, &owner_beat_of(2, epoch), ms(310));
    node.handle_message(PEER, &move_ready(epoch, epoch), ms(311));
    let share = node.share_status().next().expect("one share");
    assert_eq!(share.role, Role::None);
}

#[test]
fn a_new_owner_that_does_not_say_so_is_not_waited_for() {
    let mut node = handed_over();
    node.handle_heartbeat(PEER, &owner_beat_of(2, Epoch::new(7, 9)), ms(310));
    node.handle_timeout(ms(809));
    assert_eq!(outcomes(&mut node), []);
    node.handle_heartbeat(PEER, &owner_beat_of(3, Epoch::new(7, 9)), ms(809));
    node.handle_timeout(ms(810));
    assert_eq!(outcomes(&mut node), [Err(MoveError::TargetSilent)]);
}

/// It stayed in sync, and took over again without a server.
#[test]
fn who_hands_over_without_a_server_is_no_standby_afterwards() {
    let mut node = handed_over_with(|node| {
        node.handle_listening(ShareId(0), false, ms(305));
    });
    let epoch = Epoch::new(7, 9);
    node.handle_heartbeat(PEER, &owner_beat_of(2, epoch), ms(310));
    actions(&mut node);
    node.handle_message(PEER, &move_ready(epoch, epoch), ms(311));
    let lost = Message::Standby(
        Scope {
            share: ShareId(0),
            epoch,
            generation: Generation(1),
        },
        StandbyMessage::ServerLost,
    );
    let peer = PEER;
    let message = lost;
    assert!(actions(&mut node).contains(&Action::Peer(peer, PeerAction::Send(message))));
    let share = node.share_status().next().expect("one share");
    assert_eq!(share.role, Role::None);
}

/// An owner that has let its share go, and has not heard of the next one yet.
fn handed_over() -> Node {
    handed_over_with(|_| {})
}

/// The same; something has happened to it before.
fn handed_over_with(before: impl FnOnce(&mut Node)) -> Node {
    let share = ShareId(0);
    let mut node = owner(Generation::NONE);
    for (generation, at) in [(0, 304), (1, 305)] {
        let message = ready(&node, generation);
        node.handle_message(PEER, &message, ms(at));
    }
    before(&mut node);
    let (to, force) = (name("b"), false);
    node.handle_command(Command::Move { share, to, force }, ms(306));
    let epoch = node.share_status().next().expect("one share").epoch;
    node.handle_message(PEER, &move_ready(epoch, Epoch::new(7, 9)), ms(307));
    node.handle_flow_check(share, FlowCheck::default(), ms(308));
    assert_eq!(outcomes(&mut node), []);
    node
}

fn move_ready(epoch: Epoch, successor: Epoch) -> Message {
    Message::Move(
        Scope {
            share: ShareId(0),
            epoch,
            generation: Generation(1),
        },
        MoveStep::Ready { successor },
    )
}

/// What was answered to those who asked for moves.
fn outcomes(node: &mut Node) -> Vec<Result<NodeName, MoveError>> {
    let all = actions(node).into_iter();
    all.filter_map(|action| {
        if let Action::Move(_, MoveAction::Ended { outcome }) = action {
            Some(outcome)
        } else {
            None
        }
    })
    .collect()
}

#[test]
fn a_node_that_quits_does_nothing_more() {
    let mut node = Node::new(&config(), ms(0));
    node.handle_heartbeat(PEER, &owner_beat(1, 2), ms(10));
    node.handle_command(Command::Goodbye(GoodbyeReason::Shutdown), ms(11));
    actions(&mut node);
    assert_eq!(node.poll_timeout(), None);
    node.handle_timeout(ms(9000));
    node.handle_command(Command::Goodbye(GoodbyeReason::Detach), ms(9000));
    assert_eq!(actions(&mut node), []);
}

#[test]
fn numbers_of_flow_events_are_those_of_the_data_path() {
    for number in 1..=10 {
        let kind = FlowEventKind::try_from(number).expect("known");
        assert_eq!(kind as u32, number);
    }
    assert_eq!(FlowEventKind::try_from(0), Err(0));
    assert_eq!(FlowEventKind::try_from(11), Err(11));
}

#[test]
fn events_have_stable_names_and_fields() {
    let takeover = EventKind::Share {
        share: ShareId(1),
        news: ShareNews::TakeoverStarted {
            from: name("a"),
            epoch: Epoch::new(7, 2),
            reason: Reason::OwnerFailed,
            detection: Duration::from_millis(32),
            generation: Generation(4),
        },
    };
    assert_eq!(takeover.name(), "takeover_started");
    assert_eq!(takeover.share(), Some(ShareId(1)));
    assert!(takeover.is_warning());
    let text = |text: &str| Field::Text(text.into());
    let expected = [
        ("from", text("a")),
        ("epoch", text("7.2")),
        ("reason", text("owner_failed")),
        ("detection", Field::Span(Duration::from_millis(32))),
        ("generation", Field::Count(4)),
    ];
    assert_eq!(takeover.fields(), expected);

    let endpoint = |text: &str| text.parse::<Endpoint>().expect("a literal");
    let twin = EventKind::Flow {
        share: ShareId(1),
        flow: FlowId {
            key: FlowKey {
                client: endpoint("10.9.0.10:40000"),
                service: endpoint("10.9.0.100:80"),
            },
            irs: SeqNumber(1),
        },
        news: FlowNews::TwinClosed,
    };
    let flow = ("flow", text("10.9.0.10:40000 -> 10.9.0.100:80"));
    assert_eq!((twin.name(), twin.fields()), ("twin_closed", vec![flow]));
}
