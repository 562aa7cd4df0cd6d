//! Heartbeats as bytes.

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Epoch, Role, ShareId, strategies};

fn sample() -> Heartbeat {
    Heartbeat {
        sender: NodeName::new("a").unwrap(),
        incarnation: 0x0102_0304_0506_0708,
        sequence: 9,
        sent_ns: 10,
        shares: vec![ShareClaim {
            share: ShareId(1),
            role: Role::Owner,
            epoch: Epoch::new(2, 3),
        }],
    }
}

fn bytes(heartbeat: &Heartbeat) -> Vec<u8> {
    let mut out = Vec::new();
    heartbeat.emit_unsigned(&mut out).unwrap();
    out
}

#[rustfmt::skip]
const GOLDEN: &[u8] = &[
    b'G', b'W', b'H', b'B', 1,
    1, b'a',
    1, 2, 3, 4, 5, 6, 7, 8,
    0, 0, 0, 0, 0, 0, 0, 9,
    0, 0, 0, 0, 0, 0, 0, 10,
    1, 0, 0, 0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 3,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn emit() {
    assert_eq!(bytes(&sample()), GOLDEN);
    let said = sample().to_string();
    assert!(said.starts_with("heartbeat 9 from a"), "{said}");
}

#[test]
fn parse() {
    assert_eq!(Heartbeat::parse(GOLDEN), Ok(sample()));
}

#[test]
fn the_tag_is_the_last_sixteen_bytes() {
    let mut datagram = bytes(&sample());
    *Heartbeat::tag_mut(&mut datagram).unwrap() = [7; 16];
    assert_eq!(Heartbeat::tag(&datagram), Some(&[7; 16]));
    let signed = Heartbeat::signed_part(&datagram).unwrap();
    assert_eq!(signed, &GOLDEN[..GOLDEN.len() - 16]);
    assert_eq!(Heartbeat::parse(&datagram), Ok(sample()), "unchecked here");
    assert_eq!(Heartbeat::tag(&datagram[..15]), None);
    assert_eq!(Heartbeat::signed_part(&[]), None);
}

#[test]
fn truncated() {
    for len in 0..GOLDEN.len() {
        assert!(Heartbeat::parse(&GOLDEN[..len]).is_err(), "{len} bytes");
    }
    let mut overlong = GOLDEN.to_vec();
    overlong.push(0);
    assert!(Heartbeat::parse(&overlong).is_err());
}

#[test]
fn impossible_length() {
    for (at, byte) in [
        (0, b'X'),
        (4, 2),
        (5, 0),
        (5, 33),
        (6, b' '),
        (31, 65),
        (31, 2),
        (36, 3),
    ] {
        let mut bad = GOLDEN.to_vec();
        bad[at] = byte;
        assert!(Heartbeat::parse(&bad).is_err(), "byte {at} = {byte}");
    }
}

#[test]
fn too_many_shares_are_refused_and_leave_nothing_behind() {
    let mut heartbeat = sample();
    heartbeat.shares = vec![heartbeat.shares[0]; Heartbeat::MAX_SHARES];
    assert!(bytes(&heartbeat).len() <= Heartbeat::MAX_LEN);
    heartbeat.shares.push(heartbeat.shares[0]);
    let mut out = Vec::new();
    let error = heartbeat.emit_unsigned(&mut out).unwrap_err();
    assert_eq!((error.max, error.got), (64, 65));
    assert!(out.is_empty());
}

proptest! {
    #[test]
    fn roundtrip(heartbeat in strategies::heartbeat()) {
        prop_assert_eq!(Heartbeat::parse(&bytes(&heartbeat)), Ok(heartbeat));
    }

    #[test]
    fn garbage_never_panics(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Heartbeat::parse(&datagram);
    }
}
