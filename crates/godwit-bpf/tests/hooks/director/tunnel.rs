//! Back-ends that are not on the link: what a director puts before a frame, byte by byte, and
//! that a back-end's data path has the client's packet back.

use std::net::IpAddr;

use godwit_bpf::director::{Backend, Tunnel, Via};
use godwit_bpf::{Datapath, Hook, PinDir, Settings, TunnelEnd};
use godwit_lab::host::{Host, Network};
use godwit_sock::Interface;
use godwit_wire::MacAddr;

use super::{ACK, Act, SYN, mac_of, on_bench};
use crate::bench::{SHARE, ends, to_service};

const VNI: u32 = 0x12_3456;
const V4: [&str; 2] = ["192.0.2.1", "198.51.100.9"];
const V6: [&str; 2] = ["2001:db8:1::1", "2001:db8:2::9"];

fn tunnel(ends: [&str; 2]) -> Tunnel {
    let [from, to] = ends.map(|end| end.parse().expect("a literal"));
    Tunnel { from, to, vni: VNI }
}

/// All back-ends are far away, by way of the same router.
fn send_far(bench: &super::Bench, tunnel: Tunnel) {
    for member in &bench.members {
        let backend = Backend {
            name: member.name,
            mac: mac_of(77),
            tunnel: Some(tunnel),
            there: true,
            drained: false,
            followed: false,
            gone: false,
            tells: true,
        };
        let table = &bench.director.backends;
        table.set(member.id.0, &backend).expect("there is room");
        let read = table.get(member.id.0).expect("it can be read");
        assert_eq!(read, Some(backend));
    }
}

/// RFC 7348 section 5, RFC 791, RFC 768.
fn check_outer(out: &[u8], inner: usize, ends: [&str; 2]) -> usize {
    assert_eq!(out[..6], mac_of(77).0, "to the router");
    assert_eq!(out[6..12], Host::A.mac(Network::Data).0);
    let [from, to] = ends.map(|end| end.parse::<IpAddr>().expect("a literal"));
    let octets = |addr| match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let word = |at: usize| usize::from(u16::from_be_bytes([out[at], out[at + 1]]));
    let udp = if from.is_ipv4() {
        assert_eq!(out[12..15], [8, 0, 0x45]);
        assert_eq!(word(16), 20 + 16 + inner);
        assert_eq!((out[22], out[23]), (64, 17));
        let sum: usize = (14..34).step_by(2).map(word).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "its checksum");
        assert_eq!(out[26..30], octets(from));
        assert_eq!(out[30..34], octets(to));
        34
    } else {
        assert_eq!(out[12..15], [0x86, 0xdd, 0x60]);
        assert_eq!(word(18), 16 + inner);
        assert_eq!((out[20], out[21]), (17, 64));
        assert_eq!(out[22..38], octets(from));
        assert_eq!(out[38..54], octets(to));
        54
    };
    assert!(word(udp) >= 49152, "RFC 7348: a port of the dynamic range");
    assert_eq!(word(udp + 2), 4789);
    assert_eq!((word(udp + 4), word(udp + 6)), (16 + inner, 0));
    assert_eq!(out[udp + 8..udp + 16], [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
    udp + 16
}

/// Whatever families are inside and outside, by either program: the frame is whole, and all
/// frames of one flow have one source port.
#[test]
fn a_frame_goes_into_a_tunnel_as_it_is() {
    on_bench(None, |bench, _| {
        for ends in [V4, V6] {
            send_far(bench, tunnel(ends));
            for (port, v6) in [(1, false), (2, true)] {
                let syn = to_service(port, v6, 1, 0, SYN, b"");
                let data = to_service(port, v6, 2, 1, ACK, b"some data");
                let mut ports = Vec::new();
                for (via, frame) in [Via::Xdp, Via::Tcx]
                    .into_iter()
                    .flat_map(|via| [(via, &syn), (via, &data)])
                {
                    let (act, reasons, out) = bench.put_once(via, frame);
                    assert_eq!(act, Act::Send, "{reasons:?}");
                    assert!(reasons.iter().any(|it| it == "tunnelled"), "{reasons:?}");
                    let at = check_outer(&out, frame.len(), ends);
                    assert_eq!(&out[at..], &frame[..], "{via:?}");
                    ports.push([out[at - 16], out[at - 15]]);
                }
                ports.dedup();
                assert_eq!(ports.len(), 1, "one path");
            }
        }
    });
}

/// One that would be longer than the link takes is not sent.
#[test]
fn a_frame_that_is_too_long_for_a_tunnel_is_counted() {
    on_bench(None, |bench, _| {
        send_far(bench, tunnel(V4));
        let long = to_service(1, false, 2, 1, ACK, &[7; 1440]);
        // What is tried with XDP is on loopback, which takes more.
        let (act, reasons, _) = bench.put_once(Via::Tcx, &long);
        assert_eq!(act, Act::Stop);
        assert!(reasons.iter().any(|it| it == "tunnel_full"), "{reasons:?}");
    });
}

/// A router that is the way to back-ends says nothing of connections in their name.
#[test]
fn a_router_is_no_back_end() {
    on_bench(None, |bench, _| {
        send_far(bench, tunnel(V4));
        let mut frame = crate::bench::note(1, false, mac_of(77));
        frame[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
        frame[6..12].copy_from_slice(&mac_of(77).0);
        bench.expect("a note", &frame, Act::Stop, "learn_refused");
        assert_eq!(bench.director.entries.count().expect("readable"), 0);
    });
}

/// On a back-end's machine: what was put in comes out, for a service of this node, from a
/// director; all else is left alone.
#[test]
fn a_tunnel_ends_in_the_client_s_packet() {
    on_bench(None, |bench, pins| {
        let name = format!("{pins}-end");
        let ends_at = |at: &str| back_end(&name, at.parse().expect("a literal"), &[]);
        let ifindex = bench.ifindex;
        let run_at = |back_end: &Datapath, frame: &[u8]| {
            let trial = back_end.try_frame(Hook::Untunnel, ifindex, frame);
            let trial = trial.expect("the kernel runs it");
            assert_eq!(trial.verdict, -1);
            trial.frame
        };
        for ends in [V4, V6] {
            let back_end = ends_at(ends[1]);
            let run = |frame: &[u8]| run_at(&back_end, frame);
            send_far(bench, tunnel(ends));
            for (port, v6) in [(1, false), (2, true)] {
                let data = to_service(port, v6, 2, 1, ACK, b"some data");
                let (_, _, mut out) = bench.put_once(Via::Tcx, &data);
                // As the router sends it on.
                out[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
                out[6..12].copy_from_slice(&mac_of(78).0);
                let inner = run(&out);
                assert_eq!(inner[6..12], mac_of(78).0, "from the link's own station");
                assert_eq!(inner[12..], data[12..]);
                let vni = out.len() - data.len() - 2;
                let mut other = out.clone();
                other[vni] ^= 1;
                assert_eq!(run(&other), other, "another number");
                let mut other = out.clone();
                let (from, last) = if ends == V4 { (26, 29) } else { (22, 37) };
                other[last] ^= 1;
                assert_eq!(run(&other), other, "not from a director: {from}");
                let mut other = out.clone();
                let service_port = out.len() - data.len() + if v6 { 57 } else { 37 };
                other[service_port] ^= 1;
                assert_eq!(run(&other), other, "for nobody here");
                let mut other = out.clone();
                let proto = out.len() - data.len() + if v6 { 20 } else { 23 };
                other[proto] = 17;
                assert_eq!(run(&other), other, "no TCP");
                let mut other = out.clone();
                let at = if ends == V4 { 33 } else { 53 };
                other[at] ^= 1;
                assert_eq!(run(&other), other, "to another back-end");
                // Its last two bytes are data: the ports are there until then.
                for cut in 60..out.len() - data.len() + if v6 { 58 } else { 38 } {
                    assert_eq!(run(&out[..cut]), out[..cut], "{cut}");
                }
            }
            back_end.detach().expect("the programs are removed");
        }
    });
}

/// Of two routers that the file names the frames of both come out; what another station on the
/// link sends under a director's address is dropped, and counted. What is no tunnel's for this
/// node is nobody's affair, whoever sends it.
#[test]
fn a_tunnel_is_bound_to_its_routers() {
    on_bench(None, |bench, pins| {
        let name = format!("{pins}-bound");
        for ends in [V4, V6] {
            let at = ends[1].parse().expect("a literal");
            let back_end = back_end(&name, at, &[mac_of(78), mac_of(79)]);
            let foreign = || {
                let mut counts = back_end.counters.read().into_iter();
                let found = counts.find(|(name, _)| *name == "tunnel_foreign");
                found.map_or(0, |(_, count)| count)
            };
            send_far(bench, tunnel(ends));
            for (port, v6) in [(1, false), (2, true)] {
                let data = to_service(port, v6, 2, 1, ACK, b"some data");
                let (_, _, mut out) = bench.put_once(Via::Tcx, &data);
                out[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
                let run = |from: u16, frame: &mut [u8]| {
                    frame[6..12].copy_from_slice(&mac_of(from).0);
                    let trial = back_end.try_frame(Hook::Untunnel, bench.ifindex, frame);
                    let trial = trial.expect("the kernel runs it");
                    (trial.verdict, trial.frame)
                };
                for router in [78, 79] {
                    let (verdict, inner) = run(router, &mut out);
                    assert_eq!((verdict, &inner[12..]), (-1, &data[12..]), "{router}");
                }
                let before = foreign();
                assert_eq!(run(80, &mut out).0, crate::bench::DROP);
                assert_eq!(foreign(), before + 1);
                let vni = out.len() - data.len() - 2;
                out[vni] ^= 1;
                let (verdict, left) = run(80, &mut out);
                assert_eq!((verdict, &left), (-1, &out), "another number");
                out[vni] ^= 1;
                // As a reload does.
                let let_in = |routers: &[MacAddr]| {
                    let set = back_end.let_in(&end(at, routers));
                    set.expect("it is written");
                };
                let_in(&[mac_of(80)]);
                assert_eq!(run(78, &mut out).0, crate::bench::DROP);
                assert_eq!(run(80, &mut out).0, -1, "the new one");
                let_in(&[]);
                assert_eq!(run(78, &mut out).0, -1, "anybody");
                let_in(&[mac_of(78), mac_of(79)]);
            }
            back_end.detach().expect("the programs are removed");
        }
    });
}

fn end(at: IpAddr, routers: &[MacAddr]) -> TunnelEnd {
    TunnelEnd {
        at,
        vni: VNI,
        directors: [V4, V6]
            .map(|ends| ends[0].parse().expect("a literal"))
            .into(),
        routers: routers.to_vec(),
    }
}

fn back_end(pins: &str, at: IpAddr, routers: &[MacAddr]) -> Datapath {
    let interface = Interface::by_name(Network::Data.interface()).expect("it has eth0");
    let settings = Settings {
        ifindex: interface.index,
        mac: interface.mac,
        others: std::collections::BTreeSet::new(),
        node_v4: Some(Host::A.v4()),
        node_v6: Some(Host::A.v6()),
        netns_cookie: godwit_sock::netns_cookie().expect("the kernel has cookies"),
        max_flows: 1024,
        policies: Vec::new(),
        tunnel: Some(end(at, routers)),
    };
    let pins = PinDir::open(pins).expect("bpffs is there");
    let (datapath, _) = Datapath::open(&settings, pins).expect("the programs load");
    let slot = datapath.share_slots.take(SHARE.0);
    slot.expect("it is written").expect("there is room");
    let services = [false, true].map(|v6| (ends(1, v6).1, SHARE));
    datapath
        .services
        .replace(&services, &[])
        .expect("they are set");
    datapath
}
