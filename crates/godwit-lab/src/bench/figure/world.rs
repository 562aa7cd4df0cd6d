//! The figures of benchmarks in which nothing fails, or for long, and the world changes.

use super::Target::{self, AtMost};
use super::{Spec, Theme, figure};

const fn dead(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Dead, name, unit, target)
}

const fn idle(name: &'static str, target: Target) -> Spec {
    figure(Theme::Idle, name, "% of a core", target)
}

/// From the change on, the longest of all runs.
const fn change(name: &'static str) -> Spec {
    figure(Theme::Changes, name, "ms", AtMost(1000.0))
}

const fn reload(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Reload, name, unit, target)
}

const fn exit(name: &'static str) -> Spec {
    figure(Theme::Exit, name, "ms", AtMost(1.0))
}

pub(super) const SPECS: &[Spec] = &[
    dead("dead.minutes", "min", Target::None),
    dead("dead.longest", "ms", AtMost(20.0)),
    dead("dead.lapses", "events", AtMost(0.0)),
    idle("idle.owner", Target::None),
    idle("idle.standby", Target::None),
    idle("idle.watches", AtMost(0.5)),
    idle("idle.hot", Target::None),
    change("changes.conflict"),
    change("changes.mac"),
    change("changes.anew"),
    change("changes.certificate"),
    change("changes.address.v4"),
    change("changes.address.v6"),
    change("changes.down_up"),
    change("changes.carrier"),
    change("changes.mtu"),
    change("changes.bridge"),
    change("changes.qdisc"),
    change("changes.syncookies"),
    change("changes.ecn"),
    change("changes.arp_ignore"),
    change("changes.rp_filter"),
    change("changes.rule.port"),
    change("changes.rule.invalid"),
    change("changes.rule.new"),
    change("changes.loose"),
    change("changes.back"),
    reload("reload.changes", "changes", Target::None),
    reload("reload.resets", "segments", AtMost(0.0)),
    reload("reload.voices", "flows", AtMost(0.0)),
    reload("reload.broken", "streams", AtMost(0.0)),
    reload("reload.longest", "ms", AtMost(50.0)),
    exit("exit.files"),
    exit("exit.sockets"),
];
