//! Settings, firewall rules and certificates change under running agents: it is said
//! within a second and a half, what follows follows, and it is taken back.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_pki::{Life, Order};
use godwit_tests::stage::{
    PORT, in_sync, servers, service_v4, service_v6, stage, throughout, until, until_within,
    wait_in_sync, wait_protected,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// A second, and what asking takes on a busy machine.
const SAID: Duration = Duration::from_millis(2500);

/// Writes a setting as `sysctl` does.
fn set(lab: &Lab, host: Host, setting: &str, value: &str) {
    let write = || fs::write(format!("/proc/sys/net/{setting}"), value);
    let written = lab.node(host).enter(write).expect("the machine is there");
    written.expect("there is such a setting");
}

fn nft(lab: &Lab, host: Host, script: &str) {
    let mut command = Command::new("nft");
    command.arg(script);
    let output = lab.node(host).run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{script}: {output:?}");
}

fn warns(cluster: &Cluster<'_>, host: Host, what: &str) -> bool {
    let status = cluster.status(host).expect("it answers");
    status.warnings.iter().any(|warning| warning.contains(what))
}

fn wait_said(cluster: &Cluster<'_>, host: Host, what: &str) {
    let said = format!("{host} says {what}");
    until_within(SAID, &said, || warns(cluster, host, what).then_some(()));
}

fn wait_taken_back(cluster: &Cluster<'_>, host: Host, what: &str) {
    let over = format!("{host} takes {what} back");
    until_within(SAID, &over, || (!warns(cluster, host, what)).then_some(()));
}

fn has_standby(cluster: &Cluster<'_>, owner: Host) -> bool {
    let status = cluster.status(owner).expect("it answers");
    status.services[0].state == "owner" && !status.services[0].in_sync.is_empty()
}

fn wait_alone(cluster: &Cluster<'_>, owner: Host) {
    until_within(SAID, "nobody is in sync", || {
        (!has_standby(cluster, owner)).then_some(())
    });
}

fn left_as_unfit(cluster: &Cluster<'_>, owner: Host) -> usize {
    let events = cluster.event_reports(owner).expect("it answers");
    let left = events.iter().filter(|event| event.event == "standby_left");
    left.filter(|event| event.reason.as_deref() == Some("unfit"))
        .count()
}

/// No twin could be born with any of these, or nobody would find the service.
#[test]
fn a_standby_whose_settings_change_leaves_and_comes_back() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let settings = [
        ("ipv4/tcp_syncookies", "0", "1", "tcp_syncookies"),
        ("ipv4/tcp_timestamps", "0", "1", "tcp_options"),
        ("ipv4/conf/eth0/arp_ignore", "2", "0", "arp_ignore"),
    ];
    for (number, (setting, bad, good, fact)) in settings.into_iter().enumerate() {
        set(&lab, Host::B, setting, bad);
        wait_said(&cluster, Host::B, fact);
        wait_alone(&cluster, Host::A);
        assert_eq!(left_as_unfit(&cluster, Host::A), number + 1, "{setting}");
        set(&lab, Host::B, setting, good);
        wait_taken_back(&cluster, Host::B, fact);
        wait_in_sync(&mut cluster, Host::A);
    }
    // Only said: nothing of a standby depends on it.
    set(&lab, Host::B, "ipv4/conf/eth0/rp_filter", "1");
    wait_said(&cluster, Host::B, "rp_filter");
    throughout("b stays in sync", Duration::from_millis(300), || {
        has_standby(&cluster, Host::A)
    });
}

/// It used to serve on, and nobody new found it.
#[test]
fn an_owner_that_nobody_finds_any_more_hands_over() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let echoes = [service_v4(), service_v6()].map(|at| Traffic::start(&lab, at, Load::Echo));
    for echo in &echoes {
        wait_protected(&cluster, Host::A, echo.local());
    }
    set(&lab, Host::A, "ipv4/conf/all/arp_ignore", "1");
    wait_said(&cluster, Host::A, "arp_ignore");
    until("b owns", || {
        let status = cluster.status(Host::B).expect("it answers");
        (status.services[0].state == "owner").then_some(())
    });
    for echo in &echoes {
        echo.goes_on();
    }
    set(&lab, Host::A, "ipv4/conf/all/arp_ignore", "0");
    wait_in_sync(&mut cluster, Host::B);
}

#[test]
fn rules_that_drop_what_twins_are_made_of_are_said_until_they_are_gone() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    const CHAIN: &str = "add table inet f; \
                         add chain inet f i { type filter hook input priority 0; }; \
                         add rule inet f i";
    for rule in [
        "ct state invalid drop",
        "ct state { invalid, untracked } counter drop",
        "ct state vmap { established : accept, invalid : drop }",
        "tcp flags & syn != syn ct state new drop",
    ] {
        let before = left_as_unfit(&cluster, Host::A);
        nft(&lab, Host::B, &format!("{CHAIN} {rule}"));
        wait_said(&cluster, Host::B, "of chain f i");
        wait_alone(&cluster, Host::A);
        assert_eq!(left_as_unfit(&cluster, Host::A), before + 1, "{rule}");
        nft(&lab, Host::B, "delete table inet f");
        wait_taken_back(&cluster, Host::B, "of chain f i");
        wait_in_sync(&mut cluster, Host::A);
    }
    for harmless in ["ct state established accept", "tcp dport 99 drop"] {
        nft(&lab, Host::B, &format!("{CHAIN} {harmless}"));
        throughout(harmless, Duration::from_millis(300), || {
            !warns(&cluster, Host::B, "of chain f i") && has_standby(&cluster, Host::A)
        });
        nft(&lab, Host::B, "delete table inet f");
    }
}

/// What clients say is dropped: by a rule, by a policy, in one family. As the standby it
/// leaves, as the owner it hands over.
#[test]
fn rules_that_drop_what_clients_say_are_said_until_they_are_gone() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    const CHAIN: &str = "add table inet f; \
                         add chain inet f i { type filter hook prerouting priority 0; };";
    for rule in [
        "add rule inet f i tcp dport { 22, 80 } drop",
        "add rule inet f i ip6 nexthdr tcp tcp dport 80 reject with tcp reset",
        "add rule inet f i tcp dport 22 accept; \
         add rule inet f i iifname != eth0 accept; \
         add rule inet f i ip protocol icmp accept; \
         add rule inet f i tcp dport 80 drop",
    ] {
        let before = left_as_unfit(&cluster, Host::A);
        nft(&lab, Host::B, &format!("{CHAIN} {rule}"));
        wait_said(&cluster, Host::B, "firewall: rule");
        wait_alone(&cluster, Host::A);
        assert_eq!(left_as_unfit(&cluster, Host::A), before + 1, "{rule}");
        nft(&lab, Host::B, "delete table inet f");
        wait_taken_back(&cluster, Host::B, "firewall: ");
        wait_in_sync(&mut cluster, Host::A);
    }
    // What else this node needs is accepted.
    let policy = "add table inet f; \
                  add chain inet f i { type filter hook input priority 0; policy drop; }; \
                  add rule inet f i iifname { lo, eth1 } accept; \
                  add rule inet f i meta l4proto icmpv6 accept";
    nft(&lab, Host::A, policy);
    wait_said(&cluster, Host::A, "firewall: the policy of chain f i");
    until("b owns", || {
        let status = cluster.status(Host::B).expect("it answers");
        (status.services[0].state == "owner").then_some(())
    });
    nft(&lab, Host::A, "add rule inet f i tcp dport 80 accept");
    wait_taken_back(&cluster, Host::A, "firewall: ");
    wait_in_sync(&mut cluster, Host::B);
}

/// Rules that see what leaves an interface, and those of ARP: canaries know nothing of them,
/// as they go from server to server.
#[test]
fn an_owner_that_is_not_heard_or_found_hands_over() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let since = Instant::now();
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    let rules = [
        (
            Host::A,
            "add table netdev n; \
             add chain netdev n c { type filter hook egress device eth0 priority 0; }; \
             add rule netdev n c tcp sport 80 drop",
            "delete table netdev n",
        ),
        (
            Host::B,
            "add table arp t; add chain arp t c { type filter hook output priority 0; }; \
             add rule arp t c arp saddr ip 10.9.0.100 drop",
            "delete table arp t",
        ),
    ];
    for (owner, add, delete) in rules {
        let other = Host::SERVERS.into_iter().find(|host| *host != owner);
        let other = other.expect("there are two");
        wait_protected(&cluster, owner, echo.local());
        nft(&lab, owner, add);
        wait_said(&cluster, owner, "firewall: rule");
        cluster
            .wait_owner(other, DEADLINE)
            .expect("it is handed over");
        echo.goes_on();
        nft(&lab, owner, delete);
        wait_taken_back(&cluster, owner, "firewall: ");
        wait_in_sync(&mut cluster, other);
    }
    echo.finish(since, STALL_LIMIT);
}

/// The kernel tells nobody of these rules. Skipped where iptables is not installed.
#[test]
fn rules_of_iptables_legacy_are_said_until_they_are_gone() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let run = |words: &str| {
        let mut command = Command::new("iptables-legacy");
        command.args(words.split(' '));
        let output = lab.b().run(command, DEADLINE).ok()?;
        assert!(output.status.success(), "{words}: {output:?}");
        Some(())
    };
    if run("-w -L -n").is_none() {
        return println!("skipped: no iptables-legacy");
    }
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    for (rule, said) in [
        (
            "INPUT -m conntrack --ctstate INVALID -j DROP",
            "conntrack: rule 1 of chain filter INPUT",
        ),
        (
            "INPUT -p tcp --dport 80 -j DROP",
            "firewall: rule 1 of chain filter INPUT",
        ),
    ] {
        run(&format!("-w -A {rule}")).expect("it is there");
        wait_said(&cluster, Host::B, said);
        wait_alone(&cluster, Host::A);
        run(&format!("-w -D {rule}")).expect("it is there");
        wait_taken_back(&cluster, Host::B, said);
        wait_in_sync(&mut cluster, Host::A);
    }
}

#[test]
fn strict_connection_tracking_is_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let setting = "netfilter/nf_conntrack_tcp_loose";
    set(&lab, Host::B, setting, "0");
    wait_said(&cluster, Host::B, "conntrack_loose: ");
    assert!(has_standby(&cluster, Host::A), "no rule makes use of it");
    set(&lab, Host::B, setting, "1");
    wait_taken_back(&cluster, Host::B, "conntrack_loose: ");
}

/// Files for `days` from now, or until before now, where the agent on `host` has its own.
fn issue(lab: &Lab, host: Host, days: i64) {
    let away = Duration::from_secs(days.unsigned_abs() * 86_400);
    let now = SystemTime::now();
    let order = Order {
        name: host.name().parse().expect("a name"),
        out: &folder(lab, host),
        life: Life::Until(if days < 0 { now - away } else { now + away }),
        unless_valid_for: None,
    };
    godwit_pki::issue(&lab.folder().join("pki"), &order).expect("issued");
}

fn folder(lab: &Lab, host: Host) -> PathBuf {
    let folder = lab.node(host).folder().expect("the machine is there");
    folder.to_path_buf()
}

/// On each kind of node. Running links go on, and new ones use the new certificate.
#[test]
fn certificates_are_renewed_without_a_restart_and_broken_ones_are_refused() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut cluster = in_sync(&lab, options);
    for host in [Host::A, Host::B, Host::Witness] {
        issue(&lab, host, 5);
        wait_said(&cluster, host, "expires in");
        issue(&lab, host, -1);
        wait_said(&cluster, host, "renewed files can't be used");
        assert!(warns(&cluster, host, "expires in"), "the old one is kept");
        fs::write(folder(&lab, host).join("node.pem"), "nothing").expect("written");
        wait_said(&cluster, host, "no certificate in it");
        issue(&lab, host, 90);
        wait_taken_back(&cluster, host, "certificate");
    }
    assert!(has_standby(&cluster, Host::A), "no link has ended");
    cluster.start_agent(Host::B).expect("it starts again");
    wait_in_sync(&mut cluster, Host::A);
}

/// Listens and accepts nobody.
const DEAF: &str = r#"
import socket, sys, time
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("::", int(sys.argv[1]))); s.listen(1)
time.sleep(600)
"#;

/// A standby whose server accepts nobody has twins until its queue is full. Then new
/// connections have none: it is said at that node, until there is room.
#[test]
fn a_server_that_accepts_nobody_is_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    b.kill().expect("it runs");
    wait_alone(&cluster, Host::A);
    let mut command = Command::new("python3");
    command.args(["-c", DEAF, &PORT.to_string()]);
    let mut deaf = lab.b().spawn("deaf", command).expect("python runs");
    wait_in_sync(&mut cluster, Host::A);
    let echoes: Vec<_> = (0..4)
        .map(|_| Traffic::start(&lab, service_v4(), Load::Echo))
        .collect();
    wait_said(&cluster, Host::B, "accept_queue");
    for echo in &echoes {
        echo.goes_on();
    }
    deaf.kill().expect("it runs");
    let _b = server::start(lab.b(), PORT).expect("the server starts");
    wait_taken_back(&cluster, Host::B, "accept_queue");
    wait_in_sync(&mut cluster, Host::A);
}
