//! Ending sockets, in a namespace of a lab.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use godwit_lab::{Lab, LabOptions};
use godwit_sock::{destroy_tcp, has_tcp_socket};
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
