//! Ending sockets, in a namespace of a lab.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};

use godwit_lab::host::Network;
use godwit_lab::{Lab, LabOptions};
use godwit_sock::{
    Interface, Waiting, destroy_tcp, has_tcp_socket, waiting_bytes, without_tcp_socket,
};
use godwit_wire::FlowKey;

fn key(client: SocketAddr, service: SocketAddr) -> FlowKey {
    FlowKey {
        client: client.into(),
        service: service.into(),
    }
}

/// The kernel's look-up ends at the listener where a flow has no socket: that
/// one must live on.
#[test]
fn a_flow_without_a_socket_costs_no_listener() {
    if let Err(why) = Lab::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let lab = Lab::new(LabOptions::default()).expect("a lab can be built");
    let ends = || {
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((ip, 0)).expect("a free port");
            let service = listener.local_addr().expect("it is bound");
            let nobody = key(SocketAddr::new(ip, 9), service);
            assert!(!has_tcp_socket(0, nobody).expect("the kernel answers"));
            assert!(!destroy_tcp(0, nobody).expect("the kernel answers"));

            let client = TcpStream::connect(service).expect("the listener lives");
            let (server, _) = listener.accept().expect("it accepts");
            let flow = key(client.local_addr().expect("it is bound"), service);
            assert!(has_tcp_socket(0, flow).expect("the kernel answers"));
            assert!(destroy_tcp(0, flow).expect("the kernel answers"));
            assert!(!has_tcp_socket(0, flow).expect("the kernel answers"));
            assert!(!destroy_tcp(0, flow).expect("again is no error"));
            drop(server);
            TcpStream::connect(service).expect("the listener still lives");
        }
    };
    lab.a().enter(ends).expect("the machine is there");
}

/// What a server has not read is counted, until it has, and what its client has not
/// acknowledged; of no socket nothing is known.
#[test]
fn what_waits_in_a_socket_is_counted() {
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let service = listener.local_addr().expect("it is bound");
        let mut client = TcpStream::connect(service).expect("it listens");
        let (mut server, _) = listener.accept().expect("it accepts");
        let flow = key(client.local_addr().expect("it is bound"), service);
        let waits = || waiting_bytes(0, flow).expect("the kernel answers");
        assert_eq!(waits(), Some(Waiting::default()));
        client.write_all(b"hello").expect("it is open");
        assert_eq!(waits().map(|it| it.unread), Some(5));
        server.read_exact(&mut [0; 5]).expect("it has come");
        assert_eq!(waits(), Some(Waiting::default()));
        server.set_nonblocking(true).expect("it is open");
        while server.write(&[0; 4096]).is_ok() {}
        assert!(
            waits().is_some_and(|it| it.unacked > 0),
            "the client reads nothing"
        );
        drop((client, server));
        let nobody = key(SocketAddr::new(ip, 9), service);
        let waits = waiting_bytes(0, nobody).expect("the kernel answers");
        assert_eq!(waits, None, "a listener is not the flow's");
    }
}

/// The kernel ties a socket of a link-local client to the client's link, and knows
/// none of that name on another.
#[test]
fn the_socket_of_a_link_local_client_is_on_its_link() {
    if let Err(why) = Lab::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let lab = Lab::new(LabOptions::default()).expect("a lab can be built");
    let data = || Interface::by_name(Network::Data.interface()).expect("it has eth0");
    let link = lab.client().enter(|| data().index).expect("the client");
    let listen = || {
        let link = data();
        let own = link.addresses.iter().find_map(|address| match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(*v6),
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        });
        let own = SocketAddrV6::new(own.expect("every interface has one"), 0, 0, link.index);
        let listener = TcpListener::bind(own).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        (listener, *own.ip(), port, link.index)
    };
    let (listener, own, port, ifindex) = lab.a().enter(listen).expect("the machine is there");
    let service = SocketAddr::V6(SocketAddrV6::new(own, port, 0, link));
    let connect = || TcpStream::connect(service).expect("it is on the link");
    let mut client = lab.client().enter(connect).expect("the client");
    let (_server, _) = listener.accept().expect("it accepts");
    let flow = key(client.local_addr().expect("it is bound"), service);
    let end = || {
        let gone = without_tcp_socket(ifindex, BTreeSet::from([flow]));
        assert_eq!(gone.expect("the kernel answers"), BTreeSet::new());
        let elsewhere = ifindex + 1000;
        assert!(!destroy_tcp(elsewhere, flow).expect("the kernel answers"));
        assert!(destroy_tcp(ifindex, flow).expect("the kernel answers"));
        let gone = without_tcp_socket(ifindex, BTreeSet::from([flow]));
        assert_eq!(gone.expect("the kernel answers"), BTreeSet::from([flow]));
    };
    lab.a().enter(end).expect("the machine is there");
    let ended = client.read(&mut [0]).expect_err("it was reset");
    assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset);
}
