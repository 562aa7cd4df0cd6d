//! Listening for peers that dial us.

use std::sync::Arc;
use std::time::Duration;

use godwit_core::PeerId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

use super::link::{self, LinkError, STEP_LIMIT};
use super::{MAX_HANDSHAKES, Shared, tls};

/// Accepts peers for as long as the runtime lives.
pub(super) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    loop {
        let permit = handshakes.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, from)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let accepted = timeout(STEP_LIMIT, accept(&shared, stream)).await;
                    drop(permit);
                    let error = match accepted.unwrap_or(Err(LinkError::Timeout)) {
                        Ok((peer, stream)) => {
                            let (stream, tls) = stream.into_inner();
                            link::run(&shared, peer, (stream, tls.into())).await.err()
                        }
                        Err(error) => Some(error),
                    };
                    if let Some(error) = error {
                        tracing::info!(%from, %error, "link closed");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: they come back.
                tracing::warn!(%error, "can't accept peers");
                sleep(Duration::from_millis(100)).await;
            }
        }
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
