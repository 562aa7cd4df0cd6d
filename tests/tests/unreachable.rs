//! Clients do not reach the owner any more, and the control network is as it was: the owner
//! hands over to its standby, and no connection is lost.

use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    assert_no_reset, in_sync, servers, service_v4, service_v6, stage, until_within, wait_in_sync,
    wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};

/// Noticed within a second, handed over, and told again by TCP's own timers.
const STALL: Duration = Duration::from_secs(4);

/// What the kernel needs until a new address is at home.
const SETTLED: Duration = Duration::from_secs(3);

fn run(lab: &Lab, line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    let output = lab.a().run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{line}: {output:?}");
}

fn warns(cluster: &Cluster<'_>, what: &str) -> bool {
    let status = cluster.status(Host::A).expect("the agent answers");
    status.warnings.iter().any(|text| text.contains(what))
}

/// `wrong` happens at the owner, and is put right.
fn hands_over(fact: &str, wrong: impl Fn(&Lab), right: impl Fn(&Lab)) {
    let Some(lab) = stage(LabOptions {
        control_network: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    std::thread::sleep(SETTLED);
    let capture = witness(&lab);
    let echoes = [service_v4(), service_v6()].map(|service| {
        let one = Traffic::start(&lab, service, Load::Echo);
        wait_protected(&cluster, Host::A, one.local());
        one
    });
    let since = Instant::now();
    wrong(&lab);
    let owner = cluster.wait_owner(Host::B, DEADLINE);
    owner.unwrap_or_else(|error| panic!("{error:#}: {:?}", cluster.event_text(Host::A)));
    assert!(warns(&cluster, fact), "{:?}", cluster.status(Host::A));
    echoes.iter().for_each(Traffic::goes_on);
    right(&lab);
    until_within(STALL, fact, || (!warns(&cluster, fact)).then_some(()));
    wait_in_sync(&mut cluster, Host::B);
    for one in echoes {
        one.goes_on();
        one.finish(since, STALL);
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

#[test]
fn an_owner_whose_cable_is_pulled_hands_over() {
    hands_over(
        "carrier: eth0 is down or has no carrier",
        |lab| lab.unplug(Host::A, Network::Data).expect("it has a port"),
        |lab| lab.plug(Host::A, Network::Data).expect("it has a port"),
    );
}

#[test]
fn an_owner_that_answers_no_arp_hands_over() {
    hands_over(
        "arp: eth0 answers no ARP",
        |lab| run(lab, "ip link set eth0 arp off"),
        |lab| run(lab, "ip link set eth0 arp on"),
    );
}

#[test]
fn an_owner_without_a_local_route_hands_over() {
    let address = service_v4().ip();
    hands_over(
        "no local route leads to it",
        |lab| run(lab, &format!("ip route del local {address} table local")),
        |lab| {
            run(
                lab,
                &format!("ip route add local {address} dev eth0 table local"),
            );
        },
    );
}

/// The one client could be banned; that nobody else would hear anything says that it is not.
#[test]
fn an_owner_that_may_speak_to_nobody_hands_over() {
    let rule = format!("from {} prohibit", service_v4().ip());
    hands_over(
        "a route or rule of type prohibit drops it",
        |lab| run(lab, &format!("ip rule add {rule}")),
        |lab| run(lab, &format!("ip rule del {rule}")),
    );
}
