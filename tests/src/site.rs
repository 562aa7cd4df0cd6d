//! A lab under Godwit, and what must be true of it at the end.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::capture::{Capture, Trace};
use godwit_lab::cluster::{Cluster, ClusterOptions, FlowReport, Service};
use godwit_lab::control::DETECTION;
use godwit_lab::host::{Host, Network, SERVICE};
use godwit_lab::links::Crash;
use godwit_lab::{Lab, LabOptions};
use godwit_wire::Endpoint;

use crate::conduct::misconduct;
use crate::resets::live_resets;
use crate::wait::{DEADLINE, until};

/// Environment variable that, set to anything, runs the tests without Godwit.
pub const PLAIN_VARIABLE: &str = "GODWIT_TESTS_PLAIN";

/// Environment variable with a folder for the client's capture of a test that
/// failed.
const KEEP_VARIABLE: &str = "GODWIT_TESTS_KEEP";

/// The named exception from the product's 10 ms. Tests share their processors with
/// whatever builds beside them: a heartbeat that comes late must not be a crash.
/// `dead_member` and benchmarks use the default.
const HEARTBEAT: Duration = Duration::from_millis(30);

/// A lab whose servers run Godwit: a owns every service, b shadows it.
#[derive(Debug)]
pub struct Site<'a> {
    /// The lab.
    pub lab: &'a Lab,
    /// The agents; `None` if [`PLAIN_VARIABLE`] is set.
    pub cluster: Option<Cluster<'a>>,
    capture: Option<Capture>,
    ports: Vec<u16>,
}

/// A lab, or `None` with the reason printed if this machine can't have one.
///
/// # Errors
/// Fails if it can have one and building it fails.
pub fn lab(options: LabOptions) -> Result<Option<Lab>> {
    if let Err(reason) = Lab::available() {
        say(&format!("skipped: {reason}"));
        return Ok(None);
    }
    Lab::new(options).map(Some)
}

impl<'a> Site<'a> {
    /// Starts agents for one service at `port` and a capture at the client.
    ///
    /// # Errors
    /// Fails if they are not in sync in time.
    pub fn start(lab: &'a Lab, port: u16) -> Result<Self> {
        Self::start_with(lab, vec![Service::new("web", port)])
    }

    /// As [`start`](Self::start), with any services.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(lab: &'a Lab, services: Vec<Service>) -> Result<Self> {
        let ports = services.iter().map(|service| service.port).collect();
        let options = ClusterOptions {
            heartbeat: HEARTBEAT,
            services,
            ..ClusterOptions::default()
        };
        let cluster = if std::env::var_os(PLAIN_VARIABLE).is_some() {
            lab.take_service_address(Host::A)?;
            None
        } else {
            let mut cluster = Cluster::start(lab, options)?;
            cluster.wait_in_sync(Host::A, DEADLINE)?;
            Some(cluster)
        };
        let capture = Some(Capture::start(lab.client(), Network::Data)?);
        Ok(Self {
            lab,
            cluster,
            capture,
            ports,
        })
    }

    /// The service addresses with the port of the first service, IPv4 first.
    pub fn addresses(&self) -> [SocketAddr; 2] {
        let port = self.ports.first().copied().unwrap_or(80);
        SERVICE.map(|address| SocketAddr::new(address, port))
    }

    /// Waits until exactly `count` flows have not ended on the owner and all of
    /// them are protected.
    ///
    /// # Errors
    /// Fails after [`DEADLINE`] with the flows that there are.
    pub fn wait_protected(&self, count: usize) -> Result<()> {
        let mut last = Vec::new();
        let waited = until("protected flows", || {
            last = self.flows(Host::A)?;
            Ok(self.cluster.is_none()
                || (last.len() == count && last.iter().all(|flow| flow.protected)))
        });
        waited.with_context(|| format!("{count} protected flows wanted, there are {last:#?}"))
    }

    /// Waits until the twins have said all that the owner has said, and the
    /// client has acknowledged it.
    ///
    /// # Errors
    /// Fails after [`DEADLINE`] with the flows that there are.
    pub fn wait_caught_up(&self) -> Result<()> {
        let said = |host| -> Result<BTreeMap<String, u64>> {
            let flows = self.flows(host)?.into_iter();
            Ok(flows.map(|flow| (flow.flow, flow.bytes_out)).collect())
        };
        let mut last = None;
        let waited = until("twins to catch up", || {
            let (owner, twin) = (said(Host::A)?, said(Host::B)?);
            let equal = owner == twin;
            last = Some((owner, twin));
            Ok(equal)
        });
        waited.with_context(|| format!("bytes said: {last:?}"))
    }

    /// The flows of one server that have not ended; none without agents.
    ///
    /// # Errors
    /// Fails if the agent does not answer.
    pub fn flows(&self, host: Host) -> Result<Vec<FlowReport>> {
        let Some(cluster) = &self.cluster else {
            return Ok(Vec::new());
        };
        let mut flows = cluster.flows(host)?.flows;
        flows.retain(|flow| flow.state != "ended");
        Ok(flows)
    }

    /// The owner dies: its links go dark, then its processes are gone.
    ///
    /// # Errors
    /// Fails if the lab can't do it.
    pub fn crash_owner(&self) -> Result<Crash> {
        if self.cluster.is_some() {
            self.lab.crash(Host::A)
        } else {
            self.lab.crash_and_move_address(Host::A, Host::B, DETECTION)
        }
    }

    /// Waits until the former standby owns every service.
    ///
    /// # Errors
    /// Fails after [`DEADLINE`].
    pub fn wait_taken_over(&self) -> Result<()> {
        match &self.cluster {
            Some(cluster) => cluster.wait_owner(Host::B, DEADLINE).map(drop),
            None => Ok(()),
        }
    }

    /// Ends the capture and returns it; fails if any service spoke with a
    /// second voice, or as plain TCP would not ([`misconduct`]).
    ///
    /// # Errors
    /// Fails if it is not complete, or holds what it may not.
    pub fn trace(mut self) -> Result<Trace> {
        let capture = self.capture.take().context("the capture was taken")?;
        let trace = capture.finish()?;
        self.judge(&trace).inspect_err(|_| Self::keep(self.lab))?;
        Ok(trace)
    }

    /// As [`trace`](Self::trace); fails also if a RST was seen, either way, on
    /// a connection that was not over.
    ///
    /// # Errors
    /// As [`trace`](Self::trace), and for a RST.
    pub fn verify(self) -> Result<Trace> {
        let (lab, services) = (self.lab, self.services());
        let trace = self.trace()?;
        let resets = live_resets(&trace, &services);
        if !resets.is_empty() {
            Self::keep(lab);
        }
        ensure!(resets.is_empty(), "RST at the client: {resets:#?}");
        Ok(trace)
    }

    fn judge(&self, trace: &Trace) -> Result<()> {
        for service in self.services() {
            let voices = trace.second_voices(Endpoint::from(service));
            ensure!(voices.is_empty(), "second voices: {voices:#?}");
        }
        let wrong = misconduct(trace, &self.services());
        ensure!(
            wrong.is_empty(),
            "{} segments that plain TCP would not send, first {:?}",
            wrong.len(),
            wrong.first()
        );
        Ok(())
    }

    /// Both addresses of every service.
    pub fn services(&self) -> Vec<SocketAddr> {
        let ports = self.ports.iter();
        let pairs = ports.flat_map(|&port| SERVICE.map(|address| SocketAddr::new(address, port)));
        pairs.collect()
    }

    /// What the survivors say, for the log of a test that failed.
    fn explain(&self) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        for host in Host::SERVERS {
            let Ok(status) = cluster.status(host) else {
                continue;
            };
            let reasons = status.data_path.reasons;
            say(&format!(
                "{host}: {:?}\n{host}: {reasons:?}",
                status.services
            ));
            for flow in self.flows(host).unwrap_or_default() {
                say(&format!("{host}: {flow:?}"));
            }
        }
    }

    /// Keeps the client's capture, if [`KEEP_VARIABLE`] says where.
    fn keep(lab: &Lab) {
        let Some(folder) = std::env::var_os(KEEP_VARIABLE).map(PathBuf::from) else {
            return;
        };
        let to = folder.join(format!("{}.pcap", lab.id()));
        let from = lab.client().folder().map(|from| from.join("eth0.pcap"));
        match from.and_then(|from| fs::copy(from, &to).context("keeping the capture")) {
            Ok(_) => say(&format!("the client's capture is {}", to.display())),
            Err(error) => say(&format!("{error:#}")),
        }
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        // Only a test that got to its end has taken the capture.
        if let Some(capture) = self.capture.take() {
            self.explain();
            // What the capture lacks does not matter here.
            let _ = capture.finish();
            Self::keep(self.lab);
        }
    }
}

fn say(line: &str) {
    // Not `eprintln!`: a closed pipe must not fail a test.
    let _ = writeln!(std::io::stderr(), "{line}");
}
