//! The questions that tests of faults and of agents coming and going ask.
//!
//! They start and stop agents themselves, so they hold lab and cluster apart,
//! where a [`Site`](crate::Site) holds both; what fails here panics.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::server;
use godwit_lab::capture::{Capture, Trace};
use godwit_lab::cluster::{Cluster, ClusterOptions, FlowReport};
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::{Lab, LabOptions, Process};
use godwit_wire::{Endpoint, TcpFlags};

use crate::resets::live_resets;
use crate::{DEADLINE, misconduct};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Port of the service in these tests.
pub const PORT: u16 = 80;

/// Waits until `condition` gives a value.
///
/// # Panics
/// After [`DEADLINE`], naming `what`.
pub fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    until_within(DEADLINE, what, condition)
}

/// Waits until `condition` gives a value.
///
/// # Panics
/// After `limit`, naming `what`.
pub fn until_within<T>(limit: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited too long: {what}");
        thread::sleep(LOOK);
    }
}

/// Makes sure that `condition` holds at every look for `span`.
///
/// # Panics
/// As soon as it does not, naming `what`.
pub fn throughout(what: &str, span: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(condition(), "not at every moment: {what}");
        thread::sleep(LOOK);
    }
}

/// A lab, or `None` with the reason printed if this machine can't have one.
///
/// # Panics
/// If the machine could have one and it can't be built.
pub fn stage(options: LabOptions) -> Option<Lab> {
    crate::lab(options).expect("a lab can be built")
}

/// The lab's own server on both machines, in the order of [`Host::SERVERS`].
///
/// # Panics
/// If one does not start.
pub fn servers(lab: &Lab) -> [Process; 2] {
    Host::SERVERS.map(|host| server::start(lab.node(host), PORT).expect("the server starts"))
}

/// Godwit on both machines: a owns, b is in sync.
///
/// # Panics
/// If that does not come about.
pub fn in_sync(lab: &Lab, options: ClusterOptions) -> Cluster<'_> {
    let mut cluster = Cluster::start(lab, options).expect("the agents start");
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("a owns and b is in sync");
    cluster
}

/// Waits until `owner` owns and the other server is in sync.
///
/// # Panics
/// After [`DEADLINE`], with what both remember.
pub fn wait_in_sync(cluster: &mut Cluster<'_>, owner: Host) {
    if let Err(error) = cluster.wait_in_sync(owner, DEADLINE) {
        let log = |host| cluster.agent(host).map(|agent| agent.log());
        let logs = Host::SERVERS.map(log).map(Option::unwrap_or_default);
        panic!("{error:#}\na: {}\nb: {}", logs[0], logs[1]);
    }
}

/// The IPv4 address of the service.
pub fn service_v4() -> SocketAddr {
    SocketAddr::new(SERVICE[0], PORT)
}

/// The IPv6 address of the service.
pub fn service_v6() -> SocketAddr {
    SocketAddr::new(SERVICE[1], PORT)
}

/// What `host` says of the flow whose client is at `client`.
pub fn flow(cluster: &Cluster<'_>, host: Host, client: SocketAddr) -> Option<FlowReport> {
    let client = format!("{} -> ", Endpoint::from(client));
    let flows = cluster.flows(host).ok()?.flows;
    flows
        .into_iter()
        .find(|flow| flow.flow.starts_with(&client))
}

/// Waits until `host` says of the flow of `client` what `wanted` wants.
///
/// # Panics
/// After [`DEADLINE`], with what it said last.
pub fn wait_flow(
    cluster: &Cluster<'_>,
    host: Host,
    client: SocketAddr,
    wanted: impl Fn(&FlowReport) -> bool,
) -> FlowReport {
    let end = Instant::now() + DEADLINE;
    loop {
        let last = flow(cluster, host, client);
        match last {
            Some(report) if wanted(&report) => return report,
            Some(_) | None if Instant::now() < end => thread::sleep(LOOK),
            Some(_) | None => {
                let said = Host::SERVERS.map(|host| cluster.status(host));
                panic!("{host} says of the flow of {client}: {last:?}; status: {said:#?}")
            }
        }
    }
}

/// Waits until the flow of `client` is protected.
///
/// # Panics
/// After [`DEADLINE`], with what the owner said last.
pub fn wait_protected(cluster: &Cluster<'_>, owner: Host, client: SocketAddr) {
    wait_flow(cluster, owner, client, |flow| flow.protected);
}

/// Waits until the flow of `client` is unprotected, and checks why.
///
/// # Panics
/// If it does not become so, or for another reason than one of `reasons`.
pub fn wait_unprotected(
    cluster: &Cluster<'_>,
    owner: Host,
    client: SocketAddr,
    reasons: &[&str],
) -> FlowReport {
    let report = wait_flow(cluster, owner, client, |flow| flow.state == "unprotected");
    let reason = report.reason.as_deref().unwrap_or("none");
    assert!(reasons.contains(&reason), "another reason: {report:?}");
    report
}

/// The generation of the only service at its owner.
///
/// # Panics
/// If the owner does not answer.
pub fn generation(cluster: &Cluster<'_>, owner: Host) -> u32 {
    let status = cluster.status(owner).expect("the owner answers");
    status.services[0].generation
}

/// How often the data path of `host` gave a verdict.
///
/// # Panics
/// If its agent does not answer.
pub fn counted(cluster: &Cluster<'_>, host: Host, reason: &str) -> u64 {
    let status = cluster.status(host).expect("the agent answers");
    status.counted(reason)
}

/// Whether `host` remembers an event of that name.
///
/// # Panics
/// If its agent does not answer.
pub fn has_event(cluster: &Cluster<'_>, host: Host, name: &str) -> bool {
    let events = cluster.events(host).expect("the agent answers");
    events.iter().any(|event| event == name)
}

/// Waits until it does.
///
/// # Panics
/// After [`DEADLINE`].
pub fn wait_event(cluster: &Cluster<'_>, host: Host, name: &str) {
    until(name, || has_event(cluster, host, name).then_some(()));
}

/// One of the kernel's TCP counters on `host`, as `nstat` names it without its
/// `TcpExt`.
///
/// # Panics
/// If the kernel has no such counter.
pub fn tcp_counter(lab: &Lab, host: Host, name: &str) -> u64 {
    // `self` would be the main thread, which is in another namespace.
    let table = lab
        .node(host)
        .enter(|| fs::read_to_string("/proc/thread-self/net/netstat"));
    let table = table
        .expect("the machine is there")
        .expect("it can be read");
    let mut rows = table.lines().filter(|row| row.starts_with("TcpExt:"));
    let (names, values) = (rows.next().unwrap_or(""), rows.next().unwrap_or(""));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let value = pairs.find_map(|(known, value)| (known == name).then_some(value));
    let value = value.and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("the kernel does not count {name}"))
}

/// Starts capturing what the client sees.
///
/// # Panics
/// If tcpdump does not start.
pub fn witness(lab: &Lab) -> Capture {
    Capture::start(lab.client(), Network::Data).expect("the capture starts")
}

/// Ends a capture at the client: it must hold no RST, no second voice, and
/// nothing that plain TCP would not have sent.
///
/// # Panics
/// If it does, or is not complete.
pub fn assert_unnoticed(capture: Capture) -> Trace {
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
    assert_one_voice(&trace);
    trace
}

/// Nobody sent a RST, in either direction.
///
/// # Panics
/// If somebody did, with the first of them.
pub fn assert_no_reset(trace: &Trace) {
    let reset = trace.segments().find(|s| s.flags.contains(TcpFlags::RST));
    assert!(reset.is_none(), "{} RST, first {reset:?}", trace.resets());
}

/// The service's voice went from one machine to another at most `moves` times,
/// for every client.
///
/// # Panics
/// If it did more often.
pub fn assert_voices(trace: &Trace, moves: usize) {
    assert!(
        trace.segments().count() > 0,
        "an empty capture proves nothing"
    );
    for service in [service_v4(), service_v6()] {
        for (client, changes) in trace.voice_changes(service.into()) {
            assert!(changes <= moves, "{changes} changes of voice for {client}");
        }
    }
}

/// Connections went from machine to machine at most `moves` times each, one voice at a
/// time and as plain TCP speaks; nobody sent a RST.
///
/// # Panics
/// If not.
pub fn assert_moved(trace: &Trace, moves: usize) {
    assert_no_reset(trace);
    assert_voices(trace, moves);
    assert_good_conduct(trace);
}

/// Nobody sent a RST, in either direction, on a connection that was not over.
///
/// # Panics
/// If somebody did.
pub fn assert_no_live_reset(trace: &Trace) {
    let resets = live_resets(trace, &[service_v4(), service_v6()]);
    assert!(resets.is_empty(), "RST: {resets:?}");
}

/// At most one machine at a time spoke for the service, and as plain TCP does.
///
/// # Panics
/// If a second one did, or for a [`Misconduct`](crate::Misconduct).
pub fn assert_one_voice(trace: &Trace) {
    assert!(
        trace.segments().count() > 0,
        "an empty capture proves nothing"
    );
    for service in [service_v4(), service_v6()] {
        let second = trace.second_voices(service.into());
        assert!(second.is_empty(), "second voices: {second:?}");
    }
    assert_good_conduct(trace);
}

/// The service said nothing that plain TCP would not have said.
///
/// # Panics
/// For a [`Misconduct`](crate::Misconduct).
fn assert_good_conduct(trace: &Trace) {
    let wrong = misconduct(trace, &[service_v4(), service_v6()]);
    let count = wrong.len();
    assert!(
        wrong.is_empty(),
        "{count} segments that plain TCP would not send, first {:?}",
        wrong.first()
    );
}
