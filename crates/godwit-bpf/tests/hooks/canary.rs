//! Canaries work whatever was said in the name of their owner, and nothing is said there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use godwit_bpf::{CANARY_MAGIC, CANARY_NONCES, CANARY_SLOTS, Hook, Keepers, Order, Phase};
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_wire::{
    Endpoint, EthernetHeader, MacAddr, Role, Segment, SeqNumber, TcpFlags, TcpOptions, TimeStamps,
};

use crate::bench::{Bench, DROP, NEXT, on_bench, on_bench_of};
use crate::life::{everywhere, ip, other_machine, take_service_addresses};
use crate::wait::until;

const ACK: TcpFlags = TcpFlags::ACK;
const NONCE: u32 = CANARY_SLOTS * 5 + 1;

/// A server as a client, and the service.
fn ends(server: Host, port: u16, v6: bool) -> (Endpoint, Endpoint) {
    let (client, service) = if v6 {
        (server.v6(), SERVICE_V6)
    } else {
        (server.v4().to_ipv6_mapped(), SERVICE_V4.to_ipv6_mapped())
    };
    (Endpoint::new(client, port), Endpoint::new(service, 80))
}

fn frame(
    (to, from): (MacAddr, MacAddr),
    (source, destination): (Endpoint, Endpoint),
    flags: TcpFlags,
    stamps: (u32, u32),
) -> Vec<u8> {
    numbered((to, from), (source, destination), flags, stamps, (100, 200))
}

fn numbered(
    (to, from): (MacAddr, MacAddr),
    (source, destination): (Endpoint, Endpoint),
    flags: TcpFlags,
    (ts_val, ts_ecr): (u32, u32),
    (seq, ack): (u32, u32),
) -> Vec<u8> {
    let segment = Segment {
        source,
        destination,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags,
        wnd: 512,
        options: TcpOptions {
            time_stamps: Some(TimeStamps { ts_val, ts_ecr }),
            ..TcpOptions::default()
        },
        payload: b"",
    };
    let packet = segment.to_packet().expect("it is short");
    EthernetHeader::frame_ip(to, from, &packet)
}

fn mac(host: Host) -> MacAddr {
    host.mac(Network::Data)
}

/// A SYN in that server's name, from a client's side or mirrored.
fn syn(from: Host, server: Host, port: u16, v6: bool) -> Vec<u8> {
    let macs = (mac(Host::A), mac(from));
    frame(macs, ends(server, port, v6), TcpFlags::SYN, (1, 0))
}

/// This machine is the standby: what the socket of a canary says goes to the owner.
fn hear_canary(bench: &Bench, port: u16, v6: bool) {
    let (client, service) = ends(Host::B, port, v6);
    let macs = (mac(Host::A), mac(Host::B));
    let canary = frame(macs, (client, service), ACK, (NONCE, CANARY_MAGIC));
    // There is no listener here, so no socket.
    bench.expect(Hook::Tap, "canary", &canary, DROP, "canary_no_listener");
    let macs = (mac(Host::B), mac(Host::A));
    let answer = frame(macs, (service, client), ACK, (7, NONCE));
    bench.expect(Hook::Gate, "its socket", &answer, NEXT, "canary_answered");
}

/// SYNs with the owner's address and the ports of canaries: what a standby knew by them kept
/// its canaries from being answered, for ever.
#[test]
fn a_syn_in_its_owner_s_name_stands_in_no_canary_s_way() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        let canaries = &bench.datapath.twins.canaries;
        canaries.know_peer(mac(Host::B)).expect("there is room");
        for v6 in [false, true] {
            for port in [1, 255] {
                let mirrored = syn(Host::B, Host::B, port, v6);
                bench.expect(Hook::Tap, "SYN", &mirrored, DROP, "tapped_syn");
                hear_canary(bench, port, v6);
            }
        }
    });
}

/// Somebody has told this machine's kernel by ARP or neighbour discovery that the owner is
/// elsewhere: what answers its canaries goes to where they come from all the same.
#[test]
fn answers_go_to_where_a_canary_came_from() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        let canaries = &bench.datapath.twins.canaries;
        canaries.know_peer(mac(Host::B)).expect("there is room");
        for v6 in [false, true] {
            hear_canary(bench, 9, v6);
            let (client, service) = ends(Host::B, 9, v6);
            let macs = (mac(Host::Client), mac(Host::A));
            let answer = frame(macs, (service, client), ACK, (7, NONCE));
            let sent = bench.put(Hook::Gate, 0, &answer);
            assert_eq!(sent.verdict, NEXT);
            assert_eq!(sent.frame[..12], answer_to(Host::B), "v6: {v6}");
        }
    });
}

/// The MAC addresses in front of a frame of this machine's to that one.
fn answer_to(host: Host) -> [u8; 12] {
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&mac(host).0);
    macs[6..].copy_from_slice(&mac(Host::A).0);
    macs
}

/// The same of a connection in the owner's name that was begun and made no socket.
#[test]
fn a_flow_in_its_owner_s_name_stands_in_no_canary_s_way() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        let canaries = &bench.datapath.twins.canaries;
        canaries.know_peer(mac(Host::B)).expect("there is room");
        for v6 in [false, true] {
            let (client, service) = ends(Host::B, 9, v6);
            let macs = (mac(Host::A), mac(Host::B));
            let (both, stamps) = (TcpFlags::SYN.with(ACK), (1, 1));
            let begun = [
                (
                    frame(macs, (client, service), TcpFlags::SYN, stamps),
                    "tapped_syn",
                ),
                (
                    numbered(macs, (service, client), both, stamps, (500, 101)),
                    "tapped_syn_ack",
                ),
                (
                    numbered(macs, (client, service), ACK, stamps, (101, 501)),
                    "no_listener",
                ),
            ];
            for (frame, reason) in begun {
                bench.expect(Hook::Tap, "a handshake", &frame, DROP, reason);
            }
            assert_eq!(bench.flow().phase, Phase::Twin);
            hear_canary(bench, 9, v6);
            assert_eq!(bench.flow().phase, Phase::Ended);
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// What an owner has asked for is an answer, whatever it knows of a client there.
#[test]
fn an_owner_hears_its_canary_s_answer_whatever_was_said() {
    on_bench(|bench| {
        let canaries = &bench.datapath.twins.canaries;
        let mut nonces = [0; CANARY_NONCES];
        nonces[0] = NONCE;
        let slot = NONCE % CANARY_SLOTS;
        canaries.ask(slot, mac(Host::B), nonces).expect("it is set");
        for v6 in [false, true] {
            // A client that this machine has begun to serve.
            let begun = syn(Host::Client, Host::Client, 9, v6);
            bench.expect(Hook::Tap, "SYN", &begun, NEXT, "syn");
            let (client, service) = ends(Host::Client, 9, v6);
            let macs = (mac(Host::A), mac(Host::B));
            let answer = frame(macs, (service, client), ACK, (7, NONCE));
            bench.expect(Hook::Tap, "the answer", &answer, DROP, "canary_proved");
            let of_a_twin = frame(macs, (service, client), ACK, (7, NONCE + 1));
            bench.expect(Hook::Tap, "another", &of_a_twin, DROP, "twin_ack_no_flow");
        }
    });
}

/// Nobody but this machine has its address, and it has no need of the link.
#[test]
fn what_comes_in_this_machine_s_own_name_is_nobody_s() {
    on_bench(|bench| {
        for role in [Role::Owner, Role::Shadow, Role::None] {
            bench.play(role);
            for v6 in [false, true] {
                for from in [Host::B, Host::Client] {
                    for port in [1, 255, 40_000] {
                        let own = syn(from, Host::A, port, v6);
                        bench.expect(Hook::Tap, "SYN", &own, DROP, "own_address");
                    }
                }
                let other = syn(Host::Client, Host::Client, 1, v6);
                let (_, reasons) = bench.pass(Hook::Tap, &other);
                assert!(!reasons.iter().any(|it| it == "own_address"), "{reasons:?}");
            }
        }
    });
}

/// Somebody has sent SYNs with another server's address to the owner that this machine was. Its
/// kernel remembers them for a minute, and that one's canaries need the place.
#[test]
fn a_syn_of_before_a_move_stands_in_no_canary_s_way() {
    on_bench_of(|bench, lab, _| {
        take_service_addresses();
        let canaries = &bench.datapath.twins.canaries;
        canaries.know_peer(mac(Host::B)).expect("there is room");
        let homes = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            .map(|at: IpAddr| TcpListener::bind((at, 0)).expect("a port is free"));
        let [v4, v6] = homes
            .each_ref()
            .map(|home| home.local_addr().expect("it is bound").port());
        canaries.set_home(Keepers { v4, v6 }).expect("it is set");
        let other = other_machine(lab);
        for v6 in [false, true] {
            let _server = TcpListener::bind(everywhere(v6)).expect("the port is free");
            bench.play(Role::Owner);
            // Nobody there answers what it is told.
            let (client, service) = ends(Host::B, 9, v6);
            let nobody = mac(Host::Attacker).to_string();
            let address = if v6 {
                Host::B.v6().to_string()
            } else {
                Host::B.v4().to_string()
            };
            let device = Network::Data.interface();
            ip(&[
                "neigh", "replace", &address, "lladdr", &nobody, "dev", device,
            ]);
            counted(bench, "syn_ack", || {
                other.send(&syn(Host::B, Host::B, 9, v6)).expect("it goes");
            });
            bench.play(Role::Shadow);
            let macs = (mac(Host::A), mac(Host::B));
            let canary = frame(macs, (client, service), ACK, (NONCE, CANARY_MAGIC));
            counted(bench, "canary_born", || {
                other.send(&canary).expect("it goes")
            });
        }
    });
}

/// Waits until something has been counted as that.
fn counted(bench: &Bench, name: &str, act: impl FnOnce()) {
    let count = || {
        let counts = bench.counts().into_iter();
        let found = counts.filter(|(it, _)| it == name);
        found.map(|(_, count)| count).sum::<u64>()
    };
    let before = count();
    act();
    let is_counted = || count() != before;
    until(is_counted, || format!("{name}: {:?}", bench.counts()));
}
