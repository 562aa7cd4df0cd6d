//! The service interface: addresses, who answers for them, what may wait in it.

use std::net::IpAddr;
use std::time::Duration;

use super::{Check, Host, Scope};

/// ARPHRD_ETHER of include/uapi/linux/if_arp.h.
const ETHERNET: i64 = 1;

pub(super) fn checks(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(control) = scope.control {
        checks.push(if host.has_address(control) {
            own_control(host, control, scope.interface.as_deref())
        } else {
            let found = format!("{control} is no address of this machine");
            Check::fail(
                "control",
                found,
                "correct `control` of this node's [[peer]]",
            )
        });
    }
    let interface = scope.interface.as_deref();
    checks.extend(interface.map(|name| state(host, name)));
    checks.extend(interface.map(|name| qdisc(host, name, scope)));
    checks
}

/// Where clients are strangers are, too: they can fill what they can send to. What they send
/// is refused, but the way to here is theirs as well.
fn own_control(host: &impl Host, control: IpAddr, interface: Option<&str>) -> Check {
    let shown = |name| host.run("ip", &["-o", "addr", "show", "dev", name]);
    let listed = interface
        .and_then(|name| shown(name).ok())
        .unwrap_or_default();
    let mut words = listed.split_whitespace();
    let is_it = |word: &str| {
        let address = word.split('/').next().and_then(|word| word.parse().ok());
        address == Some(control)
    };
    match interface {
        Some(name) if words.any(is_it) => Check {
            advice: Some(
                "give agents a network of their own, or have the firewall let only peers reach the control port (TCP and UDP)"
                    .into(),
            ),
            ..Check::ok("control", format!("{control}, on {name} with the services"))
        },
        Some(_) | None => Check::ok("control", control.to_string()),
    }
}

/// Those of [`super::settings`] that are about interfaces.
pub(super) fn settings(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let interface = scope.interface.as_deref();
    let mut checks = vec![rp_filter(host, interface)];
    if scope.has_ipv4() && !scope.fronted {
        checks.push(arp_ignore(host, interface));
    }
    if scope.has_ipv6() {
        checks.push(ipv6(host, interface));
    }
    checks.extend(interface.map(|name| arp_flux(host, name)));
    checks
}

fn state(host: &impl Host, name: &str) -> Check {
    const NAME: &str = "interface";
    let file = |leaf: &str| format!("/sys/class/net/{name}/{leaf}");
    let Some(kind) = host.number(&file("type")) else {
        let found = format!("there is no {name} in this network namespace");
        return Check::fail(NAME, found, "correct `interface` of [node]");
    };
    if kind != ETHERNET {
        let found = format!("{name} is no Ethernet interface");
        return Check::fail(NAME, found, "the mirror tap needs one with MAC addresses");
    }
    match host.text(&file("operstate")).as_deref() {
        Some("down" | "lowerlayerdown" | "notpresent") => Check::warn(
            NAME,
            format!("{name} is down"),
            format!("ip link set {name} up"),
        ),
        _ => Check::ok(NAME, format!("{name} is up")),
    }
}

/// The kernel uses the greater of `all` and the interface's own value.
pub(super) fn effective(host: &impl Host, family: &str, interface: Option<&str>, key: &str) -> i64 {
    let value = |name: &str| host.number(&format!("/proc/sys/net/{family}/conf/{name}/{key}"));
    let all = value("all").unwrap_or(0);
    interface.and_then(value).unwrap_or(0).max(all)
}

fn rp_filter(host: &impl Host, interface: Option<&str>) -> Check {
    const NAME: &str = "rp_filter";
    const STRICT: i64 = 1;
    match effective(host, "ipv4", interface, "rp_filter") {
        STRICT => Check::warn(
            NAME,
            "strict: clients whose way back leads through another interface are dropped",
            format!(
                "sysctl -w net.ipv4.conf.{}.rp_filter=2",
                interface.unwrap_or("all")
            ),
        ),
        0 => Check::ok(NAME, "off"),
        _ => Check::ok(NAME, "loose"),
    }
}

/// Service addresses are on loopback; from 1 on nobody answers for them.
fn arp_ignore(host: &impl Host, interface: Option<&str>) -> Check {
    const NAME: &str = "arp_ignore";
    let value = effective(host, "ipv4", interface, "arp_ignore");
    if value == 0 {
        return Check::ok(NAME, "0");
    }
    let found = format!("{value}: the kernel answers no ARP for service addresses on lo");
    let name = interface.unwrap_or("all");
    let advice =
        format!("sysctl -w net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.{name}.arp_ignore=0");
    // Before a takeover nobody would notice.
    Check::fail(NAME, found, advice)
}

/// The kernel answers ARP for each of its addresses on each interface. Peers that find
/// another one in the subnet of the service's send there what a tap has to hear.
fn arp_flux(host: &impl Host, interface: &str) -> Check {
    const NAME: &str = "arp_flux";
    let routes = host.text("/proc/net/route").unwrap_or_default();
    let subnets: Vec<_> = routes.lines().filter_map(subnet).collect();
    let own: Vec<_> = subnets
        .iter()
        .filter(|(name, _)| *name == interface)
        .map(|(_, subnet)| *subnet)
        .collect();
    let answers = |name: &str| effective(host, "ipv4", Some(name), "arp_ignore") == 0;
    let other = subnets
        .iter()
        .find(|(name, subnet)| *name != interface && own.contains(subnet) && answers(name));
    match other {
        None => Check::ok(NAME, "no other interface answers for this one's addresses"),
        Some((other, _)) => Check::warn(
            NAME,
            format!(
                "{other} is in the subnet of {interface} and answers ARP for its addresses: \
                 what peers send may come by {other}, where no tap is"
            ),
            format!("sysctl -w net.ipv4.conf.{other}.arp_ignore=1"),
        ),
    }
}

/// Interface, and destination and mask, of a line of proc_net_route(5) that leads to a link.
fn subnet(line: &str) -> Option<(&str, (&str, &str))> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let [name, destination, gateway, _, _, _, _, mask, ..] = words[..] else {
        return None;
    };
    let is_link = gateway == "00000000" && mask != "00000000";
    is_link.then_some((name, (destination, mask)))
}

fn ipv6(host: &impl Host, interface: Option<&str>) -> Check {
    const NAME: &str = "ipv6";
    let name = interface.unwrap_or("all");
    match host.number(&format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6")) {
        Some(0) => Check::ok(NAME, "on"),
        Some(_) => Check::fail(
            NAME,
            format!("off on {name}, but a service has an IPv6 address"),
            format!("sysctl -w net.ipv6.conf.{name}.disable_ipv6=0"),
        ),
        // An interface that is gone is a fact of its own.
        None if host
            .number("/proc/sys/net/ipv6/conf/all/disable_ipv6")
            .is_some() =>
        {
            Check::ok(NAME, "on, and no such interface")
        }
        None => Check::fail(
            NAME,
            "the kernel has none",
            "use a kernel with CONFIG_IPV6=y",
        ),
    }
}

/// What may wait in the interface's queue leaves after the owner was replaced,
/// and what waits now delays heartbeats.
fn qdisc(host: &impl Host, name: &str, scope: &Scope) -> Check {
    const NAME: &str = "qdisc";
    let Ok(shown) = host.run("tc", &["-s", "qdisc", "show", "dev", name]) else {
        return Check::warn(NAME, "`tc` can't show it", "install iproute2");
    };
    let kind = shown
        .split_whitespace()
        .nth(1)
        .unwrap_or("unknown")
        .to_owned();
    let waiting: u64 = shown.lines().filter_map(backlog).max().unwrap_or(0);
    let residence = residence(host, name);
    let found = match residence {
        Some(time) => format!(
            "{kind}, {waiting} bytes wait, a full queue takes {} ms",
            millis_up(time)
        ),
        None => format!("{kind}, {waiting} bytes wait"),
    };
    match residence.and_then(|time| too_long(time, name, scope)) {
        Some((what, advice)) => Check::warn(NAME, format!("{found}: {what}"), advice),
        None => Check::ok(NAME, found),
    }
}

/// A full queue of the interface that takes longer to leave than is reckoned with: what was
/// found, and what to do. Only files are read.
pub(crate) fn long_queue(host: &impl Host, name: &str, scope: &Scope) -> Option<(String, String)> {
    let time = residence(host, name)?;
    let (what, advice) = too_long(time, name, scope)?;
    let found = format!(
        "a full queue of {name} takes {} ms: {what}",
        millis_up(time)
    );
    Some((found, advice))
}

fn too_long(time: Duration, name: &str, scope: &Scope) -> Option<(&'static str, String)> {
    let is_longer = |limit: Option<Duration>| limit.is_some_and(|most| time > most);
    if is_longer(scope.silence) {
        return Some((
            "longer than the detection of a failure",
            format!("shorten it: ip link set {name} txqueuelen 100, or use fq_codel"),
        ));
    }
    let needed = millis_up(time);
    is_longer(scope.residence).then(|| {
        (
            "longer than egress_residence, the old owner may be heard beside the new one",
            format!(
                "write egress_residence = \"{needed}ms\" in [detect] on all nodes, or shorten it: \
                 ip link set {name} txqueuelen 100"
            ),
        )
    })
}

/// Not less than it is.
fn millis_up(time: Duration) -> u128 {
    time.as_micros().div_ceil(1000)
}

/// ` backlog 12Kb 8p requeues 0`, units as tc prints them.
fn backlog(line: &str) -> Option<u64> {
    let word = line
        .trim()
        .strip_prefix("backlog ")?
        .split_whitespace()
        .next()?;
    let word = word.strip_suffix('b')?;
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match word.get(digits.len()..) {
        Some("K") => 1 << 10,
        Some("M") => 1 << 20,
        _ => 1,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// How long a full transmit queue takes to leave, where the speed is known.
fn residence(host: &impl Host, name: &str) -> Option<Duration> {
    let number = |leaf: &str| {
        let value = host.number(&format!("/sys/class/net/{name}/{leaf}"))?;
        u64::try_from(value).ok()
    };
    // Virtual interfaces name a speed that they do not keep to.
    let is_physical = host
        .read(&format!("/sys/class/net/{name}/device/uevent"))
        .is_ok();
    let mbit = number("speed").filter(|speed| *speed > 0 && is_physical)?;
    let bits = number("tx_queue_len")?
        .checked_mul(number("mtu")?)?
        .checked_mul(8)?;
    Some(Duration::from_micros(bits / mbit))
}
