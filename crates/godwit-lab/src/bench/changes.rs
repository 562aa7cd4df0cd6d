//! What changes around a running standby: how long until it is followed or said.
//!
//! Each change is made by a shell on the standby of a pair with a witness, all defaults (the
//! conflict of addresses on another machine of the link), and undone when it has been seen.
//! The clock starts before the shell does. What is followed is seen on the machine itself or
//! in the agent's events, what is said in `warnings` of `godwit status`, asked for every few
//! milliseconds.

use std::net::IpAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::budget::Budget;
use super::pair::Pair;
use super::report::{Measured, Report};
use crate::cluster::{ClusterOptions, Fencing};
use crate::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use crate::lab::{Lab, LabOptions};

/// Times that each change is made, and undone.
const RUNS: u32 = 10;
const QUICK_RUNS: u32 = 1;

/// One change, with the lab's start before the first one.
const COST: Duration = Duration::from_secs(3);

/// What is not seen by then is missed.
const MISSED: Duration = Duration::from_secs(10);

const LOOK: Duration = Duration::from_millis(2);
const SHELL: Duration = Duration::from_secs(5);

/// What is seen of a change.
enum Seen {
    /// A warning that has this in it; it goes when the change is undone.
    Warning(&'static str),
    /// The same, but it stays for some seconds: its end is waited for, and not measured.
    Lasting(&'static str),
    /// One more event of that name; undone it is another one.
    Event(&'static str),
    /// Something that is on the machine again, by a command that succeeds then.
    Back(String),
}

struct Change {
    /// The figure is called `changes.` and this.
    figure: &'static str,
    /// Where it is made.
    at: Host,
    wrong: String,
    right: String,
    seen: Seen,
}

fn warned(figure: &'static str, said: &'static str, wrong: &str, right: &str) -> Change {
    Change {
        figure,
        at: Host::B,
        wrong: wrong.into(),
        right: right.into(),
        seen: Seen::Warning(said),
    }
}

fn setting(figure: &'static str, said: &'static str, name: &str, values: [u8; 2]) -> Change {
    let [wrong, right] = values.map(|value| format!("echo {value} > /proc/sys/net/{name}"));
    warned(figure, said, &wrong, &right)
}

fn rule(figure: &'static str, said: &'static str, rule: &str) -> Change {
    let chain = "add table inet f; add chain inet f i { type filter hook input priority 0; };";
    let wrong = format!("nft '{chain} add rule inet f i {rule}'");
    warned(figure, said, &wrong, "nft delete table inet f")
}

/// Every kind of change that has a figure; `folder` has the standby's certificate.
fn all(folder: &str) -> Vec<Change> {
    let mut all = vec![conflict(), mac(), made_anew(), certificate(folder)];
    all.extend([
        address("changes.address.v4", SERVICE_V4.into(), "lo"),
        address("changes.address.v6", SERVICE_V6.into(), "eth0"),
    ]);
    all.extend(links());
    all.extend(settings_and_rules());
    all
}

/// The kernel of another machine tells the link of its addresses when it gets another MAC.
fn conflict() -> Change {
    Change {
        figure: "changes.conflict",
        at: Host::Attacker,
        wrong: format!(
            "echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_notify; \
             ip addr add {SERVICE_V4}/32 dev eth0; ip link set eth0 address 02:00:00:00:ee:01"
        ),
        right: format!("ip addr del {SERVICE_V4}/32 dev eth0"),
        seen: Seen::Lasting("address_conflict: "),
    }
}

fn mac() -> Change {
    let mac = Host::B.mac(Network::Data);
    Change {
        figure: "changes.mac",
        at: Host::B,
        wrong: "ip link set eth0 address 02:00:00:00:aa:01".into(),
        right: format!("ip link set eth0 address {mac}"),
        seen: Seen::Event("interface_changed"),
    }
}

/// Its frames go by another device of the same name, then by the first one again.
fn made_anew() -> Change {
    let (v4, v6) = (Host::B.v4(), Host::B.v6());
    let mac = Host::B.mac(Network::Data);
    let addresses = format!("ip addr add {v4}/24 dev eth0; ip addr add {v6}/64 dev eth0 nodad");
    Change {
        figure: "changes.anew",
        at: Host::B,
        wrong: format!(
            "ip link set eth0 down; ip link set eth0 name card; ip addr flush dev card; \
             ip link set card address 02:00:00:00:ff:01 up; \
             ip link add link card name eth0 address {mac} type macvlan; \
             ip link set eth0 up; {addresses}"
        ),
        right: format!(
            "ip link del eth0; ip link set card down; \
             ip link set card name eth0 address {mac}; ip link set eth0 up; {addresses}"
        ),
        seen: Seen::Event("interface_changed"),
    }
}

/// A file that no certificate is in.
fn certificate(folder: &str) -> Change {
    let file = format!("{folder}/node.pem");
    warned(
        "changes.certificate",
        "certificate_renewal: ",
        &format!("cp {file} {file}.old; echo nothing > {file}"),
        &format!("mv {file}.old {file}"),
    )
}

/// An address of the service that is gone.
fn address(figure: &'static str, address: IpAddr, device: &str) -> Change {
    let length = if address.is_ipv4() { 32 } else { 128 };
    Change {
        figure,
        at: Host::B,
        wrong: format!("ip addr del {address}/{length} dev {device}"),
        right: "true".into(),
        seen: Seen::Back(format!(
            "ip -o addr show dev {device} | grep -q '{address}/'"
        )),
    }
}

fn links() -> Vec<Change> {
    let card = format!("ip addr add {}/64 dev eth0 nodad", Host::B.v6());
    let was_down = "ip link set eth0 down; ip link set eth0 up";
    let up = format!("ip link set eth0 up; {card}");
    let tbf = "tc qdisc add dev eth0 root tbf rate 1gbit burst 64kb latency 9ms";
    let bridge = "ip link add br9 type bridge; ip link set eth0 master br9";
    let mtu = |mtu: u32| format!("ip link set eth0 mtu {mtu}");
    vec![
        warned("changes.down_up", "interface_address: ", was_down, &card),
        warned("changes.carrier", "carrier: ", "ip link set eth0 down", &up),
        warned("changes.mtu", "mtu: ", &mtu(1400), &mtu(1500)),
        warned("changes.bridge", "master: ", bridge, "ip link del br9"),
        warned(
            "changes.qdisc",
            "qdisc: ",
            tbf,
            "tc qdisc del dev eth0 root",
        ),
    ]
}

fn settings_and_rules() -> Vec<Change> {
    let (cookies, ecn) = ("ipv4/tcp_syncookies", "ipv4/tcp_ecn");
    let (arp, filter) = ("ipv4/conf/all/arp_ignore", "ipv4/conf/all/rp_filter");
    let loose = "netfilter/nf_conntrack_tcp_loose";
    let new = "tcp flags & syn != syn ct state new drop";
    vec![
        setting("changes.syncookies", "tcp_syncookies: ", cookies, [0, 1]),
        setting("changes.ecn", "tcp_ecn: ", ecn, [0, 2]),
        setting("changes.arp_ignore", "arp_ignore: ", arp, [1, 0]),
        setting("changes.rp_filter", "rp_filter: ", filter, [1, 0]),
        rule("changes.rule.port", "firewall: ", "tcp dport 80 drop"),
        rule(
            "changes.rule.invalid",
            "conntrack: ",
            "ct state invalid drop",
        ),
        rule("changes.rule.new", "conntrack: ", new),
        setting("changes.loose", "conntrack_loose: ", loose, [0, 1]),
    ]
}

/// `changes.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions {
        witness: true,
        attacker: true,
        ..LabOptions::default()
    })?;
    let options = ClusterOptions {
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut pair = Pair::start(&lab, options)?;
    let folder = lab.node(Host::B).folder()?.display().to_string();
    let mut back = (Duration::ZERO, 0);
    for change in all(&folder) {
        let (mut longest, mut runs) = (Duration::ZERO, 0);
        for _ in budget.runs(RUNS, QUICK_RUNS, COST) {
            let (seen, over) = make(&pair, &change)?;
            longest = longest.max(seen);
            back = (back.0.max(over), back.1 + 1);
            runs += 1;
            pair.settle()?;
        }
        if runs > 0 {
            put(report, change.figure, longest, runs)?;
        }
    }
    if back.1 > 0 {
        put(report, "changes.back", back.0, back.1)?;
    }
    Ok(())
}

fn put(report: &Report, figure: &'static str, longest: Duration, runs: u32) -> Result<()> {
    let measured = Measured {
        value: Some(longest.as_secs_f64() * 1e3),
        control: None,
        runs,
    };
    report.put(figure, measured)
}

/// Makes a change and undoes it: how long until each was seen.
fn make(pair: &Pair<'_>, change: &Change) -> Result<(Duration, Duration)> {
    let (name, before) = (change.figure, events(pair, &change.seen)?);
    ensure!(
        before.is_some() || !is_seen(pair, change, 0)?,
        "{name}: it is so already"
    );
    let before = before.unwrap_or(0);
    let since = Instant::now();
    shell(pair, change.at, &change.wrong)?;
    let seen = wait(since, name, || is_seen(pair, change, before))?;
    let since = Instant::now();
    shell(pair, change.at, &change.right)?;
    let over = match &change.seen {
        Seen::Warning(_) => wait(since, name, || Ok(!is_seen(pair, change, before)?))?,
        Seen::Event(_) => wait(since, name, || is_seen(pair, change, before + 1))?,
        Seen::Lasting(_) => {
            wait(since, name, || Ok(!is_seen(pair, change, before)?))?;
            Duration::ZERO
        }
        Seen::Back(_) => Duration::ZERO,
    };
    Ok((seen, over))
}

/// How many there are of the event that is waited for.
fn events(pair: &Pair<'_>, seen: &Seen) -> Result<Option<usize>> {
    match seen {
        Seen::Event(name) => {
            let events = pair.cluster.events(Host::B)?;
            Ok(Some(events.iter().filter(|event| event == name).count()))
        }
        // The address is there before.
        Seen::Back(_) => Ok(Some(0)),
        Seen::Warning(_) | Seen::Lasting(_) => Ok(None),
    }
}

fn is_seen(pair: &Pair<'_>, change: &Change, before: usize) -> Result<bool> {
    match &change.seen {
        Seen::Warning(said) | Seen::Lasting(said) => {
            let warnings = pair.cluster.status(Host::B)?.warnings;
            Ok(warnings.iter().any(|warning| warning.contains(said)))
        }
        seen @ Seen::Event(_) => Ok(events(pair, seen)? > Some(before)),
        Seen::Back(look) => Ok(run_shell(pair, Host::B, look)?),
    }
}

fn wait(
    since: Instant,
    name: &str,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    while since.elapsed() < MISSED {
        if condition()? {
            return Ok(since.elapsed());
        }
        thread::sleep(LOOK);
    }
    bail!("{name} is neither followed nor said within {MISSED:?}")
}

fn shell(pair: &Pair<'_>, at: Host, line: &str) -> Result<()> {
    ensure!(run_shell(pair, at, line)?, "{line:?} failed");
    Ok(())
}

fn run_shell(pair: &Pair<'_>, at: Host, line: &str) -> Result<bool> {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    Ok(pair.lab.node(at).run(command, SHELL)?.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::spec;

    #[test]
    fn every_change_has_a_figure() {
        for change in all("/") {
            assert!(spec(change.figure).is_some(), "{}", change.figure);
        }
    }
}
