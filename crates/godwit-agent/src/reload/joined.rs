//! Files that bring services of two owners to one address.
//!
//! An address is in one place. A new service begins where the others of its address are
//! ([`godwit_core`], `node/homes.rs`). One that is there already, and gets the address of another,
//! stays with its owner: two nodes would announce the address, and clients of one of the services
//! find nobody. So such a file is refused, and its services are moved to one node first.

use std::collections::BTreeSet;

use super::owners::owner;
use crate::config::{Config, ServiceConfig};
use crate::status::Status;

/// Pairs of services that share an address in the next file, and none in this one.
fn joined<'a>(
    running: &'a Config,
    next: &'a Config,
) -> impl Iterator<Item = [&'a ServiceConfig; 2]> {
    let whole = || running.services.iter().filter(|it| !it.is_divided());
    let pairs = whole().flat_map(move |one| {
        let others = whole().filter(move |other| one.name < other.name);
        others.map(move |other| [one, other])
    });
    pairs.filter(move |[one, other]| {
        let then = |it: &ServiceConfig| next.services.iter().find(|then| then.name == it.name);
        let meet = then(one).zip(then(other));
        !share_address(one, other) && meet.is_some_and(|(one, other)| share_address(one, other))
    })
}

fn share_address(one: &ServiceConfig, other: &ServiceConfig) -> bool {
    let ips: BTreeSet<_> = one.ips().into_iter().collect();
    other.ips().iter().any(|ip| ips.contains(ip))
}

/// Whether the next file brings services to one address.
pub(super) fn join(running: &Config, next: &Config) -> bool {
    joined(running, next).next().is_some()
}

/// Why a node in this state does not take `next` now.
pub(super) fn in_the_way(running: &Config, next: &Config, status: &Status) -> Option<String> {
    joined(running, next).find_map(|[one, other]| {
        let (first, second) = (owner(status, one)?, owner(status, other)?);
        (first != second).then(|| {
            let (one, other) = (&one.name, &other.name);
            format!(
                "services \"{one}\" and \"{other}\" would be at one address, and {first} owns \
                 \"{one}\", {second} \"{other}\": bring them to one node first (godwit move \
                 --service {other} --to {first})"
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::testing::service_report;

    /// The file of a, with `mail` at that address.
    fn file(mail: &str) -> Config {
        let service = |name: &str, address: &str| {
            format!(
                "[[service]]\nname = \"{name}\"\naddress = \"{address}\"\nprimary = \"a\"\n\
                 backups = [\"b\"]\n"
            )
        };
        let text = format!(
            "[[peer]]\nname = \"a\"\nrole = \"server\"\ncontrol = \"10.9.0.1:7400\"\n\
             [[peer]]\nname = \"b\"\nrole = \"server\"\ncontrol = \"10.9.0.2:7400\"\n\
             [[peer]]\nname = \"w\"\nrole = \"witness\"\ncontrol = \"10.9.0.3:7400\"\n\
             [node]\nname = \"a\"\ninterface = \"eth0\"\n\
             [cluster]\nvoters = [\"a\", \"b\", \"w\"]\n\
             [tls]\nca = \"c\"\ncert = \"n\"\nkey = \"k\"\n{}{}",
            service("web", "10.9.0.100:80"),
            service("mail", mail)
        );
        Config::parse(Path::new("/x/godwit.toml"), &text).expect("valid")
    }

    fn owned_by(web: &str, mail: &str) -> Status {
        let mut status = Status::new(&file("10.9.0.101:25"), 5, Duration::from_secs(3));
        for (name, owner) in [("web", web), ("mail", mail)] {
            let mut report = service_report("shadow", &["a"]);
            report.name = name.into();
            report.ownership.owner = Some(owner.into());
            status.services.push(report);
        }
        status
    }

    #[test]
    fn services_of_two_owners_do_not_come_to_one_address() {
        let (running, next) = (file("10.9.0.101:25"), file("10.9.0.100:25"));
        assert!(join(&running, &next) && !join(&next, &running) && !join(&next, &next));
        let sentence = in_the_way(&running, &next, &owned_by("a", "b")).expect("two owners");
        assert!(
            sentence.contains("godwit move --service web --to b"),
            "{sentence}"
        );
        assert_eq!(in_the_way(&running, &next, &owned_by("a", "a")), None);
        let elsewhere = file("10.9.0.102:25");
        assert_eq!(in_the_way(&running, &elsewhere, &owned_by("a", "b")), None);
    }
}
