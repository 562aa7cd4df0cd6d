//! Others on the link, and other ways to it: who answers for a service address is said
//! within a second, or it is nobody but the owner.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_sock::{ClaimWatch, Heard, Interface, neighbour};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    counted, has_event, in_sync, servers, service_v4, service_v6, stage, throughout, until_within,
    wait_protected,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_wire::{ArpOperation, ArpPacket, MacAddr, NeighbourAdvertisement};

/// One second is promised; a busy machine takes its turns besides.
const SOON: Duration = Duration::from_secs(2);

/// What is seen by single segments is taken back when there were none for ten seconds.
const FORGOTTEN: Duration = Duration::from_secs(15);

/// Of the owner's second card.
const SECOND_MAC: &str = "02:00:00:00:00:77";

fn run(lab: &Lab, host: Host, line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    let output = lab.node(host).run(command, DEADLINE).expect("it ends");
    assert!(output.status.success(), "{line}: {output:?}");
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {words}");
}

/// A second card `eth2` of `host` at the same switch, with addresses of the same subnets.
fn second_card(lab: &Lab, host: Host) {
    let node = lab.node(host).netns().name();
    let (switch, last) = (
        format!("{}-switch", lab.id()),
        if host == Host::A { 77 } else { 78 },
    );
    let mac = format!("02:00:00:00:00:{last}");
    ip(&format!(
        "-n {switch} link add s-{host} type veth peer name eth2 address {mac} netns {node}"
    ));
    ip(&format!("-n {switch} link set s-{host} master br-data up"));
    run(lab, host, "ip link set eth2 up");
    run(lab, host, &format!("ip addr add 10.9.0.{last}/24 dev eth2"));
    run(
        lab,
        host,
        &format!("ip addr add 2001:db8:9::{last}/64 dev eth2 nodad"),
    );
}

fn warns(cluster: &Cluster<'_>, host: Host, what: &str) -> bool {
    let status = cluster.status(host).expect("the agent answers");
    status.warnings.iter().any(|text| text.contains(what))
}

/// Where the client finds an address now that it has forgotten all.
fn found_by_client(lab: &Lab, service: SocketAddr) -> MacAddr {
    run(lab, Host::Client, "ip neigh flush dev eth0");
    let echo = Traffic::start(lab, service, Load::Echo);
    let find = || {
        let eth0 = Interface::by_name(Network::Data.interface()).expect("it has one");
        neighbour(eth0.index, service.ip()).expect("netlink works")
    };
    let found = until_within(DEADLINE, "the client knows where it is", || {
        lab.client().enter(find).expect("the machine is there")
    });
    echo.goes_on();
    found
}

/// The kernel answers ARP for each of its addresses on each interface: clients that took
/// the second card's answer were in no list.
#[test]
fn a_second_interface_does_not_answer_for_the_service() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    for host in Host::SERVERS {
        second_card(&lab, host);
    }
    for service in [service_v4(), service_v6()] {
        for _ in 0..5 {
            let mac = found_by_client(&lab, service);
            assert_eq!(mac, Host::A.mac(Network::Data), "{service}");
        }
    }
    assert!(counted(&cluster, Host::A, "told_elsewhere") > 0, "it tried");
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, echo.local());
    assert!(!warns(&cluster, Host::A, "other_interface"));
    // For the addresses of the first one it does answer.
    for host in Host::SERVERS {
        until_within(SOON, "it is said", || {
            warns(&cluster, host, "arp_flux").then_some(())
        });
        run(&lab, host, "sysctl -qw net.ipv4.conf.eth2.arp_ignore=1");
        until_within(SOON, "it is taken back", || {
            (!warns(&cluster, host, "arp_flux")).then_some(())
        });
    }
}

/// A client may have an entry of its own, or a router a route. Whether its answers find
/// back by the second card depends on this machine's routes.
#[test]
fn clients_that_come_by_a_second_interface_are_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    second_card(&lab, Host::A);
    for (service, client) in [
        (service_v4(), Host::Client.v4().to_string()),
        (service_v6(), Host::Client.v6().to_string()),
    ] {
        let address = service.ip();
        assert!(!warns(&cluster, Host::A, "other_interface"), "{service}");
        let entry = format!("ip neigh replace {address} lladdr {SECOND_MAC} dev eth0");
        run(&lab, Host::Client, &entry);
        let connect = || TcpStream::connect_timeout(&service, Duration::from_millis(300));
        let _ = lab.client().enter(connect).expect("the machine is there");
        until_within(SOON, "it is said", || {
            warns(&cluster, Host::A, "other_interface: clients come by eth2").then_some(())
        });
        run(&lab, Host::A, &format!("ip route add {client} dev eth2"));
        let echo = Traffic::start(&lab, service, Load::Echo);
        echo.goes_on();
        assert!(warns(&cluster, Host::A, "eth2"), "as long as it is so");
        drop(echo);
        run(&lab, Host::A, &format!("ip route del {client} dev eth2"));
        run(
            &lab,
            Host::Client,
            &format!("ip neigh del {address} dev eth0"),
        );
        until_within(FORGOTTEN, "it is taken back", || {
            (!warns(&cluster, Host::A, "other_interface")).then_some(())
        });
    }
}

/// Says of a service's address that it is at the attacker.
fn claim(lab: &Lab, address: IpAddr) {
    let mac = Host::Attacker.mac(Network::Data);
    let frame = match address {
        IpAddr::V4(v4) => ArpPacket::gratuitous(ArpOperation::Reply, v4, mac).broadcast_frame(),
        IpAddr::V6(target) => NeighbourAdvertisement { target, mac }.multicast_frame(),
    };
    let sent = lab.node(Host::Attacker).send_frames(&[frame]);
    sent.expect("the machine is there");
}

/// What the client hears of addresses.
fn listen(lab: &Lab) -> ClaimWatch {
    let open = || {
        let eth0 = Interface::by_name(Network::Data.interface()).expect("it has one");
        ClaimWatch::open(eth0.index, Network::Data.interface()).expect("root may")
    };
    lab.client().enter(open).expect("the machine is there")
}

/// Another machine gets a service's address: both nodes say which one, and clients hear at
/// once from the owner where it is. When that machine has lost it, it is taken back.
#[test]
fn another_machine_with_a_service_address_is_said_and_answered() {
    let options = LabOptions {
        attacker: true,
        ..LabOptions::default()
    };
    let Some(lab) = stage(options) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let foreign = Host::Attacker.mac(Network::Data).to_string();
    for service in [service_v4(), service_v6()] {
        let address = service.ip();
        let echo = Traffic::start(&lab, service, Load::Echo);
        wait_protected(&cluster, Host::A, echo.local());
        let (length, more) = match address {
            IpAddr::V4(_) => (32, ""),
            IpAddr::V6(_) => (128, " nodad"),
        };
        let at = format!("{address}/{length} dev eth0");
        run(&lab, Host::Attacker, &format!("ip addr add {at}{more}"));
        let said = format!("{address} at {foreign}");
        let ears = listen(&lab);
        claim(&lab, address);
        let from_owner = Heard::Claim(address, Host::A.mac(Network::Data));
        until_within(SOON, "the owner answers", || {
            ears.take().contains(&from_owner).then_some(())
        });
        for host in Host::SERVERS {
            until_within(SOON, "it is said", || {
                warns(&cluster, host, &said).then_some(())
            });
            assert!(has_event(&cluster, host, "address_conflict"), "{host}");
        }
        echo.goes_on();
        let long = CONFLICT_OVER * 2;
        throughout("as long as it answers", long, || {
            warns(&cluster, Host::A, &said) && warns(&cluster, Host::B, &said)
        });
        let events = cluster.events(Host::A).expect("it answers");
        let answers = events.iter().filter(|event| *event == "address_conflict");
        assert!(answers.count() <= 4, "once in ten seconds");
        run(&lab, Host::Attacker, &format!("ip addr del {at}"));
        for host in Host::SERVERS {
            until_within(FORGOTTEN, "it is taken back", || {
                (!warns(&cluster, host, "address_conflict")).then_some(())
            });
        }
        echo.goes_on();
    }
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    throughout("a mate is no stranger", SOON, || {
        !warns(&cluster, Host::B, "address_conflict")
    });
}

/// How often the link is asked for an address that nobody looks for.
const QUIET: Duration = Duration::from_secs(10);

/// A machine that gets a service's address and announces nothing answers those alone who
/// ask. Once a client has asked with ARP it is known; with IPv6, whose questions nobody else
/// hears, when the link is asked the next time.
#[test]
fn another_machine_that_only_answers_is_found() {
    let options = LabOptions {
        attacker: true,
        ..LabOptions::default()
    };
    let Some(lab) = stage(options) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let foreign = Host::Attacker.mac(Network::Data).to_string();
    for (service, length, soon) in [
        (service_v4(), "32", SOON * 2),
        (service_v6(), "128", QUIET + SOON * 2),
    ] {
        let address = service.ip();
        let echo = Traffic::start(&lab, service, Load::Echo);
        wait_protected(&cluster, Host::A, echo.local());
        let more = if address.is_ipv6() { " nodad" } else { "" };
        let add = format!("ip addr add {address}/{length} dev eth0{more}");
        run(&lab, Host::Attacker, &add);
        run(&lab, Host::Client, "ip neigh flush dev eth0");
        // One of the two answers, or refuses.
        let asks = || TcpStream::connect_timeout(&service, SOON).map(drop);
        let _ = lab.client().enter(asks).expect("the machine is there");
        let said = format!("{address} at {foreign}");
        for host in Host::SERVERS {
            until_within(soon, "it is said", || {
                warns(&cluster, host, &said).then_some(())
            });
        }
        echo.goes_on();
    }
}

/// When nobody claims the address any more.
const CONFLICT_OVER: Duration = Duration::from_secs(5);

/// A node that has lost its own addresses finds its mates no more, and hears one of them say
/// where the service is. That is no stranger.
#[test]
fn a_node_without_addresses_does_not_take_its_mates_for_strangers() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    // The agent puts the service's address back meanwhile, of which ip(8) may complain.
    let mut flush = Command::new("ip");
    flush.args(["addr", "flush", "dev", "eth0"]);
    lab.b().run(flush, DEADLINE).expect("it ends");
    until_within(SOON, "it is said", || {
        warns(&cluster, Host::B, "interface_address").then_some(())
    });
    for service in [service_v4(), service_v6()] {
        let address = service.ip();
        let mac = Host::A.mac(Network::Data);
        let frame = match address {
            IpAddr::V4(v4) => ArpPacket::gratuitous(ArpOperation::Reply, v4, mac).broadcast_frame(),
            IpAddr::V6(target) => NeighbourAdvertisement { target, mac }.multicast_frame(),
        };
        lab.a().send_frames(&[frame]).expect("it is there");
    }
    throughout("a mate is no stranger", SOON, || {
        !warns(&cluster, Host::B, "address_conflict")
    });
}
