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

/// Of a segment; the control is the same once more, in turns.
const fn segment(name: &'static str) -> Spec {
    figure(Theme::Datapath, name, "ns", Target::None)
}

const fn verified(name: &'static str, target: Target) -> Spec {
    figure(Theme::Datapath, name, "insns", target)
}

const fn flood(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Flood, name, unit, target)
}

/// Per second.
const fn flooded(name: &'static str) -> Spec {
    flood(name, "1/s", Target::None)
}

/// Of the ten connections that were there before.
const fn flood_bare(name: &'static str) -> Spec {
    flood(name, "flows", AtMost(0.0))
}

const fn flood_event(name: &'static str) -> Spec {
    flood(name, "events", AtMost(0.0))
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
    segment("datapath.owner.in.v4.p50"),
    segment("datapath.owner.in.v4.p99"),
    segment("datapath.owner.in.v6.p50"),
    segment("datapath.owner.in.v6.p99"),
    segment("datapath.owner.out.v4.p50"),
    segment("datapath.owner.out.v4.p99"),
    segment("datapath.owner.out.v6.p50"),
    segment("datapath.owner.out.v6.p99"),
    segment("datapath.owner.twin.v4.p50"),
    segment("datapath.owner.twin.v4.p99"),
    segment("datapath.owner.twin.v6.p50"),
    segment("datapath.owner.twin.v6.p99"),
    segment("datapath.shadow.in.v4.p50"),
    segment("datapath.shadow.in.v4.p99"),
    segment("datapath.shadow.in.v6.p50"),
    segment("datapath.shadow.in.v6.p99"),
    segment("datapath.shadow.out.v4.p50"),
    segment("datapath.shadow.out.v4.p99"),
    segment("datapath.shadow.out.v6.p50"),
    segment("datapath.shadow.out.v6.p99"),
    verified("datapath.verified.beside", Target::None),
    verified("datapath.verified.gate", AtMost(140_000.0)),
    verified("datapath.verified.guard", Target::None),
    verified("datapath.verified.install", Target::None),
    verified("datapath.verified.order", Target::None),
    verified("datapath.verified.process_exit", AtMost(140_000.0)),
    verified("datapath.verified.signal_sent", Target::None),
    verified("datapath.verified.signal_taken", Target::None),
    verified("datapath.verified.tap", AtMost(140_000.0)),
    flooded("flood.real.sent"),
    flooded("flood.real.completed"),
    flooded("flood.real.twins"),
    flood("flood.real.longest", "ms", Target::None),
    flood("flood.real.hiccup", "ms", Target::None),
    flood_bare("flood.real.unprotected"),
    flood_event("flood.real.takeovers"),
    flood_event("flood.real.lapses"),
    flood_event("flood.real.standbys_lost"),
    flooded("flood.spoofed.sent"),
    flooded("flood.spoofed.answered"),
    flood("flood.spoofed.longest", "ms", Target::None),
    flood("flood.spoofed.hiccup", "ms", Target::None),
    flood_bare("flood.spoofed.unprotected"),
    flood_event("flood.spoofed.takeovers"),
    flood_event("flood.spoofed.lapses"),
    flood_event("flood.spoofed.standbys_lost"),
    flooded("flood.most.sent"),
    flooded("flood.most.completed"),
    flooded("flood.most.twins"),
    flood("flood.most.longest", "ms", Target::None),
    flood("flood.most.hiccup", "ms", Target::None),
    flood_bare("flood.most.unprotected"),
    flood_event("flood.most.takeovers"),
    flood_event("flood.most.lapses"),
    flood_event("flood.most.standbys_lost"),
];
