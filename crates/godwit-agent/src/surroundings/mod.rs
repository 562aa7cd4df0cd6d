//! What this node relies on and does not control, watched as long as it runs.
//!
//! A *fact* has a stable name, and while it is wrong: what was found, what to do, and a
//! [`Consequence`]. Facts come from *sources*. A source looks at one thing (sysctls,
//! certificates, firewall rules) when an event says that it may have changed, and says
//! in a [`Look`] what is wrong there now. What it no longer names is right again.
//!
//! ```text
//!  inotify, netlink, timers ──► source ── Look ──► driver (Input::Facts)
//!                                                     ├──► status, metrics, events
//!                                                     └──► core: who stands by, who owns
//! ```
//!
//! Sources that ask the kernel are `gw-facts`', those that read files which people have named
//! `gw-files`' (`docs/threads.md`).
//!
//! A source that lives elsewhere sends [`Input::Facts`](crate::input::Input::Facts) by
//! itself. `godwit doctor` makes the same checks ([`crate::doctor`]). Nothing here is
//! ever waited for by the driver. To add a fact: make a [`Wrong`] with a new name in
//! the look of a source, and describe it in `docs/facts.md`.

mod board;
mod certificates;
mod claims;
mod clocks;
mod file;
mod firewall;
mod left;
mod queues;
mod revocations;
mod room;
mod sysctl;
mod watch;

use std::collections::BTreeMap;

use godwit_core::fitness::Consequence;

use crate::doctor::{Check, Level};
use crate::facts::{Look, Wrong};

pub(crate) use board::FactBoard;
pub(crate) use watch::spawn;

/// What checks of [`crate::doctor`] make of a machine: those that warn or fail are
/// wrong.
fn of_checks(source: &'static str, checks: Vec<Check>) -> Look {
    let watched = checks.iter().map(|check| check.name.clone()).collect();
    let bad = checks
        .into_iter()
        .filter(|check| check.level != Level::Ok)
        .map(|check| Wrong {
            consequence: consequence(&check),
            name: check.name,
            share: None,
            found: check.found,
            advice: check.advice.unwrap_or_default(),
        });
    Look {
        source,
        watched,
        wrong: bad.collect(),
        days_left: BTreeMap::new(),
    }
}

/// What follows from a check of the doctor that did not go well.
fn consequence(check: &Check) -> Consequence {
    match (check.level, check.name.as_str()) {
        (Level::Fail, "tcp_syncookies" | "conntrack") => Consequence::NoTwins,
        (Level::Fail, "arp_ignore" | "ipv6") => Consequence::NoService,
        (Level::Ok | Level::Warn | Level::Fail, _) => Consequence::Say,
    }
}
