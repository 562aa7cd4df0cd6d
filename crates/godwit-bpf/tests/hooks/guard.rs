//! Where `guard` is: on each way out of the machine beside the gate's, and
//! nowhere else, as interfaces come and change.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use godwit_lab::Lab;
use godwit_lab::host::Network;
use godwit_sock::{Devices, Interface};

use crate::bench::{Bench, on_bench_of};

/// Indices of the interfaces that have a pinned `guard`.
fn guarded(pins: &str) -> BTreeSet<u32> {
    let links = fs::read_dir(format!("/sys/fs/bpf/godwit/{pins}/links")).expect("pinned");
    let names = links.map(|entry| entry.expect("readable").file_name());
    names
        .filter_map(|name| name.to_str()?.strip_prefix("guard-")?.parse().ok())
        .collect()
}

fn ip(lab: &Lab, words: &str) {
    let mut command = Command::new("ip");
    command.args(words.split(' '));
    let output = lab.a().run(command, std::time::Duration::from_secs(5));
    let output = output.expect("it ends");
    assert!(output.status.success(), "ip {words}: {output:?}");
}

fn index(name: &str) -> u32 {
    let devices = Devices::read().expect("netlink works");
    let found = devices.iter().find(|device| device.name == name);
    found.expect("it is there").index
}

/// As the agent does it.
fn follow(bench: &mut Bench) {
    let service = Interface::by_name(Network::Data.interface()).expect("it has eth0");
    let others = Devices::read()
        .expect("netlink works")
        .others(service.index);
    bench.datapath.guard(&others).expect("all are guarded");
}

#[test]
fn guards_follow_the_interfaces() {
    on_bench_of(|bench, lab, pins| {
        let control = index(Network::Control.interface());
        follow(bench);
        assert_eq!(guarded(pins), BTreeSet::from([control]));

        ip(lab, "link add x0 type veth peer name x1");
        let pair = BTreeSet::from([control, index("x0"), index("x1")]);
        follow(bench);
        assert_eq!(guarded(pins), pair, "what comes is guarded");

        // A port of a bridge is no way of its own for the bridge's frames, but
        // eth0 is the service interface, and the bridge leads around its gate.
        ip(lab, "link add br0 type bridge");
        ip(lab, "link set x0 master br0");
        follow(bench);
        let with_bridge: BTreeSet<u32> = pair.iter().copied().chain([index("br0")]).collect();
        assert_eq!(guarded(pins), with_bridge);

        ip(lab, "link del br0");
        ip(lab, "link del x0");
        follow(bench);
        assert_eq!(
            guarded(pins),
            BTreeSet::from([control]),
            "what goes is forgotten"
        );
    });
}

/// A bond, bridge or team may get a port at any time.
#[test]
fn what_comes_below_the_service_interface_loses_its_guard() {
    on_bench_of(|bench, lab, pins| {
        ip(lab, "link add br0 type bridge");
        ip(lab, "link add x0 type veth peer name x1");
        ip(lab, "link add link x1 name m0 type macvlan");
        let devices = || Devices::read().expect("netlink works");
        let (bridge, port) = (index("br0"), index("x0"));
        let mut guard = |service: u32| {
            bench
                .datapath
                .guard(&devices().others(service))
                .expect("guarded");
            guarded(pins)
        };
        assert!(guard(bridge).contains(&port), "beside it");
        ip(lab, "link set x0 master br0");
        assert!(!guard(bridge).contains(&port), "below it");
        ip(lab, "link set x0 nomaster");
        assert!(guard(bridge).contains(&port), "beside it again");
        let (macvlan, lower) = (index("m0"), index("x1"));
        let on = guard(macvlan);
        assert!(
            on.contains(&port) && !on.contains(&lower) && !on.contains(&macvlan),
            "{on:?}"
        );
        // An interface that has gone since it was listed is none.
        let mut gone = devices().others(bridge);
        gone.insert(4_000_000);
        bench.datapath.guard(&gone).expect("nothing to guard");
        assert!(!guarded(pins).contains(&4_000_000));
    });
}
