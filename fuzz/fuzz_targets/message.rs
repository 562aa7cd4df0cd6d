//! The control stream: cut into pieces, it yields the same messages, and they
//! are written back as they were.
#![no_main]

use godwit_wire::{Decoder, Message, ParseError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(([how, kind], rest)) = input.split_first_chunk() else {
        return;
    };
    // Half of the inputs are a body behind a good header, or few would get so far.
    let stream = if how & 0x80 == 0 {
        rest.to_vec()
    } else {
        framed(*kind, how & 1, rest)
    };
    let (messages, end) = decode(&stream, stream.len().max(1));
    let pieces = decode(&stream, usize::from(how & 0x7f).max(1));
    assert_eq!((&messages, &end), (&pieces.0, &pieces.1));

    let mut again = Vec::new();
    for message in &messages {
        message.emit(&mut again).expect("was read from a stream");
    }
    assert!(stream.starts_with(&again));
});

/// A version 1 header, and a body as long as it says.
fn framed(kind: u8, epoch: u8, body: &[u8]) -> Vec<u8> {
    let mut stream = vec![b'G', b'W', 1, kind % 11];
    let len = u32::try_from(body.len()).expect("inputs are short");
    stream.extend_from_slice(&len.to_be_bytes());
    stream.extend_from_slice(&[epoch; 8]);
    stream.extend_from_slice(body);
    stream
}

fn decode(stream: &[u8], piece: usize) -> (Vec<Message>, Option<ParseError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for piece in stream.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}
