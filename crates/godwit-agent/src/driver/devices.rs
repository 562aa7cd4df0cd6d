//! Interfaces that come and go while the agent runs: each way out of this
//! machine beside the service interface gets its guard.

use std::io;
use std::thread;

use godwit_sock::{DeviceWatch, Devices};

use super::Driver;
use crate::input::{Inbox, Input};
use crate::realtime::{Urgency, prefer};

impl Driver {
    /// Puts `guard` where it belongs now.
    pub(super) fn guard_others(&mut self) {
        let devices = match Devices::read() {
            Ok(devices) => devices,
            Err(error) => {
                return tracing::warn!(error = %error, "can't list the network interfaces");
            }
        };
        if let Err(error) = self.datapath.guard(&devices.others(self.ifindex)) {
            tracing::warn!(error = %error, "an interface is without its guard");
        }
    }
}

/// Tells the driver of changes until it is gone.
///
/// An interface is guarded when two threads have run once: much sooner than it
/// has an address and a route, unless these come with the same breath.
pub(crate) fn spawn_watch(inbox: Inbox) -> io::Result<()> {
    let watch = DeviceWatch::open()?;
    thread::Builder::new()
        .name("gw-devices".into())
        .spawn(move || {
            prefer("gw-devices", Urgency::Decisions);
            loop {
                if let Err(error) = watch.wait() {
                    return tracing::error!(%error, "new interfaces are noticed late from now on");
                }
                if inbox.send(Input::Devices).is_err() {
                    return;
                }
            }
        })
        .map(drop)
}
