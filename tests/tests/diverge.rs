//! A standby whose application does not say what the owner's says.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::LabOptions;
use godwit_lab::apps::odd::{self, Manner};
use godwit_lab::cluster::{FlowReport, Service};
use godwit_lab::host::{Host, SERVICE};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{Site, lab, until};
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
