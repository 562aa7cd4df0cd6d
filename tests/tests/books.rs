//! What Godwit writes down of a client is what the kernel believes: windows that are taken
//! back, and forged segments beside real ones, before and after a death.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use godwit_lab::apps::raw::{RawClient, RawOptions};
use godwit_lab::apps::server;
use godwit_lab::capture::Trace;
use godwit_lab::cluster::{ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::packet::{set_tcp, set_tcp_checksum, tcp_at};
use godwit_tests::stage::{
    PORT as PORT_OF_SERVICE, assert_unnoticed, in_sync, servers, service_v4, service_v6, stage,
    wait_flow, wait_protected, witness,
};
use godwit_wire::{Endpoint, SeqNumber, TcpFlags};

const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 77)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x77)),
];

/// Of the clients.
const PORT: u16 = 7007;

/// What an echo takes in is more than the default of `reprotect_cap` in the end.
const LONG_LOG: &str = "reprotect_cap = \"512KiB\"\n";

/// The client takes no longer segments than these, by family: none is held back for a window
/// that shrinks. No twin is born of a smaller MSS.
const MSS: [u16; 2] = [536, 1220];
const WSCALE: u8 = 7;

/// Some segments' worth.
const QUESTION: [u8; 3000] = [b'?'; 3000];

fn client(lab: &Lab, address: IpAddr) -> RawClient {
    let service = if address.is_ipv4() {
        service_v4()
    } else {
        service_v6()
    };
    let options = RawOptions {
        address,
        port: PORT,
        iss: SeqNumber(1000),
        ts_val: Some(1),
        mss: MSS[usize::from(address.is_ipv6())],
        wscale: Some(WSCALE),
        ecn: false,
    };
    let mut client = RawClient::open(lab.client(), service, options).expect("the wire is there");
    client.half_open(DEADLINE).expect("a SYN-ACK comes");
    client.acknowledge().expect("the wire is there");
    client.send(b"echo\n", DEADLINE).expect("it is taken");
    client
}

fn exchange(client: &mut RawClient, rounds: usize) {
    for _ in 0..rounds {
        client.send(&QUESTION, DEADLINE).expect("it is taken");
        let answer = client.receive(QUESTION.len(), DEADLINE);
        assert_eq!(answer.expect("it is answered"), QUESTION);
    }
}

/// Connections in both families, protected; then what `act` does with them, around the death
/// of their owner; then what was on the client's wire.
fn over_a_death(act: impl Fn(&mut RawClient)) -> Option<Trace> {
    let lab = stage(LabOptions::default())?;
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut clients = ADDRESSES.map(|address| client(&lab, address));
    for (client, address) in clients.iter_mut().zip(ADDRESSES) {
        exchange(client, 3);
        wait_protected(&cluster, Host::A, SocketAddr::new(address, PORT));
        act(client);
        wait_protected(&cluster, Host::A, SocketAddr::new(address, PORT));
    }
    lab.crash(Host::A).expect("a crashes");
    for client in &mut clients {
        act(client);
        assert_content(client);
    }
    Some(assert_unnoticed(capture))
}

fn assert_content(client: &RawClient) {
    let complaints = &client.complaints;
    let wrong = (
        complaints.old_stamps,
        complaints.bad_echoes,
        complaints.acks_beyond,
    );
    assert_eq!(wrong, (0, 0, 0), "old stamps, foreign echoes, ACKs beyond");
}

/// Windows are 1280 bytes.
fn narrow(mut packet: Vec<u8>) -> Vec<Vec<u8>> {
    set_tcp(&mut packet, 14, &10_u16.to_be_bytes());
    vec![packet]
}

fn wide(packet: Vec<u8>) -> Vec<Vec<u8>> {
    vec![packet]
}

/// How far beyond the last window of a client the service ever sent: bytes, and how many
/// segments a narrow window was obeyed by.
fn beyond(trace: &Trace, client: Endpoint) -> (u32, usize) {
    let (mut edge, mut worst, mut obeyed) = (None, 0, 0);
    for segment in trace.segments() {
        if segment.from == client && segment.flags.contains(TcpFlags::ACK) {
            let window = u32::from(segment.window) << WSCALE;
            edge = Some((segment.ack + window, window));
        } else if let (true, Some((edge, window))) = (segment.to == client, edge) {
            let end = segment.seq + segment.length;
            worst = worst.max(end.checked_distance(edge).unwrap_or(0));
            obeyed += usize::from(window <= 1280 && segment.length > 0);
        }
    }
    (worst, obeyed)
}

/// RFC 9293 section 3.8.6: a client may take back a window that it has offered, though it
/// should not. Neither the owner nor who takes over from it sends more than fits.
#[test]
fn windows_that_are_taken_back_are_obeyed_over_a_death() {
    let trace = over_a_death(|client| {
        for disguise in [narrow, wide, narrow] {
            client.disguise(disguise);
            exchange(client, 5);
        }
    });
    let Some(trace) = trace else {
        return;
    };
    for address in ADDRESSES {
        let (worst, obeyed) = beyond(&trace, SocketAddr::new(address, PORT).into());
        assert_eq!(worst, 0, "bytes beyond the window of {address}");
        assert!(obeyed > 50, "{obeyed} segments into narrow windows");
    }
}

/// Where the value of the client's time stamp is: behind two options of one byte.
const TS_VAL: usize = 24;

/// Before each segment three forged ones, with a window of nothing, a FIN and, if they have
/// data, other data. One has a wrong checksum only; one has that, and a TSval from far in the
/// future; one has that, and is far outside the window.
fn pestered(packet: Vec<u8>) -> Vec<Vec<u8>> {
    let tcp = tcp_at(&packet);
    if packet[tcp + 13] & TcpFlags::SYN.0 != 0 {
        return vec![packet];
    }
    let mut forged = packet.clone();
    forged[tcp + 13] |= TcpFlags::FIN.0;
    let header = usize::from(packet[tcp + 12] >> 4) * 4;
    forged[tcp + header..].fill(b'!');
    set_tcp(&mut forged, 14, &[0, 0]);
    let mut ahead = forged.clone();
    ahead[tcp + TS_VAL] = ahead[tcp + TS_VAL].wrapping_add(0x40);
    let mut outside = ahead.clone();
    outside[tcp + 4] = outside[tcp + 4].wrapping_add(0x40);
    for segment in [&mut ahead, &mut outside] {
        set_tcp_checksum(segment);
    }
    for segment in [&mut forged, &mut ahead] {
        segment[tcp + 16] ^= 0x55;
    }
    vec![forged, ahead, outside, packet]
}

/// What the kernel throws away is in no book: the connection stays protected, a twin that is
/// born of the log reads what the client has said, no answer echoes a forged time stamp, and
/// no window is nothing after a death.
#[test]
fn forged_segments_are_in_no_book_over_a_death() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let [_a, mut b] = servers(&lab);
    let mut service = Service::new("web", PORT_OF_SERVICE);
    service.extra = LONG_LOG.to_owned();
    let options = ClusterOptions {
        services: vec![service],
        ..ClusterOptions::default()
    };
    let cluster = in_sync(&lab, options);
    let capture = witness(&lab);
    let mut clients = ADDRESSES.map(|address| client(&lab, address));
    for (client, address) in clients.iter_mut().zip(ADDRESSES) {
        client.disguise(pestered);
        exchange(client, 10);
        wait_protected(&cluster, Host::A, SocketAddr::new(address, PORT));
    }
    b.kill().expect("it runs");
    for client in &mut clients {
        exchange(client, 5);
    }
    b = server::start(lab.b(), PORT_OF_SERVICE).expect("the server starts again");
    let are_again = || {
        for address in ADDRESSES {
            wait_flow(&cluster, Host::A, SocketAddr::new(address, PORT), |flow| {
                flow.protected && flow.protected_again_ms.is_some()
            });
        }
    };
    are_again();
    for client in &mut clients {
        exchange(client, 5);
    }
    are_again();
    lab.crash(Host::A).expect("a crashes");
    for client in &mut clients {
        exchange(client, 10);
        client.disguise(wide);
        exchange(client, 3);
        assert_content(client);
    }
    assert_unnoticed(capture);
    drop(b);
}
