//! The Debian package: from one version to the next, and away, under running connections.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::packaged::{Packaged, Packages, Running, links};
use godwit_tests::stage::{
    PORT, assert_no_reset, assert_voices, servers, service_v4, service_v6, stage, until,
    wait_in_sync, wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// What is said meanwhile can be said once more to a new twin.
fn with_long_logs() -> ClusterOptions {
    let mut service = Service::new("web", PORT);
    "reprotect_cap = \"512KiB\"\n".clone_into(&mut service.extra);
    ClusterOptions {
        services: vec![service],
        ..ClusterOptions::default()
    }
}

/// Two servers with the package, of which one owns, and connections that both protect.
struct Pair<'a> {
    cluster: Cluster<'a>,
    a: Packaged,
    b: Packaged,
    echoes: Vec<Traffic>,
}

impl Pair<'_> {
    /// Every connection goes on, and outlives its owner's crash.
    fn all_protected(&self, owner: Host) {
        for one in &self.echoes {
            one.goes_on();
            wait_protected(&self.cluster, owner, one.local());
        }
    }

    /// What is attached to interfaces of a server.
    fn attached(&self, host: Host) -> BTreeMap<String, u64> {
        links(&self.cluster, host).expect("the machine is there")
    }

    /// The new agent goes on with what the earlier one has attached.
    fn upgrade_the_standby(&mut self, package: &Path) {
        let (agent, attached) = (running(&self.b), self.attached(Host::B));
        assert!(!attached.is_empty());
        let said = self.b.install(package).expect("it is installed");
        let next = running(&self.b);
        assert_ne!(next.pid, agent.pid, "{said}");
        assert_ne!(next.inode, agent.inode, "{said}");
        assert_eq!(self.attached(Host::B), attached, "{said}");
        wait_in_sync(&mut self.cluster, Host::A);
        self.all_protected(Host::A);
    }

    /// Nothing is stopped; what to do is said, and does it.
    fn upgrade_the_owner(&mut self, package: &Path) {
        let (agent, attached) = (running(&self.a), self.attached(Host::A));
        let said = self.a.install(package).expect("it is installed");
        assert_eq!(running(&self.a), agent, "{said}");
        self.all_protected(Host::A);
        let todo = "godwit drain && systemctl restart godwit";
        assert!(said.contains(todo), "{said}");
        until("a hands over", || self.cluster.drain(Host::A).ok());
        wait_in_sync(&mut self.cluster, Host::B);
        let restart = ["systemctl", "restart", "godwit.service"];
        self.a.must(&restart).expect("its agent restarts");
        assert_ne!(running(&self.a).inode, agent.inode);
        assert_eq!(self.attached(Host::A), attached);
        wait_in_sync(&mut self.cluster, Host::B);
        self.all_protected(Host::B);
    }

    /// With a file that no agent would start with the standby's goes on, in the earlier version,
    /// and the upgrade succeeds all the same. What it says to do helps.
    fn upgrade_the_standby_with_torn_files(&mut self, package: &Path) {
        let (agent, attached) = (running(&self.b), self.attached(Host::B));
        for file in ["godwit.toml", "node.key", "node.pem", "ca.pem"] {
            let path = format!("/etc/godwit/{file}");
            let mut tear = vec!["truncate", "--size=100"];
            if file == "godwit.toml" {
                // It says so far where the agent is.
                tear = vec!["sed", "-i", "/^primary/,$d"];
            }
            tear.push(&path);
            self.b
                .must(&["cp", "-p", &path, "/etc/whole"])
                .expect("kept");
            self.b.must(&tear).expect("torn");
            let said = self.b.install(package).expect("it is installed");
            assert_eq!(running(&self.b), agent, "{file}: {said}");
            let why = said
                .lines()
                .find(|line| line.contains("a restart would fail: "));
            let why = why.unwrap_or_else(|| panic!("{file}: {said}"));
            assert!(why.contains(&path), "{file}: {why}");
            assert!(said.contains("godwit: mend that, then: "), "{said}");
            self.b.must(&["mv", "/etc/whole", &path]).expect("mended");
        }
        let state = ["dpkg-query", "--show", "--showformat=${Status}", "godwit"];
        let state = self.b.must(&state).expect("dpkg knows it");
        assert_eq!(state, "install ok installed");
        assert_eq!(self.attached(Host::B), attached);
        self.all_protected(Host::A);
        let check = ["godwit", "check", "/etc/godwit/godwit.toml"];
        self.b.must(&check).expect("it is good again");
    }

    fn server(&self, host: Host) -> &Packaged {
        if host == Host::A { &self.a } else { &self.b }
    }

    /// Its standby takes over, and all that was attached is gone, whoever runs the agent.
    fn remove_from_the_owner(&self, (owner, standby): (Host, Host), manner: Manner) {
        let pins = self.cluster.pins(owner).expect("the machine is there");
        let machine = self.server(owner);
        running(machine);
        assert!(!self.attached(owner).is_empty());
        match manner {
            Manner::Usual => {}
            Manner::Policy => machine.deny_services().expect("it is written"),
            Manner::NoSystemd => machine.hide_systemd().expect("it is away"),
        }
        let said = machine.must(&["dpkg", "--remove", "godwit"]);
        let said = said.expect("it is removed");
        match manner {
            Manner::Usual => {}
            Manner::Policy => {
                assert!(said.contains("godwit.service still runs"), "{said}");
                machine.allow_services().expect("it is removed");
            }
            Manner::NoSystemd => {
                assert!(said.contains("its process has ended"), "{said}");
                machine.show_systemd().expect("it is back");
            }
        }
        assert_eq!(
            machine.agent().expect("it can be asked for"),
            None,
            "{said}"
        );
        assert!(said.contains("what it had attached is removed"), "{said}");
        assert!(!pins.exists(), "{said}");
        let taken = self.cluster.wait_owner(standby, DEADLINE);
        taken.expect("the standby takes over");
        for one in &self.echoes {
            one.goes_on();
        }
    }

    /// It stands by after that, for connections that begin then.
    fn install_again(&mut self, lab: &Lab, since: Instant, host: Host, package: &Path) {
        for one in self.echoes.drain(..) {
            one.finish(since, STALL_LIMIT);
        }
        let owner = if host == Host::A { Host::B } else { Host::A };
        let machine = self.server(host);
        machine.install(package).expect("it is installed");
        machine.configure(&self.cluster).expect("its agent starts");
        wait_in_sync(&mut self.cluster, owner);
        let echoes = [service_v4(), service_v6()].map(|to| Traffic::start(lab, to, Load::Echo));
        self.echoes.extend(echoes);
        self.all_protected(owner);
    }

    /// A purge takes the configuration, and leaves the keys.
    fn purge(&self, host: Host) {
        let machine = self.server(host);
        let has = |path| machine.has(path).expect("it can be looked for");
        assert!(!has("/usr/bin/godwit") && has("/etc/godwit/godwit.toml"));
        let purge = ["dpkg", "--purge", "godwit"];
        machine.must(&purge).expect("it is purged");
        assert!(!has("/etc/godwit/godwit.toml") && has("/etc/godwit/node.key"));
    }
}

/// What the machine is like that loses the package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Usual,
    /// Whatever goes through `deb-systemd-invoke` is refused.
    Policy,
    /// As in a container: something else has started the agent.
    NoSystemd,
}

fn running(machine: &Packaged) -> Running {
    let agent = machine.agent().expect("it can be asked for");
    agent.expect("the agent runs")
}

/// Standby first, as docs/upgrade.md says: its agent is replaced by the package's scripts. That of
/// an owner is left in place, until it has handed over. The data path stays attached on both. Then
/// the owner loses the package, three times. Where policy-rc.d forbade it to be stopped, or without
/// systemd, its agent had gone on, and with it an address that nobody looked after.
#[test]
fn connections_outlive_upgrades_and_a_removal_of_the_package() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    if let Some(reason) = Packaged::unavailable().expect("it can be tried") {
        eprintln!("skipped: no root for a package: {reason}");
        return;
    }
    let packages = Packages::make(&lab).expect("packages are made");
    let _servers = servers(&lab);
    let cluster = Cluster::prepare(&lab, with_long_logs());
    let mut cluster = cluster.expect("there are certificates");
    let [a, b] = Host::SERVERS.map(|host| {
        let machine = Packaged::new(&lab, &cluster, host).expect("it has a root of its own");
        machine.install(&packages.earlier).expect("it is installed");
        let agent = machine.agent().expect("it can be asked for");
        assert_eq!(agent, None, "nothing starts by itself");
        machine.configure(&cluster).expect("its agent starts");
        machine
    });
    cluster.start_agent(Host::Witness).expect("a witness votes");
    wait_in_sync(&mut cluster, Host::A);
    let capture = witness(&lab);
    let since = Instant::now();
    let echoes = [service_v4(), service_v6()].map(|to| Traffic::start(&lab, to, Load::Echo));
    let mut pair = Pair {
        cluster,
        a,
        b,
        echoes: echoes.into(),
    };
    pair.all_protected(Host::A);
    pair.upgrade_the_standby_with_torn_files(&packages.next);
    pair.upgrade_the_standby(&packages.next);
    pair.upgrade_the_owner(&packages.next);
    pair.remove_from_the_owner((Host::B, Host::A), Manner::Policy);
    pair.install_again(&lab, since, Host::B, &packages.next);
    pair.remove_from_the_owner((Host::A, Host::B), Manner::NoSystemd);
    pair.install_again(&lab, since, Host::A, &packages.next);
    pair.remove_from_the_owner((Host::B, Host::A), Manner::Usual);
    pair.purge(Host::B);
    for one in pair.echoes {
        one.goes_on();
        one.finish(since, STALL_LIMIT);
    }
    let trace = capture.finish().expect("the capture ends");
    assert_no_reset(&trace);
    assert_voices(&trace, 2);
}
