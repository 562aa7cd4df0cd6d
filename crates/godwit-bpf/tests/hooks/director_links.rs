//! A director's programs and what an earlier one has left: whose connections they are, and
//! which interface has the program.

use std::process::Command;

use godwit_bpf::director::{Director, Settings, Via};
use godwit_bpf::{OpenError, PinDir};
use godwit_sock::Interface;

use crate::bench::to_service;
use crate::director::{ACK, Act, SEED, on_bench, settings};

/// Under another seed each flow has another slot, and would be taken from its back-end.
#[test]
fn what_another_seed_has_left_is_not_taken_over() {
    on_bench(None, |bench, pins| {
        let open = |settings: &Settings| {
            let pins = PinDir::open(pins).expect("bpffs is there");
            Director::open(settings, pins)
        };
        let mut other = settings(None);
        other.seed = SEED + 1;
        let refused = open(&other).expect_err("it is another's");
        assert!(
            matches!(refused, OpenError::OtherBasis { what: "seed" }),
            "{refused}"
        );
        let data = to_service(7, false, 2, 1, ACK, b"data");
        bench.expect("the earlier one goes on", &data, Act::Send, "directed");
        open(&settings(None)).expect("the same seed");
    });
}

/// Whether XDP of an interface has a program, in the driver.
fn has_xdp(interface: &str) -> bool {
    let mut ip = Command::new("ip");
    ip.args(["link", "show", "dev", interface]);
    let output = ip.output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
}

fn add_bridge(name: &str) -> u32 {
    let mut ip = Command::new("ip");
    ip.args(["link", "add", name, "type", "bridge"]);
    assert!(ip.status().expect("it runs").success());
    let mut ip = Command::new("ip");
    ip.args(["link", "set", name, "up"]);
    assert!(ip.status().expect("it runs").success());
    Interface::by_name(name).expect("it is there").index
}

/// The link that is pinned is that of the interface which is wanted, and not of the one
/// that an earlier director had.
#[test]
fn another_interface_gets_the_program_and_one_without_xdp_gets_the_other() {
    on_bench(None, |_, pins| {
        assert!(has_xdp("eth0"));
        let mut elsewhere = settings(None);
        elsewhere.ifindex = Interface::by_name("eth1").expect("a second one").index;
        let pins = || PinDir::open(pins).expect("bpffs is there");
        let next = Director::open(&elsewhere, pins()).expect("it moves");
        assert_eq!(next.via(), Via::Xdp);
        assert!(has_xdp("eth1") && !has_xdp("eth0"));
        // The kernel could run it behind this driver, which is no better than tcx.
        elsewhere.ifindex = add_bridge("br0");
        let next = Director::open(&elsewhere, pins()).expect("it moves");
        assert_eq!(next.via(), Via::Tcx);
        assert!(!has_xdp("eth1") && !has_xdp("br0"));
    });
}

/// A place that another program has is no lack of XDP.
#[test]
fn another_program_in_the_path_is_an_error() {
    on_bench(None, |bench, pins| {
        let other = format!("{pins}-other");
        let pins = PinDir::open(&other).expect("bpffs is there");
        let refused = Director::open(&settings(None), pins).expect_err("the place is taken");
        assert!(matches!(refused, OpenError::Attach(_)), "{refused}");
        let data = to_service(7, false, 2, 1, ACK, b"data");
        bench.expect("the first one goes on", &data, Act::Send, "directed");
        let pins = PinDir::open(&other).expect("bpffs is there");
        pins.remove().expect("they are removed");
    });
}
