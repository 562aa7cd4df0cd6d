//! What the core promises of its actions (`Action`).

use godwit_core::Action;
use godwit_wire::Role;

use super::Entry;

/// The contract of `Action` for a planned move.
pub(super) fn observe_move(entry: Entry, action: &Action) {
    if let Action::HandOver { .. } = action {
        return assert_eq!(entry.role, Role::Shadow, "silent first");
    }
    assert_eq!(entry.role, Role::Owner, "only an owner speaks");
    if let Action::Resume { .. } = action {
        assert!(!entry.generation.is_none(), "gated from the first word on");
    }
}

/// The contract of `Action` for a takeover, within the batch that begins it.
pub(super) fn check_order(batch: &[Action]) {
    let position = |wanted: fn(&Action) -> bool| batch.iter().position(wanted);
    let revive = position(|action| matches!(action, Action::Revive { attempt: 0, .. }));
    let announce = position(|action| matches!(action, Action::Announce { .. }));
    let write = position(|action| {
        matches!(
            action,
            Action::SetShare {
                role: Role::Owner,
                ..
            }
        )
    });
    if revive.is_some() {
        assert!(write < announce && announce < revive, "{batch:?}");
    }
}
