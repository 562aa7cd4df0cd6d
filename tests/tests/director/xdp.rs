//! A director whose program is in the driver.

use godwit_bpf::PinDir;
use godwit_bpf::director::{Director, Settings, Via};
use godwit_lab::Lab;
use godwit_lab::cluster::ClusterOptions;
use godwit_lab::host::{Host, Network};

use godwit_sock::Interface;
use godwit_wire::MacAddr;

use super::{BACKENDS, Front, Regular, SECTIONS, all_stay, lab, names, on_lab, options};

fn on_site(work: impl FnOnce(&mut Front<'_>)) {
    let Some(lab) = lab() else {
        return;
    };
    make_wire(&lab);
    let options = ClusterOptions {
        sections: SECTIONS.replace("tcx", "xdp"),
        ..options()
    };
    on_lab(&lab, options, |front| {
        let via = front.wait(|_| true).via;
        assert_eq!(via, "xdp");
        work(front);
    });
}

/// Makes the director's link as one between network cards, on which XDP may send.
fn make_wire(lab: &Lab) {
    let (host, network) = (Host::Director, Network::Data);
    let made = lab.make_checksums(host, network);
    made.expect("there is ethtool");
    let pins = format!("wire-{}", lab.id());
    let folder = format!("/sys/fs/bpf/godwit/{pins}");
    lab.remove_at_end(folder.as_ref())
        .expect("it is remembered");
    lab.at_port(host, network, |port| let_poll(port, &pins))
        .expect("the switch is there");
}

/// What XDP sends on a veth is seen by the other end only if that has a program, too. This one
/// passes everything: nothing is addressed to the port itself.
fn let_poll(port: &str, pins: &str) {
    let settings = Settings {
        ifindex: Interface::by_name(port).expect("it is there").index,
        mac: MacAddr([2, 0, 0, 0, 0xff, 0xff]),
        via: Via::Xdp,
        table_size: 251,
        services: 1,
        max_entries: 1024,
        seed: 0,
        shares: false,
        trial_flows: None,
    };
    let pins = PinDir::open(pins).expect("bpffs is there");
    let program = Director::open(&settings, pins).expect("the program loads");
    assert_eq!(program.via(), Via::Xdp, "a veth knows XDP");
}

/// Segments of all sizes come back to where their connection is, old ones and new ones,
/// while the table changes.
#[test]
fn connections_are_carried_by_the_program_in_the_driver() {
    on_site(|front| {
        let mut regulars = front.connect(48);
        assert_eq!(front.curls(24), names(&BACKENDS));
        front.drain(&["b"]);
        front.wait_takers(&[Host::A, Host::C]);
        assert_eq!(front.curls(24), names(&[Host::A, Host::C]));
        let old = regulars.len();
        regulars.extend(front.connect(48));
        front.drain(&["b", "--undo"]);
        front.wait_takers(&BACKENDS);
        all_stay(&mut regulars);
        // Clients say more than a segment at a time.
        regulars[..old].iter_mut().for_each(Regular::ask_much);
        regulars[old..].iter_mut().for_each(Regular::ask_much);
        for reason in ["directed_new", "directed_entry", "directed_base"] {
            assert!(front.counted(reason) > 0, "{reason}");
        }
        assert_eq!(front.counted("no_backend"), 0);
        front.ask_who_has_the_addresses();
    });
}

/// As on tcx: the program goes on while its director is started anew, and follows its
/// interface.
#[test]
fn the_program_in_the_driver_outlives_its_director() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        front.drain(&["a"]);
        front.wait_takers(&[Host::B, Host::C]);
        regulars.extend(front.connect(24));
        let agent = front.cluster.agent(Host::Director).expect("it runs");
        agent.kill().expect("it dies");
        all_stay(&mut regulars);
        let start = front.cluster.start_agent(Host::Director);
        start.expect("another one starts");
        front.wait_takers(&[Host::B, Host::C]);
        all_stay(&mut regulars);
        front.at_the_director("ip link set eth0 address 02:00:00:00:0d:0d");
        front.wait_attached(true);
        all_stay(&mut regulars);
        assert_eq!(front.wait(|_| true).via, "xdp");
        assert_eq!(front.curls(24), names(&[Host::B, Host::C]));
    });
}
