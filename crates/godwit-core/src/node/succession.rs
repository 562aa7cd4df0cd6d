//! Whether anybody could be elected if the owner failed now.
//!
//! A standby that is in sync is not enough: without a majority of voters that know
//! the lease nobody may take over. A voter that was restarted has forgotten, and
//! keeps quiet for a while (`lease::Terms::quarantine`).

use super::context::Context;
use super::event::ShareNews;
use super::share::ShareSide;
use crate::MonoTime;
use crate::share::State;

/// What has been told of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Succession {
    /// Since when nobody could be elected.
    doubtful_since: Option<MonoTime>,
    told: bool,
}

impl Succession {
    /// Whether it was so when this node last had something to do, which is at least
    /// once per term.
    pub(super) const fn is_doubtful(&self) -> bool {
        self.doubtful_since.is_some()
    }
}

impl ShareSide {
    /// As the owner: whether a standby in sync could take over. Without leases
    /// nobody needs to be elected.
    fn can_be_succeeded(&self, now: MonoTime) -> bool {
        self.lease
            .as_ref()
            .is_none_or(|lease| lease.proposer.can_be_succeeded(now))
    }

    /// Tells when that changes. For less than a term it may be that an answer was
    /// lost, or that the owner has only just begun.
    pub(super) fn settle_succession(&mut self, context: &mut Context<'_>) {
        let matters = self.machine.state() == State::Owner && !self.in_sync.generation().is_none();
        if !matters || self.can_be_succeeded(context.now) {
            self.succession.doubtful_since = None;
            if std::mem::take(&mut self.succession.told) && matters {
                context.tell(self.id, ShareNews::QuorumBack);
            }
            return;
        }
        let since = self.succession.doubtful_since.get_or_insert(context.now);
        let patience = self.lease.as_ref().map(|lease| lease.term());
        let over = patience.is_some_and(|term| since.saturating_add(term) <= context.now);
        if over && !self.succession.told {
            self.succession.told = true;
            context.tell(self.id, ShareNews::NoQuorum);
        }
    }
}
