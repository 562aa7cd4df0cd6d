//! Dialling a peer, again and again.

use std::sync::Arc;
use std::time::Duration;

use godwit_core::PeerId;
use tokio::net::TcpSocket;
use tokio::time::{Instant, sleep, timeout};

use super::link::{self, LinkError, STEP_LIMIT};
use super::no_link::Absence;
use super::{Shared, tls};

/// First pause between attempts; doubled up to [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// A peer that returns is noticed within this. Until then a standby that was
/// restarted can't tell whether its owner is alive.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Who is refused may be so for long: it is noticed that it is not any more within this.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A link that lived this long was a good one: start over with short pauses.
const GOOD: Duration = Duration::from_secs(5);

/// Keeps a link to a peer for as long as the driver lives.
pub(super) async fn run(shared: Arc<Shared>, peer: PeerId) {
    let mut pause = SHORTEST_PAUSE;
    let mut last_error = String::new();
    loop {
        let begun = Instant::now();
        let mut longest = LONGEST_PAUSE;
        match dial(&shared, peer).await {
            Ok(()) => {}
            Err(LinkError::Driver(_)) => return,
            Err(error) => {
                shared.note_absence(peer, &error);
                let absence = Absence::of(&error);
                if absence.as_ref().is_some_and(|it| it.reason.is_refusal()) {
                    longest = REFUSED_PAUSE;
                }
                // A peer that is down fails alike each second: said once.
                let error = absence.map_or_else(|| error.to_string(), |it| it.to_string());
                let kind = without_numbers(&error);
                if kind != last_error {
                    let name = shared.slot(peer).map(|slot| slot.peer.name.to_string());
                    tracing::info!(peer = name, %error, "no link to peer");
                    last_error = kind;
                }
            }
        }
        if begun.elapsed() > GOOD {
            pause = SHORTEST_PAUSE;
            last_error.clear();
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// Since when a certificate has expired is another number each second, and no other error.
fn without_numbers(text: &str) -> String {
    text.chars().filter(|it| !it.is_ascii_digit()).collect()
}

async fn dial(shared: &Shared, peer: PeerId) -> Result<(), LinkError> {
    let Some(slot) = shared.slot(peer) else {
        return Err(LinkError::Stranger);
    };
    let (address, name) = (slot.peer.control, slot.peer.name);
    let connect = async {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }?;
        // Listeners have places for the addresses that their files name.
        let bound = socket.bind(shared.own_address);
        bound.map_err(LinkError::Unreachable)?;
        let stream = socket.connect(address).await;
        let stream = stream.map_err(LinkError::Unreachable)?;
        link::prepare(&stream)?;
        let server = tls::server_name(name).ok_or(LinkError::Stranger)?;
        let stream = shared.identity.connector().connect(server, stream).await?;
        Ok::<_, LinkError>(stream)
    };
    let stream = timeout(STEP_LIMIT, connect)
        .await
        .map_err(|_| LinkError::Timeout)??;
    let (stream, tls) = stream.into_inner();
    link::run(shared, peer, (stream, tls.into())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_whose_numbers_change_is_the_same_one() {
        let expired = |seconds: u64| {
            let text = format!("certificate expired: verification time {seconds} (UNIX)");
            without_numbers(&text)
        };
        assert_eq!(expired(99), expired(100));
        assert_ne!(expired(99), without_numbers("connection refused"));
    }
}
