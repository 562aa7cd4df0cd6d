//! File descriptors when there are none left: of the process (EMFILE) or of the host (ENFILE).
//!
//! Whoever looks at something opens it. Without a descriptor nothing is seen, and nothing
//! seen would look as if all were well: so [`Sight`] asks first, and what was said last stays.
//! The control socket keeps a [`Reserve`], or nobody could ask what is wrong.

use std::io;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::facts::Seen;
use crate::input::{DriverGone, Inbox, Input};

/// What one look opens at a time, at most.
const LOOK: usize = 4;

/// What a life of the agent may have more than the one before.
const LIFE: usize = 32;

/// Clients of the control socket that are served though no descriptor is left.
const CLIENTS: usize = 4;

/// Whether that is for want of descriptors.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn spare() -> nix::Result<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC)
}

/// Whether so many could be opened now.
fn are_left(count: usize) -> bool {
    let opened: Result<Vec<_>, _> = (0..count).map(|_| spare()).collect();
    opened.is_ok()
}

/// Whether another life can begin, and if not, a sentence.
///
/// # Errors
/// If there is no room for what it would open.
pub(crate) fn suffice_for_a_life() -> Result<(), String> {
    if are_left(LIFE) {
        return Ok(());
    }
    Err(format!(
        "fewer than {LIFE} file descriptors are left, which the changed file may need: raise \
         LimitNOFILE of godwit.service (or fs.file-max) and restart the agent"
    ))
}

/// The eyes of one source of facts.
#[derive(Debug)]
pub(crate) struct Sight {
    source: &'static str,
    is_blind: bool,
}

impl Sight {
    pub(crate) const fn new(source: &'static str) -> Self {
        Self {
            source,
            is_blind: false,
        }
    }

    /// Whether the source can look now. Where it can't, the driver hears so once; the next
    /// look is to be told to it, even if it is no news otherwise.
    ///
    /// # Errors
    /// If the driver has ended.
    pub(crate) fn sees(&mut self, inbox: &Inbox) -> Result<bool, DriverGone> {
        self.sees_with(are_left(LOOK), inbox)
    }

    fn sees_with(&mut self, can: bool, inbox: &Inbox) -> Result<bool, DriverGone> {
        if !can && !std::mem::replace(&mut self.is_blind, true) {
            inbox.send(Input::Facts(Seen::Nothing(self.source)))?;
        }
        Ok(can)
    }

    /// Whether it could not look before; it has looked now.
    pub(crate) const fn opens(&mut self) -> bool {
        std::mem::replace(&mut self.is_blind, false)
    }
}

/// Descriptors that are given up one by one for what must be answered.
#[derive(Debug, Default)]
pub(crate) struct Reserve(Vec<EventFd>);

impl Reserve {
    /// Takes back what there is room for.
    pub(crate) fn refill(&mut self) {
        while self.0.len() < CLIENTS {
            let Ok(spare) = spare() else {
                return;
            };
            self.0.push(spare);
        }
    }

    /// Gives one up, if there is one.
    pub(crate) fn release(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_alone, take_all};

    #[test]
    fn a_shortage_is_known_and_a_reserve_bridges_it() {
        if is_alone("descriptors::tests::a_shortage_is_known_and_a_reserve_bridges_it") {
            let mut all = take_all();
            let mut reserve = Reserve::default();
            assert!(!are_left(1));
            let sentence = suffice_for_a_life().expect_err("nothing is left");
            assert!(sentence.contains("LimitNOFILE"), "{sentence}");
            let error = std::fs::File::open("/dev/null").expect_err("nothing is left");
            assert!(is_shortage(&error), "{error}");
            reserve.refill();
            assert!(!reserve.release(), "it came too late");
            all.truncate(all.len() - CLIENTS);
            reserve.refill();
            assert!(!are_left(1));
            assert!(reserve.release() && are_left(1));
            all.truncate(all.len() - LIFE);
            suffice_for_a_life().expect("there is room");
        }
    }

    #[test]
    fn it_is_said_once_that_a_source_can_not_look() {
        let (inbox, inputs) = Inbox::new();
        let mut sight = Sight::new("room");
        assert!(sight.sees_with(true, &inbox).expect("the driver is there"));
        assert!(!sight.opens());
        for _ in 0..3 {
            assert!(!sight.sees_with(false, &inbox).expect("the driver is there"));
        }
        let said = std::iter::from_fn(|| inputs.try_recv().ok());
        let said = said.filter(|it| matches!(it, Input::Facts(Seen::Nothing("room"))));
        assert_eq!(said.count(), 1);
        assert!(sight.opens() && !sight.opens());
    }
}
