//! What a file names that this machine lacks: no agent starts with it here.

use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use nix::unistd::Group;

use crate::config::{Config, PeerRole};
use crate::control::unfit_for_places;

/// The groups of a machine that asks nobody else.
const GROUPS: &str = "/etc/group";

/// Whether a machine has a group, or a sentence about that.
pub(crate) type FindGroup = fn(&str) -> Result<(), String>;

/// Asks all that this machine asks (nsswitch.conf(5)).
pub(crate) fn find_group(name: &str) -> Result<(), String> {
    match Group::from_name(name) {
        Ok(None) => Err(format!("no such group is here (groupadd --system {name})")),
        // If nobody can be asked it is not known.
        Ok(Some(_)) | Err(_) => Ok(()),
    }
}

/// For an agent that has given up its rights: it can't load what asks others.
pub(super) fn find_group_in_file(name: &str) -> Result<(), String> {
    let is_it = |line: &str| line.split(':').next() == Some(name);
    let groups = fs::read_to_string(GROUPS);
    if groups.is_err() || groups.is_ok_and(|groups| groups.lines().any(is_it)) {
        return Ok(());
    }
    Err(format!(
        "{GROUPS} has no such group, and godwit check knows whether others have it"
    ))
}

/// For whoever does not want to know.
pub(crate) fn find_any_group(_: &str) -> Result<(), String> {
    Ok(())
}

/// Whether a file is meant for this machine.
pub(super) fn is_meant(running: Option<&Config>, next: &Config) -> bool {
    running.is_some() || is_here(next.own_peer().control)
}

/// Sentences about what an agent with this file does not find here.
pub(crate) fn lacks(next: &Config, group: FindGroup) -> Vec<String> {
    let (node, own) = (&next.node, next.own_peer());
    let interface = &node.interface;
    let is_there = |name: &str| if_nametoindex(name).is_ok();
    let interface = (own.role != PeerRole::Witness && !is_there(interface.as_str()))
        .then(|| format!("there is no interface {interface} here"));
    let addresses = [("control", Some(own.control)), ("metrics", node.metrics)];
    let addresses = addresses.into_iter().filter_map(|(key, address)| {
        let address = address.filter(|it| !is_here(*it))?;
        let ip = address.ip();
        Some(format!(
            "{key} is {address}, and {ip} is no address of this machine"
        ))
    });
    let wanted = node.app_group.as_deref();
    let wanted = wanted.filter(|_| own.role == PeerRole::Server);
    let group = wanted.and_then(|name| {
        let why = group(name).err()?;
        Some(format!("app_group is \"{name}\": {why}"))
    });
    let folder = unfit_for_places(&node.run_dir).map(|error| error.to_string());
    let all = interface.into_iter().chain(addresses);
    all.chain(group).chain(folder).collect()
}

/// Sentences about addresses of `next` at which another program listens than the running agent.
pub(super) fn taken(running: &Config, next: &Config) -> Vec<String> {
    let addresses = |config: &Config| {
        let own = config.own_peer().control;
        [("control", Some(own)), ("metrics", config.node.metrics)]
    };
    let its = addresses(running).map(|(_, address)| Some(address?.port()));
    let all = addresses(next).into_iter().filter_map(|(key, address)| {
        // What it has itself is free after its end.
        let address = address.filter(|it| !its.contains(&Some(it.port())) && is_taken(*it))?;
        Some(format!("{key} is {address}, where another program listens"))
    });
    all.collect()
}

/// Whether an address is one of this machine's, or that is not known.
fn is_here(mut address: SocketAddr) -> bool {
    address.set_port(0);
    let bound = UdpSocket::bind(address).map_err(|error| error.kind());
    !matches!(bound, Err(io::ErrorKind::AddrNotAvailable))
}

/// Whether another program listens there. This one never does, and nobody connects to it.
fn is_taken(address: SocketAddr) -> bool {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let Ok(socket) = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None) else {
        return false;
    };
    // As an agent does it.
    let bound = setsockopt(&socket, sockopt::ReuseAddr, &true)
        .and_then(|()| bind(socket.as_raw_fd(), &SockaddrStorage::from(address)));
    bound == Err(Errno::EADDRINUSE)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::reload::{Obstacles, check, obstacles};
    use crate::testing::Pair;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// What is written in place of what, and what is said.
    const LACKS: [(&str, &str, &str); 6] = [
        (
            "[node]",
            "[node]\napp_group = \"no-such-group\"",
            "app_group is \"no-such-group\"",
        ),
        (
            "[node]",
            "[node]\nmetrics = \"192.0.2.7:9469\"",
            "192.0.2.7 is no address of this machine",
        ),
        (
            "control = \"127.0.0.1:",
            "control = \"192.0.2.8:",
            "control is 192.0.2.8:",
        ),
        (
            "/run\"",
            "/a/godwit.toml\"",
            "godwit.toml is no folder: name one",
        ),
        (
            "/run\"",
            "/a/godwit.toml/run\"",
            "godwit.toml is no folder: name one",
        ),
        ("\"lo\"", "\"none0\"", "there is no interface none0 here"),
    ];

    /// `godwit check` called such a file valid, and recommended a restart.
    #[test]
    fn no_agent_starts_with_what_this_machine_lacks() {
        let pair = Pair::new();
        assert_eq!(
            obstacles(Some((&pair.a, None)), &pair.a),
            Obstacles::default()
        );
        for (from, to, why) in LACKS {
            let text = pair.a.text.replacen(from, to, 1);
            let next = Config::parse(&pair.a.path, &text).expect("it is valid");
            assert_ne!(next, pair.a, "{to}");
            let said = obstacles(Some((&pair.a, None)), &next);
            assert_eq!(said.bars.len(), 1, "{why}: {said:?}");
            assert!(said.bars[0].starts_with("an agent would not start: "));
            assert!(said.bars[0].contains(why), "{why}: {said:?}");
            let advises = |it: &String| it.contains("disturbs no connection");
            assert!(!said.others.iter().any(advises), "{said:?}");
        }
    }

    /// Where nobody runs it may be another machine's.
    #[test]
    fn a_file_of_another_machine_needs_nothing_here() {
        let pair = Pair::new();
        let mut next = pair.a.clone();
        next.node.app_group = Some("no-such-group".into());
        assert_eq!(obstacles(None, &next).bars.len(), 1, "its address is here");
        next.peers[0].control = address("192.0.2.8:7400");
        assert_eq!(obstacles(None, &next), Obstacles::default());
    }

    /// A scraper's port is another program's.
    #[test]
    fn an_address_that_another_program_has_is_said() {
        let pair = Pair::new();
        let other = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut next = pair.a.clone();
        next.node.metrics = other.local_addr().ok();
        let said = taken(&pair.a, &next);
        let is_it = |it: &String| it.starts_with("metrics is") && it.contains("another program");
        assert!(matches!(&said[..], [it] if is_it(it)), "{said:?}");
        assert_eq!(taken(&next, &next), Vec::<String>::new(), "its own");
        drop(other);
        assert_eq!(taken(&pair.a, &next), Vec::<String>::new());
    }

    /// `godwit reload` said "which disturbs no connection", and no agent came back.
    #[test]
    fn a_reload_advises_no_restart_that_would_fail() {
        let pair = Pair::new();
        let with = |key: &str| {
            let text = pair.a.text.replacen("[node]", &format!("[node]\n{key}"), 1);
            fs::write(&pair.a.path, text).expect("it is written");
            check(&pair.a).expect_err("it needs a restart")
        };
        let good = with("metrics = \"127.0.0.1:9469\"");
        assert!(good.contains("disturbs no connection"), "{good}");
        for (key, why) in [
            ("app_group = \"no-such-group\"", "no such group"),
            ("metrics = \"192.0.2.7:9469\"", "no address of this machine"),
        ] {
            let sentence = with(key);
            assert!(sentence.contains(why), "{sentence}");
            assert!(
                sentence.contains("needs a restart, which would fail"),
                "{sentence}"
            );
            assert!(!sentence.contains("disturbs no"), "{sentence}");
        }
    }

    #[test]
    fn groups_are_looked_for_in_the_file() {
        for find in [find_group, find_group_in_file] {
            assert_eq!(find("root"), Ok(()));
            assert!(find("no-such-group").is_err());
            assert!(find("roo").is_err());
        }
    }
}
