use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use godwit_bpf::{Fronting, Standing};
use godwit_sock::{Device, Devices, Drops, Refusal};

use super::*;

mod segment;
mod start;

/// A machine made of files and the output of programs.
#[derive(Default)]
struct PaperHost {
    files: BTreeMap<String, Vec<u8>>,
    programs: BTreeMap<&'static str, String>,
    has_bpffs: bool,
    devices: Devices,
    /// What drops packets; `None`: that can't be seen.
    refusals: Option<Vec<Refusal>>,
    standing: Standing,
    /// Nodes whose programs are on the interface.
    beside: Vec<String>,
    /// What agents have left.
    left_addresses: Vec<String>,
    run_dir: Option<RunDir>,
}

impl Host for PaperHost {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.files
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn run(&self, program: &str, _: &[&str]) -> io::Result<String> {
        self.programs
            .get(program)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn has_address(&self, address: IpAddr) -> bool {
        address.is_loopback()
    }

    fn find_group(&self, name: &str) -> Result<(), String> {
        let is_there = name == "web";
        is_there.then_some(()).ok_or_else(|| "no such group".into())
    }

    fn run_dir(&self, _: &Path) -> Option<RunDir> {
        self.run_dir.clone()
    }

    fn devices(&self) -> io::Result<Devices> {
        Ok(self.devices.clone())
    }

    fn standing(&self, _: &str, _: &str) -> io::Result<Standing> {
        Ok(self.standing.clone())
    }

    fn beside(&self, _: &str, _: &str) -> io::Result<Vec<String>> {
        Ok(self.beside.clone())
    }

    fn left_addresses(&self, _: &str, _: &[SocketAddr]) -> io::Result<Vec<String>> {
        Ok(self.left_addresses.clone())
    }

    fn refusals(&self, _: &str, services: &[SocketAddr]) -> io::Result<Vec<Refusal>> {
        let all = self.refusals.clone();
        let mut all = all.ok_or(io::ErrorKind::PermissionDenied)?;
        all.retain(|it| services.contains(&it.service));
        Ok(all)
    }

    fn has_bpffs(&self, _: &str) -> bool {
        self.has_bpffs
    }
}

impl PaperHost {
    /// A machine that lacks nothing.
    fn good() -> Self {
        let mut host = Self {
            has_bpffs: true,
            refusals: Some(Vec::new()),
            devices: [device(2, "eth0", None)].into_iter().collect(),
            ..Self::default()
        };
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", "6.12.9-amd64\n"),
            (
                "/proc/self/status",
                "Name:\tgodwit\nCapEff:\t000001ffffffffff\n",
            ),
            ("/proc/sys/net/core/bpf_jit_enable", "1\n"),
            (
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                "tsc\n",
            ),
            ("/proc/sys/net/ipv4/tcp_syncookies", "1\n"),
            ("/proc/sys/net/ipv4/tcp_window_scaling", "1\n"),
            ("/proc/sys/net/ipv4/conf/all/rp_filter", "0\n"),
            ("/proc/sys/net/ipv4/conf/eth0/rp_filter", "2\n"),
            ("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0\n"),
            ("/sys/class/net/eth0/type", "1\n"),
            ("/sys/class/net/eth0/operstate", "up\n"),
            (
                "/proc/net/tcp",
                "  sl  local_address rem_address   st\n   0: 00000000:0050 00000000:0000 0A 0\n",
            ),
        ] {
            host.set(path, text);
        }
        host.files.insert(
            "/sys/kernel/btf/vmlinux".into(),
            btf("bpf_sk_assign_tcp_reqsk"),
        );
        host.programs.insert("nft", String::new());
        host.programs.insert("ss", String::new());
        host.programs.insert(
            "tc",
            "qdisc fq_codel 0: root refcnt 2\n backlog 0b 0p requeues 0\n".into(),
        );
        host
    }

    fn set(&mut self, path: &str, text: &str) {
        self.files.insert(path.into(), text.into());
    }
}

fn device(index: u32, name: &str, kind: Option<&str>) -> Device {
    Device {
        index,
        name: name.into(),
        kind: kind.map(str::to_owned),
        ..Device::default()
    }
}

/// A BTF blob whose only strings are the empty one and `name`.
fn btf(name: &str) -> Vec<u8> {
    let strings = format!("\0{name}\0");
    let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
    bytes.extend([1, 0]);
    for word in [24, 0, 0, 0, u32::try_from(strings.len()).expect("short")] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(strings.as_bytes());
    bytes
}

fn scope() -> Scope {
    Scope {
        start: Start::default(),
        interface: Some("eth0".into()),
        control: Some([127, 0, 0, 1].into()),
        services: vec!["10.9.0.100:80".parse().expect("an address")],
        twinned: vec!["10.9.0.100:80".parse().expect("an address")],
        silence: Some(Duration::from_millis(30)),
        residence: Some(Duration::from_millis(5)),
        fronted: false,
        pins: Some("n1-a".into()),
        certificates: None,
        believed: Vec::new(),
        running: None,
    }
}

fn check<'a>(report: &'a Report, name: &str) -> &'a Check {
    report
        .checks
        .iter()
        .find(|check| check.name == name)
        .expect("such a check")
}

/// What one changed file makes of one check.
fn with_file(path: &str, text: &str, name: &str) -> Check {
    let mut host = PaperHost::good();
    host.set(path, text);
    check(&examine(&host, &scope()), name).clone()
}

#[test]
fn a_control_address_among_clients_is_advised_against() {
    for (control, shown) in [
        (
            "127.0.0.1",
            "2: eth0    inet 127.0.0.1/24 brd 127.0.0.255 scope global eth0",
        ),
        ("::1", "2: eth0    inet6 ::1/64 scope global"),
    ] {
        let mut scope = scope();
        scope.control = control.parse().ok();
        let mut host = PaperHost::good();
        assert_eq!(check(&examine(&host, &scope), "control").advice, None);
        host.programs.insert("ip", shown.into());
        let report = examine(&host, &scope);
        let found = check(&report, "control");
        assert!(
            found.level == Level::Ok && found.advice.is_some(),
            "{found:?}"
        );
        host.programs
            .insert("ip", shown.replace(control, "10.9.0.1"));
        assert_eq!(check(&examine(&host, &scope), "control").advice, None);
    }
}

#[test]
fn a_machine_that_lacks_nothing_passes() {
    let report = examine(&PaperHost::good(), &scope());
    let bad: Vec<_> = report
        .checks
        .iter()
        .filter(|check| check.level != Level::Ok)
        .collect();
    assert!(report.ok && bad.is_empty(), "{bad:?}");
    assert_eq!(preflight(&PaperHost::good()), Ok(()));
}

/// Its interface is gone: that is no kernel without IPv6.
#[test]
fn a_setting_of_an_interface_that_is_gone_is_no_fault_of_the_kernel() {
    let mut host = PaperHost::good();
    host.files
        .remove("/proc/sys/net/ipv6/conf/eth0/disable_ipv6");
    let ipv6 = |host: &PaperHost| {
        let mut scope = scope();
        scope.services = vec!["[2001:db8::100]:80".parse().expect("an address")];
        let report = examine(host, &scope);
        let check = report.checks.into_iter().find(|check| check.name == "ipv6");
        check.expect("it is looked at").level
    };
    assert_eq!(ipv6(&host), Level::Fail);
    host.set("/proc/sys/net/ipv6/conf/all/disable_ipv6", "0\n");
    assert_eq!(ipv6(&host), Level::Ok);
}

#[test]
fn every_check_that_complains_says_what_to_do() {
    let report = examine(&PaperHost::default(), &scope());
    assert!(!report.ok);
    for check in report.checks {
        assert_eq!(
            check.level != Level::Ok,
            check.advice.is_some(),
            "{check:?}"
        );
    }
}

/// File, what stands in it, the check that reads it, how that goes.
const SHORTCOMINGS: &str = "
/proc/sys/kernel/osrelease | 6.8.0-45-generic | kernel | fail
/proc/sys/kernel/osrelease | 6.9 | kernel | ok
/proc/sys/kernel/osrelease | 7.0.1 | kernel | ok
/proc/self/status | CapEff: 0000000000000000 | capabilities | fail
/proc/sys/net/core/bpf_jit_enable | 0 | bpf-jit | warn
/proc/sys/net/ipv4/tcp_syncookies | 0 | tcp_syncookies | fail
/proc/sys/net/ipv4/tcp_sack | 0 | tcp_options | warn
/proc/sys/net/ipv4/conf/all/rp_filter | 1 | rp_filter | ok
/proc/sys/net/ipv4/conf/eth0/rp_filter | 1 | rp_filter | warn
/proc/sys/net/ipv4/conf/all/arp_ignore | 1 | arp_ignore | fail
/sys/class/net/eth0/operstate | down | interface | warn
/sys/class/net/eth0/type | 772 | interface | fail
/sys/kernel/security/lockdown | none [integrity] confidentiality | lockdown | ok
/sys/kernel/security/lockdown | none integrity [confidentiality] | lockdown | fail
/proc/cpuinfo | flags : fpu hypervisor sse | hypervisor | warn
/proc/net/tcp | 0: 00000000:0051 00000000:0000 0A | listeners | warn
/proc/net/tcp | 0: 00000000:0050 00000000:0000 01 | listeners | warn
";

#[test]
fn each_shortcoming_is_found() {
    for line in SHORTCOMINGS.lines().filter(|line| !line.is_empty()) {
        let [path, text, name, level] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("four columns: {line}");
        };
        assert_eq!(with_file(path, text, name).level.as_str(), level, "{line}");
    }
}

#[test]
fn a_kernel_without_the_kfunc_is_refused_at_start_with_one_sentence() {
    let mut host = PaperHost::good();
    host.files.insert(
        "/sys/kernel/btf/vmlinux".into(),
        btf("bpf_sk_assign_tcp_reqsk2"),
    );
    let unfit = preflight(&host).expect_err("no kfunc").to_string();
    assert!(
        unfit.starts_with("kfunc: the kernel does not know bpf_sk_assign_tcp_reqsk; use"),
        "{unfit}"
    );
}

#[test]
fn broken_btf_is_no_reason_to_panic() {
    for len in 0..24 {
        let mut host = PaperHost::good();
        host.files
            .insert("/sys/kernel/btf/vmlinux".into(), btf("x")[..len].to_vec());
        assert_eq!(check(&examine(&host, &scope()), "btf").level, Level::Fail);
    }
    let mut bytes = btf("x");
    bytes[16..24].fill(0xff);
    let mut host = PaperHost::good();
    host.files.insert("/sys/kernel/btf/vmlinux".into(), bytes);
    assert_eq!(check(&examine(&host, &scope()), "btf").level, Level::Fail);
}

#[test]
fn rules_that_drop_what_a_service_needs_are_found() {
    let refusal = |drops, handle| Refusal {
        chain: "filter input".into(),
        handle,
        drops,
        service: scope().services[0],
        is_certain: true,
    };
    let cases = [
        (
            Drops::Invalid,
            "conntrack",
            "rule 7 of chain filter input",
            true,
        ),
        (Drops::NewWithoutSyn, "conntrack", "every twin", false),
        (Drops::Service, "firewall", "10.9.0.100:80", false),
    ];
    for (drops, name, said, may_be_liberal) in cases {
        let mut host = PaperHost::good();
        host.refusals = Some(vec![refusal(drops, Some(7))]);
        let found = check(&examine(&host, &scope()), name).clone();
        assert_eq!(found.level, Level::Fail, "{drops:?}");
        assert!(found.found.contains(said), "{found:?}");
        host.set("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "1");
        host.set("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "1");
        let level = check(&examine(&host, &scope()), name).level;
        assert_eq!(level == Level::Ok, may_be_liberal, "{drops:?}");
    }
    let mut host = PaperHost::good();
    host.refusals = Some(vec![refusal(Drops::Neighbours, None)]);
    for (fronted, level) in [(false, Level::Fail), (true, Level::Ok)] {
        let scope = Scope { fronted, ..scope() };
        assert_eq!(check(&examine(&host, &scope), "firewall").level, level);
    }
    host.refusals = Some(vec![refusal(Drops::Service, None)]);
    let found = check(&examine(&host, &scope()), "firewall").found.clone();
    assert!(
        found.starts_with("the policy of chain filter input"),
        "{found}"
    );
    for drops in [Drops::Service, Drops::Invalid, Drops::NewWithoutSyn] {
        let doubt = Refusal {
            is_certain: false,
            ..refusal(drops, Some(7))
        };
        host.refusals = Some(vec![doubt]);
        let checks = examine(&host, &scope());
        let found = check(&checks, "firewall_perhaps");
        assert_eq!(found.level, Level::Warn);
        let sentence = "rule 7 of chain filter input may drop";
        assert!(found.found.starts_with(sentence), "{found:?}");
        for other in ["firewall", "conntrack"] {
            assert_eq!(check(&checks, other).level, Level::Ok, "{drops:?}");
        }
    }
    host.refusals = None;
    assert_eq!(
        check(&examine(&host, &scope()), "conntrack").level,
        Level::Warn
    );
}

#[test]
fn programs_that_stand_before_the_agents_are_named() {
    let mut host = PaperHost::good();
    let found = |host: &PaperHost| check(&examine(host, &scope()), "fronted").clone();
    assert_eq!(found(&host).level, Level::Ok);
    host.standing.before.push(Fronting {
        way: "egress",
        id: 7,
        name: Some("shaper".into()),
    });
    let before_start = found(&host);
    assert_eq!(before_start.level, Level::Ok);
    assert!(before_start.found.contains("shaper (id 7, egress)"));
    host.standing.is_attached = true;
    assert_eq!(found(&host).level, Level::Fail);
}

#[test]
fn programs_of_another_node_are_named_with_what_to_do() {
    let mut host = PaperHost::good();
    let found = |host: &PaperHost| check(&examine(host, &scope()), "other_node").clone();
    assert_eq!(found(&host).level, Level::Ok);
    host.beside.push("c".into());
    let check = found(&host);
    assert_eq!(check.level, Level::Warn);
    assert!(
        check.found.starts_with("programs of node c on "),
        "{}",
        check.found
    );
    let advice = check.advice.expect("it says what to do");
    assert!(advice.contains("--detach --node c"), "{advice}");
}

#[test]
fn addresses_that_an_agent_has_left_are_named() {
    let mut host = PaperHost::good();
    let found = |host: &PaperHost| check(&examine(host, &scope()), "left_address").clone();
    assert_eq!(found(&host).level, Level::Ok);
    host.left_addresses.push("10.9.0.120 on lo".into());
    let check = found(&host);
    assert_eq!(check.level, Level::Warn);
    assert!(check.found.contains("10.9.0.120 on lo"), "{}", check.found);
}

#[test]
fn settings_that_make_rules_see_more_are_warned_of() {
    let mut host = PaperHost::good();
    let level = |host: &PaperHost, name: &str| {
        let checks = examine(host, &scope()).checks;
        checks
            .into_iter()
            .find(|check| check.name == name)
            .map(|check| check.level)
    };
    host.set("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0");
    assert_eq!(level(&host, "conntrack_loose"), Some(Level::Warn));
    host.set("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "1");
    assert_eq!(level(&host, "conntrack_loose"), None);
    host.set("/proc/sys/net/bridge/bridge-nf-call-iptables", "1");
    assert_eq!(level(&host, "bridge_nf"), None, "no bridge");
    host.devices = [device(2, "eth0", Some("bridge"))].into_iter().collect();
    assert_eq!(level(&host, "bridge_nf"), Some(Level::Warn), "it is one");
    let mut port = device(2, "eth0", None);
    port.master = Some(3);
    host.devices = [port, device(3, "br0", Some("bridge"))]
        .into_iter()
        .collect();
    assert_eq!(
        level(&host, "bridge_nf"),
        Some(Level::Warn),
        "it is a port of one"
    );
    host.set("/proc/sys/net/bridge/bridge-nf-call-iptables", "0");
    assert_eq!(level(&host, "bridge_nf"), None);
}

#[test]
fn an_mptcp_listener_on_a_service_port_is_found() {
    for (port, level) in [(80, Level::Fail), (81, Level::Ok)] {
        let mut host = PaperHost::good();
        host.set("/proc/sys/net/mptcp/enabled", "1");
        host.programs
            .insert("ss", format!("LISTEN 0 511 [::]:{port} [::]:*\n"));
        assert_eq!(check(&examine(&host, &scope()), "mptcp").level, level);
    }
}

/// A card of so many Mbit/s, with the kernel's default queue of 1000 packets.
fn with_card(speed: &str) -> PaperHost {
    let mut host = PaperHost::good();
    for (leaf, text) in [
        ("speed", speed),
        ("mtu", "1500"),
        ("tx_queue_len", "1000"),
        ("device/uevent", ""),
    ] {
        host.set(&format!("/sys/class/net/eth0/{leaf}"), text);
    }
    host
}

#[test]
fn a_queue_that_outlives_the_detection_is_found() {
    let found = check(&examine(&with_card("100"), &scope()), "qdisc").clone();
    assert_eq!(found.level, Level::Warn);
    assert!(
        found.found.contains("a full queue takes 120 ms"),
        "{}",
        found.found
    );
}

/// It was compared with the detection only, which is far longer.
#[test]
fn a_queue_that_outlives_a_lease_is_found() {
    let within = |residence: Option<u64>, speed: &str| {
        let scope = Scope {
            residence: residence.map(Duration::from_millis),
            ..scope()
        };
        check(&examine(&with_card(speed), &scope), "qdisc").clone()
    };
    let found = within(Some(5), "1000");
    assert_eq!(found.level, Level::Warn);
    let shown = "a full queue takes 12 ms: longer than egress_residence";
    assert!(found.found.contains(shown), "{}", found.found);
    let advice = found.advice.unwrap_or_default();
    assert!(advice.contains("egress_residence = \"12ms\""), "{advice}");
    assert_eq!(within(Some(12), "1000").level, Level::Ok);
    assert_eq!(within(None, "1000").level, Level::Ok, "no leases");
    // 4.8 ms, and what is written in whole milliseconds must suffice.
    let found = within(Some(4), "2500");
    let advice = found.advice.unwrap_or_default();
    assert!(advice.contains("egress_residence = \"5ms\""), "{advice}");
    assert_eq!(within(Some(5), "2500").level, Level::Ok);
}

/// A running agent hears of another speed, length or MTU, and says the same.
#[test]
fn a_queue_that_gets_longer_is_said_by_a_running_agent() {
    let scope = Scope {
        silence: Some(Duration::from_millis(30)),
        residence: Some(Duration::from_millis(5)),
        ..scope()
    };
    let said = |host: &PaperHost| long_queue(host, "eth0", &scope).map(|(found, _)| found);
    let mut host = with_card("10000");
    assert_eq!(said(&host), None);
    host.set("/sys/class/net/eth0/speed", "1000");
    let found = said(&host).expect("it is too long");
    assert!(
        found.contains("takes 12 ms: longer than egress_residence"),
        "{found}"
    );
    host.set("/sys/class/net/eth0/speed", "100");
    let found = said(&host).expect("it is too long");
    assert!(found.contains("longer than the detection"), "{found}");
    host.set("/sys/class/net/eth0/tx_queue_len", "10");
    assert_eq!(said(&host), None);
}

#[test]
fn this_machine_can_be_examined() {
    let report = examine(&LiveHost, &Scope::default());
    assert_eq!(report.schema, "godwit.doctor/1");
    let json = serde_json::to_string(&report).expect("serialisable");
    assert_eq!(
        serde_json::from_str::<Report>(&json).expect("readable"),
        report
    );
}

#[test]
fn a_port_of_a_bridge_is_no_service_interface() {
    let mut host = PaperHost::good();
    let port = Device {
        master: Some(3),
        ..device(2, "eth0", None)
    };
    host.devices = [port, device(3, "br0", Some("bridge"))]
        .into_iter()
        .collect();
    let report = examine(&host, &scope());
    let check = check(&report, "lower_devices");
    assert_eq!(check.level, Level::Fail);
    assert_eq!(
        check.advice.as_deref(),
        Some("write interface = \"br0\" in [node]")
    );
}

#[test]
fn what_is_below_the_service_interface_must_not_answer_arp() {
    for (kind, level) in [("vlan", Level::Warn), ("macvlan", Level::Fail)] {
        let mut host = PaperHost::good();
        let top = Device {
            link: Some(3),
            ..device(2, "eth0", Some(kind))
        };
        host.devices = [top, device(3, "card", None)].into_iter().collect();
        let lower = |host: &PaperHost| check(&examine(host, &scope()), "lower_devices").clone();
        assert_eq!(lower(&host).level, level, "{kind}");
        assert_eq!(
            lower(&host).advice.as_deref(),
            Some("sysctl -w net.ipv4.conf.card.arp_ignore=1")
        );
        host.set("/proc/sys/net/ipv4/conf/card/arp_ignore", "1\n");
        assert_eq!(lower(&host).level, Level::Ok, "{kind}");
        assert_eq!(lower(&host).found, "card; not guarded");
    }
}

#[test]
fn another_interface_of_the_subnet_must_not_answer_arp() {
    const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                          eth0 00000000 0109090A 0003 0 0 0 00000000 0 0 0\n\
                          eth0 0000090A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
    let other =
        |subnet: &str| format!("{ROUTES}eth1 {subnet} 00000000 0001 0 0 0 00FFFFFF 0 0 0\n");
    let mut host = PaperHost::good();
    let flux = |host: &PaperHost| check(&examine(host, &scope()), "arp_flux").clone();
    for (routes, level) in [
        (ROUTES.to_owned(), Level::Ok),
        (other("0000080A"), Level::Ok),
        (other("0000090A"), Level::Warn),
    ] {
        host.set("/proc/net/route", &routes);
        assert_eq!(flux(&host).level, level, "{routes}");
    }
    let advice = "sysctl -w net.ipv4.conf.eth1.arp_ignore=1";
    assert_eq!(flux(&host).advice.as_deref(), Some(advice));
    host.set("/proc/sys/net/ipv4/conf/eth1/arp_ignore", "1\n");
    assert_eq!(flux(&host).level, Level::Ok);
}

#[test]
fn a_proxy_with_twins_is_warned_of() {
    let listener = "LISTEN 0 511 0.0.0.0:80 0.0.0.0:* users:((\"nginx\",pid=22,fd=6))\n";
    let client = "ESTAB 0 0 10.9.0.100:80 10.9.0.10:4000 users:((\"nginx\",pid=22,fd=7))\n";
    let other = "ESTAB 0 0 10.9.0.11:4001 10.9.0.9:22 users:((\"ssh\",pid=5,fd=3))\n";
    let upstream = "ESTAB 0 0 10.9.0.11:4000 10.9.0.9:5432 users:((\"nginx\",pid=22,fd=9))\n";
    let mut host = PaperHost::good();
    host.programs
        .insert("ss", [listener, client, other].concat());
    let found = |host: &PaperHost, scope| check(&examine(host, &scope), "upstream").clone();
    assert_eq!(found(&host, scope()).level, Level::Ok);
    host.programs
        .insert("ss", [listener, client, other, upstream].concat());
    let warned = found(&host, scope());
    assert_eq!(warned.level, Level::Warn);
    assert!(warned.found.contains("port 80"), "{}", warned.found);
    assert!(warned.found.contains("10.9.0.9:5432"), "{}", warned.found);
    let none = Scope {
        twinned: Vec::new(),
        ..scope()
    };
    let report = examine(&host, &none);
    assert!(report.checks.iter().all(|check| check.name != "upstream"));
}

#[test]
fn a_translated_service_is_warned_of() {
    let mut host = PaperHost::good();
    let rule = "table ip nat {\n\t\ttcp dport 80 dnat to 10.9.0.5:8080\n}\n";
    host.programs.insert("nft", rule.into());
    let warned = check(&examine(&host, &scope()), "dnat").clone();
    assert_eq!(warned.level, Level::Warn);
    assert!(
        warned
            .found
            .contains("`tcp dport 80 dnat to 10.9.0.5:8080`")
    );
}

#[test]
fn what_the_running_agent_says_is_among_the_checks() {
    let table = [
        (Running::Nobody, vec![Level::Ok]),
        (Running::Silent, vec![Level::Fail]),
        (Running::Unclear("no rights".into()), vec![Level::Warn]),
        (Running::Warns(vec![]), vec![Level::Ok]),
        (
            Running::Warns(vec!["one".into(), "another".into()]),
            vec![Level::Warn, Level::Warn],
        ),
    ];
    for (running, levels) in table {
        let scope = Scope {
            running: Some(running.clone()),
            ..Scope::default()
        };
        let report = examine(&PaperHost::good(), &scope);
        let about = report.checks.iter().filter(|check| check.name == "agent");
        let found: Vec<_> = about.map(|check| check.level).collect();
        assert_eq!(found, levels, "{running:?}");
    }
}
