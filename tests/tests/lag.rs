//! A standby whose application is ten times slower than the owner's, or hangs.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::apps::odd::{self, Manner};
use godwit_lab::apps::server;
use godwit_lab::cluster::{FlowReport, Service};
use godwit_lab::host::Host;
use godwit_lab::links::Loss;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{DEADLINE, Site, lab, until};

const PORT: u16 = 80;

/// Bytes a second of the owner's application; the standby's has a tenth.
const PACE: u32 = 8_000_000;

const LEASH: u32 = 256 << 10;

/// What is under way when the leash ends is let through.
const SLACK: u32 = 256 << 10;

const BODY: usize = 3_000_000;

/// Of a client that reads all that comes, and so says nothing between.
const SLOW: u32 = 400_000;

/// More than comes until the crash.
const LONG: usize = 40_000_000;

/// A few bytes, and as many come back.
const QUESTION: &[u8] = b"still there?";

/// Between two bytes that the client reads.
const PAUSE: Duration = Duration::from_millis(10);

fn servers(lab: &Lab) -> Result<[Process; 2]> {
    Ok([
        odd::start(lab.a(), PORT, Manner::Paced(PACE))?,
        odd::start(lab.b(), PORT, Manner::Paced(PACE / 10))?,
    ])
}

fn service(on_lag: &str) -> Service {
    let mut service = Service::new("web", PORT);
    // A takeover would have to wait for LEASH / (PACE / 10), a third of a second.
    service.extra = format!("on_lag = \"{on_lag}\"\nleash = \"{LEASH}B\"\nlag_limit = \"150ms\"\n");
    service
}

/// A download, compared byte by byte.
struct Reader {
    stream: TcpStream,
    expected: Vec<u8>,
    at: usize,
}

impl Reader {
    fn ask(lab: &Lab, service: SocketAddr) -> Result<Self> {
        Self::ask_for(lab, service, BODY)
    }

    fn ask_for(lab: &Lab, service: SocketAddr, body: usize) -> Result<Self> {
        let mut stream = connect(lab.client(), service)?;
        writeln!(stream, "{body}")?;
        Ok(Self {
            stream,
            expected: Manner::Exact.reply(body),
            at: 0,
        })
    }

    /// Reads up to `at`, or the end.
    fn read_to(&mut self, at: usize) -> Result<()> {
        let mut part = vec![0; 32 * 1024];
        while self.at < at.min(self.expected.len()) {
            let length = self.stream.read(&mut part).context("reading")?;
            ensure!(length > 0, "the end after {} bytes", self.at);
            let expected = self.expected.get(self.at..self.at + length);
            ensure!(expected == Some(&part[..length]), "wrong after {}", self.at);
            self.at += length;
        }
        Ok(())
    }
}

fn flow(site: &Site<'_>) -> Result<FlowReport> {
    let flow = site.flows(Host::A)?.into_iter().next();
    flow.context("there is no flow")
}

/// The leash keeps the client at the pace of the standby, so a crash costs no
/// more than the leash.
#[test]
fn a_client_waits_for_a_slow_standby() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = servers(&lab)?;
    let site = Site::start_with(&lab, vec![service("wait")])?;
    let mut reader = Reader::ask(&lab, site.addresses()[0])?;
    let start = Instant::now();
    for step in 1..=20 {
        reader.read_to(step * BODY / 30)?;
        let flow = flow(&site)?;
        ensure!(flow.protected || step == 1, "{flow:?}");
        let lag = flow.lag_bytes.unwrap_or(0);
        ensure!(lag <= LEASH + SLACK, "{lag} bytes behind");
    }
    let (took, read) = (start.elapsed(), reader.at as f64);
    let pace = (read - f64::from(LEASH + SLACK)) / took.as_secs_f64();
    ensure!(pace < f64::from(PACE) / 5.0, "{pace} bytes a second");
    let events = site.cluster.as_ref().map(|cluster| cluster.events(Host::A));
    let events = events.transpose()?.unwrap_or_default();
    ensure!(
        events.iter().any(|event| event.contains("flow_waiting")),
        "nobody was told: {events:#?}"
    );
    site.crash_owner()?;
    reader.read_to(BODY * 2)?;
    site.wait_taken_over()?;
    site.verify().map(drop)
}

/// A client that only listens, and whose twin was given up: it has got more since
/// than the standby knows of, and nothing to say. It hears all the same that nobody
/// serves its connection.
#[test]
fn a_client_that_only_listens_hears_that_nobody_serves_it() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let serve = |node, pace| odd::start(node, PORT, Manner::Paced(pace));
    let _servers = [serve(lab.a(), SLOW)?, serve(lab.b(), SLOW / 10)?];
    let site = Site::start_with(&lab, vec![service("demote")])?;
    let ask = |address| Reader::ask_for(&lab, address, LONG);
    let mut readers = site
        .addresses()
        .map(ask)
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    until("their twins to lag", || {
        for reader in &mut readers {
            reader.read_to(reader.at + 1)?;
        }
        let [flows, twins] = [site.flows(Host::A)?, site.flows(Host::B)?];
        let alone = flows.iter().filter(|flow| flow.state == "unprotected");
        Ok(alone.count() == readers.len() && twins.len() == readers.len())
    })?;
    lab.lose(Loss {
        from: Host::A,
        to: Host::B,
        per_myriad: 10_000,
    })?;
    for reader in &mut readers {
        reader.read_to(reader.at + LEASH as usize)?;
    }
    site.crash_owner()?;
    site.wait_taken_over()?;
    for reader in &mut readers {
        let ended = reader.read_to(LONG).err().context("it came to its end")?;
        let kind = ended
            .downcast_ref::<std::io::Error>()
            .map(std::io::Error::kind);
        ensure!(kind == Some(ErrorKind::ConnectionReset), "{ended:#}");
    }
    if let Some(cluster) = &site.cluster {
        let status = cluster.status(Host::B)?;
        let resets = status
            .services
            .first()
            .map(|service| service.resets.clone());
        let both = BTreeMap::from([("not_in_sync".to_owned(), 2)]);
        ensure!(resets == Some(both), "{resets:?}");
    }
    site.trace().map(drop)
}

/// Short answers, and a server on the standby that gives none: the flow is not
/// called protected by it, nor when another twin was made, until it goes on.
#[test]
fn a_server_that_hangs_on_the_standby_protects_nothing() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _a = server::start(lab.a(), PORT)?;
    let mut b = server::start(lab.b(), PORT)?;
    let site = Site::start_with(&lab, vec![service("demote")])?;
    let mut talk = connect(lab.client(), site.addresses()[0])?;
    send(&mut talk, b"echo\n")?;
    let mut chat = |wanted: &str, is: &dyn Fn(&FlowReport) -> bool| -> Result<()> {
        until(wanted, || {
            send(&mut talk, QUESTION)?;
            expect(&mut talk, QUESTION)?;
            Ok(is(&flow(&site)?))
        })
    };
    chat("it is protected", &|flow| flow.protected)?;
    b.stop()?;
    let lags = |flow: &FlowReport| flow.reason.as_deref() == Some("lagging");
    chat("its twin lags", &lags)?;
    let repeats = |flow: &FlowReport| {
        assert!(!flow.protected, "{flow:?}");
        flow.reprotect.as_deref() == Some("catching_up")
    };
    chat("another twin is made", &repeats)?;
    b.cont()?;
    chat("it is protected again", &|flow| flow.protected)?;
    site.crash_owner()?;
    send(&mut talk, QUESTION)?;
    expect(&mut talk, QUESTION)?;
    site.verify().map(drop)
}

/// Otherwise the flow is let go, and the client has what the owner can give.
#[test]
fn a_flow_is_let_go_when_its_twin_lags() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = servers(&lab)?;
    let site = Site::start_with(&lab, vec![service("demote")])?;
    let mut reader = Reader::ask(&lab, site.addresses()[0])?;
    let end = Instant::now() + DEADLINE;
    loop {
        reader.read_to(reader.at + 1)?;
        let flow = flow(&site)?;
        if flow.state == "unprotected" {
            ensure!(flow.reason.as_deref() == Some("lagging"), "{flow:?}");
            break;
        }
        let lag = flow.lag_bytes.unwrap_or(0);
        ensure!(lag <= LEASH + SLACK, "{lag} bytes behind");
        ensure!(Instant::now() < end && reader.at < BODY, "{flow:?}");
        std::thread::sleep(PAUSE);
    }
    reader.read_to(BODY * 2)?;
    site.verify().map(drop)
}
