//! Lives of keys: a certificate is revoked while its node runs, and certificates are renewed
//! by `godwit-pki renew` under load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{self, Cluster, ClusterOptions, Fencing, PeerReport};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_pki::{Life, Order, Which};
use godwit_tests::stage::{
    servers, service_v4, service_v6, stage, until_within, wait_in_sync, wait_protected,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// Who has a vote.
const NODES: [Host; 3] = [Host::A, Host::B, Host::Witness];

/// How soon a list counts.
const COUNTS: Duration = Duration::from_secs(1);

/// Where certificates are renewed, at the witness's machine.
const RENEWS: u16 = 7410;

/// What says that a peer was, or might have been, held to have failed.
const DISTURBED: [&str; 4] = [
    "peer_down",
    "standby_left",
    "takeover_started",
    "lease_lapsed",
];

/// Two servers and a witness, which all follow the list of revoked certificates.
fn started(lab: &Lab, misses: u32) -> Cluster<'_> {
    let options = ClusterOptions {
        misses,
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::prepare(lab, options).expect("there are certificates");
    for host in NODES {
        let path = cluster.config_file(host).expect("it has one");
        let text = fs::read_to_string(&path).expect("it is there");
        let with_list = text.replace("[tls]\n", "[tls]\ncrl = \"crl.pem\"\n");
        assert_ne!(text, with_list);
        fs::write(&path, with_list).expect("written");
        cluster.start_agent(host).expect("it starts");
    }
    wait_in_sync(&mut cluster, Host::A);
    cluster
}

fn authority(lab: &Lab) -> PathBuf {
    lab.folder().join("pki")
}

fn folder(lab: &Lab, host: Host) -> PathBuf {
    let folder = lab.node(host).folder().expect("the machine is there");
    folder.to_path_buf()
}

/// Whole or not at all.
fn put(from: &Path, to: &Path) {
    let beside = to.with_extension("new");
    fs::copy(from, &beside).expect("copied");
    fs::rename(&beside, to).expect("renamed");
}

/// A machine's certificate, made by hand.
fn issue(lab: &Lab, host: Host) {
    let order = Order {
        name: host.name().parse().expect("a name"),
        out: &folder(lab, host),
        life: Life::Usual,
        unless_valid_for: None,
    };
    godwit_pki::issue(&authority(lab), &order).expect("issued");
}

fn log(cluster: &mut Cluster<'_>, host: Host) -> String {
    cluster.agent(host).expect("it was started").log()
}

fn disturbances(cluster: &Cluster<'_>, host: Host) -> usize {
    let events = cluster.events(host).expect("it answers");
    let is_one = |event: &&String| DISTURBED.contains(&event.as_str());
    events.iter().filter(is_one).count()
}

/// Of each kind, and protected.
fn traffic(lab: &Lab, cluster: &Cluster<'_>) -> Vec<Traffic> {
    let kinds = [
        (service_v4(), Load::LongDownload),
        (service_v6(), Load::Upload),
        (service_v4(), Load::Echo),
        (service_v6(), Load::Echo),
    ];
    let started = kinds.map(|(service, load)| Traffic::start(lab, service, load));
    for one in &started {
        wait_protected(cluster, Host::A, one.local());
    }
    started.into()
}

/// Node b says of each peer why there is no link, and that nobody is in sync.
fn wait_told(cluster: &Cluster<'_>, why: &str) {
    let what = format!("b says {why}");
    until_within(COUNTS, &what, || {
        let status = cluster.status(Host::B).ok()?;
        let reason = |it: &PeerReport| it.no_link.as_ref().map(|it| it.reason.clone());
        let is_told = status
            .peers
            .iter()
            .all(|it| reason(it).as_deref() == Some(why));
        let is_alone = status.services.iter().all(|it| it.in_sync.is_empty());
        (is_told && is_alone).then_some(())
    });
}

/// Somebody has copied b's key. Nobody speaks with b, the owner's connections go on, and with
/// another certificate b is in sync again.
#[test]
fn a_node_that_is_revoked_is_dropped_at_once_and_comes_back_with_another_certificate() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = started(&lab, 3);
    let traffic = traffic(&lab, &cluster);
    let began = Instant::now();
    let which = Which::Name("b".parse().expect("a name"));
    godwit_pki::revoke(&authority(&lab), &which).expect("revoked");
    let list = authority(&lab).join(godwit_pki::CRL);
    let publish = |host| put(&list, &folder(&lab, host).join("crl.pem"));
    for host in [Host::A, Host::Witness] {
        publish(host);
    }
    let published = Instant::now();
    wait_told(&cluster, "turned_away");
    eprintln!(
        "keys: b knows without a list after {:?}",
        published.elapsed()
    );
    publish(Host::B);
    wait_told(&cluster, "own_revoked");
    for host in [Host::A, Host::Witness] {
        until_within(COUNTS, &format!("{host} drops b"), || {
            let status = cluster.status(host).ok()?;
            let b = status.peers.iter().find(|peer| peer.name == "b")?;
            let is_alone = status.services.iter().all(|it| it.in_sync.is_empty());
            (!b.linked && is_alone).then_some(())
        });
    }
    eprintln!("keys: b is dropped after {:?}", published.elapsed());
    for host in NODES {
        let what = format!("{host} says that b's certificate is revoked");
        until_within(2 * COUNTS, &what, || {
            let status = cluster.status(host).expect("it answers");
            let mut warnings = status.warnings.iter();
            warnings.find(|it| it.contains("revoked")).map(drop)
        });
    }
    for one in &traffic {
        one.goes_on();
    }
    let status = cluster.status(Host::A).expect("it answers");
    assert!(status.services.iter().all(|it| it.state == "owner"));
    issue(&lab, Host::B);
    wait_in_sync(&mut cluster, Host::A);
    let new = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, new.local());
    for host in NODES {
        let what = format!("{host} takes it back");
        until_within(DEADLINE, &what, || {
            let status = cluster.status(host).expect("it answers");
            let is_said = status.warnings.iter().any(|it| it.contains("revoked"));
            (!is_said).then_some(())
        });
        let events = cluster.events(host).expect("it answers");
        assert!(
            !events.iter().any(|it| it == "takeover_started"),
            "{host}: {events:?}"
        );
    }
    for one in traffic.into_iter().chain([new]) {
        one.finish(began, STALL_LIMIT);
    }
}

/// Serves renewals from the witness's machine, where this authority is.
fn serve(lab: &Lab) -> (Process, String) {
    let from = format!("{}:{RENEWS}", Host::Witness.control_v4());
    let mut command = Command::new(cluster::binary().expect("it is built"));
    command.args(["pki", "serve", "--listen", &from, "--dir"]);
    command.arg(authority(lab));
    let witness = lab.node(Host::Witness);
    let mut renewals = witness.spawn("renewals", command).expect("it starts");
    until_within(DEADLINE, "certificates are renewed", || {
        assert!(renewals.is_running(), "{}", renewals.log());
        renewals.log().contains("are renewed at").then_some(())
    });
    (renewals, from)
}

fn renew(lab: &Lab, cluster: &Cluster<'_>, host: Host, from: &str) {
    let folder = folder(lab, host);
    let path = folder.to_str().expect("UTF-8");
    let args = ["pki", "renew", "--from", from, "--dir", path];
    // However long it is valid yet.
    let args = [&args[..], &["--unless-valid-for", "3650"]].concat();
    let output = cluster.godwit(host, &args).expect("it ends");
    let is_done = output.status.success() && output.stdout.contains("renewed the certificate");
    assert!(is_done, "{host}: {}{}", output.stdout, output.stderr);
}

/// Twice on each node: nobody is held to have failed, and new links use what is new.
#[test]
fn certificates_are_renewed_under_load_and_nobody_notices() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    // A machine that is busy with other tests takes a CPU away for 30 ms.
    let mut cluster = started(&lab, 10);
    let (mut renewals, from) = serve(&lab);
    let traffic = traffic(&lab, &cluster);
    let before = NODES.map(|host| disturbances(&cluster, host));
    let began = Instant::now();
    for round in 1..=2 {
        for host in NODES {
            let key = folder(&lab, host).join("node.key");
            let old = fs::read(&key).expect("it is there");
            renew(&lab, &cluster, host, &from);
            assert_ne!(fs::read(&key).expect("it is there"), old);
            let what = format!("{host} uses what is new");
            until_within(DEADLINE, &what, || {
                let log = log(&mut cluster, host);
                (log.matches("renewed certificates are in use").count() >= round).then_some(())
            });
        }
    }
    let after = NODES.map(|host| disturbances(&cluster, host));
    assert_eq!(after, before, "nobody has failed or left");
    for host in NODES {
        let status = cluster.status(host).expect("it answers");
        assert!(status.peers.iter().all(|it| it.linked), "{status:?}");
        let wrong = |it: &&String| it.contains("certificate");
        assert_eq!(status.warnings.iter().find(wrong), None, "{host}");
    }
    for one in traffic {
        one.finish(began, STALL_LIMIT);
    }
    // A new life of b has links by its new certificate.
    cluster.start_agent(Host::B).expect("it starts again");
    wait_in_sync(&mut cluster, Host::A);
    let said = renewals.log();
    assert_eq!(said.matches(": renewed ").count(), 6, "{said}");
    renewals.kill().expect("it runs");
}
