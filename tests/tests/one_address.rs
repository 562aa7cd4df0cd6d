//! Services of one address: an address is in one place, so they move together or stay
//! together, whoever asks.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::links::Loss;
use godwit_lab::process::Process;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::change::{How, change};
use godwit_tests::stage::{
    PORT, assert_no_reset, in_sync, servers, service_v4, stage, throughout, until, wait_event,
    wait_flow, witness,
};
use godwit_tests::stream::connect;
use godwit_tests::traffic::{Load, Traffic};

/// The port of the second service.
const OTHER: u16 = 8080;

fn all_servers(lab: &Lab) -> Vec<Process> {
    let mut all = Vec::from(servers(lab));
    all.extend(Host::SERVERS.map(|host| {
        let other = server::start(lab.node(host), OTHER);
        other.expect("the server starts")
    }));
    all
}

fn two_services(lab: &Lab) -> Cluster<'_> {
    let mut web = Service::new("web", PORT);
    // Its new twin would need no tap, and come within milliseconds.
    web.extra = "reprotect = \"off\"".to_owned();
    let services = vec![web, Service::new("other", OTHER)];
    let options = ClusterOptions {
        services,
        ..ClusterOptions::unfenced()
    };
    in_sync(lab, options)
}

/// How many services `host` owns; both are known.
fn owned(cluster: &Cluster<'_>, host: Host) -> Option<usize> {
    let services = cluster.status(host).ok()?.services;
    Some(services.iter().filter(|s| s.role == "owner").count())
}

/// A connection of "web" that can't move.
fn unprotected(lab: &Lab, cluster: &Cluster<'_>) -> TcpStream {
    let tap = |per_myriad| {
        let (from, to) = (Host::A, Host::B);
        let thinned = lab.lose(Loss {
            from,
            to,
            per_myriad,
        });
        thinned.expect("the tap can be thinned");
    };
    tap(10_000);
    let alone = connect(lab.client(), service_v4()).expect("it is answered");
    let local = alone.local_addr().expect("it is connected");
    wait_flow(cluster, Host::A, local, |flow| flow.state == "unprotected");
    tap(0);
    alone
}

fn ignore_arp(lab: &Lab, value: u8) {
    let mut command = Command::new("sysctl");
    command.args(["-qw", &format!("net.ipv4.conf.all.arp_ignore={value}")]);
    let output = lab.node(Host::A).run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{output:?}");
}

/// If one can't move, all stay. The others used to go, and clients of that one found
/// nobody.
#[test]
fn a_person_moves_them_together_or_not_at_all() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = all_servers(&lab);
    let cluster = two_services(&lab);
    let alone = unprotected(&lab, &cluster);
    let outcome = cluster.hand_over("other", Host::A, Host::B);
    let stay = if outcome.is_ok() { 0 } else { 2 };
    assert_eq!(owned(&cluster, Host::A), Some(stay), "{outcome:?}");
    drop(alone);
    until("they have moved", || {
        // Refused as long as that connection is known, and when they are there.
        let _ = cluster.hand_over("other", Host::A, Host::B);
        (owned(&cluster, Host::B)? == 2).then_some(())
    });
}

/// An owner that clients do not reach hands over by itself: the same holds.
#[test]
fn an_unfit_owner_hands_them_over_together_or_not_at_all() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = all_servers(&lab);
    let cluster = two_services(&lab);
    let capture = witness(&lab);
    let alone = unprotected(&lab, &cluster);
    ignore_arp(&lab, 1);
    wait_event(&cluster, Host::A, "unfit_hand_over");
    wait_event(&cluster, Host::A, "move_refused");
    // Two tries and more.
    let until_then = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until_then {
        assert_eq!(
            owned(&cluster, Host::A),
            Some(2),
            "that one connection stays"
        );
    }
    drop(alone);
    until("they have moved", || {
        (owned(&cluster, Host::B)? == 2).then_some(())
    });
    ignore_arp(&lab, 0);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// `other`, at the address of `web`.
fn with_other(text: &str) -> String {
    let [v4, v6] = SERVICE;
    format!(
        "{text}\n[[service]]\nname = \"other\"\naddress = [\"{v4}:{OTHER}\", \"[{v6}]:{OTHER}\"]\n\
         primary = \"a\"\nbackups = [\"b\"]\n"
    )
}

/// Who owns a service, as one node knows it.
fn owner_of(cluster: &Cluster<'_>, host: Host, name: &str) -> Option<String> {
    let services = cluster.status(host).ok()?.services;
    let service = services.into_iter().find(|service| service.name == name)?;
    service.owner
}

/// A service comes to an address whose other service is owned by `owner`, the standby's file
/// first: that one began to own it alone, and both announced the address.
#[test]
fn a_service_begins_where_its_address_is() {
    for (owner, how) in [
        (Host::A, How::Reload),
        (Host::B, How::Reload),
        (Host::B, How::Restart),
    ] {
        let Some(lab) = stage(LabOptions::default()) else {
            return;
        };
        let standby = if owner == Host::A { Host::B } else { Host::A };
        let _servers = all_servers(&lab);
        let mut cluster = in_sync(&lab, ClusterOptions::default());
        if owner == Host::B {
            let moved = cluster.hand_over("web", Host::A, Host::B);
            moved.expect("it moves");
        }
        let capture = witness(&lab);
        let echo = Traffic::start(&lab, service_v4(), Load::Echo);
        change(&mut cluster, Host::Witness, How::Reload, with_other);
        change(&mut cluster, standby, how, with_other);
        // A backup that never hears an owner claims after 3 s.
        throughout("it waits", Duration::from_secs(4), || {
            owner_of(&cluster, standby, "other").is_none()
        });
        change(&mut cluster, owner, how, with_other);
        let wanted = ["web", "other"].map(|_| Some(owner.to_string()));
        for host in [owner, standby] {
            let found = || ["web", "other"].map(|name| owner_of(&cluster, host, name));
            let end = Instant::now() + DEADLINE;
            while found() != wanted {
                let status = || cluster.status(host);
                assert!(
                    Instant::now() < end,
                    "{owner}, {how:?}, {host}: {:?}",
                    status()
                );
            }
        }
        let other = SocketAddr::new(SERVICE[0], OTHER);
        Traffic::start(&lab, other, Load::Echo).goes_on();
        until("they move together", || {
            let _ = cluster.hand_over("web", owner, standby);
            (owned(&cluster, standby)? == 2).then_some(())
        });
        echo.goes_on();
        assert_no_reset(&capture.finish().expect("the capture is complete"));
    }
}
