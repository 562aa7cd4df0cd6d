//! What keeps an old owner silent: the end of its lease, or its power switch.

use godwit_bpf::Expiry;
use godwit_core::{MonoTime, PeerId, StonithFault};
use godwit_wire::ShareId;

use super::ground::Ground;
use crate::clock;
use crate::stonith::Stonith;

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

/// One store in the data path, every few milliseconds.
pub(super) fn renew(ground: &mut Ground, share: ShareId, expiry: MonoTime) {
    let Some(state) = ground.shares.get_mut(share) else {
        return;
    };
    state.entry.expiry = to_expiry(Some(expiry));
    if let Err(error) = ground.datapath.shares.renew(share, state.entry.expiry) {
        tracing::error!(share = share.0, error = %error, "lease not written");
    }
}

/// Has the helper run the configured command.
pub(super) fn power_off(ground: &mut Ground, stonith: &Stonith, peer: PeerId) {
    if !stonith.power_off(peer) {
        tracing::error!(peer = peer.0, "no stonith helper for this peer");
        let outcome = Err(StonithFault::NotRun);
        ground.node.handle_stonith(peer, outcome, clock::now());
    }
}
