//! One link, from its first message to its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use godwit_core::PeerId;
use godwit_wire::{Decoder, EmitError, Message, NodeName, ParseError, PeerMessage};
use nix::sys::socket::{setsockopt, sockopt};
use rustls::Connection;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::absence::of_tls;
use super::outbox::Outbox;
use super::{Shared, Ticket};
use crate::input::DriverGone;

/// For each step of a link's beginning: far above any round trip in a cluster.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(2);

/// Data or probes that stay unacknowledged for this long end a link.
const USER_TIMEOUT_MS: u32 = 3000;

/// Messages that the driver is given at a time.
const GATHERED: usize = 32;

/// Why a link ended or never began.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    #[error("no answer within {} s", STEP_LIMIT.as_secs())]
    Timeout,
    #[error("closed by the peer")]
    Closed,
    #[error("closed by the peer before its first word")]
    TurnedAway,
    #[error("closed here: a newer link replaced it, or the peer does not read")]
    Dropped,
    #[error("a later connection from the same address took its place")]
    PushedOut,
    #[error("its certificate is that of no node that dials this one")]
    Stranger,
    #[error("its certificate, number {serial}, is revoked")]
    Revoked { serial: String },
    #[error("the certificate of this node, number {serial}, is revoked")]
    OwnRevoked { serial: String },
    #[error("its first message is not a hello but {got}")]
    NoHello { got: &'static str },
    #[error("its hello says \"{said}\", its certificate \"{certified}\"")]
    WrongName { said: NodeName, certified: NodeName },
    #[error("not a message: {0}")]
    Parse(#[from] ParseError),
    #[error("can't be sent: {0}")]
    Emit(#[from] EmitError),
    #[error("{0}")]
    Driver(#[from] DriverGone),
}

/// Runs a link over an authenticated stream until it ends.
pub(super) async fn run(
    shared: &Shared,
    peer: PeerId,
    (stream, tls): (TcpStream, Connection),
) -> Result<(), LinkError> {
    let chain = tls.peer_certificates().unwrap_or_default().iter();
    let chain: Vec<_> = chain.map(|it| it.clone().into_owned()).collect();
    shared.admit(peer, &chain)?;
    let outbox = Arc::new(Outbox::new(stream, tls));
    let ticket = shared.register(peer, &outbox)?;
    let revocations = shared.identity.revocations();
    let is_heard = AtomicBool::new(false);
    let result = tokio::select! {
        serial = revocations.until_found(&chain) => Err(shared.refuse(peer, serial)),
        result = read(shared, (ticket, &chain), &outbox, &is_heard) => result,
        result = write(&outbox) => result,
    };
    shared.retire(ticket)?;
    // A reset may have come before the last words of the peer were read.
    let result = match result {
        Err(LinkError::Io(error)) => Err(outbox.parting(error)),
        other => other,
    };
    if is_heard.into_inner() {
        return result;
    }
    result.map_err(LinkError::before_hello)
}

impl LinkError {
    /// The same, of a link whose peer has said nothing. TLS is content with the certificate of
    /// this node, and does not tell that the peer is not (`admit`).
    fn before_hello(self) -> Self {
        let is_end = match &self {
            Self::Closed => true,
            Self::Io(error) => of_tls(error).is_none(),
            Self::Unreachable(_)
            | Self::Timeout
            | Self::TurnedAway
            | Self::Dropped
            | Self::PushedOut
            | Self::Stranger
            | Self::Revoked { .. }
            | Self::OwnRevoked { .. }
            | Self::NoHello { .. }
            | Self::WrongName { .. }
            | Self::Parse(_)
            | Self::Emit(_)
            | Self::Driver(_) => false,
        };
        if is_end { Self::TurnedAway } else { self }
    }
}

/// Makes a TCP stream fit for small urgent messages and for dead peers.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &1)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &1)?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &USER_TIMEOUT_MS)?;
    Ok(())
}

async fn read(
    shared: &Shared,
    (ticket, chain): (Ticket, &[CertificateDer<'static>]),
    outbox: &Outbox,
    is_heard: &AtomicBool,
) -> Result<(), LinkError> {
    let mut decoder = Decoder::new();
    let mut chunk = Vec::new();
    let hello = timeout(STEP_LIMIT, next_message(outbox, &mut decoder, &mut chunk))
        .await
        .map_err(|_| LinkError::Timeout)??;
    is_heard.store(true, Ordering::Relaxed);
    introduce(shared, (ticket.peer, chain), &hello)?;
    shared.deliver(ticket, vec![hello])?;
    loop {
        let first = next_message(outbox, &mut decoder, &mut chunk).await?;
        shared.deliver(ticket, with_others(first, &mut decoder))?;
    }
}

/// A message, and what has come with it. What is no message is found again.
fn with_others(first: Message, decoder: &mut Decoder) -> Vec<Message> {
    let mut messages = vec![first];
    while messages.len() < GATHERED
        && let Ok(Some(next)) = decoder.next_message()
    {
        messages.push(next);
    }
    messages
}

async fn next_message(
    outbox: &Outbox,
    decoder: &mut Decoder,
    chunk: &mut Vec<u8>,
) -> Result<Message, LinkError> {
    loop {
        if let Some(message) = decoder.next_message()? {
            return Ok(message);
        }
        outbox.receive(decoder, chunk).await?;
    }
}

/// Checks a peer's first message and takes the key of its heartbeats from it.
fn introduce(
    shared: &Shared,
    (peer, chain): (PeerId, &[CertificateDer<'static>]),
    message: &Message,
) -> Result<(), LinkError> {
    let Message::Peer(PeerMessage::Hello(hello)) = message else {
        return Err(LinkError::NoHello {
            got: message.name(),
        });
    };
    let certified = shared.slot(peer).ok_or(DriverGone)?.peer.name;
    if hello.name != certified {
        return Err(LinkError::WrongName {
            said: hello.name,
            certified,
        });
    }
    shared.believe(peer, chain, hello)
}

/// Until the link is to end, and in order, so that nothing is lost.
async fn write(outbox: &Outbox) -> Result<(), LinkError> {
    outbox.write().await?;
    timeout(STEP_LIMIT, outbox.end())
        .await
        .map_err(|_| LinkError::Timeout)??;
    Err(LinkError::Dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hello;

    /// In their order, and with what is no message behind them.
    #[test]
    fn what_has_come_together_is_delivered_together() {
        let (mut bytes, mut decoder) = (Vec::new(), Decoder::new());
        let sent: Vec<_> = (0..40).map(|number| hello("a", number)).collect();
        for message in &sent {
            message.emit(&mut bytes).expect("it is short");
        }
        bytes.extend([0xff; 64]);
        decoder.push(&bytes);
        let mut heard = Vec::new();
        let mut times = 0;
        while let Ok(Some(first)) = decoder.next_message() {
            heard.extend(with_others(first, &mut decoder));
            times += 1;
        }
        assert_eq!((heard, times), (sent, 2));
        assert!(decoder.next_message().is_err(), "it is found again");
    }
}
