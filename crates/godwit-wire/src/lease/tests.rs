//! Lease datagrams as bytes.

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Epoch, Generation, ShareId, strategies};

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn sample() -> LeaseDatagram {
    let lease = Lease {
        holder: name("a"),
        epoch: Epoch::new(2, 3),
        number: 5,
        term_ns: 60_000_000,
        in_sync: vec![Stay {
            node: name("b"),
            generation: Generation(7),
        }],
    };
    let refused = LeaseMessage::Refused {
        share: ShareId(2),
        epoch: Epoch::new(2, 5),
        number: 0,
        refusal: Refusal::Quarantine,
        by: Epoch::NONE,
        holder: None,
        remaining_ns: 1,
    };
    LeaseDatagram {
        sender: name("a"),
        incarnation: 0x0102_0304_0506_0708,
        receiver: 0x1112_1314_1516_1718,
        sequence: 9,
        voters: 10,
        messages: vec![
            LeaseMessage::Propose {
                share: ShareId(1),
                lease,
                standing: Standing::Unbroken,
                void: Epoch::NONE,
            },
            refused,
        ],
    }
}

fn bytes(datagram: &LeaseDatagram) -> Vec<u8> {
    let mut out = Vec::new();
    datagram.emit_unsigned(&mut out).unwrap();
    out
}

#[rustfmt::skip]
const GOLDEN: &[u8] = &[
    b'G', b'W', b'L', b'S', 1,
    1, b'a',
    1, 2, 3, 4, 5, 6, 7, 8,
    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
    0, 0, 0, 0, 0, 0, 0, 9,
    0, 0, 0, 0, 0, 0, 0, 10,
    2,
    // Propose: share, epoch, lease, standing, void
    3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3,
    1, b'a', 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0x03, 0x93, 0x87, 0,
    1, 1, b'b', 0, 0, 0, 7,
    2, 0, 0, 0, 0, 0, 0, 0, 0,
    // Refused: share, epoch, number, by, remaining, refusal, holder
    5, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 5,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn emit() {
    assert_eq!(bytes(&sample()), GOLDEN);
    assert!(LeaseDatagram::is_one(GOLDEN) && !LeaseDatagram::is_one(b"GWHB"));
    let said = sample().to_string();
    assert!(said.starts_with("lease datagram 9 from a"), "{said}");
    assert_eq!(sample().messages[0].to_string(), "propose 2.3 of share 1");
}

#[test]
fn parse() {
    assert_eq!(LeaseDatagram::parse(GOLDEN), Ok(sample()));
}

#[test]
fn truncated() {
    for len in 0..GOLDEN.len() {
        assert!(LeaseDatagram::parse(&GOLDEN[..len]).is_err(), "{len} bytes");
    }
    let mut overlong = GOLDEN.to_vec();
    overlong.push(0);
    assert!(LeaseDatagram::parse(&overlong).is_err());
}

#[test]
fn impossible_length() {
    for (at, byte) in [
        (0, b'X'), // magic
        (4, 2),    // version
        (5, 0),    // length of the sender's name
        (39, 1),   // one message, the rest is trailing
        (39, 3),   // three
        (39, 200), // more than fit
        (40, 0),   // no such kind
        (40, 7),   // nor this
        (52, 4),   // the epoch differs from the lease's
        (53, 0),   // no holder
        (79, 9),   // too many standbys
        (79, 0),   // too few
        (86, 0),   // no such standing
        (86, 5),   // nor this
        (132, 0),  // no such refusal
        (133, 33), // name too long
    ] {
        let mut bad = GOLDEN.to_vec();
        bad[at] = byte;
        assert!(LeaseDatagram::parse(&bad).is_err(), "byte {at} = {byte}");
    }
}

#[test]
fn too_much_is_refused_and_leaves_nothing_behind() {
    let check = |datagram: &LeaseDatagram, what| {
        let mut out = vec![1];
        let error = datagram.emit_unsigned(&mut out).unwrap_err();
        assert_eq!((error.what, out), (what, vec![1]));
    };
    let mut many = sample();
    many.messages = vec![many.messages[1].clone(); LeaseDatagram::MAX_MESSAGES + 1];
    check(&many, "lease: messages");
    many.messages.pop();
    check(&many, "lease: length");
    let mut crowded = sample();
    if let LeaseMessage::Propose { lease, .. } = &mut crowded.messages[0] {
        lease.in_sync = vec![lease.in_sync[0]; Lease::MAX_IN_SYNC + 1];
    }
    check(&crowded, "lease: in-sync set");
}

#[test]
fn what_fits_is_sent_together() {
    let [propose, refused] = &sample().messages[..] else {
        panic!("two messages");
    };
    let mut longest = propose.clone();
    if let LeaseMessage::Propose { lease, .. } = &mut longest {
        let stay = Stay {
            node: name(&"x".repeat(NodeName::MAX_LEN)),
            generation: Generation(1),
        };
        lease.in_sync = vec![stay; Lease::MAX_IN_SYNC];
    }
    assert_eq!(LeaseDatagram::fitting(&[]), 0);
    for message in [propose, refused, &longest] {
        let mut left = vec![message.clone(); 3 * LeaseDatagram::MAX_MESSAGES];
        while !left.is_empty() {
            let some = LeaseDatagram::fitting(&left);
            assert!(some > 2);
            let datagram = LeaseDatagram {
                sender: name(&"y".repeat(NodeName::MAX_LEN)),
                messages: left.drain(..some).collect(),
                ..sample()
            };
            assert!(bytes(&datagram).len() <= LeaseDatagram::MAX_LEN);
        }
    }
}

proptest! {
    #[test]
    fn roundtrip(datagram in strategies::lease_datagram()) {
        let mut datagram = datagram;
        datagram.messages.truncate(LeaseDatagram::fitting(&datagram.messages));
        prop_assert_eq!(LeaseDatagram::parse(&bytes(&datagram)), Ok(datagram));
    }

    #[test]
    fn a_message_is_as_long_as_it_says(datagram in strategies::lease_datagram()) {
        for message in datagram.messages {
            let mut out = Vec::new();
            message.emit(&mut out).unwrap();
            prop_assert_eq!(out.len(), message.len());
        }
    }

    #[test]
    fn garbage_never_panics(rest in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..60_usize) {
        let _ = LeaseDatagram::parse(&rest);
        let head = GOLDEN.iter().take(cut).copied().chain(rest).collect::<Vec<_>>();
        let _ = LeaseDatagram::parse(&head);
    }
}
