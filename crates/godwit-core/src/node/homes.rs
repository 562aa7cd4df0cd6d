//! Where a share begins: an address is in one place, so a share that nobody owns yet begins
//! where another share of its address is, whoever is its primary.
//!
//! Example: `web` (10.0.0.100:80) is owned by `b`, and `mail` (10.0.0.100:25, primary `a`) is
//! added to the file of `a` and, later, of `b`. `a` waits, and `b` begins to own `mail` when
//! its file has it.

use super::Node;
use super::share::ShareSide;
use crate::MonoTime;
use crate::share::{Home, State};

impl Node {
    /// Tells each share that nobody owns yet where the others of its address are.
    pub(super) fn settle_homes(&mut self, now: MonoTime) {
        for (id, mates) in &self.mates {
            let homes = self.shares.iter().filter(|it| mates.contains(&it.id));
            let home = homes
                .map(|it| Self::home_of(it, now))
                .fold(Home::Unknown, nearer);
            let share = self.shares.iter_mut().find(|it| it.id == *id);
            if let Some(share) = share {
                share.machine.handle_home(home, now);
            }
        }
    }

    /// Where a share is. An owner that is not heard is still there: its agent may be about to
    /// come back, and if it does not, another node will own the share. So may one already if
    /// our own lease has ended.
    fn home_of(share: &ShareSide, now: MonoTime) -> Home {
        match share.machine.state() {
            State::Owner if share.is_silent(now) => Home::Elsewhere,
            State::Owner => Home::Here,
            State::Standby { owner: Some(_) } | State::Shadow { .. } => Home::Elsewhere,
            State::Starting { .. } | State::Standby { owner: None } | State::Quitting => {
                Home::Unknown
            }
        }
    }
}

/// Two shares of one address have two owners: this node serves its own.
fn nearer(one: Home, other: Home) -> Home {
    match (one, other) {
        (Home::Here, _) | (_, Home::Here) => Home::Here,
        (Home::Elsewhere, _) | (_, Home::Elsewhere) => Home::Elsewhere,
        (Home::Unknown, Home::Unknown) => Home::Unknown,
    }
}

#[cfg(test)]
mod tests;
