//! A third machine pretends to be the standby: the owner tells its clients of
//! no byte that the true one lacks.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::capture::Trace;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    PORT, assert_unnoticed, counted, in_sync, servers, service_v4, service_v6, stage,
    wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::{
    Endpoint, EthernetHeader, FlowKey, MacAddr, Segment, SeqNumber, TcpFlags, TcpOptions,
};

/// Time for a client's retransmissions and for answers to forgeries.
const WATCHED: Duration = Duration::from_millis(250);

/// Until what was under way when the tap was cut has been told: nothing marks it.
const SETTLED: Duration = Duration::from_millis(100);

/// How forgeries are refused.
const REFUSED: [&str; 4] = [
    "spoofed",
    "twin_ack_payload",
    "tag_missing",
    "twin_ack_flags",
];

/// How far a conversation had come when a capture ended.
#[derive(Debug)]
struct Numbers {
    /// End of what the client has sent.
    sent: SeqNumber,
    /// The most that the service has acknowledged.
    told: SeqNumber,
    /// The service's next sequence number.
    service: SeqNumber,
}

fn numbers(trace: &Trace, flow: FlowKey) -> Numbers {
    let of = |end: Endpoint| {
        let all = trace
            .segments()
            .filter(move |s| s.flow(flow.service) == Some(flow));
        all.filter(move |s| s.from == end)
    };
    let latest = |a: SeqNumber, b: SeqNumber| if b.gt(a) { b } else { a };
    let sent = of(flow.client).map(|s| s.seq + s.length).reduce(latest);
    let told = of(flow.service).map(|s| s.ack).reduce(latest);
    let service = of(flow.client).map(|s| s.ack).reduce(latest);
    let (Some(sent), Some(told), Some(service)) = (sent, told, service) else {
        panic!("{flow} was not heard");
    };
    Numbers {
        sent,
        told,
        service,
    }
}

/// A frame to the owner in the service's name.
fn forged(
    from: MacAddr,
    flow: FlowKey,
    (seq, ack): (SeqNumber, SeqNumber),
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let segment = Segment {
        source: flow.service,
        destination: flow.client,
        seq,
        ack,
        flags,
        wnd: 1000,
        options: TcpOptions::default(),
        payload,
    };
    let packet = segment.to_packet().expect("it is short");
    EthernetHeader::frame_ip(Host::A.mac(Network::Data), from, &packet)
}

/// What clients say is no longer mirrored. Canaries are: their ports are below 256, and
/// without them the standby would leave the in-sync set.
const CUT_TAP: &str = "table bridge spoof {
chain thin {
    type filter hook prerouting priority -300;
    iifname \"p-a\" ether daddr 02:00:00:00:00:12 tcp sport > 255 tcp dport 80 drop
}
}";

const MEND_TAP: &str = "delete table bridge spoof";

/// Has nft do that where the switch is.
fn at_switch(lab: &Lab, rules: &str) {
    let nft = |_: &str| Command::new("nft").arg(rules).status();
    let done = lab.at_port(Host::A, Network::Data, nft);
    let done = done.expect("the switch is there").expect("nft runs");
    assert!(done.success(), "{rules}");
}

/// The tap is cut, so every byte from then on is missing at the standby, and
/// the gate holds; then come the forgeries, and at last the crash.
#[test]
fn forged_acks_tell_the_client_nothing() {
    let options = LabOptions {
        attacker: true,
        ..LabOptions::default()
    };
    let Some(lab) = stage(options) else {
        return;
    };
    let _servers = servers(&lab);
    let mut service = Service::new("web", PORT);
    // The gate has to hold for as long as the test forges.
    service.extra = "lag_limit = \"10s\"".to_owned();
    let mut cluster = in_sync(
        &lab,
        ClusterOptions {
            services: vec![service],
            ..ClusterOptions::unfenced()
        },
    );
    for service in [service_v4(), service_v6()] {
        let capture = witness(&lab);
        let upload = Traffic::start(&lab, service, Load::Upload);
        wait_protected(&cluster, Host::A, upload.local());
        at_switch(&lab, CUT_TAP);
        let flow = FlowKey {
            client: upload.local().into(),
            service: service.into(),
        };
        thread::sleep(SETTLED);
        let before = numbers(&assert_unnoticed(capture), flow);
        assert!(before.sent.gt(before.told), "nothing is held: {before:?}");

        let capture = witness(&lab);
        forge(&lab, flow, &before);
        for reason in REFUSED {
            let seen = || (counted(&cluster, Host::A, reason) > 0).then_some(());
            godwit_tests::stage::until(reason, seen);
        }
        // The client tries again meanwhile, and is told nothing new.
        thread::sleep(WATCHED);
        let after = assert_unnoticed(capture);
        let told = after
            .segments()
            .filter(|s| s.from == flow.service)
            .map(|s| s.ack);
        for ack in told {
            assert!(!ack.gt(before.told), "{ack:?} was told, {before:?}");
        }

        let capture = witness(&lab);
        at_switch(&lab, MEND_TAP);
        upload.goes_on();
        // Without canaries for a second the standby has left, and may be back.
        cluster
            .wait_in_sync(Host::A, DEADLINE)
            .expect("b is in sync again");
        let since = Instant::now();
        upload.finish(since, STALL_LIMIT);
        assert_unnoticed(capture);
    }
    crash_proves_it(&lab, &cluster);
}

/// What the client was told in spite of all is there.
fn crash_proves_it(lab: &Lab, cluster: &Cluster<'_>) {
    let capture = witness(lab);
    let upload = Traffic::start(lab, service_v4(), Load::Upload);
    wait_protected(cluster, Host::A, upload.local());
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    upload.goes_on();
    upload.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// Everything that a stranger may try who does not know the standby's key: with
/// its own MAC the right numbers, with the standby's MAC the same, an
/// acknowledgement of what was never sent, or one that is no bare ACK.
fn forge(lab: &Lab, flow: FlowKey, numbers: &Numbers) {
    let (own, standby) = (
        Host::Attacker.mac(Network::Data),
        Host::B.mac(Network::Data),
    );
    let ack = TcpFlags::ACK;
    let right = (numbers.service, numbers.sent);
    let beyond = (numbers.service, numbers.sent + 10_000_000);
    let frames = [
        forged(own, flow, right, ack, b""),
        forged(own, flow, right, ack, b"data"),
        forged(own, flow, right, ack.with(TcpFlags::RST), b""),
        forged(standby, flow, right, ack, b"data"),
        forged(standby, flow, right, ack.with(TcpFlags::FIN), b""),
        forged(standby, flow, right, ack.with(TcpFlags::RST), b""),
        forged(standby, flow, beyond, ack, b""),
        forged(standby, flow, right, ack, b""),
    ];
    let attacker = lab.node(Host::Attacker);
    for _ in 0..5 {
        attacker.send_frames(&frames).expect("frames are sent");
    }
}
