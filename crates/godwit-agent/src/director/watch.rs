//! Hearing of interfaces and addresses.

use std::io;
use std::thread;
use std::time::Duration;

use godwit_sock::NetworkWatch;

use crate::input::{Inbox, Input};
use crate::realtime::{Urgency, prefer};

/// How often it looks whether the director is gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tells the director of changes until it is gone.
pub(super) fn spawn_watch(inbox: Inbox) -> io::Result<()> {
    let watch = NetworkWatch::open()?;
    thread::Builder::new()
        .name("gw-devices".into())
        .spawn(move || {
            prefer("gw-devices", Urgency::Decisions);
            while !inbox.is_closed() {
                let changes = match watch.wait(PATIENCE) {
                    Ok(changes) => changes,
                    Err(error) => {
                        return tracing::error!(%error, "changes of interfaces are not noticed");
                    }
                };
                let is_told = changes.place || changes.lost;
                if is_told && inbox.send(Input::Devices).is_err() {
                    return;
                }
            }
        })
        .map(drop)
}
