//! The standby fails in every way while clients are served: they notice
//! nothing but a moment's silence, and Godwit says which flows are bare.

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::client::Client;
use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, FlowReport};
use godwit_lab::host::{Host, Network};
use godwit_lab::links::Shape;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    PORT, assert_unnoticed, generation, in_sync, servers, service_v4, service_v6, stage, until,
    wait_flow, wait_protected, wait_unprotected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// Why a flow may be given up whose twin's server stands still.
const LAGGING: &[&str] = &["lagging", "standby_lost"];

/// Uploads, downloads and echoes, in both address families; all protected.
fn protected_traffic(lab: &Lab, cluster: &Cluster<'_>) -> Vec<Traffic> {
    let loads = [
        (Load::Upload, service_v4()),
        (Load::Echo, service_v6()),
        (Load::Download, service_v4()),
    ];
    let traffic = loads.map(|(load, service)| Traffic::start(lab, service, load));
    for one in &traffic {
        wait_protected(cluster, Host::A, one.local());
    }
    traffic.into()
}

/// All go on, for `reasons` unprotected, and end exactly.
fn goes_on_unprotected(
    cluster: &Cluster<'_>,
    traffic: Vec<Traffic>,
    since: Instant,
    reasons: &[&str],
) {
    for one in &traffic {
        wait_unprotected(cluster, Host::A, one.local(), reasons);
        one.goes_on();
    }
    for one in traffic {
        one.finish(since, STALL_LIMIT);
    }
}

/// A new connection is protected again, by a standby of a later generation.
fn protected_again(lab: &Lab, cluster: &mut Cluster<'_>, owner: Host, before: u32) {
    cluster
        .wait_in_sync(owner, DEADLINE)
        .expect("the standby is in sync again");
    assert!(generation(cluster, owner) > before, "the generation grows");
    let since = Instant::now();
    let again = Traffic::start(lab, service_v4(), Load::Echo);
    wait_protected(cluster, owner, again.local());
    again.finish(since, STALL_LIMIT);
}

/// The standby is in sync, or comes to be, and a new connection protected.
fn fresh_is_protected(lab: &Lab, cluster: &mut Cluster<'_>) {
    cluster
        .wait_in_sync(Host::A, DEADLINE)
        .expect("b is in sync again");
    let since = Instant::now();
    let fresh = until("a new connection is protected", || {
        let fresh = Traffic::start(lab, service_v4(), Load::Echo);
        let settled = |flow: &FlowReport| flow.state != "confirming";
        if wait_flow(cluster, Host::A, fresh.local(), settled).protected {
            return Some(fresh);
        }
        fresh.finish(since, STALL_LIMIT);
        None
    });
    fresh.finish(since, STALL_LIMIT);
}

/// A dark standby costs its clients nothing but protection, and comes back.
#[test]
fn a_standby_whose_machine_goes_dark_is_not_missed() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, b] = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let first = generation(&cluster, Host::A);
    let capture = witness(&lab);
    let traffic = protected_traffic(&lab, &cluster);
    let since = Instant::now();
    lab.crash(Host::B).expect("b crashes");
    goes_on_unprotected(&cluster, traffic, since, &["standby_lost"]);
    drop(b);
    lab.reboot(Host::B).expect("b boots");
    let _b = server::start(lab.b(), PORT).expect("the server starts");
    cluster.start_agent(Host::B).expect("its agent starts");
    protected_again(&lab, &mut cluster, Host::A, first);
    assert_unnoticed(capture);
}

/// While its link is down a host's kernel knows no neighbour, and takes what waits for
/// one as sent; the twins, too. What they say again is not answered at once, for TCP
/// would say it again to each answer: a million times a second, and for good.
#[test]
fn a_standby_whose_plug_is_pulled_does_not_talk_to_itself() {
    let Some(lab) = stage(LabOptions {
        witness: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(
        &lab,
        ClusterOptions {
            fencing: Fencing::Lease,
            ..ClusterOptions::default()
        },
    );
    // A narrow link: their twins have all that the client has, and wait for its next
    // ACK with a window that is less than a segment.
    lab.shape(Host::Client, Some(Shape::mbit(10)))
        .expect("a link");
    let traffic = [(); 10].map(|()| {
        [service_v4(), service_v6()].map(|service| Traffic::start(&lab, service, Load::Download))
    });
    // Fewer than after which it is held off.
    for _ in 0..3 {
        lab.unplug(Host::B, Network::Data).expect("a plug");
        // Longer than it takes the kernel to notice, and to try again (200 ms).
        thread::sleep(Duration::from_millis(600));
        lab.plug(Host::B, Network::Data).expect("a plug");
        cluster
            .wait_in_sync(Host::A, DEADLINE)
            .expect("b is in sync again");
    }
    let unsent = |cluster: &Cluster<'_>| {
        let status = cluster.status(Host::B).expect("b answers");
        status.counted("unsent") + status.counted("under_way")
    };
    let before = unsent(&cluster);
    thread::sleep(Duration::from_secs(1));
    let said = unsent(&cluster) - before;
    assert!(said < 10_000, "{said} segments in a second");
    for one in traffic.as_flattened() {
        one.goes_on();
    }
}

/// An agent that stands still is a lost standby; going on, it joins anew and
/// claims nothing in between.
#[test]
fn a_standby_whose_agent_is_stopped_leaves_and_returns() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let first = generation(&cluster, Host::A);
    let capture = witness(&lab);
    let traffic = protected_traffic(&lab, &cluster);
    let since = Instant::now();
    let agent = cluster.agent(Host::B).expect("it was started");
    agent.stop().expect("the agent can be stopped");
    goes_on_unprotected(&cluster, traffic, since, &["standby_lost"]);
    let agent = cluster.agent(Host::B).expect("it was started");
    agent.cont().expect("the agent can go on");
    protected_again(&lab, &mut cluster, Host::A, first);
    assert_unnoticed(capture);
}

/// A server that stands still on the standby takes what fits into its twins'
/// buffers; then the gate must open, or uploads would stop with it.
#[test]
fn a_standby_whose_server_is_stopped_does_not_hold_up_an_upload() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let upload = Traffic::start(&lab, service_v4(), Load::Upload);
    let echo = Traffic::start(&lab, service_v6(), Load::Echo);
    wait_protected(&cluster, Host::A, upload.local());
    wait_protected(&cluster, Host::A, echo.local());
    let since = Instant::now();
    b.stop().expect("the server can be stopped");
    wait_unprotected(&cluster, Host::A, upload.local(), LAGGING);
    upload.goes_on();
    echo.goes_on();
    upload.finish(since, STALL_LIMIT);
    echo.finish(since, STALL_LIMIT);
    b.cont().expect("the server can go on");
    fresh_is_protected(&lab, &mut cluster);
    assert_unnoticed(capture);
}

/// More than the leash passes while the standby's server stands still.
#[test]
fn a_standby_whose_server_is_stopped_does_not_hold_up_a_download() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let download = Traffic::start(&lab, service_v4(), Load::Download);
    wait_protected(&cluster, Host::A, download.local());
    let since = Instant::now();
    b.stop().expect("the server can be stopped");
    wait_unprotected(&cluster, Host::A, download.local(), LAGGING);
    download.goes_on();
    download.finish(since, STALL_LIMIT);
    b.cont().expect("the server can go on");
    fresh_is_protected(&lab, &mut cluster);
    assert_unnoticed(capture);
}

/// Why a flow is alone whose twin's server has died: the twin is reported, and
/// the standby leaves; whichever the owner hears first.
const LOST_TWIN: [&str; 2] = ["twin_closed", "standby_lost"];

/// Twins that die with their server are no twins: nobody relies on them.
#[test]
fn a_standby_whose_server_is_killed_leaves_uploads_and_echoes_bare() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let traffic = vec![
        Traffic::start(&lab, service_v4(), Load::Upload),
        Traffic::start(&lab, service_v6(), Load::Echo),
    ];
    for one in &traffic {
        wait_protected(&cluster, Host::A, one.local());
    }
    let since = Instant::now();
    b.kill().expect("the server can be killed");
    goes_on_unprotected(&cluster, traffic, since, &LOST_TWIN);
    // Nobody listens there: what is new is not protected, and says so.
    let since = Instant::now();
    let bare = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_unprotected(
        &cluster,
        Host::A,
        bare.local(),
        &["no_standby", "not_confirmed", "twin_closed"],
    );
    bare.finish(since, STALL_LIMIT);
    let _b = server::start(lab.b(), PORT).expect("the server starts");
    fresh_is_protected(&lab, &mut cluster);
    assert_unnoticed(capture);
}

/// A killed server's twin ends with a FIN after what it had still to say.
#[test]
fn a_standby_whose_server_is_killed_leaves_a_download_bare() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let download = Traffic::start(&lab, service_v6(), Load::Download);
    wait_protected(&cluster, Host::A, download.local());
    let since = Instant::now();
    b.kill().expect("the server can be killed");
    wait_unprotected(&cluster, Host::A, download.local(), &LOST_TWIN);
    download.goes_on();
    download.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// The same for a connection that idles: no segment of the client makes the
/// dead twin answer with RST.
#[test]
fn a_standby_whose_server_is_killed_leaves_an_idle_connection_bare() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let idle = lab
        .client()
        .enter(|| Client::connect(service_v4(), DEADLINE));
    let idle = idle.expect("the client is there").expect("it connects");
    let local = idle.stream().local_addr().expect("it is connected");
    wait_protected(&cluster, Host::A, local);
    b.kill().expect("the server can be killed");
    wait_unprotected(&cluster, Host::A, local, &LOST_TWIN);
}
