//! The owner dies in every phase of a connection's life.
//!
//! Connections in several phases share one crash: each test's table says which.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::LabOptions;
use godwit_lab::apps::content::Content;
use godwit_lab::apps::server;
use godwit_lab::cluster::Service;
use godwit_lab::host::{Host, Network};
use godwit_lab::links::Shape;
use godwit_tests::stream::{
    Download, connect, connect_from, expect, expect_end, reset, send, wish,
};
use godwit_tests::{DEADLINE, Site, lab, live_resets, until};

/// More than the buffers of both ends can hold.
const LONG: Content = Content {
    seed: 0x10_6e,
    length: 12_000_000,
};

/// Fits into one segment.
const SHORT: Content = Content {
    seed: 0x5407,
    length: 700,
};

/// Fits into one unit of a window's scale: a twin shows all of it at once.
const TINY: Content = Content {
    seed: 0x717,
    length: 60,
};

/// A SYN that goes nowhere is sent again after one second, then two.
const SYN_LIMIT: Duration = Duration::from_millis(3500);

/// A SYN that the dying owner got, or not, is answered by the survivor.
#[test]
fn a_connection_that_is_opened_while_the_owner_dies_comes_about() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    let addresses = site.addresses();
    // Dials all around the crash: some connections are before, some in the
    // midst of their handshake, some after it.
    let dial = |number: usize| -> Result<Duration> {
        let start = Instant::now();
        let stream = connect(lab.client(), addresses[number % 2])?;
        let took = start.elapsed();
        // Those that were open before the crash ask after it.
        thread::sleep(THOUGHT);
        Download::ask(stream, SHORT)?.read_to_end()?;
        Ok(took)
    };
    thread::scope(|scope| {
        let mut dials = Vec::new();
        let mut crash = None;
        for number in 0..40 {
            if number == 20 {
                crash = Some(scope.spawn(|| site.crash_owner()));
            }
            dials.push(scope.spawn(move || dial(number)));
            thread::sleep(BETWEEN_DIALS);
        }
        for (number, dial) in dials.into_iter().enumerate() {
            let took = dial
                .join()
                .map_err(|_| anyhow::anyhow!("a dial panicked"))?;
            let took = took.with_context(|| format!("dial {number}"))?;
            ensure!(took < SYN_LIMIT, "dial {number} took {took:?}");
        }
        let crash = crash.context("there was a crash")?.join();
        crash
            .map_err(|_| anyhow::anyhow!("the crash panicked"))?
            .map(drop)
    })?;
    // A connection that had no twin yet may be reset, but it must not hang:
    // that all of them ended well was checked above.
    site.verify().map(drop)
}

const BETWEEN_DIALS: Duration = Duration::from_millis(2);

/// Time between a handshake and the first request; the dials go on for longer.
const THOUGHT: Duration = Duration::from_millis(40);

/// What a connection has done when the owner dies, and what it does after.
struct Phase {
    name: &'static str,
    before: fn(TcpStream) -> Result<Download>,
    after: fn(&mut Download) -> Result<()>,
}

const PHASES: [Phase; 7] = [
    Phase {
        name: "nothing was said after the handshake",
        before: |stream| Ok(Download::expecting(stream, LONG)),
        after: |download| {
            send(&mut download.stream, wish("get", LONG))?;
            download.read_to_end()
        },
    },
    Phase {
        name: "half a request was sent",
        before: |mut stream| {
            let wish = wish("get", LONG);
            send(&mut stream, &wish[..wish.len() / 2])?;
            Ok(Download::expecting(stream, LONG))
        },
        after: |download| {
            let wish = wish("get", LONG);
            send(&mut download.stream, &wish[wish.len() / 2..])?;
            download.read_to_end()
        },
    },
    Phase {
        name: "a response was half read",
        before: |stream| {
            let mut download = Download::ask(stream, LONG)?;
            download.read_until(LONG.length / 2)?;
            Ok(download)
        },
        after: Download::read_to_end,
    },
    Phase {
        name: "the client had stopped reading: zero window",
        before: |stream| Download::ask(stream, LONG),
        after: Download::read_to_end,
    },
    Phase {
        name: "the client had said all it would ever say: half-close",
        before: |stream| {
            let mut download = Download::ask(stream, LONG)?;
            download.stream.shutdown(Shutdown::Write)?;
            download.read_until(LONG.length / 3)?;
            Ok(download)
        },
        after: Download::read_to_end,
    },
    Phase {
        name: "the client's FIN goes to the dead owner",
        before: |stream| {
            let mut download = Download::ask(stream, LONG)?;
            download.read_until(LONG.length / 3)?;
            Ok(download)
        },
        after: |download| {
            download.stream.shutdown(Shutdown::Write)?;
            download.read_to_end()
        },
    },
    Phase {
        name: "an upload was half sent",
        before: |mut stream| {
            send(&mut stream, wish("put", LONG))?;
            send(&mut stream, part(0))?;
            Ok(Download::expecting(stream, LONG))
        },
        after: |download| {
            let stream = &mut download.stream;
            send(stream, part(1))?;
            stream.shutdown(Shutdown::Write)?;
            expect(stream, "ok\n")?;
            expect_end(stream)
        },
    },
];

/// One half of the upload.
fn part(half: u64) -> Vec<u8> {
    let length = LONG.length / 2;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    LONG.fill(half * length, &mut bytes);
    bytes
}

/// Whatever a connection was doing, it does it on with the survivor.
#[test]
fn every_phase_of_a_busy_connection_goes_on() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    let mut downloads = Vec::new();
    for phase in &PHASES {
        for address in site.addresses() {
            let name = format!("{address}: {}", phase.name);
            let stream = connect(lab.client(), address)?;
            let download = (phase.before)(stream).with_context(|| name.clone())?;
            downloads.push((name, phase, download));
        }
    }
    site.wait_protected(downloads.len())?;
    let crash = site.crash_owner()?;
    thread::scope(|scope| {
        let workers = downloads.iter_mut().map(|(name, phase, download)| {
            let after = phase.after;
            (name.clone(), scope.spawn(move || after(download)))
        });
        for (name, worker) in workers.collect::<Vec<_>>() {
            let outcome = worker
                .join()
                .map_err(|_| anyhow::anyhow!("a phase panicked"))?;
            outcome.context(name)?;
        }
        anyhow::Ok(())
    })?;
    for (name, _, download) in &downloads {
        download
            .expect_no_stall(crash.until)
            .with_context(|| name.clone())?;
    }
    drop(downloads);
    let trace = site.verify()?;
    let survivor = Host::B.mac(Network::Data);
    let before = trace.segments().take_while(|s| s.from_mac != survivor);
    let mut closed = before.filter(|s| s.to.port == 80 && s.window == 0);
    ensure!(
        closed.next().is_some(),
        "no window was zero before the crash"
    );
    Ok(())
}

/// A FIN that either side sent before the crash is not asked for again, and
/// the other side's FIN after it ends the connection in peace.
#[test]
fn connections_that_were_half_over_end_in_peace() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    let site = Site::start(&lab, 80)?;
    let mut server_first = Vec::new();
    let mut client_first = Vec::new();
    for address in site.addresses() {
        // The service has said all and FIN; the client has read neither.
        let stream = connect(lab.client(), address)?;
        server_first.push(Download::ask(stream, SHORT)?);
        // The client has said all and FIN; the service still answers.
        let stream = connect(lab.client(), address)?;
        let download = Download::ask(stream, LONG)?;
        download.stream.shutdown(Shutdown::Write)?;
        client_first.push(download);
    }
    site.wait_protected(4)?;
    until("the service's FIN", || {
        Ok(sockets_in(&lab, "close-wait")? == server_first.len())
    })?;
    site.crash_owner()?;
    for mut download in server_first {
        download.read_to_end().context("the service's FIN first")?;
    }
    for mut download in client_first {
        download.read_to_end().context("the client's FIN first")?;
    }
    // The client's FIN gets its ACK: nothing waits for one for ever.
    until("the client's sockets to be gone", || {
        let states = [
            "last-ack",
            "fin-wait-1",
            "fin-wait-2",
            "closing",
            "established",
        ];
        let left = states.iter().map(|state| sockets_in(&lab, state));
        Ok(left.sum::<Result<usize>>()? == 0)
    })?;
    site.verify().map(drop)
}

/// What dies before the owner has given an answer that its standby has.
#[derive(Clone, Copy, Debug)]
enum Death {
    Machine,
    Process,
}

/// The service closes with its answer, and only the twin has come that far: that
/// is no sign that anything is wrong with the twin, so its clients get the
/// answer and FIN. They used to get RST.
#[test]
fn an_answer_that_the_owner_did_not_come_to_ends_in_peace() -> Result<()> {
    for death in [Death::Machine, Death::Process] {
        let Some(lab) = lab(LabOptions::default())? else {
            return Ok(());
        };
        let mut owner = server::start(lab.a(), 80)?;
        let _standby = server::start(lab.b(), 80)?;
        // Long enough for the slowest machine: behind it, such a twin is given up.
        let mut service = Service::new("web", 80);
        service.extra = "lag_limit = \"10s\"".to_owned();
        let site = Site::start_with(&lab, vec![service])?;
        let streams = site.addresses().map(|at| connect(lab.client(), at));
        site.wait_protected(streams.len())?;
        owner.stop()?;
        let mut downloads = Vec::new();
        for stream in streams {
            downloads.push(Download::ask(stream?, TINY)?);
        }
        until("the twins to close", || {
            let filter = ["state", "fin-wait-1", "sport", "=", ":80"];
            Ok(sockets_of(&lab, Host::B, &filter)? == downloads.len())
        })?;
        // Each tries once more, now with its FIN.
        let tried = || -> Result<u64> {
            let cluster = site.cluster.as_ref();
            cluster.map_or(Ok(u64::MAX), |it| Ok(it.status(Host::B)?.counted("unsent")))
        };
        let before = tried()?;
        until("their FINs", || Ok(tried()? >= before.saturating_add(4)))?;
        match death {
            Death::Machine => site.crash_owner().map(drop)?,
            Death::Process => owner.kill()?,
        }
        for mut download in downloads {
            let read = download.read_to_end();
            read.with_context(|| format!("{death:?}"))?;
        }
        site.verify()?;
    }
    Ok(())
}

/// A client that resets ends its twin too, before and after the crash, and its
/// four-tuple may be used again at once.
#[test]
fn a_reset_four_tuple_is_used_again_at_once() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    lab.shape(Host::Client, Some(Shape::mbit(200)))?;
    let site = Site::start(&lab, 80)?;
    let services = site.services();
    let again = |port: u16, address: SocketAddr| -> Result<Download> {
        let stream = connect_from(lab.client(), port, address)?;
        let mut download = Download::ask(stream, LONG)?;
        download.read_until(LONG.length / 10)?;
        Ok(download)
    };
    // Three lives of each four-tuple before the crash, and one across it.
    let mut downloads = Vec::new();
    for (port, &address) in (4711..).zip(&services) {
        for _ in 0..3 {
            reset(again(port, address)?.stream)?;
        }
        downloads.push((port, address, again(port, address)?));
    }
    site.wait_protected(downloads.len())?;
    site.crash_owner()?;
    for (port, address, mut download) in downloads {
        download
            .read_until(LONG.length / 2)
            .context("over the crash")?;
        reset(download.stream)?;
        again(port, address)
            .and_then(|mut download| download.read_to_end())
            .context("after the crash")?;
    }
    until("the survivor's flows to end", || {
        Ok(site.flows(Host::B)?.is_empty())
    })?;
    let trace = site.trace()?;
    let resets = live_resets(&trace, &services);
    let from_service = resets.iter().filter(|s| s.from.port == 80).count();
    ensure!(
        from_service == 0,
        "{from_service} RST from the service: {resets:#?}"
    );
    ensure!(
        resets.len() >= 4 * services.len(),
        "the client's own RSTs are seen"
    );
    Ok(())
}

/// A service that closes first keeps the four-tuple in TIME-WAIT for a minute,
/// on both machines. A client that uses it again meanwhile is protected.
#[test]
fn a_four_tuple_in_time_wait_is_protected_again() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let _servers = [server::start(lab.a(), 80)?, server::start(lab.b(), 80)?];
    lab.shape(Host::Client, Some(Shape::mbit(200)))?;
    let site = Site::start(&lab, 80)?;
    let services = site.services();
    for (port, &address) in (4711..).zip(&services) {
        let stream = connect_from(lab.client(), port, address)?;
        let mut download = Download::ask(stream, SHORT)?;
        download.read_to_end()?;
        // Before the client does, however slow the twin's server is.
        until("the twin to close", || {
            let filter = ["state", "fin-wait-2", "sport", "=", ":80"];
            Ok(sockets_of(&lab, Host::B, &filter)? == 1)
        })?;
    }
    // An ended flow is still known for 3 s.
    if let Some(cluster) = &site.cluster {
        for host in Host::SERVERS {
            until("ended flows to be forgotten", || {
                Ok(cluster.flows(host)?.flows.is_empty())
            })?;
        }
    }
    for host in Host::SERVERS {
        let waiting = sockets_of(&lab, host, &["state", "time-wait", "sport", "=", ":80"])?;
        ensure!(waiting == services.len(), "{host} has {waiting} TIME-WAIT");
    }
    let mut downloads = Vec::new();
    for (port, &address) in (4711..).zip(&services) {
        let stream = connect_from(lab.client(), port, address)?;
        let mut download = Download::ask(stream, LONG)?;
        download.read_until(LONG.length / 10)?;
        downloads.push(download);
    }
    site.wait_protected(downloads.len())?;
    site.crash_owner()?;
    for mut download in downloads {
        download.read_to_end().context("over the crash")?;
    }
    site.verify().map(drop)
}

/// Number of the client's sockets in a state, by its name in `ss`.
fn sockets_in(lab: &godwit_lab::Lab, state: &str) -> Result<usize> {
    sockets_of(lab, Host::Client, &["state", state])
}

/// Number of a machine's sockets that a filter of `ss` lets through.
fn sockets_of(lab: &godwit_lab::Lab, host: Host, filter: &[&str]) -> Result<usize> {
    let mut command = std::process::Command::new("ss");
    command.arg("-Htn").args(filter);
    let output = lab.node(host).run(command, DEADLINE)?;
    ensure!(output.status.success(), "ss: {}", output.stderr);
    Ok(output.stdout.lines().count())
}
