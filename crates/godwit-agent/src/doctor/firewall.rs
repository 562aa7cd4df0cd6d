//! Rules that drop what a service, its twins, or connections after a takeover consist of.
//!
//! A standby's connection tracking sees half of each connection: a twin that
//! starts to speak looks `invalid` to it, and a rule that drops those would
//! cut off every connection at the takeover. Which rules do that is found out by
//! [`godwit_sock::refusals`], here and while an agent runs.

use std::net::{IpAddr, SocketAddr};

use godwit_sock::{Drops, Refusal};

use super::{Check, Host, Scope};

const NAME: &str = "conntrack";

const LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
const LOOSE: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";

/// By which bridges have the rules of IP look at their frames.
const BRIDGE: [&str; 3] = [
    "bridge-nf-call-iptables",
    "bridge-nf-call-ip6tables",
    "bridge-nf-call-arptables",
];

pub(super) fn checks(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let interface = scope.interface.as_deref().unwrap_or_default();
    let services = if scope.services.is_empty() {
        // Some service, of either family.
        [IpAddr::from([0; 4]), IpAddr::from([0; 16])]
            .map(|at| SocketAddr::new(at, 0))
            .to_vec()
    } else {
        scope.services.clone()
    };
    let rules = match host.refusals(interface, &services) {
        Ok(rules) => rules,
        Err(why) => {
            let found = format!("the rules of the firewall can't be read: {why}");
            let advice = "make sure that no rule drops `ct state invalid`";
            return vec![Check::warn(NAME, found, advice)];
        }
    };
    let mut checks = vec![match harm_to_twins(host, &rules) {
        Some((_, found, advice)) => Check::fail(NAME, found, advice),
        None => Check::ok(NAME, "no rule drops what twins consist of"),
    }];
    // Nobody looks here for what a director has in front.
    let harms = |rule: &&Refusal| {
        rule.drops == Drops::Service || rule.drops == Drops::Neighbours && !scope.fronted
    };
    let clients = rules.iter().filter(|rule| rule.is_certain).find(harms);
    let concerns = |rule: &&Refusal| rule.drops != Drops::Neighbours || !scope.fronted;
    let mut doubts = rules.iter().filter(|rule| !rule.is_certain);
    checks.extend(doubts.find(concerns).map(|rule| {
        let (found, advice) = doubt(rule);
        Check::warn(PERHAPS, found, advice)
    }));
    if !scope.services.is_empty() {
        checks.push(match clients.map(harm_to_clients) {
            Some((found, advice)) => Check::fail("firewall", found, advice),
            None => Check::ok("firewall", "no rule drops what clients say"),
        });
    }
    let devices = host.devices().unwrap_or_default();
    let bridge = devices
        .named(interface)
        .and_then(|device| devices.bridge_of(device));
    let settings = harm_by_settings(host, bridge);
    checks.extend(settings.map(|(name, found, advice)| Check::warn(name, found, advice)));
    checks
}

/// The rule that twins, or connections after a takeover, don't pass: what was found, and
/// what to do.
pub(crate) fn harm_to_twins<'a>(
    host: &impl Host,
    rules: &'a [Refusal],
) -> Option<(&'a Refusal, String, String)> {
    let liberal = tracking_is_liberal(host);
    let counts = |rule: &&Refusal| match rule.drops {
        Drops::Service | Drops::Neighbours => false,
        Drops::Invalid => !liberal,
        Drops::NewWithoutSyn => true,
    };
    let rule = rules.iter().filter(|rule| rule.is_certain).find(counts)?;
    let (what, advice) = if rule.drops == Drops::Invalid {
        (
            "drops what connection tracking finds invalid, and so connections that are taken over",
            "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1 \
             net.netfilter.nf_conntrack_tcp_loose=1, or accept the service's port before it",
        )
    } else {
        (
            "drops new connections without a SYN, and so every twin",
            "accept the service's port before it",
        )
    };
    let found = format!("{} {what}", place(rule));
    Some((rule, found, format!("{advice}, or remove it ({SHOW})")))
}

/// The same of a rule that clients don't pass.
pub(crate) fn harm_to_clients(rule: &Refusal) -> (String, String) {
    let (place, service) = (place(rule), rule.service);
    if rule.drops != Drops::Neighbours {
        let found = format!("{place} drops what is said to or by {service}");
        let advice = format!("accept the service's port before it, or remove it ({SHOW})");
        return (found, advice);
    }
    let what = if service.is_ipv4() {
        "ARP"
    } else {
        "neighbour solicitations and advertisements"
    };
    let found = format!("{place} drops {what} for {}", service.ip());
    let advice = format!("accept {what} before it, or remove it ({SHOW})");
    (found, advice)
}

/// The name of what may drop something.
pub(crate) const PERHAPS: &str = "firewall_perhaps";

/// The same of a rule that may do any of that.
pub(crate) fn doubt(rule: &Refusal) -> (String, String) {
    let service = rule.service;
    let what = match rule.drops {
        Drops::Service => format!("what is said to or by {service}"),
        Drops::Invalid => format!("what connection tracking finds invalid, at {service}"),
        Drops::NewWithoutSyn => format!("new connections without a SYN, at {service}"),
        Drops::Neighbours => format!("ARP or neighbour discovery for {}", service.ip()),
    };
    let found = format!(
        "{} may drop {what}: it looks at what can't be decided here",
        place(rule)
    );
    let advice = format!("see what it means ({SHOW}), or accept the service's port before it");
    (found, advice)
}

const SHOW: &str = "nft -a list ruleset; iptables-legacy -S";

fn place(rule: &Refusal) -> String {
    let chain = &rule.chain;
    match rule.handle {
        Some(handle) => format!("rule {handle} of chain {chain}"),
        None => format!("the policy of chain {chain}"),
    }
}

/// Settings that make rules see what they need not, by name; `bridge` is the one that the
/// service interface is, or is a port of.
pub(crate) fn harm_by_settings(
    host: &impl Host,
    bridge: Option<&str>,
) -> impl Iterator<Item = (&'static str, String, String)> {
    let strict = (host.number(LOOSE) == Some(0)).then(|| {
        (
            "conntrack_loose",
            "net.netfilter.nf_conntrack_tcp_loose is 0: each connection that was taken over is \
             invalid to connection tracking"
                .to_owned(),
            "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1".to_owned(),
        )
    });
    let bridged = bridge.and_then(|bridge| {
        let name = BRIDGE
            .iter()
            .find(|name| host.number(&format!("/proc/sys/net/bridge/{name}")) == Some(1))?;
        Some((
            "bridge_nf",
            format!(
                "net.bridge.{name} is 1: rules of IP see the frames of {bridge}, and drop what \
                 they don't understand"
            ),
            format!("sysctl -w net.bridge.{name}=0"),
        ))
    });
    strict.into_iter().chain(bridged)
}

/// Whether connection tracking takes up connections in their middle.
fn tracking_is_liberal(host: &impl Host) -> bool {
    let is_on = |path| host.number(path) == Some(1);
    is_on(LIBERAL) && is_on(LOOSE)
}
