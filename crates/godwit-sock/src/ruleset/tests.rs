use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::*;

const SERVICES: [&str; 2] = ["10.9.0.100:80", "[2001:db8::100]:80"];

fn services() -> Vec<SocketAddr> {
    SERVICES.map(|at| at.parse().expect("a literal")).to_vec()
}

/// Runs on a thread in a network namespace of its own; `false`: there can be none.
fn in_a_namespace(work: impl FnOnce() + Send + 'static) -> bool {
    let alone = thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            println!("skipped: network namespaces need root");
            return false;
        }
        work();
        true
    });
    alone.join().expect("no panic")
}

/// What is said of the rules of that script, in short: kind, family, chain and rule.
fn said(script: &str) -> Vec<String> {
    let whole = format!("flush ruleset; {script}");
    let output = Command::new("nft").arg(&whole).output().expect("nft runs");
    assert!(output.status.success(), "{script}: {output:?}");
    let found = refusals(("lo", 1), &services()).expect("netlink works");
    let said = found.iter().map(|it| {
        let family = if it.service.is_ipv4() { 4 } else { 6 };
        let rule = it
            .handle
            .map_or_else(|| "policy".to_owned(), |_| "rule".to_owned());
        let doubt = if it.is_certain { "" } else { " perhaps" };
        format!("{:?}{family} {} {rule}{doubt}", it.drops, it.chain)
    });
    said.collect()
}

const TABLE: &str = "add table inet f; add chain inet f i { type filter hook input priority 0; }; \
                     add chain inet f sub; ";

#[test]
fn what_is_dropped_for_every_client_is_said() {
    let both =
        |kind: &str, place: &str| vec![format!("{kind}4 {place}"), format!("{kind}6 {place}")];
    let rule = |kind: &str| both(kind, "f i rule");
    let table: Vec<(&str, Vec<String>)> = vec![
        ("tcp dport 80 drop", rule("Service")),
        ("tcp dport 81 drop", vec![]),
        ("tcp dport { 22, 80, 443 } drop", rule("Service")),
        ("tcp dport { 22, 443 } drop", vec![]),
        ("tcp dport { 70-90 } drop", rule("Service")),
        ("tcp dport { 22-79, 81-90 } drop", vec![]),
        ("tcp dport 70-90 reject", rule("Service")),
        ("tcp dport != 80 drop", vec![]),
        ("tcp dport != { 22, 25 } drop", rule("Service")),
        ("tcp dport vmap { 80 : drop, 22 : accept }", rule("Service")),
        ("tcp dport vmap { 80 : accept, 22 : drop }", vec![]),
        ("ip daddr 10.9.0.100 drop", vec!["Service4 f i rule".into()]),
        (
            "ip daddr 10.9.0.0/16 drop",
            vec!["Service4 f i rule".into()],
        ),
        ("ip daddr 10.8.0.0/16 drop", vec![]),
        (
            "ip6 daddr . tcp dport { 2001:db8::100 . 80 } drop",
            vec!["Service6 f i rule".into()],
        ),
        ("ip saddr 10.0.0.0/8 tcp dport 80 drop", vec![]),
        ("meta l4proto udp drop", vec![]),
        ("iifname lo tcp dport 80 drop", rule("Service")),
        ("iifname eth1 drop", vec![]),
        ("iif lo tcp dport 80 drop", rule("Service")),
        (
            "tcp flags syn / fin,syn,rst,ack tcp dport 80 drop",
            rule("Service"),
        ),
        ("tcp dport 80 limit rate over 5/second drop", vec![]),
        ("ct state invalid drop", rule("Invalid")),
        (
            "ct state { invalid, untracked } counter drop",
            [rule("Invalid"), vec!["Neighbours6 f i rule".into()]].concat(),
        ),
        (
            "ct state vmap { established : accept, invalid : drop }",
            rule("Invalid"),
        ),
        (
            "ip saddr 10.0.0.0/8 ct state invalid drop",
            vec!["Invalid4 f i rule".into()],
        ),
        ("ct state established accept", vec![]),
        ("iifname eth1 ct state invalid drop", vec![]),
        (
            "tcp flags & syn != syn ct state new drop",
            rule("NewWithoutSyn"),
        ),
        ("ct state new limit rate over 10/second drop", vec![]),
        ("tcp dport 99 drop", vec![]),
    ];
    in_a_namespace(move || {
        for (words, expected) in table {
            let script = format!("{TABLE} add rule inet f i {words}");
            assert_eq!(said(&script), expected, "{words}");
            cut_short();
        }
    });
}

/// Rules, and what is said of each: what is the same for all clients is decided where it can
/// be.
fn undecided() -> Vec<(&'static str, Vec<String>)> {
    let both = |place: &str| vec![format!("Service4 {place}"), format!("Service6 {place}")];
    let (rule, perhaps) = (both("f i rule"), both("f i rule perhaps"));
    vec![
        // Nobody marks anything.
        ("meta mark 1 drop", vec![]),
        ("tcp dport 80 meta mark != 1 drop", rule.clone()),
        ("tcp dport 80 ct mark 7 drop", vec![]),
        (
            "meta mark set 1 counter; add rule inet f i tcp dport 80 meta mark 1 drop",
            perhaps.clone(),
        ),
        ("tcp dport 80 fib daddr type local drop", rule.clone()),
        ("tcp dport 80 fib daddr type != local drop", vec![]),
        (
            "tcp dport 80 fib daddr . iif type != local drop",
            perhaps.clone(),
        ),
        ("tcp dport 80 fib saddr . iif oif missing drop", vec![]),
        ("tcp dport 80 ct direction original drop", rule.clone()),
        ("tcp dport 80 ct direction reply drop", vec![]),
        (
            "tcp dport 80 ct l3proto ipv4 drop",
            vec!["Service4 f i rule".into()],
        ),
        (
            "meta protocol ip tcp dport 80 drop",
            vec!["Service4 f i rule".into()],
        ),
        (
            "meta nfproto ipv6 tcp dport 80 drop",
            vec!["Service6 f i rule".into()],
        ),
        ("meta l4proto { tcp, udp } th dport 80 drop", rule.clone()),
        (
            "tcp dport 80 ip length > 1400 drop",
            vec!["Service4 f i rule perhaps".into()],
        ),
        ("tcp dport 80 meta length > 1400 drop", perhaps.clone()),
        ("tcp dport 81 meta length > 1400 drop", vec![]),
        ("tcp dport 80 iifgroup 0 drop", rule.clone()),
        ("tcp dport 80 iifgroup 7 drop", vec![]),
        ("tcp dport 80 oifgroup 0 drop", vec![]),
        ("tcp dport 80 oifname != \"eth9\" drop", rule.clone()),
        (
            "tcp dport 80 meta pkttype { broadcast, multicast } drop",
            vec![],
        ),
        // A SYN has no socket yet; what comes later may have.
        ("tcp dport 80 meta skuid 0 drop", perhaps.clone()),
        ("tcp dport 80 meta cpu 3 drop", perhaps.clone()),
        (
            "meta cpu 3 tcp dport 80 jump sub; add rule inet f sub drop",
            both("f sub rule perhaps"),
        ),
        (
            "tcp dport 80 meta cpu 3 accept; add rule inet f i tcp dport 80 drop",
            vec![],
        ),
        // What is certain is said instead.
        (
            "tcp dport 80 meta cpu 3 drop; add rule inet f i tcp dport 80 drop",
            rule,
        ),
        ("meta cpu 3 drop", perhaps),
    ]
}

#[test]
fn what_can_not_be_decided_is_said_as_such() {
    in_a_namespace(|| {
        for (words, expected) in undecided() {
            let script = format!("{TABLE} add rule inet f i {words}");
            assert_eq!(said(&script), expected, "{words}");
            cut_short();
        }
        let out = "add chain inet f o { type filter hook output priority 0; }; \
                   add rule inet f o tcp sport 80 meta skuid 33 drop";
        let expected = ["Service4 f o rule perhaps", "Service6 f o rule perhaps"];
        assert_eq!(said(&format!("{TABLE} {out}")), expected, "a server's own");
    });
}

/// Whatever is made of rules that are not whole, nothing panics.
fn cut_short() {
    let netlink = Netlink::open(SockProtocol::NetlinkNetFilter).expect("root may");
    let rules = netlink.request(GET_RULE, NLM_F_DUMP, &[0; NFGENMSG]);
    for rule in rules.expect("they can be listed") {
        for cut in 0..rule.len() {
            let Some(rule) = Rule::read(&rule[..cut]) else {
                continue;
            };
            for probe in Probe::all(services()[0], ("lo", 1)) {
                let _ = rule.ask(probe, Known::default(), |_| Vec::new());
            }
        }
    }
}

#[test]
fn chains_are_walked_as_packets_walk_them() {
    let table: [(&str, &[&str]); 10] = [
        // The service's port is accepted before.
        (
            "add rule inet f i tcp dport 80 accept; add rule inet f i ct state invalid drop",
            &[],
        ),
        (
            "add rule inet f i jump sub; add rule inet f sub tcp dport 80 drop",
            &["Service4 f sub rule", "Service6 f sub rule"],
        ),
        (
            "add rule inet f i jump sub; add rule inet f sub return; add rule inet f sub drop",
            &[],
        ),
        // A chain that nobody comes to.
        ("add rule inet f sub drop", &[]),
        (
            "add chain inet f i { policy drop; }",
            &["Service4 f i policy", "Service6 f i policy"],
        ),
        // Connections that tracking has seen begin are accepted, and no others.
        (
            "add rule inet f i ct state established accept; \
             add rule inet f i ct state new tcp dport 80 accept; \
             add chain inet f i { policy drop; }",
            &[
                "Invalid4 f i policy",
                "Invalid6 f i policy",
                "Neighbours6 f i policy",
            ],
        ),
        (
            "add rule inet f i tcp dport 80 accept; add chain inet f i { policy drop; }",
            &["Neighbours6 f i policy"],
        ),
        // Whom it accepts is not known here.
        (
            "add rule inet f i ip saddr 10.0.0.0/8 accept; add rule inet f i meta nfproto ipv4 drop",
            &[],
        ),
        // Before connection tracking nothing is known to be invalid.
        (
            "add chain inet f raw { type filter hook prerouting priority -300; }; \
             add rule inet f raw ct state != established tcp dport 81 drop",
            &[],
        ),
        (
            "add chain inet f way { type filter hook forward priority 0; policy drop; }",
            &[],
        ),
    ];
    in_a_namespace(move || {
        for (words, expected) in table {
            assert_eq!(said(&format!("{TABLE} {words}")), expected, "{words}");
        }
        let out = "add chain inet f o { type filter hook output priority 0; }; \
                   add rule inet f o tcp sport 80 drop";
        let expected = ["Service4 f o rule", "Service6 f o rule"];
        assert_eq!(said(&format!("{TABLE} {out}")), expected, "answers");
        let ingress = "add table netdev n; \
                       add chain netdev n i { type filter hook ingress device lo priority 0; }; \
                       add rule netdev n i tcp dport 80 drop";
        let expected = ["Service4 n i rule", "Service6 n i rule"];
        assert_eq!(said(ingress), expected, "before everything");
        let asleep = "add table inet f { flags dormant; }; \
                      add chain inet f i { type filter hook input priority 0; }; \
                      add rule inet f i drop";
        assert_eq!(said(asleep), [""; 0], "dormant");
    });
}

/// Replaces a table of iptables-legacy as iptables does (IPT_SO_SET_REPLACE): a rule in
/// INPUT that drops a port of TCP, then policies that accept.
/// `had` is how many entries it had before.
fn drop_by_legacy(port: u16, had: u32) {
    const ENTRY: usize = 112;
    let entry = |matches: &[u8], target: &[u8]| {
        let mut entry = [0_u8; ENTRY];
        if !matches.is_empty() {
            entry[80..82].copy_from_slice(&6_u16.to_ne_bytes());
        }
        let at = u16::try_from(ENTRY + matches.len()).expect("small");
        let next = at + u16::try_from(target.len()).expect("small");
        entry[88..90].copy_from_slice(&at.to_ne_bytes());
        entry[90..92].copy_from_slice(&next.to_ne_bytes());
        [&entry[..], matches, target].concat()
    };
    let part = |size: u16, name: &str, data: &[u8]| {
        let mut part = vec![0_u8; usize::from(size)];
        part[..2].copy_from_slice(&size.to_ne_bytes());
        part[2..2 + name.len()].copy_from_slice(name.as_bytes());
        part[32..32 + data.len()].copy_from_slice(data);
        part
    };
    let verdict = |code: i32| part(40, "", &code.to_ne_bytes());
    let ports = [0, u16::MAX, port, port].map(u16::to_ne_bytes).concat();
    let rule = entry(&part(48, "tcp", &ports), &verdict(-1));
    let accept = entry(&[], &verdict(-2));
    let end = entry(&[], &part(64, "ERROR", b"ERROR"));
    let entries = [&rule[..], &accept, &accept, &accept, &end].concat();
    let at = |count: usize| u32::try_from(rule.len() + count * accept.len()).expect("small");
    let mut counters = [0_u8; 4096];
    let mut replace = vec![0_u8; 32];
    replace[..6].copy_from_slice(b"filter");
    let size = u32::try_from(entries.len()).expect("small");
    // LOCAL_IN, FORWARD, LOCAL_OUT.
    let numbers = [0b1110, 5, size];
    let begin = [0, 0, at(1), at(2), 0];
    let policies = [0, at(0), at(1), at(2), 0];
    for number in numbers
        .into_iter()
        .chain(begin)
        .chain(policies)
        .chain([had])
    {
        replace.extend(number.to_ne_bytes());
    }
    replace.extend((counters.as_mut_ptr() as usize).to_ne_bytes());
    replace.extend(entries);
    let flags = SockFlag::SOCK_CLOEXEC;
    let raw = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Raw);
    let raw = raw.expect("root may");
    let len = libc::socklen_t::try_from(replace.len()).expect("small");
    // SAFETY: the kernel reads the structure and writes counters that have room.
    let err = unsafe { libc::setsockopt(raw.as_raw_fd(), 0, 64, replace.as_ptr().cast(), len) };
    assert_eq!(err, 0, "{}", io::Error::last_os_error());
}

#[test]
fn tables_of_iptables_legacy_are_read() {
    in_a_namespace(|| {
        let none = legacy_refusals(("lo", 1), &services()).expect("readable");
        assert_eq!(none, [], "without tables");
        if std::fs::metadata("/proc/thread-self/net/ip_tables_names").is_err() {
            return println!("skipped: this kernel has no iptables-legacy");
        }
        drop_by_legacy(81, 4);
        let other = legacy_refusals(("lo", 1), &services()).expect("readable");
        assert_eq!(other, [], "another port");
        drop_by_legacy(80, 5);
        let found = legacy_refusals(("lo", 1), &services()).expect("readable");
        let refusal = Refusal {
            chain: "filter INPUT".into(),
            handle: Some(1),
            drops: Drops::Service,
            service: services()[0],
            is_certain: true,
        };
        assert_eq!(found, [refusal]);
    });
}

/// With the program itself, where it is installed.
#[test]
fn what_iptables_legacy_makes_is_read() {
    in_a_namespace(|| {
        let services = services();
        for (number, program) in ["iptables-legacy", "ip6tables-legacy"]
            .into_iter()
            .enumerate()
        {
            let run = |words: &str| {
                let done = Command::new(program).args(words.split(' ')).status();
                done.map(|status| assert!(status.success(), "{program} {words}"))
            };
            if run("-w -P INPUT ACCEPT").is_err() {
                return println!("skipped: no {program}");
            }
            let said = || {
                let found = legacy_refusals(("lo", 1), &services).expect("readable");
                let of_it = found.iter().filter(|it| it.service == services[number]);
                let short = of_it.map(|it| format!("{:?} {} {:?}", it.drops, it.chain, it.handle));
                short.collect::<Vec<_>>()
            };
            let table = [
                (
                    "INPUT -m conntrack --ctstate INVALID -j DROP",
                    "Invalid filter INPUT Some(1)",
                ),
                (
                    "INPUT -p tcp ! --syn -m state --state NEW -j DROP",
                    "NewWithoutSyn filter INPUT Some(1)",
                ),
                ("INPUT -i eth7 -j DROP", ""),
                (
                    "INPUT -i lo -p tcp -m multiport --dports 22,70:90 -j DROP",
                    "Service filter INPUT Some(1)",
                ),
                ("INPUT -p tcp -m multiport --dports 22,81:90 -j DROP", ""),
                ("INPUT -p udp -j DROP", ""),
                (
                    "OUTPUT -p tcp --sport 80 -j REJECT",
                    "Service filter OUTPUT Some(1)",
                ),
            ];
            for (rule, expected) in table {
                run(&format!("-w -A {rule}")).expect("as before");
                let said = said();
                assert_eq!(
                    said.first().map_or("", String::as_str),
                    expected,
                    "{program} {rule}"
                );
                run(&format!("-w -D {rule}")).expect("as before");
            }
            run("-w -N sub").expect("as before");
            run("-w -A sub -p tcp --dport 80 -j DROP").expect("as before");
            assert_eq!(said(), [""; 0], "nobody comes there");
            run("-w -A INPUT -j sub").expect("as before");
            assert_eq!(said()[0], "Service filter sub Some(1)");
            run("-w -F INPUT").expect("as before");
            run("-w -P INPUT DROP").expect("as before");
            assert_eq!(said()[0], "Service filter INPUT None");
            run("-w -A INPUT -p tcp --dport 80 -j ACCEPT").expect("as before");
            assert_eq!(said(), [""; 0]);
        }
    });
}

fn check(table: Vec<(String, Vec<&'static str>)>) {
    in_a_namespace(move || {
        let other = ["link", "add", "other", "type", "veth"];
        let output = Command::new("ip").args(other).output().expect("ip runs");
        assert!(output.status.success(), "{output:?}");
        for (script, expected) in table {
            assert_eq!(said(&script), expected, "{script}");
        }
    });
}

/// ARP passes chains of its own. Chains of an interface see all that comes or leaves.
#[test]
fn chains_of_arp_and_of_interfaces_are_walked() {
    let arp = |hook: &str, rule: &str| {
        format!(
            "add table arp t; add chain arp t c {{ type filter hook {hook} priority 0; }}; \
             add rule arp t c {rule}"
        )
    };
    let device = |hook: &str, devices: &str, rule: &str| {
        format!(
            "add table netdev n; add chain netdev n c {{ type filter hook {hook} {devices} \
             priority 0; }}; add rule netdev n c {rule}"
        )
    };
    let (asks, answers) = ("arp operation request drop", "arp operation reply drop");
    let found = vec!["Neighbours4 t c rule"];
    let service = vec!["Service4 n c rule", "Service6 n c rule"];
    let leaves = "tcp sport 80 drop";
    check(vec![
        (arp("input", "drop"), found.clone()),
        (arp("output", answers), found.clone()),
        (arp("output", asks), vec![]),
        (arp("input", "arp daddr ip 10.9.0.100 drop"), found),
        (arp("input", "arp daddr ip 10.9.0.101 drop"), vec![]),
        (device("egress", "device lo", leaves), service.clone()),
        (device("egress", "devices = { lo, other }", leaves), service),
        (device("egress", "device lo", "tcp dport 80 drop"), vec![]),
        (device("egress", "device other", "drop"), vec![]),
        (
            device("ingress", "device lo", "meta protocol arp drop"),
            vec!["Neighbours4 n c rule"],
        ),
        (
            device("ingress", "device lo", "meta l4proto != tcp drop"),
            vec!["Neighbours4 n c rule", "Neighbours6 n c rule"],
        ),
    ]);
}

/// Neighbour discovery passes the chains of all IP, and connection tracking leaves it out.
#[test]
fn rules_that_forget_neighbour_discovery_are_said() {
    let dropped = [
        "icmpv6 type echo-request accept",
        "ip6 daddr 2001:db8::100 accept",
    ];
    let passed = [
        "meta l4proto ipv6-icmp accept",
        "ip6 nexthdr ipv6-icmp accept",
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
        "ip6 hoplimit 255 icmpv6 type nd-neighbor-solicit accept",
        "ip6 saddr fe80::/10 accept",
        "ct state untracked accept",
        "ip6 daddr ff02::1:ff00:0/104 accept",
    ];
    let said = dropped.map(|rule| (rule, vec!["Neighbours6 f i policy"]));
    let table = said.into_iter().chain(passed.map(|rule| (rule, vec![])));
    let script = |rule: &str| {
        format!(
            "{TABLE} add rule inet f i tcp dport 80 accept; add rule inet f i {rule}; \
             add chain inet f i {{ policy drop; }}"
        )
    };
    check(table.map(|(rule, said)| (script(rule), said)).collect());
}
