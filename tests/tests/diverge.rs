//! A standby whose application does not say what the owner's says.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::LabOptions;
use godwit_lab::apps::odd::{self, Manner};
use godwit_lab::cluster::{Cluster, ClusterOptions, FlowReport, Service};
use godwit_lab::host::{Host, SERVICE};
use godwit_tests::stage::{
    PORT, assert_unnoticed, flow, in_sync, servers, service_v4, service_v6, stage, throughout,
    wait_protected, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{DEADLINE, Site, lab, until};
use godwit_wire::Endpoint;

const LIMIT: Duration = Duration::from_millis(300);

/// How the standby's server of each service answers, and what becomes of it.
const CASES: [(u16, Manner, Option<&str>); 5] = [
    (81, Manner::Short, Some("diverged_length")),
    (82, Manner::Long, Some("diverged_length")),
    (83, Manner::Other, Some("diverged_content")),
    (84, Manner::Dated, None),
    (REPORTED, Manner::Other, None),
];

/// Its service only reports.
const REPORTED: u16 = 85;

const BODY: usize = 2000;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(50);

struct Talk {
    stream: TcpStream,
    service: SocketAddr,
}

impl Talk {
    fn ask(&mut self, length: usize, answered: Manner) -> Result<()> {
        send(&mut self.stream, format!("{length}\n"))?;
        expect(&mut self.stream, answered.reply(length))
            .with_context(|| format!("asking {}", self.service))
    }

    fn flow(&self, site: &Site<'_>, host: Host) -> Result<FlowReport> {
        let client = Endpoint::from(self.stream.local_addr()?);
        let name = format!("{client} -> {}", Endpoint::from(self.service));
        let flow = site.flows(host)?.into_iter().find(|f| f.flow == name);
        flow.with_context(|| format!("{host} has no flow {name}"))
    }
}

fn services() -> Vec<Service> {
    CASES
        .iter()
        .map(|&(port, ..)| {
            let mut service = Service::new(&format!("s{port}"), port);
            let limit = LIMIT.as_millis();
            service.extra = format!("verify = \"100%\"\ndivergence_limit = \"{limit}ms\"\n");
            if port == REPORTED {
                service.extra += "on_divergence = \"report\"\n";
            }
            service
        })
        .collect()
}

/// How often an event was seen.
fn count(site: &Site<'_>, host: Host, event: &str) -> Result<usize> {
    let Some(cluster) = &site.cluster else {
        return Ok(0);
    };
    let events = cluster.events(host)?;
    Ok(events.iter().filter(|name| *name == event).count())
}

/// What answers shorter, longer or with other bytes is given up before it could
/// take over; another date in a header is not another answer.
#[test]
fn a_standby_that_answers_otherwise_does_not_take_over() -> Result<()> {
    let Some(lab) = lab(LabOptions::default())? else {
        return Ok(());
    };
    let mut servers = Vec::new();
    for (port, manner, _) in CASES {
        servers.push(odd::start(lab.a(), port, Manner::Exact)?);
        servers.push(odd::start(lab.b(), port, manner)?);
    }
    let site = Site::start_with(&lab, services())?;
    let mut talks = Vec::new();
    for (index, (port, ..)) in CASES.into_iter().enumerate() {
        let service = SocketAddr::new(SERVICE[index % 2], port);
        let stream = connect(lab.client(), service)?;
        let mut talk = Talk { stream, service };
        talk.ask(BODY, Manner::Exact)?;
        talks.push(talk);
    }
    for (talk, (.., wanted)) in talks.iter().zip(CASES) {
        let Some(wanted) = wanted else { continue };
        for (host, state) in [(Host::A, "unprotected"), (Host::B, "twin")] {
            let mut last = None;
            until(wanted, || {
                let flow = talk.flow(&site, host)?;
                let is = flow.state == state && flow.reason.as_deref() == Some(wanted);
                last = Some(flow);
                Ok(is)
            })
            .with_context(|| format!("{host} says {last:?}"))?;
        }
    }
    let noticed = || Ok(count(&site, Host::B, "flow_diverged")? >= 4);
    until("three that are given up and one that is not", noticed)?;
    ensure!(count(&site, Host::A, "flow_demoted")? == 3);
    // Twice as long as a difference may last, with more and more answers.
    let since = Instant::now();
    while since.elapsed() < 2 * LIMIT {
        for talk in &mut talks[3..] {
            talk.ask(BODY, Manner::Exact)?;
            std::thread::sleep(PAUSE);
        }
    }
    for talk in &talks[3..] {
        until("protection", || Ok(talk.flow(&site, Host::A)?.protected))?;
    }
    site.crash_owner()?;
    site.wait_taken_over()?;
    talks[3].ask(BODY, Manner::Dated)?;
    for talk in &mut talks[..3] {
        // If the RST of the takeover was lost, this asks for one.
        let sent = send(&mut talk.stream, "1\n");
        let mut rest = Vec::new();
        let outcome = talk.stream.read_to_end(&mut rest);
        ensure!(rest.is_empty(), "a byte of the other answer has come");
        // Whichever call comes first is told of the RST.
        let reset = sent.is_err() || outcome.is_err();
        ensure!(reset, "{} has ended as if all were well", talk.service);
    }
    site.trace().map(drop)
}

/// A server that is stopped has read nothing and says nothing. Its twin, which has answered,
/// is not called diverged for that, and goes on when the stopped one is killed.
#[test]
fn a_server_that_is_stopped_is_no_measure_for_its_twins() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let [mut a, _b] = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut streams = Vec::new();
    for service in [service_v4(), service_v6()] {
        let mut stream = connect(lab.client(), service)?;
        send(&mut stream, "echo\nhello\n")?;
        expect(&mut stream, "hello\n")?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        streams.push((stream.local_addr()?, stream));
    }
    a.stop()?;
    for (_, stream) in &mut streams {
        send(stream, "are you there?\n")?;
    }
    // `divergence_limit`, the time until a twin shows a longer answer, and a second more.
    throughout("it is protected", Duration::from_millis(3500), || {
        let protected = |local| flow(&cluster, Host::A, local).is_some_and(|it| it.protected);
        streams.iter().all(|(local, _)| protected(*local))
    });
    a.kill()?;
    cluster.wait_owner(Host::B, DEADLINE)?;
    for (_, stream) in &mut streams {
        expect(stream, "are you there?\n")?;
    }
    assert_unnoticed(capture);
    Ok(())
}

/// Answers each line in two halves, with half a second between them.
const HALVES: &str = r#"
import socketserver, sys, time
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(b"first, ")
            time.sleep(0.5)
            self.wfile.write(b"second\n")
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    address_family, allow_reuse_address, daemon_threads = socketserver.socket.AF_INET6, True, True
Server(("::", int(sys.argv[1])), Handler).serve_forever()
"#;

fn warns_of_a_stop(cluster: &Cluster<'_>) -> bool {
    let status = cluster.status(Host::A);
    let warns = |text: &String| text.contains("serves clients, and is stopped");
    status.is_ok_and(|status| status.warnings.iter().any(warns))
}

/// One that is stopped in the middle of an answer has said less than its twin for as long as
/// it stands. Its clients get the rest of the answer from who takes over.
#[test]
fn a_server_that_is_stopped_in_the_middle_of_an_answer_is_no_measure_either() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let start = |host: Host| {
        let mut command = Command::new("python3");
        command.args(["-c", HALVES, &PORT.to_string()]);
        lab.node(host).spawn("halves", command)
    };
    let (mut a, _b) = (start(Host::A)?, start(Host::B)?);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut streams = Vec::new();
    for service in [service_v4(), service_v6()] {
        let mut stream = connect(lab.client(), service)?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        send(&mut stream, "a line\n")?;
        expect(&mut stream, "first, second\n")?;
        streams.push((stream.local_addr()?, stream));
    }
    for (_, stream) in &mut streams {
        send(stream, "a line\n")?;
        expect(stream, "first, ")?;
    }
    a.stop()?;
    until("it is said", || Ok(warns_of_a_stop(&cluster)))?;
    // The next agent knows of it, too.
    cluster.stop_agent(Host::A)?;
    cluster.start_agent(Host::A)?;
    until("it is said again", || Ok(warns_of_a_stop(&cluster)))?;
    cluster.wait_owner(Host::A, DEADLINE)?;
    for (local, _) in &streams {
        wait_protected(&cluster, Host::A, *local);
    }
    throughout("it is protected", Duration::from_millis(3500), || {
        let protected = |local| flow(&cluster, Host::A, local).is_some_and(|it| it.protected);
        streams.iter().all(|(local, _)| protected(*local))
    });
    a.cont()?;
    until("it is taken back", || Ok(!warns_of_a_stop(&cluster)))?;
    for (_, stream) in &mut streams {
        expect(stream, "second\n")?;
        send(stream, "a line\n")?;
        expect(stream, "first, ")?;
    }
    a.stop()?;
    a.kill()?;
    cluster.wait_owner(Host::B, DEADLINE)?;
    for (_, stream) in &mut streams {
        expect(stream, "second\n")?;
    }
    assert_unnoticed(capture);
    Ok(())
}
