//! Back-ends that are not on the director's link: a router is between them.

use std::process::Command;

use godwit_lab::Lab;
use godwit_lab::cluster::ClusterOptions;
use godwit_lab::host::{Host, Network};
use godwit_tests::DEADLINE;

use super::{BACKENDS, Front, Regular, all_stay, lab, names, on_lab, options};

/// Two of the three.
const FAR: [Host; 2] = [Host::B, Host::C];

/// A router that a is: it forwards what the director gives it for the far ones, and neither
/// knows the other on the link.
fn on_site(work: impl FnOnce(&mut Front<'_>)) {
    let Some(lab) = lab() else {
        return;
    };
    for host in [Host::Client, Host::Director].into_iter().chain(BACKENDS) {
        // A tunnel takes 50 bytes, and clients have no less for it.
        run(&lab, host, &["ip", "link", "set", "eth0", "mtu", "1600"]);
        lab.at_port(host, Network::Data, |port| {
            let mut command = Command::new("ip");
            command.args(["link", "set", port, "mtu", "1600"]);
            assert!(command.status().expect("ip runs").success());
        })
        .expect("the switch is there");
    }
    run(
        &lab,
        Host::Client,
        &["ip", "link", "set", "eth0", "mtu", "1500"],
    );
    run(
        &lab,
        Host::A,
        &["sysctl", "-qw", "net.ipv4.conf.all.forwarding=1"],
    );
    run(
        &lab,
        Host::A,
        &["sysctl", "-qw", "net.ipv4.conf.all.send_redirects=0"],
    );
    run(
        &lab,
        Host::A,
        &["sysctl", "-qw", "net.ipv4.conf.eth0.send_redirects=0"],
    );
    for far in FAR {
        let (to, via) = (far.v4().to_string(), Host::A.v4().to_string());
        run(
            &lab,
            Host::Director,
            &["ip", "route", "add", &to, "via", &via],
        );
    }
    let options = ClusterOptions {
        peer_lines: &[
            (Host::B, "reach = \"vxlan\""),
            (Host::C, "reach = \"vxlan\""),
        ],
        ..options()
    };
    on_lab(&lab, options, work);
}

fn run(lab: &Lab, host: Host, words: &[&str]) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let output = lab.node(host).run(command, DEADLINE).expect("it runs");
    assert!(output.status.success(), "{words:?}: {}", output.stderr);
}

/// New connections and old ones, large requests and large replies, while the table changes.
#[test]
fn connections_reach_back_ends_behind_a_router() {
    on_site(|front| {
        let mut regulars = front.connect(48);
        assert_eq!(front.curls(24), names(&BACKENDS));
        front.drain(&["b"]);
        front.wait_takers(&[Host::A, Host::C]);
        regulars.extend(front.connect(24));
        all_stay(&mut regulars);
        regulars.iter_mut().for_each(Regular::ask_much);
        front.drain(&["b", "--undo"]);
        front.wait_takers(&BACKENDS);
        all_stay(&mut regulars);
        let counted = |host, reason: &str| {
            let status = front.cluster.status(host).expect("it answers");
            status.counted(reason)
        };
        assert!(counted(Host::Director, "tunnelled") > 100);
        assert_eq!(counted(Host::Director, "tunnel_full"), 0);
        assert_eq!(counted(Host::A, "untunnelled"), 0, "it is on the link");
        for far in FAR {
            assert!(counted(far, "untunnelled") > 40, "{far}");
        }
    });
}
