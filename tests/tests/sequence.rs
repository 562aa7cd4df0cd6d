//! Sequence numbers and time stamps that wrap, and handshakes that are cut in
//! two, with a client that chooses them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use godwit_lab::apps::content::Content;
use godwit_lab::apps::raw::{Complaints, RawClient, RawOptions};
use godwit_lab::apps::server;
use godwit_lab::cluster::FlowReport;
use godwit_lab::host::{Host, SERVICE};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stream::{Download, connect, wish};
use godwit_tests::{DEADLINE, Site, lab, until};
use godwit_wire::SeqNumber;

/// What each client sends or gets.
const STREAM: Content = Content {
    seed: 0x5e9,
    length: 4_000_000,
};

/// Longer, so that a service's number that is near the wrap is found sooner.
const LONG: Content = Content {
    length: 16_000_000,
    ..STREAM
};

const SHORT: Content = Content {
    length: 200_000,
    ..STREAM
};

/// A kernel makes sockets of no smaller MSS (bpf_sk_assign_tcp_reqsk): that of
/// the smallest packets that every host takes, IPv4 and IPv6.
const SMALLEST_MSS: [u16; 2] = [536, 1220];

/// Where signed and unsigned comparison of numbers change their minds.
const TURNS: [u32; 2] = [1 << 31, 0];

/// One way to a client that is far away: more than it takes to detect a crash.
const FAR: Duration = Duration::from_millis(100);

/// Bytes sent or received at once.
const STEP: usize = 40_000;

fn options(number: u8, v6: bool) -> RawOptions {
    let last = 50 + number;
    let address: IpAddr = if v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0x7a, last.into()).into()
    } else {
        Ipv4Addr::new(10, 9, 0, last).into()
    };
    RawOptions {
        address,
        port: 30_000,
        iss: SeqNumber(1),
        ts_val: Some(1),
        mss: 1460,
        wscale: Some(7),
        ecn: false,
    }
}

/// A client that asks the service in its own address family.
fn open(lab: &Lab, options: RawOptions) -> Result<RawClient> {
    let [v4, v6] = SERVICE.map(|address| SocketAddr::new(address, 80));
    let service = if options.address.is_ipv4() { v4 } else { v6 };
    RawClient::open(lab.client(), service, options)
}

/// Takes care that each client is as far as the others, whatever it does.
struct Pace(Instant);

impl Pace {
    /// A whole [`STREAM`] takes this long; its time stamps wrap meanwhile.
    const SPAN: Duration = Duration::from_secs(2);

    /// Waits for the moment at which byte `at` is due.
    fn wait(&self, client: &mut RawClient, at: u64) -> Result<()> {
        let due = Self::SPAN.mul_f64(at as f64 / STREAM.length as f64);
        client.wait_until(self.0 + due)
    }
}

/// One client's connection, from the handshake to both FINs.
type Work = fn(&mut RawClient) -> Result<()>;

fn upload(client: &mut RawClient) -> Result<()> {
    client.half_open(DEADLINE)?;
    client.acknowledge()?;
    client.send(wish("put", STREAM).as_bytes(), DEADLINE)?;
    let (mut buffer, pace) = (vec![0; STEP], Pace(Instant::now()));
    for at in (0..STREAM.length).step_by(STEP) {
        pace.wait(client, at)?;
        client.send(STREAM.part(at, &mut buffer), DEADLINE)?;
    }
    let answer = client.receive(3, DEADLINE)?;
    ensure!(answer == b"ok\n", "the server says {answer:?}");
    client.finish(DEADLINE)
}

fn download(client: &mut RawClient) -> Result<()> {
    client.half_open(DEADLINE)?;
    client.acknowledge()?;
    read_all(client, STREAM)
}

fn read_all(client: &mut RawClient, content: Content) -> Result<()> {
    client.send(wish("get", content).as_bytes(), DEADLINE)?;
    let (mut buffer, pace) = (vec![0; STEP], Pace(Instant::now()));
    for at in (0..content.length).step_by(STEP) {
        pace.wait(client, at)?;
        let expected = content.part(at, &mut buffer);
        let received = client.receive(expected.len(), DEADLINE)?;
        ensure!(received == expected, "a byte after {at} is wrong");
    }
    client.finish(DEADLINE)
}

/// The client's numbers pass 2^31 and 2^32 before, near and after the crash.
#[test]
fn a_client_whose_sequence_numbers_wrap_is_served_on() -> Result<()> {
    let mut clients = Vec::new();
    for (turn, swapped) in TURNS.into_iter().zip([false, true]) {
        for part in 1..4 {
            let before = u32::try_from(STREAM.length * part / 4)?;
            let v6 = (part % 2 == 0) != swapped;
            let mut options = options(u8::try_from(clients.len())?, v6);
            options.iss = SeqNumber(turn.wrapping_sub(before));
            clients.push((options, upload as Work));
        }
    }
    cross(&clients)
}

/// The client's time stamps pass 2^31 and 2^32 before, near and after the
/// crash, in both directions of data.
#[test]
fn a_client_whose_time_stamps_wrap_is_served_on() -> Result<()> {
    let mut clients = Vec::new();
    for (turn, swapped) in TURNS.into_iter().zip([false, true]) {
        for (before, work, v6) in [
            (100, upload as Work, false),
            (700, download as Work, false),
            (1000, upload as Work, true),
            (1500, download as Work, true),
        ] {
            let mut options = options(u8::try_from(clients.len())?, v6 != swapped);
            options.ts_val = Some(turn.wrapping_sub(before));
            clients.push((options, work));
        }
    }
    cross(&clients)
}

/// Clients with few or odd options are served on.
#[test]
fn clients_with_unusual_options_are_served_on() -> Result<()> {
    let plain = RawOptions {
        ts_val: None,
        wscale: None,
        ..options(0, false)
    };
    let variants = [
        plain,
        RawOptions { mss: 536, ..plain },
        RawOptions {
            wscale: Some(14),
            ..plain
        },
        RawOptions {
            wscale: Some(0),
            ts_val: Some(0),
            ..plain
        },
        RawOptions { ecn: true, ..plain },
    ];
    let mut clients = Vec::new();
    for (number, variant) in variants.into_iter().enumerate() {
        let work = if number % 2 == 0 { upload } else { download };
        for v6 in [false, true] {
            let address = options(u8::try_from(clients.len())?, v6).address;
            let mss = variant.mss.max(SMALLEST_MSS[usize::from(v6)]);
            let variant = RawOptions {
                address,
                mss,
                ..variant
            };
            clients.push((variant, work as Work));
        }
    }
    cross(&clients)
}

/// A client whose MSS is below what the kernel makes sockets for is served, and
/// `flows` says that it is not protected.
#[test]
fn a_client_with_a_tiny_mss_is_served_unprotected() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    for (number, v6, mss) in [(0, false, 88), (1, false, 535), (2, true, 1219)] {
        let tiny = RawOptions {
            mss,
            ..options(number, v6)
        };
        let mut client = open(&lab, tiny)?;
        client.half_open(DEADLINE)?;
        client.acknowledge()?;
        until("the flow to be unprotected", || {
            let flows = site.flows(Host::A)?;
            let why = |flow: &FlowReport| !flow.protected && flow.reason.is_some();
            Ok(flows
                .iter()
                .any(|flow| flow.state == "unprotected" && why(flow)))
        })
        .with_context(|| format!("an MSS of {mss}"))?;
        read_all(&mut client, SHORT)?;
        expect_none(client.complaints)?;
        until("the flow to end", || Ok(site.flows(Host::A)?.is_empty()))?;
    }
    site.verify().map(drop)
}

/// Runs all clients at once; the owner crashes when each is half-way.
fn cross(clients: &[(RawOptions, Work)]) -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    let mut running = Vec::new();
    for (options, work) in clients {
        running.push((open(&lab, *options)?, *work));
    }
    let meters = running.iter().map(|(client, _)| client.meter());
    let meters = meters.collect::<Vec<_>>();
    thread::scope(|scope| {
        let workers = running.into_iter().map(|(mut client, work)| {
            scope.spawn(move || work(&mut client).map(|()| client.complaints))
        });
        let workers = workers.collect::<Vec<_>>();
        until("all clients to be half-way", || {
            let ended = workers.iter().any(|worker| worker.is_finished());
            Ok(ended || meters.iter().all(|m| m.bytes() >= STREAM.length * 2 / 5))
        })?;
        site.wait_protected(clients.len())?;
        site.crash_owner()?;
        for (worker, (options, _)) in workers.into_iter().zip(clients) {
            let complaints = worker.join().map_err(|_| anyhow!("a client panicked"))?;
            let complaints = complaints.with_context(|| format!("{options:?}"))?;
            expect_none(complaints).with_context(|| format!("{options:?}"))?;
        }
        anyhow::Ok(())
    })?;
    site.verify().map(drop)
}

fn expect_none(complaints: Complaints) -> Result<()> {
    ensure!(complaints == Complaints::default(), "{complaints:?}");
    Ok(())
}

#[test]
fn a_service_whose_sequence_numbers_wrap_goes_on() -> Result<()> {
    cross_at_the_turn_of_the_service(false)
}

#[test]
fn a_service_whose_sequence_numbers_wrap_goes_on_v6() -> Result<()> {
    cross_at_the_turn_of_the_service(true)
}

/// The service's own numbers pass 2^31 and 2^32 while its owner dies: the
/// client dials until the service has chosen such a number.
fn cross_at_the_turn_of_the_service(v6: bool) -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    let mut client = open(&lab, options(0, v6))?;
    let length = u32::try_from(LONG.length)?;
    // Its numbers are random: one dial of 130 is near enough to a turn.
    let before = (1_u16..20_000).find_map(|number| {
        client.redial(30_000 + number);
        let iss = match client.half_open(DEADLINE) {
            Ok(iss) => iss,
            Err(error) => return Some(Err(error)),
        };
        let near = TURNS.iter().map(|turn| turn.wrapping_sub(iss.0));
        // Not within the first and last eighth of the stream.
        let near = near
            .min()
            .filter(|near| (length / 8..length * 7 / 8).contains(near));
        match near {
            Some(near) => Some(Ok(near)),
            None => client.reset().err().map(Err),
        }
    });
    let before = before.context("no number was near a turn")??;
    client.acknowledge()?;
    let meter = client.meter();
    let complaints = thread::scope(|scope| {
        let worker = scope.spawn(move || read_all(&mut client, LONG).map(|()| client.complaints));
        until("the service to be near the turn", || {
            let near = u64::from(before) - LONG.length / 16;
            Ok(worker.is_finished() || meter.bytes() >= near)
        })?;
        site.wait_protected(1)?;
        site.crash_owner()?;
        worker.join().map_err(|_| anyhow!("the client panicked"))?
    })?;
    expect_none(complaints)?;
    // The RSTs of the other dials are the client's own.
    site.trace().map(drop)
}

/// A client that is far away has seen time stamps whose echo nobody has heard
/// when the owner dies: those of the survivor are not before them (PAWS).
#[test]
fn a_far_client_drops_nothing_as_old() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    lab.delay(Host::Client, FAR)?;
    let site = Site::start(&lab, 80)?;
    let mut downloads = Vec::new();
    for address in site.addresses() {
        let mut download = Download::ask(connect(lab.client(), address)?, STREAM)?;
        download.read_until(STREAM.length / 8)?;
        downloads.push(download);
    }
    site.wait_protected(downloads.len())?;
    site.crash_owner()?;
    thread::scope(|scope| {
        let readers = downloads
            .iter_mut()
            .map(|d| scope.spawn(|| d.read_to_end()));
        let mut readers = readers.collect::<Vec<_>>().into_iter();
        readers.try_for_each(|reader| reader.join().map_err(|_| anyhow!("a reader panicked"))?)
    })?;
    let dropped = dropped_as_old(&lab)?;
    ensure!(dropped == 0, "the client dropped {dropped} segments as old");
    site.verify().map(drop)
}

/// The client kernel's `PAWSEstab`.
fn dropped_as_old(lab: &Lab) -> Result<u64> {
    let path = "/proc/thread-self/net/netstat";
    let text = lab.client().enter(|| fs::read_to_string(path))?;
    let text = text.context("reading the client's counters")?;
    let mut rows = text.lines().map(str::split_whitespace);
    let (names, values) = (rows.next(), rows.next());
    let mut pairs = names
        .into_iter()
        .flatten()
        .zip(values.into_iter().flatten());
    let found = pairs.find(|(name, _)| *name == "PAWSEstab");
    found
        .context("no PAWSEstab")?
        .1
        .parse()
        .context("PAWSEstab")
}

/// The SYN-ACK came from the owner, the ACK that ends the handshake goes to
/// the survivor: the connection is as good as any.
#[test]
fn a_handshake_that_the_owner_began_is_ended_by_the_survivor() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    let mut clients = [
        open(&lab, options(0, false))?,
        open(&lab, options(1, true))?,
    ];
    for client in &mut clients {
        client.half_open(DEADLINE)?;
    }
    site.crash_owner()?;
    site.wait_taken_over()?;
    for client in &mut clients {
        client.acknowledge()?;
        read_all(client, STREAM)?;
        expect_none(client.complaints)?;
    }
    site.verify().map(drop)
}
