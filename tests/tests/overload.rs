//! More SYNs than a listener takes, and a standby that accepts nobody.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::LabOptions;
use godwit_lab::apps::server;
use godwit_lab::cluster::ClusterOptions;
use godwit_lab::host::{Host, Network, SERVICE_V4};
use godwit_tests::stage::{
    PORT, assert_unnoticed, has_event, in_sync, servers, service_v4, stage, tcp_counter, wait_flow,
    wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::{Endpoint, EthernetHeader, Segment, SeqNumber, TcpFlags, TcpOptions};
use socket2::{Domain, Socket, Type};

/// SYNs in one burst of the flood.
const BURST: u16 = 500;

/// A burst of SYNs from addresses that nobody has.
fn burst(number: u16) -> Vec<Vec<u8>> {
    let (from, to) = (
        Host::Attacker.mac(Network::Data),
        Host::A.mac(Network::Data),
    );
    let host = u8::try_from(number % 100).expect("below 100");
    let address = Ipv4Addr::new(10, 9, 0, 150 + host);
    let syn = |port: u16| Segment {
        source: Endpoint::new(address.to_ipv6_mapped(), 1024 + port),
        destination: Endpoint::new(SERVICE_V4.to_ipv6_mapped(), PORT),
        seq: SeqNumber(u32::from(port)),
        ack: SeqNumber(0),
        flags: TcpFlags::SYN,
        wnd: 1000,
        options: TcpOptions {
            mss: Some(1460),
            ..TcpOptions::default()
        },
        payload: &[],
    };
    let packets = (0..BURST).map(|port| syn(port).to_packet().expect("it is short"));
    packets
        .map(|packet| EthernetHeader::frame_ip(to, from, &packet))
        .collect()
}

/// With cookies active, what is protected stays so, what is new is served, and
/// the crash in the middle of the flood is survived.
#[test]
fn a_syn_flood_takes_no_protection_away() {
    let options = LabOptions {
        attacker: true,
        ..LabOptions::default()
    };
    let Some(lab) = stage(options) else {
        return;
    };
    for node in [lab.a(), lab.b()] {
        // A small backlog: the listener answers with cookies soon.
        node.netns()
            .sysctl("core.somaxconn", "64")
            .expect("it is set");
    }
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let download = Traffic::start(&lab, service_v4(), Load::Download);
    wait_protected(&cluster, Host::A, download.local());
    let since = Instant::now();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..u16::MAX).take_while(|_| !over.load(Ordering::Relaxed)) {
                let sent = lab.node(Host::Attacker).send_frames(&burst(number));
                sent.expect("frames are sent");
            }
        });
        for _ in 0..5 {
            download.goes_on();
        }
        let fresh = Traffic::start(&lab, service_v4(), Load::Echo);
        wait_flow(&cluster, Host::A, fresh.local(), |flow| {
            flow.state != "confirming"
        });
        fresh.finish(since, STALL_LIMIT);
        wait_protected(&cluster, Host::A, download.local());
        let cookies = tcp_counter(&lab, Host::A, "SyncookiesSent");
        assert!(cookies > 0, "the flood is too small for cookies");
        lab.crash(Host::A).expect("a crashes");
        cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
        download.goes_on();
        over.store(true, Ordering::Relaxed);
    });
    download.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// Opens a connection and resets it, again and again, until `end`: how often.
fn come_and_go(end: Instant) -> u64 {
    let mut made = 0;
    while Instant::now() < end {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        // No TIME-WAIT: the ports do not run out.
        socket.set_linger(Some(Duration::ZERO)).expect("it is set");
        let connected = socket.connect_timeout(&service_v4().into(), Duration::from_secs(1));
        made += u64::from(connected.is_ok());
    }
    made
}

/// A figure: connections that come and go for ten seconds, as fast as clients can. The agents
/// hear of each, and of each other all the same: nobody takes over.
#[test]
#[ignore = "a figure"]
fn connections_that_come_and_go_cause_no_takeover() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let begun = Instant::now();
    let end = begun + Duration::from_secs(10);
    let made: u64 = thread::scope(|scope| {
        let come = || lab.client().enter(|| come_and_go(end));
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(come)).collect();
        let made = clients.into_iter().map(|client| client.join());
        made.map(|it| it.expect("no panic").expect("it is there"))
            .sum()
    });
    let took = begun.elapsed().as_secs();
    println!("{} connections a second", made / took.max(1));
    for host in [Host::A, Host::B] {
        for event in ["takeover_started", "standby_left"] {
            assert!(!has_event(&cluster, host, event), "{event} at {host}");
        }
    }
    let after = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, after.local());
    after.finish(Instant::now(), STALL_LIMIT);
}

/// A standby whose server does not accept has no room for more twins: clients
/// are served, their flows shown as unprotected. So are those of the twins that
/// found room, as soon as they lag: nobody speaks for them.
#[test]
fn a_full_accept_queue_at_the_standby_leaves_flows_bare() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _a = server::start(lab.a(), PORT).expect("the server starts");
    lab.b()
        .netns()
        .sysctl("core.somaxconn", "1")
        .expect("it is set");
    let listener = lab
        .b()
        .enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)));
    let _deaf = listener.expect("the machine is there").expect("it listens");
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let since = Instant::now();
    let clients: Vec<_> = (0..8)
        .map(|_| Traffic::start(&lab, service_v4(), Load::Echo))
        .collect();
    let settled = clients.iter().map(|client| {
        wait_flow(&cluster, Host::A, client.local(), |flow| {
            flow.state != "confirming"
        })
    });
    let settled: Vec<_> = settled.collect();
    let bare = settled.iter().filter(|flow| !flow.protected).count();
    assert!(bare >= 4, "{bare} of 8 are unprotected: {settled:#?}");
    for flow in settled.iter().filter(|flow| !flow.protected) {
        let reason = flow.reason.as_deref();
        assert!(
            matches!(
                reason,
                Some("not_confirmed" | "twin_closed" | "standby_lost" | "lagging")
            ),
            "{flow:?}"
        );
    }
    for client in clients {
        client.goes_on();
        client.finish(since, STALL_LIMIT);
    }
    assert_unnoticed(capture);
}
