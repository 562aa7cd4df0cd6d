//! The origin dies, its server or its whole machine, with all that has not been told:
//! the standby has its latest snapshot and what the client has said since.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::budget::Budget;
use super::ferry::{Ferry, Way};
use super::migrate::{CHUNK, PACE, START, cluster_of, other};
use super::pair::{CONGESTION_CONTROL, PORT};
use super::report::{Measured, Report};
use super::stats::Samples;
use crate::apps::roam::{self, Manner};
use crate::cluster::{Cluster, Service};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};
use crate::process::{Process, SAME_CAUSE};

/// Looked at behind the death, and as long before it.
const SPAN: Duration = Duration::from_millis(500);

/// One death of each kind, and what follows it; rounded up.
const RUN: Duration = Duration::from_secs(10);

/// What dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Process,
    Machine,
}

/// What the deaths of one kind gave.
#[derive(Debug, Default)]
struct Seen {
    stall: Samples,
    calm: Samples,
}

/// All of them together.
#[derive(Debug, Default)]
struct Total {
    streams: u32,
    broken: u32,
    unprotected: u32,
}

/// `migrate.crash.*`.
pub(super) fn run(budget: Budget, report: &Report) -> Result<()> {
    let lab = Lab::new(LabOptions::default())?;
    let mut stage = Stage::start(&lab)?;
    let (mut process, mut machine) = (Seen::default(), Seen::default());
    let mut total = Total::default();
    for run in budget.runs(200, 1, RUN) {
        for (death, seen) in [
            (Death::Process, &mut process),
            (Death::Machine, &mut machine),
        ] {
            stage
                .die(death, seen, (&mut total, report))
                .with_context(|| format!("run {run}: {death:?}"))?;
        }
    }
    for (name, seen) in [("process", &process), ("machine", &machine)] {
        let put = |percentile: &str, of: fn(&Samples) -> Option<f64>| {
            let measured = Measured {
                value: of(&seen.stall),
                control: of(&seen.calm),
                runs: seen.stall.runs(),
            };
            report.put(&format!("migrate.crash.{name}.{percentile}"), measured)
        };
        put("p50", Samples::p50)?;
        put("p99", Samples::p99)?;
    }
    let known = |value| Measured {
        value: (total.streams > 0).then_some(f64::from(value)),
        control: None,
        runs: total.streams,
    };
    report.put("migrate.crash.broken", known(total.broken))?;
    report.put("migrate.crash.unprotected", known(total.unprotected))
}

/// Two machines with a server each.
struct Stage<'a> {
    // Before the servers: agents end first.
    cluster: Cluster<'a>,
    servers: [Process; 2],
    lab: &'a Lab,
    owner: Host,
    died: Instant,
}

impl<'a> Stage<'a> {
    fn start(lab: &'a Lab) -> Result<Self> {
        let service = Service {
            standby: "snapshot",
            extra: "snapshots = \"eager\"".to_owned(),
            ..Service::new("web", PORT)
        };
        let mut cluster = cluster_of(lab, vec![service])?;
        let servers = [
            serve(lab, &cluster, Host::A)?,
            serve(lab, &cluster, Host::B)?,
        ];
        cluster.wait_in_sync(Host::A, START)?;
        Ok(Self {
            cluster,
            servers,
            lab,
            owner: Host::A,
            died: Instant::now(),
        })
    }

    /// One connection, both ways, and the death of its owner.
    fn die(
        &mut self,
        death: Death,
        seen: &mut Seen,
        (total, report): (&mut Total, &Report),
    ) -> Result<()> {
        let service = SocketAddr::from((SERVICE_V4, PORT));
        let ferry = Ferry::start(self.lab, service, Way::Both, (CHUNK, PACE))?;
        total.streams += 1;
        // Two that die together are taken for the victims of one request.
        thread::sleep(SPAN.max(SAME_CAUSE.saturating_sub(self.died.elapsed())));
        if !self.is_protected(&ferry)? {
            total.unprotected += 1;
        }
        let since = Instant::now();
        let calm = ferry.longest_gap(since.checked_sub(SPAN).unwrap_or(since), since);
        let old = self.owner;
        self.strike(death)?;
        thread::sleep(SPAN);
        let stall = ferry.longest_gap(since, since + SPAN);
        if let Err(error) = ferry.end() {
            total.broken += 1;
            report.progress(&format!("{death:?} of {old}: {error:#}"));
        } else {
            seen.stall.push_ms(stall);
            seen.calm.push_ms(calm);
        }
        self.heal(old, death)
    }

    fn is_protected(&self, ferry: &Ferry) -> Result<bool> {
        let flow = ferry.flow.to_string();
        let flows = self.cluster.flows(self.owner)?.flows;
        Ok(flows.iter().any(|it| it.flow == flow && it.protected))
    }

    fn strike(&mut self, death: Death) -> Result<()> {
        match death {
            Death::Process => self.servers[usize::from(self.owner == Host::B)].kill()?,
            Death::Machine => drop(self.lab.crash(self.owner)?),
        }
        self.owner = other(self.owner);
        self.died = Instant::now();
        Ok(())
    }

    /// It stands by.
    fn heal(&mut self, host: Host, death: Death) -> Result<()> {
        if death == Death::Machine {
            self.cluster.power_off(host)?;
            self.lab.reboot(host)?;
            self.cluster.start_agent(host)?;
        }
        let server = serve(self.lab, &self.cluster, host)?;
        self.servers[usize::from(host == Host::B)] = server;
        self.cluster.wait_in_sync(self.owner, START)
    }
}

fn serve(lab: &Lab, cluster: &Cluster<'_>, host: Host) -> Result<Process> {
    let manner = Manner {
        chunk: CHUNK,
        pace: PACE,
        congestion: Some(CONGESTION_CONTROL),
        ..Manner::default()
    };
    roam::start_with(lab.node(host), PORT, &cluster.app_socket(host)?, manner)
}
