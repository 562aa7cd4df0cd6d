//! A share that goes back to its primary by itself.

use std::time::{Duration, Instant};

use godwit_lab::LabOptions;
use godwit_lab::apps::server;
use godwit_lab::cluster::{ClusterOptions, Fencing, Service};
use godwit_lab::host::Host;
use godwit_tests::stage::{
    PORT, assert_no_live_reset, assert_voices, has_event, in_sync, servers, service_v4, service_v6,
    stage, until, wait_event, wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// The primary's server dies, and is started again: b serves until a has been in
/// sync for a while, then a does, with every connection.
#[test]
fn a_primary_that_has_come_back_owns_again() {
    let lab = stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    });
    let Some(lab) = lab else { return };
    let [mut a, _b] = servers(&lab);
    let mut service = Service::new("web", PORT);
    service.extra = "failback = \"auto\"\nfailback_after = \"3s\"\n".into();
    let options = ClusterOptions {
        heartbeat: Duration::from_millis(30),
        fencing: Fencing::Lease,
        services: vec![service],
        ..ClusterOptions::default()
    };
    let cluster = in_sync(&lab, options);
    a.kill().expect("it runs");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    let _a = server::start(lab.node(Host::A), PORT).expect("the server starts again");
    wait_event(&cluster, Host::B, "standby_joined");
    let joined = Instant::now();
    let capture = witness(&lab);
    let loads = [Load::Upload, Load::Echo];
    let traffic = loads.map(|load| Traffic::start(&lab, service_v4(), load));
    let echo = Traffic::start(&lab, service_v6(), Load::Echo);
    for one in traffic.iter().chain([&echo]) {
        wait_protected(&cluster, Host::B, one.local());
    }
    let since = Instant::now();
    cluster
        .wait_owner(Host::A, DEADLINE)
        .expect("a owns again, by itself");
    // The event was seen a while after it.
    assert!(joined.elapsed() > Duration::from_secs(2), "not at once");
    let moved = || has_event(&cluster, Host::B, "share_moved").then_some(());
    until("b says that it moved", moved);
    for one in traffic.iter().chain([&echo]) {
        one.goes_on();
        wait_protected(&cluster, Host::A, one.local());
    }
    for one in traffic.into_iter().chain([echo]) {
        one.finish(since, STALL_LIMIT);
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_no_live_reset(&trace);
    assert_voices(&trace, 1);
}
