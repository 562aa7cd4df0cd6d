//! Web servers, and the load that they get. Needs root.

mod common;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use godwit_lab::apps::apache::{Apache, ApacheOptions, Mpm};
use godwit_lab::apps::webstone::{FileSet, Load, Tally};
use godwit_lab::{Host, Lab, LabOptions};

const DEADLINE: Duration = Duration::from_secs(20);

const FILES: FileSet = FileSet { factor: 1 };

const PORT: u16 = 80;

fn apache(lab: &Lab, mpm: Mpm, keep_alive: bool) -> Apache {
    let root = lab.a().folder().expect("a folder").join("root");
    FILES.write(&root).expect("files are written");
    let options = ApacheOptions {
        mpm,
        root: &root,
        port: PORT,
        keep_alive,
        workers: 16,
        limits: None,
    };
    Apache::start(lab.a(), &options).expect("Apache listens")
}

/// Three thousand requests, all of them answered rightly by [`Host::A`].
fn load(lab: &Lab, per_connection: u32) -> Tally {
    let target = SocketAddr::from((Host::A.v4(), PORT));
    let load = Load {
        per_connection,
        requests: 3000,
        span: DEADLINE,
        patience: Duration::from_secs(5),
        ..Load::new(target, FILES, 10)
    };
    let tally = load.run(lab.client()).expect("the load runs");
    assert_eq!(tally.failed(), 0, "{tally:?}");
    assert!(tally.replies >= 3000, "{tally:?}");
    assert_eq!(tally.served.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(tally.served["a"], tally.replies);
    assert_eq!(tally.moves, 0);
    // A twentieth of a per cent is one request.
    let shares = tally
        .classes
        .map(|class| class.requests * 100 / tally.all.requests);
    assert!(
        (33..=37).contains(&shares[0]) && shares[3] <= 2,
        "{shares:?}"
    );
    tally
}

#[test]
fn a_prefork_apache_ends_each_connection_behind_its_reply() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let _apache = apache(&lab, Mpm::Prefork, false);
    let tally = load(&lab, 1);
    assert_eq!(tally.connections, tally.replies);
    assert_eq!(tally.stayed.requests, 0);
}

#[test]
fn an_event_apache_keeps_connections_until_their_client_wants_no_more() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let _apache = apache(&lab, Mpm::Event, true);
    assert_eq!(load(&lab, 0).connections, 10);
    let tally = load(&lab, 50);
    assert!((60..=70).contains(&tally.connections), "{tally:?}");
    assert!(tally.stayed.requests > 2900);
}

#[test]
fn a_load_notices_a_wrong_byte_and_a_file_that_is_too_short() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let _apache = apache(&lab, Mpm::Event, true);
    let class = lab.a().folder().expect("a folder").join("root/class1");
    for number in 0..400 {
        let path = class.join(format!("5k-{number}.html"));
        let mut bytes = fs::read(&path).expect("it is there");
        if number % 2 == 0 {
            bytes[4000] ^= 1;
        } else {
            bytes.truncate(5000);
        }
        fs::write(&path, bytes).expect("it is written");
    }
    let load = Load {
        per_connection: 0,
        requests: 1000,
        span: DEADLINE,
        ..Load::new(SocketAddr::from((Host::A.v4(), PORT)), FILES, 4)
    };
    let tally = load.run(lab.client()).expect("the load runs");
    // 40 % of all, each on a connection that it ends.
    assert!((340..=460).contains(&tally.wrong), "{tally:?}");
    assert_eq!(tally.failed(), tally.wrong);
    assert!(tally.connections > tally.wrong);
}
