//! Framing: streams cut anywhere, lengths that lie.

use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{GoodbyeReason, PeerMessage, Scope, TwinMessage, strategies};

const GOODBYE: Message = Message::Peer(PeerMessage::Goodbye {
    reason: GoodbyeReason::Restart,
});

fn bytes(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.emit(&mut out).unwrap();
    out
}

fn error(stream: &[u8]) -> ParseError {
    let mut decoder = Decoder::new();
    decoder.push(stream);
    decoder.next_message().unwrap_err()
}

#[test]
fn a_stream_may_be_cut_anywhere() {
    let stream = [bytes(&GOODBYE), bytes(&GOODBYE)].concat();
    for cut in 0..=stream.len() {
        let mut decoder = Decoder::new();
        let mut found = 0;
        for part in [&stream[..cut], &stream[cut..]] {
            decoder.push(part);
            while let Some(message) = decoder.next_message().unwrap() {
                assert_eq!(message, GOODBYE);
                found += 1;
            }
        }
        assert_eq!(found, 2, "cut at {cut}");
    }
}

#[test]
fn truncated() {
    let whole = bytes(&GOODBYE);
    for len in 0..whole.len() {
        let mut decoder = Decoder::new();
        decoder.push(&whole[..len]);
        assert_eq!(decoder.next_message(), Ok(None), "{len} bytes");
    }
}

#[test]
fn impossible_length() {
    let mut huge = bytes(&GOODBYE);
    huge[4..8].copy_from_slice(&((1u32 << 20) + 1).to_be_bytes());
    let found = error(&huge[..Header::LEN]);
    assert_eq!((found.what, found.at), ("message: length", 4));

    let mut long = bytes(&GOODBYE);
    long[7] = 2;
    long.push(0);
    assert_eq!(error(&long).what, "message: trailing bytes");

    let mut short = bytes(&GOODBYE);
    short[7] = 0;
    short.pop();
    assert_eq!(error(&short).what, "goodbye reason");
}

#[test]
fn strangers_are_named_with_their_place() {
    let good = bytes(&GOODBYE);
    for (at, what) in [
        (0, "message: magic"),
        (2, "message: version"),
        (3, "message: kind"),
    ] {
        let mut bad = good.clone();
        bad[at] = 0x77;
        let found = error(&bad);
        assert_eq!((found.what, found.at), (what, at));
    }
    let mut bad = good;
    bad[Header::LEN] = 4;
    let found = error(&bad);
    assert_eq!((found.what, found.at, found.got), ("goodbye reason", 16, 4));
    assert_eq!(found.to_string(), "goodbye reason at byte 16: got 4");
}

#[test]
fn a_message_about_no_share_has_no_epoch() {
    let mut bad = bytes(&GOODBYE);
    bad[15] = 1;
    assert_eq!(error(&bad).what, "message: epoch of no share");
}

#[test]
fn an_error_ends_the_stream() {
    let mut decoder = Decoder::new();
    decoder.push(b"HTTP/1.1 400 Bad Request");
    let first = decoder.next_message().unwrap_err();
    decoder.push(&bytes(&GOODBYE));
    assert_eq!(decoder.next_message(), Err(first));
}

#[test]
fn a_digest_may_have_512_entries_and_no_more() {
    let entry = crate::DigestEntry {
        flow: crate::FlowId {
            key: crate::FlowKey {
                client: "10.9.0.10:1".parse().unwrap(),
                service: "10.9.0.100:80".parse().unwrap(),
            },
            irs: crate::SeqNumber(1),
        },
        snd_una: crate::SeqNumber(2),
        snd_nxt: crate::SeqNumber(3),
        rcv_nxt: crate::SeqNumber(4),
        ended: false,
    };
    let digest = |count| {
        Message::Twin(
            Scope {
                share: crate::ShareId(0),
                epoch: Epoch(1),
                generation: crate::Generation(1),
            },
            TwinMessage::Digest(std::vec![entry; count]),
        )
    };
    let full = digest(v1::MAX_DIGEST_ENTRIES);
    let mut decoder = Decoder::new();
    decoder.push(&bytes(&full));
    assert_eq!(decoder.next_message(), Ok(Some(full)));

    let mut out = std::vec![1, 2, 3];
    assert!(digest(v1::MAX_DIGEST_ENTRIES + 1).emit(&mut out).is_err());
    assert_eq!(out, [1, 2, 3], "nothing is left behind");
}

proptest! {
    #[test]
    fn roundtrip(messages in proptest::collection::vec(strategies::message(), 0..8), cut in 1..64usize) {
        let stream: Vec<u8> = messages.iter().flat_map(bytes).collect();
        let mut decoder = Decoder::new();
        let mut found = Vec::new();
        for part in stream.chunks(cut) {
            decoder.push(part);
            while let Some(message) = decoder.next_message().unwrap() {
                found.push(message);
            }
        }
        prop_assert_eq!(found, messages);
    }

    #[test]
    fn garbage_in_a_body_never_panics(kind in 0u8..22, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut stream = bytes(&GOODBYE);
        stream.truncate(Header::LEN);
        stream[3] = kind;
        stream[4..8].copy_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        stream.extend_from_slice(&body);
        let mut decoder = Decoder::new();
        decoder.push(&stream);
        let _ = decoder.next_message();
    }
}
