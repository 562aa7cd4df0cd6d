//! What twins may have to catch up with is bounded for the whole service.

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::LabOptions;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    PORT, assert_unnoticed, in_sync, servers, service_v4, stage, until, wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};

const FLOWS: u32 = 8;

/// Of a service, in bytes.
const BUDGET: u32 = 16 << 20;

fn leashes(cluster: &Cluster<'_>) -> Option<Vec<u32>> {
    let leash = |host| Some(cluster.status(host).ok()?.services.first()?.leash_bytes);
    Host::SERVERS.into_iter().map(leash).collect()
}

/// Waits until either side lets each flow be so far behind.
fn wait_leash(cluster: &Cluster<'_>, wanted: u32) {
    let end = Instant::now() + DEADLINE;
    loop {
        let last = leashes(cluster);
        if last.as_deref() == Some(&[wanted; 2]) {
            return;
        }
        let flows = || Host::SERVERS.map(|host| cluster.flows(host));
        assert!(Instant::now() < end, "{last:?}, {:#?}", flows());
        thread::sleep(Duration::from_millis(10));
    }
}

fn lag(cluster: &Cluster<'_>) -> u32 {
    let flows = cluster.flows(Host::A).expect("a answers").flows;
    flows.iter().filter_map(|flow| flow.lag_bytes).sum()
}

/// Eight downloads whose twins stand still lag 16 MiB in all, not four each.
#[test]
fn many_flows_share_the_catch_up_budget() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut service = Service::new("web", PORT);
    service.extra = "lag_limit = \"30s\"".to_owned();
    let options = ClusterOptions {
        services: vec![service],
        ..ClusterOptions::unfenced()
    };
    let cluster = in_sync(&lab, options);
    assert_eq!(leashes(&cluster), Some(vec![4 << 20; 2]), "as configured");
    let capture = witness(&lab);
    let downloads: Vec<_> = (0..FLOWS)
        .map(|_| Traffic::start(&lab, service_v4(), Load::LongDownload))
        .collect();
    for download in &downloads {
        wait_protected(&cluster, Host::A, download.local());
    }
    wait_leash(&cluster, BUDGET / FLOWS);
    b.stop().expect("the server can be stopped");
    let (mut last, mut since) = (0, Instant::now());
    let most = until("the lag grows no more", || {
        let now = lag(&cluster);
        if now > last {
            (last, since) = (now, Instant::now());
        }
        (last > BUDGET / 2 && since.elapsed() > Duration::from_secs(1)).then_some(last)
    });
    // A segment that is under way when the leash ends is let through.
    assert!(most < BUDGET + FLOWS * (128 << 10), "{most} bytes behind");
    b.cont().expect("the server can go on");
    for download in downloads {
        download.finish(Instant::now(), DEADLINE);
    }
    // An idle service has its leash back.
    wait_leash(&cluster, 4 << 20);
    assert_unnoticed(capture);
}
