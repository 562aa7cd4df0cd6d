//! Snapshots as large as they may be go to the other machine with their connection.

use godwit_lab::apps::roam::{self, Manner};
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::roaming::Roamer;
use godwit_tests::stage::{PORT, assert_no_reset, service_v4, service_v6, stage, until, witness};

/// With what the server needs itself: 16 MiB.
const BALLAST: usize = (16 << 20) - 16;

fn start(lab: &Lab) -> (Cluster<'_>, [Process; 2]) {
    let service = Service {
        standby: "snapshot",
        ..Service::new("web", PORT)
    };
    let options = ClusterOptions {
        services: vec![service],
        ..ClusterOptions::default()
    };
    let manner = Manner {
        state: BALLAST,
        ..Manner::default()
    };
    let cluster = Cluster::start(lab, options).expect("the agents start");
    let servers = Host::SERVERS.map(|host| {
        let agent = cluster.app_socket(host).expect("the machine is there");
        roam::start_with(lab.node(host), PORT, &agent, manner).expect("the server starts")
    });
    (cluster, servers)
}

#[test]
fn sixteen_mebibytes_go_to_and_fro() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let (cluster, _servers) = start(&lab);
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        let roamer = Roamer::start(&lab, service);
        for (from, to) in [(Host::A, Host::B), (Host::B, Host::A)] {
            let moved = until("it moves", || {
                let moved = cluster.hand_over_flow(&roamer.flow, from, to);
                moved.inspect_err(|error| eprintln!("{error:#}")).ok()
            });
            eprintln!("silent for {} ms", moved.moved[0].silent_ms);
            roamer.goes_on();
        }
        roamer.end();
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}
