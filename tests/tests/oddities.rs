//! What the data path does not understand never leaves a client stuck: it
//! works, and is protected or says why not.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::apps::raw::{RawClient, RawOptions};
use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::host::{Host, Network, SERVICE_V6};
use godwit_lab::{Lab, LabOptions, Switch};
use godwit_tests::packet::{fold, set_tcp_checksum, sum_of};
use godwit_tests::stage::{
    assert_one_voice, assert_unnoticed, counted, flow, in_sync, servers, service_v4, service_v6,
    stage, tcp_counter, wait_flow, wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use godwit_wire::{EthernetHeader, SeqNumber};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Multipath TCP, RFC 8684; as `linux/in.h` numbers it.
const IPPROTO_MPTCP: i32 = 262;
/// Data with the SYN, RFC 7413; as `linux/socket.h` numbers it.
const MSG_FASTOPEN: i32 = 0x2000_0000;
/// `tcp_fastopen`: client, server, and every listener without its asking.
const FASTOPEN: &str = "1027";

const QUESTION: [u8; 150] = [b'?'; 150];

/// Four bytes of IPv4 options: no operation, three times, and the end.
fn with_ip_options(packet: Vec<u8>) -> Vec<Vec<u8>> {
    let mut longer = packet;
    longer.splice(20..20, [1, 1, 1, 0]);
    longer[0] = 0x46;
    set_length(&mut longer, 24);
    vec![longer]
}

/// An option that nobody has heard of, kind 254 with RFC 6994's identifier.
fn with_unknown_option(packet: Vec<u8>) -> Vec<Vec<u8>> {
    let mut longer = packet;
    let header = usize::from(longer[32] >> 4) * 4;
    longer.splice(20 + header..20 + header, [254, 4, 0x0d, 0x17]);
    longer[32] += 0x10;
    set_length(&mut longer, 20);
    set_tcp_checksum(&mut longer);
    vec![longer]
}

/// Everything longer than 100 bytes in two pieces, without options or SYNs
/// being touched.
fn in_fragments(packet: Vec<u8>) -> Vec<Vec<u8>> {
    if packet.len() <= 100 {
        return vec![packet];
    }
    let (first, second) = (packet[..20 + 64].to_vec(), &packet[20 + 64..]);
    let mut second = [&packet[..20], second].concat();
    let mut first = first;
    first[6..8].copy_from_slice(&0x2000_u16.to_be_bytes());
    second[6..8].copy_from_slice(&(64_u16 / 8).to_be_bytes());
    for piece in [&mut first, &mut second] {
        piece[4..6].copy_from_slice(&packet[38..40]);
        set_length(piece, 20);
    }
    vec![first, second]
}

/// A destination options header of IPv6 with nothing but padding (RFC 8200
/// section 4.6).
fn with_extension_header(packet: Vec<u8>) -> Vec<Vec<u8>> {
    vec![extended(&packet, 60, &[6, 0, 1, 4, 0, 0, 0, 0])]
}

/// As [`in_fragments`], with the header of RFC 8200 section 4.5.
fn in_fragments_v6(packet: Vec<u8>) -> Vec<Vec<u8>> {
    if packet.len() <= 120 {
        return vec![packet];
    }
    let (first, second) = (
        &packet[..40 + 64],
        [&packet[..40], &packet[40 + 64..]].concat(),
    );
    let id = &packet[58..60];
    let header = |offset: u8, more: u8| [6, 0, 0, (offset * 8) | more, 0, 0, id[0], id[1]];
    vec![
        extended(first, 44, &header(0, 1)),
        extended(&second, 44, &header(64 / 8, 0)),
    ]
}

/// Puts an extension header of kind `next` behind that of IPv6.
fn extended(packet: &[u8], next: u8, header: &[u8; 8]) -> Vec<u8> {
    let mut longer = [&packet[..40], header, &packet[40..]].concat();
    let length = u16::try_from(longer.len() - 40).expect("a short packet");
    longer[4..6].copy_from_slice(&length.to_be_bytes());
    longer[6] = next;
    longer
}

/// Sets total length and checksum of an IPv4 header of `header` bytes.
fn set_length(packet: &mut [u8], header: usize) {
    let total = u16::try_from(packet.len()).expect("a short packet");
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[10..12].fill(0);
    let sum = fold(sum_of(&packet[..header]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Addresses of the client that can be disguised.
const RAW: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 77)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x77)),
];

/// That client, not connected yet.
fn raw(lab: &Lab, address: IpAddr, port: u16) -> Result<RawClient> {
    let service = if address.is_ipv4() {
        service_v4()
    } else {
        service_v6()
    };
    RawClient::open(
        lab.client(),
        service,
        RawOptions {
            address,
            port,
            iss: SeqNumber(1000),
            ts_val: Some(1),
            mss: 1400,
            wscale: Some(7),
            ecn: false,
        },
    )
}

/// Questions and answers; the longest wait for one.
fn exchange(client: &mut RawClient, rounds: usize) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let start = Instant::now();
        client.send(&QUESTION, DEADLINE)?;
        let answer = client.receive(QUESTION.len(), DEADLINE)?;
        ensure!(answer == QUESTION, "a byte is wrong");
        longest = longest.max(start.elapsed());
    }
    Ok(longest)
}

/// What the owner says of a raw client's flow.
fn is_protected(cluster: &Cluster<'_>, client: SocketAddr) -> Option<bool> {
    flow(cluster, Host::A, client).map(|flow| flow.protected)
}

/// A connection whose packets are disguised from the SYN on, or afterwards;
/// whether its owner says that it is protected.
fn disguised(
    lab: &Lab,
    cluster: &Cluster<'_>,
    (client, from_the_start): (SocketAddr, bool),
    disguise: fn(Vec<u8>) -> Vec<Vec<u8>>,
) -> Result<Option<bool>> {
    let local = client;
    let mut client = raw(lab, local.ip(), local.port())?;
    if from_the_start {
        client.disguise(disguise);
    }
    client.half_open(DEADLINE)?;
    client.acknowledge()?;
    client.send(b"echo\n", DEADLINE)?;
    client.disguise(disguise);
    let longest = exchange(&mut client, 20)?;
    ensure!(longest < STALL_LIMIT, "waited {longest:?}");
    let protected = is_protected(cluster, local);
    client.reset()?;
    Ok(protected)
}

/// Options of IP and TCP, from the SYN on or later, and fragments.
#[test]
fn options_and_fragments_leave_no_client_stuck() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let since = Instant::now();
    let other = Traffic::start(&lab, service_v4(), Load::Echo);
    for (number, from_the_start) in [(0, true), (1, false)] {
        let at = |family: usize, port: u16| {
            let client = SocketAddr::new(RAW[family], port + number);
            (client, from_the_start)
        };
        let try_one = |at, disguise, what: &str| {
            let protected = disguised(&lab, &cluster, at, disguise);
            protected.with_context(|| format!("{what}, {from_the_start}"))
        };
        try_one(at(0, 5000), with_ip_options, "IP options")?;
        try_one(at(0, 5010), in_fragments, "fragments")?;
        try_one(at(1, 5030), with_extension_header, "an extension header")?;
        try_one(at(1, 5040), in_fragments_v6, "fragments of IPv6")?;
        let protected = disguised(&lab, &cluster, at(0, 5020), with_unknown_option);
        // A TCP option does not keep a segment from the twin.
        let protected = protected.context("an unknown TCP option")?;
        ensure!(
            protected == Some(true),
            "an unknown TCP option: {protected:?}"
        );
    }
    wait_protected(&cluster, Host::A, other.local());
    other.finish(since, STALL_LIMIT);
    assert_one_voice(&capture.finish()?);
    for reason in ["ip_options", "fragment"] {
        ensure!(
            counted(&cluster, Host::A, reason) > 0,
            "no {reason} counted"
        );
    }
    Ok(())
}

/// Frames that end in the middle of a header, IPv6 extension headers and
/// fragments of nothing: counted, and no trouble to those who behave.
#[test]
fn rubbish_on_the_wire_disturbs_nobody() {
    // A switch that looks into packets lets none of that through.
    let Some(lab) = stage(LabOptions {
        switch: Switch::Plain,
        ..LabOptions::default()
    }) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let since = Instant::now();
    let upload = Traffic::start(&lab, service_v4(), Load::Upload);
    wait_protected(&cluster, Host::A, upload.local());
    let (a, client) = (Host::A.mac(Network::Data), Host::Client.mac(Network::Data));
    let frame = |packet: &[u8]| EthernetHeader::frame_ip(a, client, packet);
    let v6_extended = |next: u8| {
        let mut packet = vec![0x60, 0, 0, 0, 0, 28, next, 64];
        packet.extend_from_slice(&Host::Client.v6().octets());
        packet.extend_from_slice(&SERVICE_V6.octets());
        packet.extend_from_slice(&[6, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend_from_slice(&[0; 20]);
        packet
    };
    let mut frames: Vec<_> = (1..40).map(|length| frame(&vec![0x45; length])).collect();
    frames.extend((1..40).map(|length| frame(&vec![0x60; length])));
    frames.extend([0, 43, 44, 60].map(|next| frame(&v6_extended(next))));
    for _ in 0..20 {
        lab.client().send_frames(&frames).expect("frames are sent");
        upload.goes_on();
    }
    let path = cluster.status(Host::A).expect("a answers").data_path;
    for reason in ["truncated", "ip_options", "fragment"] {
        assert!(path.reasons.contains_key(reason), "{reason}: {path:?}");
    }
    wait_protected(&cluster, Host::A, upload.local());
    upload.finish(since, STALL_LIMIT);
    assert_unnoticed(capture);
}

/// A client with a cookie from earlier sends data with its SYN; one that speaks
/// Multipath TCP asks for it. Both get plain TCP, and keep it over a crash.
#[test]
fn fast_open_and_multipath_fall_back_to_protected_tcp() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    for host in [Host::Client, Host::A, Host::B] {
        lab.node(host)
            .netns()
            .sysctl("ipv4.tcp_fastopen", FASTOPEN)?;
    }
    let _servers = servers(&lab);
    // Without Godwit there is a cookie to be had.
    lab.take_service_address(Host::A)?;
    for _ in 0..2 {
        lab.client().enter(|| fast_open().map(drop))??;
    }
    let opened = tcp_counter(&lab, Host::A, "TCPFastOpenPassive");
    ensure!(opened > 0, "without Godwit the client has no cookie either");
    let cluster = in_sync(&lab, ClusterOptions::unfenced());
    let capture = witness(&lab);
    let mut streams = vec![
        lab.client().enter(fast_open)??,
        lab.client().enter(fast_open)??,
        lab.client().enter(multipath)??,
    ];
    for stream in &mut streams {
        ask(stream)?;
        let report = wait_flow(&cluster, Host::A, stream.local_addr()?, |f| {
            f.state != "confirming"
        });
        ensure!(report.protected, "{report:?}");
    }
    ensure!(counted(&cluster, Host::A, "option_blanked") >= 2);
    lab.crash(Host::A)?;
    cluster.wait_owner(Host::B, DEADLINE)?;
    for stream in &mut streams {
        let start = Instant::now();
        ask(stream)?;
        ensure!(
            start.elapsed() < STALL_LIMIT,
            "waited {:?}",
            start.elapsed()
        );
    }
    assert_unnoticed(capture);
    Ok(())
}

/// Connects with the first line in the SYN, as far as there is a cookie.
fn fast_open() -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let service = SockAddr::from(service_v4());
    let sent = socket.send_to_with_flags(b"echo\n", &service, MSG_FASTOPEN)?;
    ensure!(sent == 5, "sent {sent} bytes");
    let mut stream = TcpStream::from(socket);
    ask(&mut stream)?;
    Ok(stream)
}

fn multipath() -> Result<TcpStream> {
    let protocol = Protocol::from(IPPROTO_MPTCP);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
    socket.connect(&service_v4().into())?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"echo\n")?;
    ask(&mut stream)?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(&QUESTION).context("asking")?;
    let mut answer = [0; QUESTION.len()];
    stream
        .read_exact(&mut answer)
        .context("waiting for an answer")?;
    ensure!(answer == QUESTION, "a byte is wrong");
    Ok(())
}
