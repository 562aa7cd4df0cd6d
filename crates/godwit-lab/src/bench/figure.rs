//! Every figure there is: its name, unit and target, and where it is measured.
//!
//! `bench/README.md` describes each for people.

mod handoff;
mod world;

/// What is measured together, in the order in which it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    Machine,
    Ratio,
    Standby,
    Zero,
    Process,
    SlowBeat,
    Hung,
    Multicast,
    Tap,
    Crowd,
    Recovery,
    Leased,
    LeasedMulticast,
    Frozen,
    Calm,
    Dead,
    Idle,
    Changes,
    Reload,
    Exit,
    Peers,
    Reprotect,
    Moved,
    Migrate,
    Batch,
    Export,
    Origin,
    Slowing,
    Many,
    Director,
    Handoff,
    Datapath,
    Flood,
}

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// No more than the control, which is plain TCP doing the same.
    Control,
    /// Nothing: it says how another figure was measured.
    None,
}

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) target: Target,
    pub(super) theme: Theme,
}

impl Theme {
    /// What the benchmark called `name` measures, in this order. What a quick one
    /// may have no time for comes last.
    pub(super) fn of(name: &str) -> Option<&'static [Self]> {
        let mut benches = Self::BENCHES.into_iter();
        benches.find(|bench| bench.0 == name).map(|bench| bench.1)
    }

    /// Every benchmark, and what it measures.
    const BENCHES: [(&'static str, &'static [Self]); 12] = [
        ("standby", &Self::STANDBY),
        ("failover", &Self::FAILOVER),
        ("dead", &Self::DEAD),
        ("idle", &Self::IDLE),
        ("changes", &Self::CHANGES),
        ("reload", &Self::RELOAD),
        ("exit", &Self::EXIT),
        ("migrate", &Self::MIGRATE),
        ("director", &Self::DIRECTOR),
        ("handoff", &Self::HANDOFF),
        ("datapath", &Self::DATAPATH),
        ("flood", &Self::FLOOD),
    ];

    const DIRECTOR: [Self; 1] = [Self::Director];

    const DATAPATH: [Self; 1] = [Self::Datapath];

    const FLOOD: [Self; 1] = [Self::Flood];

    const DEAD: [Self; 1] = [Self::Dead];

    const IDLE: [Self; 1] = [Self::Idle];

    const CHANGES: [Self; 1] = [Self::Changes];

    const RELOAD: [Self; 1] = [Self::Reload];

    const EXIT: [Self; 1] = [Self::Exit];

    const HANDOFF: [Self; 1] = [Self::Handoff];

    const MIGRATE: [Self; 6] = [
        Self::Migrate,
        Self::Batch,
        Self::Export,
        Self::Origin,
        Self::Slowing,
        Self::Many,
    ];

    const FAILOVER: [Self; 8] = [
        Self::Process,
        Self::Moved,
        Self::Leased,
        Self::LeasedMulticast,
        Self::Reprotect,
        Self::Frozen,
        Self::Calm,
        Self::Peers,
    ];

    const STANDBY: [Self; 11] = [
        Self::Machine,
        Self::Ratio,
        Self::Zero,
        Self::Standby,
        Self::Process,
        Self::SlowBeat,
        Self::Hung,
        Self::Multicast,
        Self::Tap,
        Self::Crowd,
        Self::Recovery,
    ];

    /// A line for the person who waits.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Machine => "the owner goes dark, heartbeat 10 ms x 3",
            Self::Ratio => "total times at 9 ms round trip and 1 Gbit/s",
            Self::Standby => "the standby fails",
            Self::Zero => "no delay, no shaping",
            Self::Process => "the owner's server process is killed",
            Self::SlowBeat => "the owner goes dark, heartbeat 50 ms x 3",
            Self::Hung => "the owner hangs and its link stays up",
            Self::Multicast => "the owner hangs, the network copies (multicast tap)",
            Self::Tap => "1 % of the mirrored segments are lost",
            Self::Crowd => "10 000 idle and 100 busy connections",
            Self::Recovery => "retransmissions after a takeover",
            Self::Leased => "the owner goes dark, lease 60 ms, heartbeat 10 ms x 3",
            Self::LeasedMulticast => "the same, and the network copies (multicast tap)",
            Self::Frozen => "the owner is stopped, and resumes",
            Self::Calm => "nothing fails, at load average 8",
            Self::Dead => "a machine dies and stays dead",
            Self::Idle => "what an idle agent costs",
            Self::Changes => "what changes around a node, until it is followed or said",
            Self::Reload => "the configuration changes under running connections",
            Self::Exit => "a process with 500 000 descriptors is killed on an owner",
            Self::Peers => "keepalived + haproxy, and Godwit",
            Self::Reprotect => "a standby returns to a running download",
            Self::Moved => "the service is moved as planned",
            Self::Migrate => "single connections move",
            Self::Batch => "a thousand connections move in one order",
            Self::Export => "what an export costs",
            Self::Origin => "the origin dies, its snapshots are on the standby",
            Self::Slowing => "servers that slow down, and a client that leaves them",
            Self::Many => "ten thousand moves of busy streams",
            Self::Director => "three servers behind a director",
            Self::Handoff => "requests that are handed to the server that has their file",
            Self::Datapath => "segments in the hooks, one at a time",
            Self::Flood => "floods of handshakes, real and spoofed",
        }
    }

    /// The figures of this theme, in the order in which they are printed.
    pub(super) fn specs(self) -> impl Iterator<Item = &'static Spec> {
        all().filter(move |spec| spec.theme == self)
    }
}

/// The figure called `name`.
pub(super) fn spec(name: &str) -> Option<&'static Spec> {
    all().find(|spec| spec.name == name)
}

fn all() -> impl Iterator<Item = &'static Spec> {
    SPECS.iter().chain(handoff::SPECS).chain(world::SPECS)
}

use Target::{AtLeast, AtMost, Control};

const fn figure(theme: Theme, name: &'static str, unit: &'static str, target: Target) -> Spec {
    Spec {
        name,
        unit,
        target,
        theme,
    }
}

/// Runs that are not counted, as the machine itself stood still; of all.
const fn disturbed(theme: Theme, name: &'static str) -> Spec {
    figure(theme, name, "runs", Target::None)
}

/// Millions of frames per second, on one processor.
const FRAMES: &str = "Mframes/s";

const fn director(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Director, name, unit, target)
}

const fn moved(name: &'static str, most: f64) -> Spec {
    figure(Theme::Moved, name, "ms", AtMost(most))
}

/// From the order to the first byte that the new server says.
const fn first_data(name: &'static str, target: Target) -> Spec {
    figure(Theme::Migrate, name, "ms", target)
}

const fn migrate(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Migrate, name, unit, target)
}

/// Microseconds of a call.
const fn export(name: &'static str, target: Target) -> Spec {
    figure(Theme::Export, name, "us", target)
}

const fn origin(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Origin, name, unit, target)
}

/// Bytes of the stream by the time it took; the control is a server that does not slow
/// down.
const fn slowing(name: &'static str) -> Spec {
    figure(Theme::Slowing, name, "KB/s", Target::None)
}

const fn many(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Many, name, unit, target)
}

const fn batch(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Batch, name, unit, target)
}

const fn machine(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Machine, name, unit, target)
}

const fn ratio(name: &'static str) -> Spec {
    figure(Theme::Ratio, name, "ratio", AtMost(1.02))
}

/// Detection takes at most 30 ms; the targets are that and 5 or 20 ms more.
const fn standby(name: &'static str, most: f64) -> Spec {
    figure(Theme::Standby, name, "ms", AtMost(most))
}

/// No detection is needed: the kernel says so before it closes anything.
const fn process(name: &'static str, most: f64) -> Spec {
    figure(Theme::Process, name, "ms", AtMost(most))
}

/// The rest of the lease, and the voters' round.
const fn leased(name: &'static str, most: f64) -> Spec {
    figure(Theme::Leased, name, "ms", AtMost(most))
}

const fn leased_multicast(name: &'static str, most: f64) -> Spec {
    figure(Theme::LeasedMulticast, name, "ms", AtMost(most))
}

const fn peers(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Peers, name, unit, target)
}

const fn frozen(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Frozen, name, unit, target)
}

const fn calm(name: &'static str, unit: &'static str, target: Target) -> Spec {
    figure(Theme::Calm, name, unit, target)
}

const fn slow(name: &'static str) -> Spec {
    figure(Theme::SlowBeat, name, "ms", AtMost(165.0))
}

const fn hung(name: &'static str) -> Spec {
    figure(Theme::Hung, name, "ms", Target::None)
}

const fn multicast(name: &'static str, most: f64) -> Spec {
    figure(Theme::Multicast, name, "ms", AtMost(most))
}

const SPECS: &[Spec] = &[
    machine("stall.machine.download.p50", "ms", AtMost(38.0)),
    machine("stall.machine.download.p99", "ms", AtMost(60.0)),
    machine("stall.machine.upload.p50", "ms", AtMost(38.0)),
    machine("stall.machine.upload.p99", "ms", AtMost(60.0)),
    machine("stall.machine.echo.p50", "ms", AtMost(38.0)),
    machine("stall.machine.echo.p99", "ms", AtMost(60.0)),
    machine(
        "stall.machine.download.after_detection.p50",
        "ms",
        AtMost(5.0),
    ),
    machine(
        "stall.machine.upload.after_detection.p50",
        "ms",
        AtMost(5.0),
    ),
    machine("stall.machine.echo.after_detection.p50", "ms", AtMost(5.0)),
    machine("stall.machine.detection.p50", "ms", Target::None),
    machine("exact.broken", "streams", AtMost(0.0)),
    machine("exact.unprotected", "runs", AtMost(0.0)),
    machine("exact.idle", "runs", AtMost(0.0)),
    machine("exact.rst", "segments", AtMost(0.0)),
    disturbed(Theme::Machine, "stall.machine.disturbed"),
    ratio("ratio.echo.100x150"),
    ratio("ratio.interactive.100x10k"),
    ratio("ratio.bulk.down.1m"),
    ratio("ratio.bulk.down.5m"),
    ratio("ratio.bulk.down.20m"),
    ratio("ratio.bulk.down.100m"),
    ratio("ratio.bulk.up.1m"),
    ratio("ratio.bulk.up.5m"),
    ratio("ratio.bulk.up.20m"),
    ratio("ratio.bulk.up.100m"),
    standby("stall.standby.dark.upload.p50", 35.0),
    standby("stall.standby.dark.upload.p99", 50.0),
    standby("stall.standby.dark.echo.p50", 35.0),
    standby("stall.standby.dark.echo.p99", 50.0),
    standby("stall.standby.stopped.upload.p50", 35.0),
    standby("stall.standby.stopped.upload.p99", 50.0),
    standby("stall.standby.stopped.echo.p50", 35.0),
    standby("stall.standby.stopped.echo.p99", 50.0),
    standby("stall.standby.server_killed.upload.p50", 35.0),
    standby("stall.standby.server_killed.upload.p99", 50.0),
    standby("stall.standby.server_killed.echo.p50", 35.0),
    standby("stall.standby.server_killed.echo.p99", 50.0),
    figure(
        Theme::Standby,
        "stall.standby.broken",
        "streams",
        AtMost(0.0),
    ),
    figure(
        Theme::Standby,
        "stall.standby.unprotected",
        "runs",
        AtMost(0.0),
    ),
    figure(Theme::Zero, "echo.added.p50", "us", AtMost(30.0)),
    figure(
        Theme::Zero,
        "throughput.download.ratio",
        "ratio",
        AtLeast(0.5),
    ),
    figure(
        Theme::Zero,
        "throughput.upload.ratio",
        "ratio",
        AtLeast(0.4),
    ),
    figure(
        Theme::Zero,
        "throughput.download.absolute",
        "Gbit/s",
        Target::None,
    ),
    figure(
        Theme::Zero,
        "throughput.upload.absolute",
        "Gbit/s",
        AtLeast(4.0),
    ),
    figure(Theme::Zero, "owner.cpu.download", "ratio", AtMost(1.3)),
    figure(Theme::Zero, "owner.cpu.upload", "ratio", AtMost(1.3)),
    process("stall.process.download.p50", 5.0),
    process("stall.process.download.p99", 20.0),
    process("stall.process.upload.p50", 5.0),
    process("stall.process.upload.p99", 20.0),
    process("stall.process.echo.p50", 5.0),
    process("stall.process.echo.p99", 20.0),
    figure(
        Theme::Process,
        "stall.process.broken",
        "streams",
        AtMost(0.0),
    ),
    figure(
        Theme::Process,
        "stall.process.unprotected",
        "runs",
        AtMost(0.0),
    ),
    figure(Theme::Process, "stall.process.rst", "segments", AtMost(0.0)),
    disturbed(Theme::Process, "stall.process.disturbed"),
    figure(
        Theme::Process,
        "stall.process.disturbed.broken",
        "streams",
        Target::None,
    ),
    slow("stall.machine50.download.p50"),
    slow("stall.machine50.upload.p50"),
    slow("stall.machine50.echo.p50"),
    disturbed(Theme::SlowBeat, "stall.machine50.disturbed"),
    hung("stall.hung.download.p50"),
    hung("stall.hung.upload.p50"),
    hung("stall.hung.echo.p50"),
    disturbed(Theme::Hung, "stall.hung.disturbed"),
    multicast("stall.multicast.download.p50", 38.0),
    multicast("stall.multicast.download.p99", 60.0),
    multicast("stall.multicast.upload.p50", 38.0),
    multicast("stall.multicast.upload.p99", 60.0),
    multicast("stall.multicast.echo.p50", 38.0),
    multicast("stall.multicast.echo.p99", 60.0),
    disturbed(Theme::Multicast, "stall.multicast.disturbed"),
    figure(Theme::Tap, "tap.loss1.upload", "ratio", AtLeast(0.5)),
    figure(
        Theme::Crowd,
        "crowd.protected",
        "connections",
        AtLeast(10_100.0),
    ),
    figure(
        Theme::Crowd,
        "crowd.survivors",
        "connections",
        AtLeast(10_100.0),
    ),
    figure(Theme::Crowd, "crowd.stall.extra", "ms", AtMost(150.0)),
    figure(Theme::Crowd, "memory.flow.owner", "bytes", AtMost(1024.0)),
    figure(Theme::Crowd, "memory.flow.standby", "bytes", AtMost(1024.0)),
    figure(
        Theme::Recovery,
        "recovery.20ms.retransmissions",
        "segments",
        Control,
    ),
    figure(
        Theme::Recovery,
        "recovery.300ms.retransmissions",
        "segments",
        Control,
    ),
    leased("stall.leased.download.p50", 65.0),
    leased("stall.leased.download.p99", 90.0),
    leased("stall.leased.upload.p50", 65.0),
    leased("stall.leased.upload.p99", 90.0),
    leased("stall.leased.echo.p50", 65.0),
    leased("stall.leased.echo.p99", 90.0),
    figure(Theme::Leased, "stall.leased.broken", "streams", AtMost(0.0)),
    disturbed(Theme::Leased, "stall.leased.disturbed"),
    leased_multicast("stall.leased.multicast.download.p50", 65.0),
    leased_multicast("stall.leased.multicast.download.p99", 90.0),
    leased_multicast("stall.leased.multicast.upload.p50", 65.0),
    leased_multicast("stall.leased.multicast.upload.p99", 90.0),
    leased_multicast("stall.leased.multicast.echo.p50", 65.0),
    leased_multicast("stall.leased.multicast.echo.p99", 90.0),
    figure(
        Theme::LeasedMulticast,
        "stall.leased.multicast.broken",
        "streams",
        AtMost(0.0),
    ),
    disturbed(Theme::LeasedMulticast, "stall.leased.multicast.disturbed"),
    peers("peers.keepalived.broken", "streams", Target::None),
    peers("peers.keepalived.new.p50", "ms", Target::None),
    peers("peers.godwit.broken", "streams", AtMost(0.0)),
    peers("peers.godwit.new.p50", "ms", Target::None),
    frozen("frozen.seconds", "s", Target::None),
    frozen("frozen.late_segments", "segments", AtMost(0.0)),
    frozen("frozen.broken", "streams", AtMost(0.0)),
    calm("calm.minutes", "min", Target::None),
    calm("calm.load", "processes", Target::None),
    calm("calm.takeovers", "events", AtMost(0.0)),
    calm("calm.fences", "events", AtMost(0.0)),
    calm("calm.standbys_lost", "events", AtMost(0.0)),
    calm("calm.unexplained", "events", AtMost(0.0)),
    calm("calm.hiccups", "events", Target::None),
    calm("calm.longest_hiccup", "ms", Target::None),
    figure(
        Theme::Reprotect,
        "reprotect.download.p50",
        "ms",
        AtMost(1000.0),
    ),
    figure(
        Theme::Reprotect,
        "reprotect.download.p99",
        "ms",
        Target::None,
    ),
    figure(Theme::Reprotect, "reprotect.missed", "runs", AtMost(0.0)),
    disturbed(Theme::Reprotect, "reprotect.disturbed"),
    moved("stall.move.one.p50", 2.0),
    moved("stall.move.one.p99", 10.0),
    moved("stall.move.thousand.p50", 2.0),
    moved("stall.move.thousand.p99", 50.0),
    figure(Theme::Moved, "stall.move.broken", "streams", AtMost(0.0)),
    figure(Theme::Moved, "stall.move.refused", "moves", AtMost(0.0)),
    disturbed(Theme::Moved, "stall.move.one.disturbed"),
    disturbed(Theme::Moved, "stall.move.thousand.disturbed"),
    batch("migrate.batch.connections", "connections", Target::None),
    batch("migrate.batch.total.p50", "ms", AtMost(150.0)),
    batch("migrate.batch.freeze.p50", "ms", Target::None),
    batch("migrate.batch.freeze.p99", "ms", AtMost(5.0)),
    batch("migrate.batch.wait.p50", "ms", Target::None),
    batch("migrate.batch.wait.p99", "ms", Target::None),
    batch("migrate.batch.stayed", "connections", AtMost(0.0)),
    batch("migrate.batch.broken", "streams", AtMost(0.0)),
    migrate("migrate.rtt.0us", "ms", Target::None),
    first_data("migrate.first_data.0us.0k.p50", AtMost(0.3)),
    first_data("migrate.first_data.0us.0k.p99", Target::None),
    first_data("migrate.first_data.0us.2k.p50", Target::None),
    first_data("migrate.first_data.0us.2k.p99", Target::None),
    first_data("migrate.first_data.0us.10k.p50", Target::None),
    first_data("migrate.first_data.0us.10k.p99", Target::None),
    first_data("migrate.first_data.0us.16k.p50", Target::None),
    first_data("migrate.first_data.0us.16k.p99", Target::None),
    first_data("migrate.first_data.0us.1m.p50", Target::None),
    first_data("migrate.first_data.0us.1m.p99", Target::None),
    migrate("migrate.freeze.0k.p50", "ms", AtMost(0.25)),
    migrate("migrate.freeze.0k.p99", "ms", Target::None),
    migrate("migrate.freeze.2k.p50", "ms", Target::None),
    migrate("migrate.freeze.2k.p99", "ms", Target::None),
    migrate("migrate.freeze.10k.p50", "ms", Target::None),
    migrate("migrate.freeze.10k.p99", "ms", Target::None),
    migrate("migrate.freeze.16k.p50", "ms", Target::None),
    migrate("migrate.freeze.16k.p99", "ms", Target::None),
    migrate("migrate.freeze.1m.p50", "ms", Target::None),
    migrate("migrate.freeze.1m.p99", "ms", Target::None),
    migrate("migrate.gap.download.p50", "ms", AtMost(0.3)),
    migrate("migrate.gap.download.p99", "ms", Target::None),
    migrate("migrate.gap.both.p50", "ms", AtMost(0.6)),
    migrate("migrate.gap.both.p99", "ms", Target::None),
    migrate("migrate.rtt.150us", "ms", Target::None),
    first_data("migrate.first_data.150us.0k.p50", AtMost(0.69)),
    first_data("migrate.first_data.150us.0k.p99", Target::None),
    first_data("migrate.first_data.150us.2k.p50", Target::None),
    first_data("migrate.first_data.150us.2k.p99", Target::None),
    first_data("migrate.first_data.150us.10k.p50", Target::None),
    first_data("migrate.first_data.150us.10k.p99", Target::None),
    first_data("migrate.first_data.150us.16k.p50", Target::None),
    first_data("migrate.first_data.150us.16k.p99", Target::None),
    first_data("migrate.first_data.150us.1m.p50", Target::None),
    first_data("migrate.first_data.150us.1m.p99", Target::None),
    migrate("migrate.rtt.20ms", "ms", Target::None),
    first_data("migrate.first_data.20ms.0k.p50", AtMost(52.3)),
    first_data("migrate.first_data.20ms.0k.p99", Target::None),
    first_data("migrate.first_data.20ms.2k.p50", Target::None),
    first_data("migrate.first_data.20ms.2k.p99", Target::None),
    first_data("migrate.first_data.20ms.10k.p50", Target::None),
    first_data("migrate.first_data.20ms.10k.p99", Target::None),
    first_data("migrate.first_data.20ms.16k.p50", Target::None),
    first_data("migrate.first_data.20ms.16k.p99", Target::None),
    first_data("migrate.first_data.20ms.1m.p50", Target::None),
    first_data("migrate.first_data.20ms.1m.p99", Target::None),
    migrate("migrate.moves", "moves", Target::None),
    migrate("migrate.stayed", "moves", AtMost(0.0)),
    migrate("migrate.broken", "streams", AtMost(0.0)),
    export("migrate.export.eager.p50", AtMost(5.0)),
    export("migrate.export.eager.p99", Target::None),
    export("migrate.export.lazy.p50", AtMost(5.0)),
    export("migrate.export.lazy.p99", Target::None),
    export("migrate.export.counted.p50", Target::None),
    export("migrate.export.counted.p99", Target::None),
    export("migrate.export.no_agent.p50", AtMost(1.0)),
    export("migrate.export.no_agent.p99", Target::None),
    // A round trip between the two takes 10 us in the lab.
    export("migrate.commit.p50", AtMost(110.0)),
    export("migrate.commit.p99", Target::None),
    figure(
        Theme::Export,
        "migrate.commit.unprotected",
        "commits",
        AtMost(0.0),
    ),
    figure(
        Theme::Export,
        "migrate.export.throughput.ratio",
        "ratio",
        AtLeast(0.9),
    ),
    figure(
        Theme::Export,
        "migrate.export.throughput.absolute",
        "Gbit/s",
        Target::None,
    ),
    origin("migrate.crash.process.p50", "ms", Target::None),
    origin("migrate.crash.process.p99", "ms", Target::None),
    origin("migrate.crash.machine.p50", "ms", Target::None),
    origin("migrate.crash.machine.p99", "ms", Target::None),
    origin("migrate.crash.broken", "streams", AtMost(0.0)),
    origin("migrate.crash.unprotected", "runs", AtMost(0.0)),
    slowing("migrate.slowing.healthy"),
    slowing("migrate.slowing.stays"),
    slowing("migrate.slowing.2k"),
    slowing("migrate.slowing.10k"),
    slowing("migrate.slowing.16k"),
    figure(
        Theme::Slowing,
        "migrate.slowing.moves",
        "moves",
        Target::None,
    ),
    many("migrate.many.moves", "moves", AtLeast(10_000.0)),
    many("migrate.many.stayed", "moves", AtMost(0.0)),
    many("migrate.many.broken", "streams", AtMost(0.0)),
    many("migrate.many.freeze.p50", "ms", Target::None),
    many("migrate.many.freeze.p99", "ms", Target::None),
    director("director.frames.segments", FRAMES, AtLeast(3.0)),
    director("director.frames.syns", FRAMES, Target::None),
    director("director.frames.mixed.segments", FRAMES, AtLeast(3.0)),
    director("director.frames.mixed.syns", FRAMES, Target::None),
    director("director.frames.mixed.entries", "entries", Target::None),
    director("director.requests.kept", "requests/s", Target::None),
    director("director.requests.new", "requests/s", Target::None),
    director("director.dark.p50", "ms", AtMost(38.0)),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_figure_has_one_name_and_a_theme_that_is_run() {
        let names: BTreeSet<_> = all().map(|spec| spec.name).collect();
        assert_eq!(names.len(), all().count());
        let themes: Vec<_> = Theme::BENCHES
            .iter()
            .flat_map(|bench| bench.1)
            .copied()
            .collect();
        assert!(all().all(|spec| themes.contains(&spec.theme)));
        assert!(themes.iter().all(|theme| theme.specs().count() > 0));
    }
}
