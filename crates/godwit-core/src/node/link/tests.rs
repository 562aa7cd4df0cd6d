use super::super::tests::{PEER, actions, config, hello, ms};
use super::super::{Action, PeerAction, Side};
use super::*;

/// The next life of `a` has no link to `b`: `b` hears of it from the one that ends.
#[test]
fn who_is_not_in_the_next_file_is_told_before_the_goodbye() {
    let line = |key| ConfigLine::new("peer \"b\"", key, "x");
    let greeted = |version| {
        let mut node = Node::new(&config(), ms(0)).with_lines(vec![line("role")]);
        node.handle_link(PEER, Link::Up, ms(1));
        let hello = Hello {
            max_version: version,
            ..hello()
        };
        node.handle_message(PEER, &Message::Peer(PeerMessage::Hello(hello)), ms(2));
        actions(&mut node);
        node
    };
    let told = |version, stays| {
        let mut node = greeted(version);
        node.take_leave(&[], |_| stays);
        let message = Message::Peer(PeerMessage::ConfigLines(Vec::new()));
        actions(&mut node).contains(&Action::Peer(PEER, PeerAction::Send(message)))
    };
    assert!(told(2, false));
    assert!(!told(2, true), "its next hello tells");
    assert!(!told(1, false), "it would not understand");
    // The other side of that.
    let mut node = greeted(2);
    node.handle_message(
        PEER,
        &Message::Peer(PeerMessage::ConfigLines(Vec::new())),
        ms(3),
    );
    let reason = GoodbyeReason::Restart;
    node.handle_message(PEER, &Message::Peer(PeerMessage::Goodbye { reason }), ms(3));
    node.handle_link(PEER, Link::Down, ms(4));
    let status = node.peer_status().next().expect("there is one");
    let [difference] = &status.differences[..] else {
        panic!("{status:?}");
    };
    assert_eq!(difference.section, "peer \"b\"");
    assert_eq!((difference.side, status.config_differs), (Side::Here, true));
}
