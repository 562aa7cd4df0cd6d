//! What keeps an old owner silent: the end of its lease, or its power switch.

use std::process::{Command, Stdio};
use std::thread;

use godwit_bpf::Expiry;
use godwit_core::{MonoTime, PeerId};
use godwit_wire::ShareId;

use super::Driver;
use crate::input::{Inbox, Input};

/// The data path's clock is the core's.
pub(super) fn to_expiry(expiry: Option<MonoTime>) -> Expiry {
    expiry.map_or(Expiry::Never, |at| Expiry::At(at.as_nanos()))
}

/// The same the other way round, of what an earlier agent left.
pub(super) fn from_expiry(expiry: Expiry) -> Option<MonoTime> {
    match expiry {
        Expiry::Never => None,
        Expiry::At(ns) => Some(MonoTime::from_nanos(ns)),
    }
}

impl Driver {
    /// One store in the data path, every few milliseconds.
    pub(super) fn renew(&mut self, share: ShareId, expiry: MonoTime) {
        let Some(state) = self.shares.get_mut(share) else {
            return;
        };
        state.entry.expiry = to_expiry(Some(expiry));
        if let Err(error) = self.datapath.shares.renew(share, state.entry.expiry) {
            tracing::error!(share = share.0, error = %error, "lease not written");
        }
    }

    /// Runs the configured command on a thread of its own.
    pub(super) fn power_off(&self, peer: PeerId) {
        let node = self.config.others().nth(usize::from(peer.0));
        let (Some(node), Some(command)) = (node, self.config.detect.stonith.clone()) else {
            return;
        };
        let (name, inbox) = (node.name.to_string(), self.inbox.clone());
        let run = move || report(&inbox, peer, is_powered_off(&command, &name));
        let spawned = thread::Builder::new().name("gw-stonith".into()).spawn(run);
        if let Err(error) = spawned {
            tracing::error!(error = %error, "no thread for the stonith command");
            report(&self.inbox, peer, false);
        }
    }
}

/// The shell runs it with the node's name in `GODWIT_NODE`; it must return 0
/// only when that node has no power.
fn is_powered_off(command: &str, node: &str) -> bool {
    let status = Command::new("/bin/sh")
        .args(["-c", command])
        .env("GODWIT_NODE", node)
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => true,
        Ok(status) => {
            tracing::error!(node, %status, "the stonith command failed");
            false
        }
        Err(error) => {
            tracing::error!(node, %error, "the stonith command can't be run");
            false
        }
    }
}

/// Nobody to tell: the driver has ended.
fn report(inbox: &Inbox, peer: PeerId, off: bool) {
    let _ = inbox.offer(Input::Stonith { peer, off });
}
