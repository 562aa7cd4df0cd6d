//! Where `guard` is: on each way out of the machine beside the gate's, and
//! nowhere else, as interfaces come and change.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use godwit_bpf::Hook;
use godwit_lab::Lab;
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_sock::{Devices, Interface};
use godwit_wire::{ArpOperation, ArpPacket, NeighbourAdvertisement, Role, TcpFlags};

use crate::bench::{Bench, DROP, IRS, ISS, NEXT, from_service, on_bench, on_bench_of};

/// Indices of the interfaces that have a pinned `guard`, and a `beside`.
fn guarded(pins: &str) -> BTreeSet<u32> {
    let with = |prefix: &str| -> BTreeSet<u32> {
        let links = fs::read_dir(format!("/sys/fs/bpf/godwit/{pins}/links")).expect("pinned");
        let names = links.map(|entry| entry.expect("readable").file_name());
        names
            .filter_map(|name| name.to_str()?.strip_prefix(prefix)?.parse().ok())
            .collect()
    };
    let guarded = with("guard-");
    assert_eq!(with("beside-"), guarded);
    guarded
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
    let hooks = bench.datapath.hooks.as_mut().expect("nobody took them");
    hooks.guard(&others).expect("all are guarded");
    hooks.watch(&others).expect("all are watched");
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
            let hooks = bench.datapath.hooks.as_mut().expect("nobody took them");
            let others = devices().others(service);
            hooks.guard(&others).expect("guarded");
            hooks.watch(&others).expect("watched");
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
        let hooks = bench.datapath.hooks.as_mut().expect("nobody took them");
        hooks.guard(&gone).expect("nothing to guard");
        hooks.watch(&gone).expect("nothing to watch");
        assert!(!guarded(pins).contains(&4_000_000));
    });
}

/// An interface in the same subnet would answer ARP for addresses on loopback (ip-sysctl,
/// `arp_ignore`): clients would come by it, past tap and gate.
#[test]
fn nobody_hears_of_a_service_on_another_link() {
    on_bench(|bench| {
        let mac = Host::A.mac(Network::Control);
        let arp = |at| ArpPacket::gratuitous(ArpOperation::Reply, at, mac).broadcast_frame();
        let advert = |target| NeighbourAdvertisement { target, mac }.multicast_frame();
        for role in [Role::Owner, Role::Shadow, Role::None] {
            bench.play(role);
            for frame in [arp(SERVICE_V4), advert(SERVICE_V6)] {
                let (verdict, reasons) = bench.pass(Hook::Guard, &frame);
                assert_eq!(verdict, DROP, "{role:?}: {reasons:?}");
                assert_eq!(reasons, ["told_elsewhere"], "{role:?}");
            }
            for frame in [arp(Host::A.v4()), advert(Host::A.v6())] {
                let (verdict, reasons) = bench.pass(Hook::Guard, &frame);
                assert_eq!(verdict, NEXT, "its own, {role:?}: {reasons:?}");
            }
        }
        bench.play(Role::Owner);
        // Who serves a client by that link has to find it, in nobody's name.
        let question = ArpPacket {
            target: Host::Client.v4(),
            ..ArpPacket::gratuitous(ArpOperation::Request, SERVICE_V4, mac)
        };
        let (verdict, reasons) = bench.pass(Hook::Guard, &question.broadcast_frame());
        assert_eq!(
            (verdict, &*reasons),
            (NEXT, &["arp_renamed".to_owned()][..])
        );
        let own = from_service(7, false, ISS, IRS, TcpFlags::ACK, b"data");
        bench.expect(Hook::Guard, "no flow", &own, NEXT, "other_interface");
    });
}
