//! Two services of one pair of servers, each with an owner of its own and the
//! other one's standby: what fails takes its own shares along, no others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use godwit_lab::LabOptions;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service, ServiceReport};
use godwit_lab::host::{Host, Network};
use godwit_tests::stage::{
    PORT, assert_unnoticed, servers, service_v4, service_v6, stage, until, wait_protected,
    wait_unprotected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{STALL_LIMIT, misconduct};

/// Addresses of the service that b owns.
const OTHER: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 101)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x101)),
];

fn service(cluster: &Cluster<'_>, host: Host, name: &str) -> Option<ServiceReport> {
    let services = cluster.status(host).ok()?.services;
    services.into_iter().find(|service| service.name == name)
}

/// Waits until `owner` owns a service and the other server follows.
fn wait_owned(cluster: &Cluster<'_>, name: &str, owner: Host, standby: Host) {
    until("each server owns one service", || {
        let in_sync = service(cluster, owner, name)?.is_owner_in_sync();
        (in_sync && service(cluster, standby, name)?.is_shadow()).then_some(())
    });
}

#[test]
fn the_death_of_one_owner_leaves_the_other_alone() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut of_b = Service::new("of-b", PORT);
    (of_b.addresses, of_b.primary) = (OTHER, Host::B);
    let options = ClusterOptions {
        services: vec![Service::new("of-a", PORT), of_b],
        ..ClusterOptions::unfenced()
    };
    let cluster = Cluster::start(&lab, options).expect("the agents start");
    wait_owned(&cluster, "of-a", Host::A, Host::B);
    wait_owned(&cluster, "of-b", Host::B, Host::A);

    let capture = witness(&lab);
    let others = OTHER.map(|address| SocketAddr::new(address, PORT));
    let loads = [Load::Upload, Load::Echo, Load::Download, Load::Echo];
    let start = |services: [SocketAddr; 2]| {
        let services = services.into_iter().cycle();
        let traffic = services
            .zip(loads)
            .map(|(s, load)| Traffic::start(&lab, s, load));
        traffic.collect::<Vec<_>>()
    };
    let (of_a, of_b) = (start([service_v4(), service_v6()]), start(others));
    for (traffic, owner) in [(&of_a, Host::A), (&of_b, Host::B)] {
        for one in traffic {
            wait_protected(&cluster, owner, one.local());
        }
    }
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    let taken = until("b takes over what was of a", || {
        service(&cluster, Host::B, "of-a").filter(|service| service.role == "owner")
    });
    assert_eq!(taken.takeovers, 1);
    let kept = service(&cluster, Host::B, "of-b").expect("b answers");
    assert_eq!((kept.role.as_str(), kept.takeovers), ("owner", 0));
    for one in &of_b {
        wait_unprotected(&cluster, Host::B, one.local(), &["standby_lost"]);
    }
    for one in of_a.into_iter().chain(of_b) {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    let trace = assert_unnoticed(capture);
    let b = Host::B.mac(Network::Data);
    for service in others {
        let strangers = trace
            .segments()
            .filter(|s| s.from == service.into() && s.from_mac != b);
        assert_eq!(strangers.count(), 0, "only b ever spoke for {service}");
    }
    let wrong = misconduct(&trace, &others);
    assert!(wrong.is_empty(), "{:?}", wrong.first());
}
