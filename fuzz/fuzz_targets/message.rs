//! The control stream: cut into pieces, it yields the same messages, and they
//! are written back as they were.
#![no_main]

use godwit_wire::{Decoder, Message, ParseError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((piece, stream)) = input.split_first() else {
        return;
    };
    let (messages, end) = decode(stream, stream.len().max(1));
    let (pieces, same_end) = decode(stream, usize::from(*piece).max(1));
    assert_eq!((&messages, &end), (&pieces, &same_end));

    let mut again = Vec::new();
    for message in &messages {
        message.emit(&mut again).expect("was read from a stream");
    }
    assert!(stream.starts_with(&again));
});

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
