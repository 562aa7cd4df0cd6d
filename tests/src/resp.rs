//! What a redis client says and expects: inline commands and RESP replies.

use std::net::TcpStream;

use anyhow::Result;

use crate::stream::{expect, send};

/// Subscribes to `channel` and waits for the confirmation.
///
/// # Errors
/// Fails if the connection breaks or something else comes.
pub fn subscribe(stream: &mut TcpStream, channel: &str) -> Result<()> {
    send(stream, format!("SUBSCRIBE {channel}\r\n"))?;
    let name = bulk(channel);
    expect(stream, format!("*3\r\n$9\r\nsubscribe\r\n{name}:1\r\n"))
}

/// Publishes `text`, without blanks, to the `subscribers` of `channel`.
///
/// # Errors
/// As [`subscribe`].
pub fn publish(stream: &mut TcpStream, channel: &str, text: &str, subscribers: u32) -> Result<()> {
    send(stream, format!("PUBLISH {channel} {text}\r\n"))?;
    expect(stream, format!(":{subscribers}\r\n"))
}

/// Waits for `text` on a subscribed `channel`.
///
/// # Errors
/// As [`subscribe`].
pub fn expect_message(stream: &mut TcpStream, channel: &str, text: &str) -> Result<()> {
    let (channel, text) = (bulk(channel), bulk(text));
    expect(stream, format!("*3\r\n$7\r\nmessage\r\n{channel}{text}"))
}

/// A bulk string as redis writes it.
pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}
