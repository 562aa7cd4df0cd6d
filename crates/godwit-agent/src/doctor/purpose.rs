//! What Godwit is not for, as far as a machine shows it (docs/unsuitable.md).
//!
//! A twin's server does all that the owner's does, but for what it says to its clients.
//! So a proxy asks its upstream twice. And a service address that is translated on its
//! way to the server is not the one that the server's sockets have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::{Check, Host, Scope};

pub(super) fn checks(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let proxy = (!scope.twinned.is_empty()).then(|| proxy(host, &scope.twinned));
    let dnat = (!scope.services.is_empty()).then(|| dnat(host, &scope.services));
    proxy.into_iter().chain(dnat).collect()
}

/// Whether a process that listens for a service with twins holds connections that it
/// has opened itself.
fn proxy(host: &impl Host, services: &[SocketAddr]) -> Check {
    const NAME: &str = "upstream";
    let Ok(sockets) = host.run("ss", &["-a", "-t", "-n", "-p", "-H"]) else {
        return Check::warn(NAME, "`ss` can't list sockets", "install iproute2");
    };
    let sockets: Vec<_> = sockets.lines().filter_map(Socket::parse).collect();
    let ports: BTreeSet<u16> = services.iter().map(SocketAddr::port).collect();
    let listening = sockets.iter().filter(|socket| socket.listens);
    let listening: BTreeSet<u16> = listening.map(|socket| socket.local).collect();
    let mut servers = BTreeMap::new();
    for socket in sockets.iter().filter(|it| it.listens) {
        if ports.contains(&socket.local) {
            servers.extend(socket.holders.iter().copied().map(|it| (it, socket.local)));
        }
    }
    let outgoing = sockets
        .iter()
        .filter(|it| !it.listens && !listening.contains(&it.local));
    let found = outgoing.into_iter().find_map(|socket| {
        let port = socket.holders.iter().find_map(|pid| servers.get(pid))?;
        Some((port, socket.peer))
    });
    match found {
        None => Check::ok(
            NAME,
            "no server of a service with twins talks to another one",
        ),
        Some((port, peer)) => Check::warn(
            NAME,
            format!("the server on port {port} holds a connection to {peer}"),
            "what it asks there is asked twice, by the owner's server and by the twin's: \
             see docs/unsuitable.md, or write standby = \"none\"",
        ),
    }
}

/// One line of `ss -atnpH`.
struct Socket<'a> {
    listens: bool,
    local: u16,
    peer: &'a str,
    /// Processes.
    holders: Vec<u32>,
}

impl<'a> Socket<'a> {
    /// `ESTAB 0 0 10.0.0.1:34567 10.0.0.9:5432 users:(("nginx",pid=2,fd=9))`
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let state = words.next()?;
        let (local, peer) = (words.nth(2)?, words.next()?);
        let holders = line.split("pid=").skip(1).filter_map(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits?.parse().ok()
        });
        Some(Self {
            listens: state == "LISTEN",
            local: local.rsplit_once(':')?.1.parse().ok()?,
            peer,
            holders: holders.collect(),
        })
    }
}

/// Whether a rule sends a service's segments to another address or port.
fn dnat(host: &impl Host, services: &[SocketAddr]) -> Check {
    const NAME: &str = "dnat";
    let nft = host.run("nft", &["list", "ruleset"]);
    let iptables =
        ["iptables-save", "ip6tables-save"].map(|program| host.run(program, &["-t", "nat"]));
    let seen = nft.is_ok() || iptables.iter().any(Result::is_ok);
    let rules = [nft.unwrap_or_default()]
        .into_iter()
        .chain(iptables.map(Result::unwrap_or_default));
    let rules = rules.collect::<Vec<_>>().join("\n");
    let translates = |line: &&str| services.iter().any(|at| translates(line, *at));
    match rules.lines().find(translates) {
        None if !seen => Check::warn(
            NAME,
            "neither `nft` nor `iptables-save` can show the rules",
            "make sure that no rule translates a service's address or port",
        ),
        None => Check::ok(NAME, "no rule translates a service's address or port"),
        Some(rule) => Check::warn(
            NAME,
            format!("`{}` translates a service", rule.trim()),
            "let the server listen where clients connect to: connections that are \
             translated on this machine are not protected",
        ),
    }
}

/// `tcp dport 80 dnat to 10.0.0.5:8080`, `-d 10.9.0.100/32 -p tcp --dport 80 -j DNAT ...`.
/// A rule that names no port or no address means all of them.
fn translates(line: &str, service: SocketAddr) -> bool {
    let verdicts = [
        " dnat to ",
        " dnat ip",
        " redirect",
        "-j DNAT",
        "-j REDIRECT",
    ];
    let Some(end) = verdicts.iter().find_map(|verdict| line.find(verdict)) else {
        return false;
    };
    let condition = line.get(..end).unwrap_or_default();
    // Only what concerns TCP.
    if condition.contains("udp ") || condition.contains("-p udp") {
        return false;
    }
    let port = words_behind(condition, &["dport", "--dport", "--dports"]);
    let address = words_behind(condition, &["daddr", "-d"]);
    let names_port = |word: &str| match word.split_once(['-', ':']) {
        Some((from, to)) => {
            let bounds = from.parse().ok().zip(to.parse().ok());
            bounds.is_some_and(|(from, to): (u16, u16)| (from..=to).contains(&service.port()))
        }
        None => word.parse() == Ok(service.port()),
    };
    let names_address = |word: &str| {
        let (network, length) = word.split_once('/').unwrap_or((word, ""));
        let network = network.parse::<IpAddr>();
        network.is_ok_and(|it| is_in(service.ip(), it, length.parse().ok()))
    };
    let fits = |words: &Option<Vec<&str>>, names: &dyn Fn(&str) -> bool| {
        let Some(words) = words else { return true };
        words.iter().any(|word| names(word))
    };
    fits(&port, &names_port) && fits(&address, &names_address)
}

/// What a rule names behind one of these words: a word, a list with commas, or a set.
fn words_behind<'a>(condition: &'a str, keys: &[&str]) -> Option<Vec<&'a str>> {
    let mut words = condition.split_whitespace();
    words.find(|word| keys.contains(word))?;
    let first = words.next()?;
    let mut named: Vec<_> = first.split(',').collect();
    if first.starts_with('{') {
        named.extend(words.take_while(|word| *word != "}"));
    }
    let named = named
        .into_iter()
        .map(|word| word.trim_matches(['{', '}', ',']));
    Some(named.filter(|word| !word.is_empty()).collect())
}

/// Whether an address is in a network; without a length it is that address.
fn is_in(address: IpAddr, network: IpAddr, length: Option<u32>) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let shift = 32 - length.unwrap_or(32).min(32);
            let mask = u32::MAX.checked_shl(shift).unwrap_or(0);
            u32::from(address) & mask == u32::from(network) & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let shift = 128 - length.unwrap_or(128).min(128);
            let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
            u128::from(address) & mask == u128::from(network) & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address and a port")
    }

    #[test]
    fn rules_that_translate_a_service_are_found() {
        let (v4, v6) = (at("10.9.0.100:80"), at("[fd99::100]:80"));
        for rule in [
            "\t\ttcp dport 80 dnat to 10.0.0.5:8080",
            "tcp dport { 443, 80 } redirect to :8080",
            "tcp dport 1-1024 redirect to :8080",
            "ip daddr 10.9.0.0/24 tcp dport 80 counter packets 0 bytes 0 dnat ip to 10.0.0.5",
            "-A PREROUTING -d 10.9.0.100/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.5:80",
            "-A PREROUTING -p tcp -m multiport --dports 443,80 -j REDIRECT --to-ports 8080",
            "-A PREROUTING -j DNAT --to-destination 10.0.0.5",
        ] {
            assert!(translates(rule, v4), "{rule}");
        }
        assert!(translates(
            "ip6 daddr fd99::/64 tcp dport 80 dnat to fd00::5",
            v6
        ));
        for rule in [
            "tcp dport 81 dnat to 10.0.0.5:80",
            "udp dport 80 redirect to :8080",
            "ip daddr 10.9.1.0/24 tcp dport 80 dnat to 10.0.0.5",
            "-A PREROUTING -d 10.9.0.101/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.5:80",
            "tcp dport 80 accept",
            "chain dnat {",
        ] {
            assert!(!translates(rule, v4), "{rule}");
        }
        assert!(!translates(
            "ip daddr 10.9.0.100 tcp dport 80 redirect to :1",
            v6
        ));
    }

    #[test]
    fn sockets_are_read_as_ss_prints_them() {
        let line = "ESTAB 0 0 10.0.0.1:34567 10.0.0.9:5432 users:((\"nginx\",pid=22,fd=9),(\"nginx\",pid=23,fd=9))";
        let socket = Socket::parse(line).expect("a socket");
        assert_eq!((socket.listens, socket.local), (false, 34567));
        assert_eq!(
            (socket.peer, &*socket.holders),
            ("10.0.0.9:5432", &[22, 23][..])
        );
        let socket = Socket::parse("LISTEN 0 511 [::]:80 [::]:*").expect("a socket");
        assert!(socket.listens && socket.holders.is_empty());
        assert!(Socket::parse("").is_none());
    }
}
