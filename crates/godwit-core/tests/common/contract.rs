//! What the core promises of its actions (`Action`).

use godwit_core::{Action, MoveAction, ShareAction};
use godwit_wire::Role;

use super::Entry;

/// The contract of `Action` for a planned move.
pub(super) fn observe_move(entry: Entry, action: &MoveAction) {
    match action {
        MoveAction::HandOver => assert_eq!(entry.role, Role::Shadow, "silent first"),
        MoveAction::CheckFlows { .. } | MoveAction::ResetUnprotected => {
            assert_eq!(entry.role, Role::Owner, "only an owner speaks");
        }
        MoveAction::Resume => {
            assert_eq!(entry.role, Role::Owner, "only an owner speaks");
            assert!(!entry.generation.is_none(), "gated from the first word on");
        }
        MoveAction::Ask { .. } | MoveAction::Ended { .. } => {}
    }
}

/// The contract of `Action` for a takeover, within the batch that begins it.
pub(super) fn check_order(batch: &[Action]) {
    let position = |wanted: fn(&Action) -> bool| batch.iter().position(wanted);
    let revive =
        position(|action| matches!(action, Action::Share(_, ShareAction::Revive { attempt: 0 })));
    let announce = position(|action| matches!(action, Action::Share(_, ShareAction::Announce)));
    let write = position(|action| {
        matches!(
            action,
            Action::Share(
                _,
                ShareAction::Set {
                    role: Role::Owner,
                    ..
                }
            )
        )
    });
    if revive.is_some() {
        assert!(write < announce && announce < revive, "{batch:?}");
    }
}
