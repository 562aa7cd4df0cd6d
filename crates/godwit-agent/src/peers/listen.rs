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
        let reason = if matches!(error, LinkError::PushedOut) {
            Unlinked::PushedOut
        } else if matches!(error, LinkError::Stranger) {
            Unlinked::Stranger
        } else {
            Unlinked::Handshake
        };
        shared.unlinked.count(reason);
        shared.note_absence_at(from, error);
    })?;
    let (stream, tls) = stream.into_inner();
    let ended = link::run(shared, peer, (stream, tls.into())).await;
    ended.inspect_err(|error| shared.note_absence(peer, error))
}

/// Finds out which peer has dialled, by its certificate alone.
async fn accept(
    shared: &Shared,
    stream: TcpStream,
) -> Result<(PeerId, TlsStream<TcpStream>), LinkError> {
    link::prepare(&stream)?;
    let stream = shared.identity.acceptor().accept(stream).await?;
    let (_, session) = stream.get_ref();
    let certificate = session
        .peer_certificates()
        .and_then(|chain| chain.first())
        .ok_or(LinkError::Stranger)?;
    let peer = (0..)
        .map(PeerId)
        .zip(&shared.slots)
        .filter(|(_, slot)| !shared.dials(slot.peer.name))
        .find_map(|(id, slot)| tls::is_certificate_of(certificate, slot.peer.name).then_some(id))
        .ok_or(LinkError::Stranger)?;
    Ok((peer, stream))
}
