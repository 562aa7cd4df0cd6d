use std::net::UdpSocket;
use std::time::Instant;

use godwit_core::{Beat, PeerId};
use godwit_wire::{Epoch, Heartbeat, Hello, Message, NAMED_SHARES, PeerMessage, Role, ShareId};

use super::*;
use crate::input::{Input, Inputs};
use crate::testing::{PATIENCE, Pair, hello, node, wait_for};

const A: PeerId = PeerId(0);
const B: PeerId = PeerId(0);
const INCARNATION: u64 = 5;
const OF_B: u64 = 9;

/// Keys of `a` and `b`, which have heard each other's hello.
fn keys(pair: &Pair) -> (HeartbeatKeys, HeartbeatKeys) {
    let a = HeartbeatKeys::new(&pair.a, &[1; 32], INCARNATION);
    let b = HeartbeatKeys::new(&pair.b, &[2; 32], OF_B);
    b.learn(A, &hello_of("a", INCARNATION, &a));
    a.learn(B, &hello_of("b", OF_B, &b));
    (a, b)
}

/// To the other one.
fn hello_of(name: &str, incarnation: u64, keys: &HeartbeatKeys) -> Hello {
    let Message::Peer(PeerMessage::Hello(mut hello)) = hello(name, incarnation) else {
        unreachable!("hello() makes a hello");
    };
    hello.heartbeat_key = *keys.ours(PeerId(0)).expect("it is a peer");
    hello
}

fn start(
    config: &Config,
    incarnation: u64,
    keys: Arc<HeartbeatKeys>,
    inbox: Inbox,
) -> io::Result<Heartbeats> {
    let socket = bind(config.own_peer().control)?;
    Heartbeats::start(config, incarnation, (keys, inbox), socket)
}

fn datagram(keys: &HeartbeatKeys, sequence: u64, incarnation: u64) -> Vec<u8> {
    let heartbeat = Heartbeat {
        sender: node("a"),
        incarnation,
        sequence,
        sent_ns: 0,
        shares: Vec::new(),
    };
    let mut bytes = Vec::new();
    heartbeat.emit_unsigned(&mut bytes).expect("fits");
    keys.signer(B).expect("b is a peer").sign(&mut bytes);
    bytes
}

#[test]
fn an_authentic_heartbeat_counts_once() {
    let (a, b) = keys(&Pair::new());
    let first = datagram(&a, 1, INCARNATION);
    assert_eq!(b.verify(&first).map(|(peer, _)| peer), Ok(A));
    assert_eq!(b.verify(&first), Err(Refused::Replayed));
    assert!(b.verify(&datagram(&a, 2, INCARNATION)).is_ok());
    assert_eq!(b.verify(&first), Err(Refused::Replayed));
}

#[test]
fn a_new_link_of_the_same_agent_does_not_forget_what_was_replayed() {
    let (a, b) = keys(&Pair::new());
    let first = datagram(&a, 1, INCARNATION);
    assert!(b.verify(&first).is_ok());
    b.learn(A, &hello_of("a", INCARNATION, &a));
    assert_eq!(b.verify(&first), Err(Refused::Replayed));
}

/// A receiver that was started anew knows no sequence number. Somebody has kept what was said
/// to its earlier life; the sender's life is the same.
#[test]
fn a_heartbeat_of_before_our_restart_does_not_count() {
    let pair = Pair::new();
    let (a, _) = keys(&pair);
    let before = datagram(&a, 1000, INCARNATION);
    let b = HeartbeatKeys::new(&pair.b, &[4; 32], OF_B + 1);
    b.learn(A, &hello_of("a", INCARNATION, &a));
    assert_eq!(b.verify(&before), Err(Refused::BadTag));
    a.learn(B, &hello_of("b", OF_B + 1, &b));
    assert!(b.verify(&datagram(&a, 1001, INCARNATION)).is_ok());
    assert_eq!(b.verify(&before), Err(Refused::BadTag));
}

/// One of the two is of a version that signs with the key itself.
#[test]
fn a_peer_of_an_earlier_version_is_understood() {
    let pair = Pair::new();
    let (a, b) = keys(&pair);
    let mut older = hello_of("b", OF_B, &b);
    older.max_version = NAMED_SHARES;
    a.learn(B, &older);
    let said = datagram(&a, 1, INCARNATION);
    assert_eq!(b.verify(&said), Err(Refused::BadTag), "it takes a for new");
    let mut older = hello_of("a", INCARNATION, &a);
    older.max_version = NAMED_SHARES;
    b.learn(A, &older);
    assert!(b.verify(&said).is_ok());
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (a, b) = keys(&Pair::new());
    let good = datagram(&a, 1, INCARNATION);
    for byte in 0..good.len() {
        let mut bad = good.clone();
        bad[byte] ^= 1;
        assert!(b.verify(&bad).is_err(), "byte {byte}");
    }
    assert!(b.verify(&good).is_ok());
}

#[test]
fn strangers_and_other_lives_do_not_count() {
    let pair = Pair::new();
    let (a, b) = keys(&pair);
    assert_eq!(
        b.verify(&datagram(&a, 1, INCARNATION - 1)),
        Err(Refused::OtherIncarnation)
    );
    let other = HeartbeatKeys::new(&pair.a, &[3; 32], INCARNATION);
    other.learn(B, &hello_of("b", OF_B, &b));
    assert_eq!(
        b.verify(&datagram(&other, 1, INCARNATION)),
        Err(Refused::BadTag)
    );
    assert_eq!(b.verify(b""), Err(Refused::Malformed));
    assert_eq!(b.verify(&[b'G'; 2000]), Err(Refused::Malformed));
    let fresh = HeartbeatKeys::new(&pair.b, &[2; 32], OF_B);
    assert_eq!(
        fresh.verify(&datagram(&a, 1, INCARNATION)),
        Err(Refused::NoKey)
    );
    assert_eq!(
        a.verify(&datagram(&a, 1, INCARNATION)),
        Err(Refused::Stranger)
    );
}

#[test]
fn each_peer_gets_a_key_of_its_own() {
    let pair = Pair::new();
    let a = HeartbeatKeys::new(&pair.a, &[1; 32], INCARNATION);
    let b = HeartbeatKeys::new(&pair.b, &[1; 32], OF_B);
    assert_ne!(a.ours(PeerId(0)), b.ours(PeerId(0)));
    assert_eq!(a.ours(PeerId(1)), None);
}

fn beats(inputs: &Inputs) -> Option<Beat> {
    wait_for(inputs, |input| {
        let Input::Heartbeat { peer: A, beat, .. } = input else {
            return None;
        };
        Some(beat)
    })
}

#[test]
fn heartbeats_reach_the_other_node_with_the_latest_claims_and_garbage_is_counted() {
    let pair = Pair::new();
    let (a_keys, b_keys) = keys(&pair);
    let (a_keys, b_keys) = (Arc::new(a_keys), Arc::new(b_keys));
    let (a_inbox, _a_inputs) = Inbox::new();
    let (b_inbox, b_inputs) = Inbox::new();
    let a = start(&pair.a, INCARNATION, a_keys, a_inbox).expect("a");
    let b = start(&pair.b, 9, b_keys, b_inbox).expect("b");
    let first = beats(&b_inputs).expect("a heartbeat");
    assert_eq!((first.incarnation, first.shares.len()), (INCARNATION, 0));

    let claim = ShareClaim {
        share: ShareId(0),
        role: Role::Owner,
        epoch: Epoch::new(5, 1),
    };
    a.board().post(vec![claim]);
    let mut told = Vec::new();
    while told.is_empty() {
        told = beats(&b_inputs).expect("a heartbeat").shares;
    }
    assert_eq!(told, [claim]);

    let stranger = UdpSocket::bind("127.0.0.3:0").expect("loopback");
    stranger
        .send_to(b"garbage", pair.b.own_peer().control)
        .expect("sent");
    let neighbour = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    neighbour
        .send_to(b"garbage", pair.b.own_peer().control)
        .expect("sent");
    let deadline = Instant::now() + PATIENCE;
    while b.counters().unread() < 2 {
        assert!(Instant::now() < deadline, "garbage is counted");
        thread::yield_now();
    }
    assert!(beats(&b_inputs).is_some());
}

/// Whoever can forge a peer's address can say its name, and knows when its agent was started
/// but for the fraction of a second. No key is touched for that, and heartbeats go on.
#[test]
fn a_flood_from_a_peer_s_address_ends_in_the_kernel() {
    const FLOOD: u64 = 100_000;
    let pair = Pair::new();
    let (a_keys, b_keys) = keys(&pair);
    let forged = datagram(&a_keys, u64::MAX, INCARNATION + 1);
    let (a_inbox, _a_inputs) = Inbox::new();
    let (b_inbox, b_inputs) = Inbox::new();
    let b = start(&pair.b, OF_B, Arc::new(b_keys), b_inbox).expect("b");
    let _a = start(&pair.a, INCARNATION, Arc::new(a_keys), a_inbox).expect("a");
    let first = beats(&b_inputs).expect("a heartbeat").sequence;
    let forger = UdpSocket::bind((pair.a.own_peer().control.ip(), 0)).expect("loopback");
    let begun = Instant::now();
    for _ in 0..FLOOD {
        let to = pair.b.own_peer().control;
        forger.send_to(&forged, to).expect("sent");
    }
    let ticks = begun.elapsed().as_millis() / 10;
    let counters = b.counters();
    let refused: Vec<_> = counters.refused().filter(|(_, count)| *count > 0).collect();
    assert_eq!(refused, [], "nobody has looked at them");
    assert_eq!(counters.unread(), FLOOD);
    let mut heard = 0;
    while let Ok(input) = b_inputs.try_recv() {
        heard += u128::from(matches!(input, Input::Heartbeat { .. }));
    }
    assert!(heard + 2 >= ticks / 2, "{heard} of {ticks} from {first} on");
    // Whoever begins anew is heard again once it has said so.
    assert!(beats(&b_inputs).is_some());
}

#[test]
fn a_new_life_is_let_in_when_it_has_said_hello() {
    let pair = Pair::new();
    let (a, b) = keys(&pair);
    let b = Arc::new(b);
    let (inbox, inputs) = Inbox::new();
    let _b = start(&pair.b, OF_B, b.clone(), inbox).expect("b");
    let from = UdpSocket::bind((pair.a.own_peer().control.ip(), 0)).expect("loopback");
    let to = pair.b.own_peer().control;
    for (incarnation, sequence) in [(INCARNATION, 1), (INCARNATION + 7, 2)] {
        b.learn(A, &hello_of("a", incarnation, &a));
        let said = datagram(&a, sequence, incarnation);
        from.send_to(&said, to).expect("sent");
        let heard = beats(&inputs).expect("it counts");
        assert_eq!((heard.incarnation, heard.sequence), (incarnation, sequence));
    }
}

#[test]
fn ticks_do_not_drift() {
    let pair = Pair::new();
    let (a_keys, b_keys) = keys(&pair);
    let (a_inbox, _a_inputs) = Inbox::new();
    let (b_inbox, b_inputs) = Inbox::new();
    let _a = start(&pair.a, INCARNATION, Arc::new(a_keys), a_inbox).expect("a");
    let b = start(&pair.b, 9, Arc::new(b_keys), b_inbox).expect("b");
    let begun = Instant::now();
    let first = beats(&b_inputs).expect("a heartbeat").sequence;
    while begun.elapsed() < Duration::from_millis(500) {
        assert!(beats(&b_inputs).is_some());
    }
    let ticks = beats(&b_inputs).expect("a heartbeat").sequence - first;
    // 10 ms each; a busy machine may skip some, but none is ever too early.
    assert!(
        (25..=54).contains(&ticks),
        "{ticks} ticks, {} late",
        b.counters().late_ticks()
    );
}
