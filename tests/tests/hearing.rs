//! What stands between Godwit and a server, or behind Godwit on the way out, may take segments
//! away without a word. What it causes is noticed, said, and left.

use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    in_sync, servers, service_v4, service_v6, stage, until_within, wait_protected, wait_unprotected,
};
use godwit_tests::traffic::{Load, Traffic};

/// Three looks of the census, and what a busy machine makes of them.
const SAID: Duration = Duration::from_millis(2500);

/// That, a move, and the client's next retransmission.
const STALL: Duration = Duration::from_secs(5);

fn run(lab: &Lab, host: Host, line: &str) {
    let mut command = Command::new("sh");
    command.arg("-c").arg(line);
    let output = lab.node(host).run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{line}: {output:?}");
}

fn wait_said(cluster: &Cluster<'_>, host: Host, what: &str) {
    let status = || cluster.status(host).expect("it answers");
    let said = format!("{host} says {what}");
    until_within(SAID, &said, || {
        let warnings = status().warnings;
        warnings.iter().any(|it| it.contains(what)).then_some(())
    });
}

/// What it is done with on the owner.
struct Case {
    what: &'static str,
    fact: &'static str,
    done: &'static str,
}

const ELSEWHERE: Case = Case {
    what: "segments go elsewhere behind Godwit's tap",
    fact: "unanswered: ",
    done: "nft 'add table netdev n; \
           add chain netdev n c { type filter hook ingress device eth0 priority 0; }; \
           add rule netdev n c tcp dport 80 fwd to lo'",
};

const MARKED: Case = Case {
    what: "answers have a mark, and a rule for it leads nowhere",
    fact: "unanswered: ",
    done: "nft 'add table inet m; \
           add chain inet m c { type route hook output priority mangle; }; \
           add rule inet m c tcp sport 80 meta mark set 0x77' && \
           ip rule add fwmark 0x77 blackhole pref 20 && \
           ip -6 rule add fwmark 0x77 blackhole pref 20",
};

const NOBODY: Case = Case {
    what: "frames for the client have the address of nobody",
    fact: "unheard: ",
    done: "for at in $(ip neigh show dev eth0 | cut -d ' ' -f 1); do \
           case $at in 10.9.0.10 | 2001:db8:9::10) \
           ip neigh replace $at lladdr 02:00:00:00:00:99 nud permanent dev eth0;; \
           esac; done",
};

#[test]
fn an_owner_whose_clients_go_elsewhere_hands_over() {
    hands_over(&ELSEWHERE);
}

#[test]
fn an_owner_whose_answers_go_nowhere_hands_over() {
    hands_over(&MARKED);
}

#[test]
fn an_owner_that_no_client_hears_hands_over() {
    hands_over(&NOBODY);
}

/// After a takeover nobody protects its connections, and nobody could go on with them. It says so
/// all the same.
#[test]
fn a_new_owner_whose_clients_go_elsewhere_says_so() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [mut server, _b] = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let since = Instant::now();
    let start = |service| Traffic::start(&lab, service, Load::Echo);
    let services = [service_v4(), service_v6(), service_v4(), service_v6()];
    let echoes: Vec<_> = services.into_iter().map(start).collect();
    for echo in &echoes {
        wait_protected(&cluster, Host::A, echo.local());
    }
    server.kill().expect("it runs");
    let taken = cluster.wait_owner(Host::B, DEADLINE);
    taken.expect("it takes over");
    for echo in &echoes {
        echo.goes_on();
        wait_unprotected(&cluster, Host::B, echo.local(), &["after_takeover"]);
    }
    run(&lab, Host::B, ELSEWHERE.done);
    wait_said(&cluster, Host::B, ELSEWHERE.fact);
    run(&lab, Host::B, "nft delete table netdev n");
    for echo in echoes {
        echo.goes_on();
        echo.finish(since, STALL);
    }
}

/// It says what is wrong, and the other server goes on with every connection.
fn hands_over(case: &Case) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let since = Instant::now();
    let start = |service| Traffic::start(&lab, service, Load::Echo);
    let services = [service_v4(), service_v6(), service_v4(), service_v6()];
    let echoes: Vec<_> = services.into_iter().map(start).collect();
    for echo in &echoes {
        wait_protected(&cluster, Host::A, echo.local());
    }
    println!("{}", case.what);
    run(&lab, Host::A, case.done);
    wait_said(&cluster, Host::A, case.fact);
    let taken = cluster.wait_owner(Host::B, DEADLINE);
    taken.expect("it is handed over");
    for echo in &echoes {
        echo.goes_on();
    }
    for echo in echoes {
        echo.finish(since, STALL);
    }
}
