//! Listening for peers that dial us.

use std::sync::Arc;
use std::time::Duration;

use godwit_core::PeerId;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

use super::doors::{Doors, Entry, Unlinked};
use super::link::{self, LinkError, STEP_LIMIT};
use super::{Shared, tls};

/// Accepts peers for as long as the runtime lives.
pub(super) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    let control = |slot: &super::Slot| slot.peer.control.ip();
    let doors = Doors::new(shared.slots.iter().map(control));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => match doors.enter(from.ip()) {
                Ok(entry) => {
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        let is_known = entry.is_known;
                        // Of strangers there are counters: they come as often as they like.
                        if let Err(error) = serve(&shared, stream, entry).await
                            && is_known
                            && !is_said(&error)
                        {
                            tracing::info!(%from, %error, "link closed");
                        }
                    });
                }
                Err(reason) => shared.unlinked.count(reason),
            },
            Err(error) => {
                // Out of descriptors, most likely: they come back.
                tracing::warn!(%error, "can't accept peers");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Those who are revoked come again several times a second: there are facts of them.
const fn is_said(error: &LinkError) -> bool {
    matches!(
        error,
        LinkError::Revoked { .. } | LinkError::OwnRevoked { .. }
    )
}

/// Finds out who has dialled, and runs the link.
async fn serve(shared: &Shared, stream: TcpStream, mut entry: Entry) -> Result<(), LinkError> {
    let from = stream.peer_addr()?.ip();
    let accepted = tokio::select! {
        accepted = timeout(STEP_LIMIT, accept(shared, stream)) => {
            accepted.unwrap_or(Err(LinkError::Timeout))
        }
        () = entry.given_away() => Err(LinkError::PushedOut),
    };
    drop(entry);
    let (peer, stream) = accepted.inspect_err(|error| {
        if let Some(reason) = reason_of(error) {
            shared.unlinked.count(reason);
        }
        shared.note_absence_at(from, error);
    })?;
    let (stream, tls) = stream.into_inner();
    let ended = link::run(shared, peer, (stream, tls.into())).await;
    ended.inspect_err(|error| shared.note_absence(peer, error))
}

/// As what a connection counts that became no link; `None`: it is counted already.
const fn reason_of(error: &LinkError) -> Option<Unlinked> {
    match error {
        LinkError::Revoked { .. } => None,
        LinkError::PushedOut => Some(Unlinked::PushedOut),
        LinkError::Stranger => Some(Unlinked::Stranger),
        LinkError::Io(_)
        | LinkError::Unreachable(_)
        | LinkError::Timeout
        | LinkError::Closed
        | LinkError::TurnedAway
        | LinkError::Dropped
        | LinkError::OwnRevoked { .. }
        | LinkError::NoHello { .. }
        | LinkError::WrongName { .. }
        | LinkError::Parse(_)
        | LinkError::Emit(_)
        | LinkError::Driver(_) => Some(Unlinked::Handshake),
    }
}

/// Finds out which peer has dialled, by its certificate alone.
async fn accept(
    shared: &Shared,
    stream: TcpStream,
) -> Result<(PeerId, TlsStream<TcpStream>), LinkError> {
    link::prepare(&stream)?;
    let stream = shared.identity.acceptor().accept(stream).await?;
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().unwrap_or_default();
    let certificate = chain.first().ok_or(LinkError::Stranger)?;
    let is_of = |slot: &super::Slot| tls::is_certificate_of(certificate, slot.peer.name);
    let mut named = (0..)
        .map(PeerId)
        .zip(&shared.slots)
        .filter(|it| is_of(it.1));
    let peer = named
        .clone()
        .find(|(_, slot)| !shared.dials(slot.peer.name));
    match peer {
        Some((peer, _)) => Ok((peer, stream)),
        None => Err(shared.turn_away(named.next().map(|it| it.0), chain)),
    }
}
