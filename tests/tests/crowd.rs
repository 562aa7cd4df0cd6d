//! Many idle connections and some busy ones lose their owner, and get a standby
//! again: nothing of that takes so long that somebody notices.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use godwit_lab::Lab;
use godwit_lab::LabOptions;
use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::Host;
use godwit_tests::stage::{
    PORT, generation, in_sync, servers, service_v4, service_v6, stage, until,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const IDLE: usize = 2_000;
const BUSY: usize = 20;

/// Bytes of a [`Load::LongDownload`].
const DOWNLOAD: u64 = 32 << 20;

/// The machine's two processors are busy with all of this, and so are those that
/// send heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(30);

#[test]
fn a_crowd_outlives_its_owner_and_is_protected_again() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    allow_descriptors();
    let [mut a, _b] = servers(&lab);
    let options = ClusterOptions {
        heartbeat: HEARTBEAT,
        ..ClusterOptions::unfenced()
    };
    let mut cluster = in_sync(&lab, options);
    let mut idle: Vec<_> = (0..IDLE).map(|n| talk_once(&lab, n)).collect();
    let busy: Vec<_> = (0..BUSY)
        .map(|n| Traffic::start(&lab, family(n), Load::LongDownload))
        .collect();
    wait_all_protected(&cluster, Host::A, &busy);
    let since = Instant::now();

    // The standby is away for a moment: its twins end, and all get new ones.
    let first = generation(&cluster, Host::A);
    cluster
        .agent(Host::B)
        .expect("it runs")
        .stop()
        .expect("it stops");
    until("it is dismissed", || {
        (generation(&cluster, Host::A) == 0).then_some(())
    });
    cluster
        .agent(Host::B)
        .expect("it runs")
        .cont()
        .expect("it goes on");
    wait_all_protected(&cluster, Host::A, &busy);
    assert!(generation(&cluster, Host::A) > first);

    a.kill().expect("it runs");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in &busy {
        one.goes_on();
    }
    a = godwit_lab::apps::server::start(lab.a(), PORT).expect("it starts again");
    cluster
        .wait_in_sync(Host::B, DEADLINE)
        .expect("a stands by for b");
    wait_all_protected(&cluster, Host::B, &busy);

    lab.crash(Host::B).expect("b crashes");
    cluster.wait_owner(Host::A, DEADLINE).expect("a takes over");
    for one in &busy {
        one.goes_on();
    }
    for stream in &mut idle {
        send(stream, b"still there?").expect("it goes");
    }
    for stream in &mut idle {
        expect(stream, b"still there?").expect("it comes back");
    }
    for one in busy {
        one.finish(since, STALL_LIMIT);
    }
    assert!(a.is_running());
}

fn family(n: usize) -> std::net::SocketAddr {
    if n.is_multiple_of(2) {
        service_v4()
    } else {
        service_v6()
    }
}

fn talk_once(lab: &Lab, n: usize) -> TcpStream {
    let mut stream = connect(lab.client(), family(n)).expect("it connects");
    send(&mut stream, b"echo\nhello").expect("it goes");
    expect(&mut stream, b"hello").expect("it comes back");
    stream
}

/// On a slow machine downloads may come to their end meanwhile.
fn wait_all_protected(cluster: &Cluster<'_>, owner: Host, busy: &[Traffic]) {
    until("all are protected", || {
        let status = cluster.status(owner).ok()?;
        let protected = status.services.first()?.protected;
        let open = busy.iter().filter(|one| one.meter.bytes() < DOWNLOAD);
        (protected >= (IDLE + open.count()) as u64).then_some(())
    });
}

/// Client and servers need some thousands each; servers inherit from here.
fn allow_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("it may be raised");
}
