//! `godwit demo migrate`: one stream on one connection. The machine of its server
//! goes dark, and another server goes on from the last snapshot; the machine boots,
//! stands by, and the stream goes to and fro between the two twenty times. Beside it
//! plain TCP, which ends with the machine.
//!
//! The crash comes first: only a standby at which nobody serves has to go on from a
//! snapshot. After a move the old server runs on, silently.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;

use super::DemoOptions;
use super::arm::AGAIN;
use super::gate::Gate;
use super::line::{Facts, Line, Row, columns, tenths, verdict};
use super::view::{Progress, View};
use crate::apps::client::Client;
use crate::apps::content::{Content, Verdict};
use crate::apps::{roam, stream};
use crate::capture::ResetCounter;
use crate::cluster::{Cluster, ClusterOptions, Fencing, Service};
use crate::control::DETECTION;
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;
use crate::meter::Meter;
use crate::process::Process;

const PORT: u16 = 80;

/// How often the stream goes to the other server.
const MOVES: u32 = 20;

/// The stream takes so many seconds at least: a machine boots meanwhile.
const AT_LEAST: u64 = 12;

/// Megabits per second that two servers and a client make of 1 KB at a time, with a
/// snapshot after each, on two processors that have more to do.
const MOST: u64 = 400;

/// The client gives up after this long without a byte.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often the stream is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Agents must have found each other by then.
const IN_SYNC: Duration = Duration::from_secs(20);

/// What this demonstration says besides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct More {
    handshakes: u64,
    moves: u32,
    crashes: u32,
    /// Bytes that had been sent at the snapshot from which the other server went on.
    resumed_at: u64,
}

/// How a stream ended.
#[derive(Clone, Debug, Default)]
struct Outcome {
    bytes: u64,
    exact: bool,
    resets: u64,
    handshakes: u64,
    seen: Seen,
    stall: Duration,
}

/// What happened to it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    crash: Option<Instant>,
    resumed_at: Option<u64>,
    /// Where it stood when it was protected again.
    protected_at: Option<u64>,
    moves: u32,
    refused: Option<Instant>,
}

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    godwit: Outcome,
    control: Outcome,
}

impl Summary {
    /// True if one connection carried the whole stream over the crash and all moves,
    /// and the crash ended it without Godwit.
    pub(super) const fn ok(&self) -> bool {
        let Self { godwit, control } = self;
        let exact = godwit.exact && godwit.resets == 0 && godwit.handshakes == 1;
        let resumed = godwit.seen.crash.is_some() && godwit.seen.resumed_at.is_some();
        let moved = godwit.seen.moves == MOVES;
        exact && resumed && moved && control.seen.crash.is_some() && !control.exact
    }

    pub(super) fn line(&self) -> Line<More> {
        let godwit = &self.godwit;
        let facts = Facts {
            bytes: godwit.bytes,
            exact: godwit.exact,
            resets: godwit.resets,
            stall_ms: tenths(godwit.stall),
            control_exact: self.control.exact,
        };
        let more = More {
            handshakes: godwit.handshakes,
            moves: godwit.seen.moves,
            crashes: godwit.seen.crash.is_some().into(),
            resumed_at: godwit.seen.resumed_at.unwrap_or_default(),
        };
        Line::new("migrate", self.ok(), facts, more)
    }
}

/// Runs both arms, one after the other.
pub(super) fn run(options: DemoOptions, view: &mut View) -> Result<Summary> {
    let content = options.content()?;
    let mbit = options.size * 8 / 1_000_000 / AT_LEAST;
    let mbit = options.mbit.min(mbit.clamp(1, MOST));
    view.line(&format!(
        "A client, two servers, a witness and a switch, in network namespaces; {} MB to stream at\n\
         {mbit} Mbit/s, 1 KB at a time. The server exports a snapshot of 24 bytes after each.",
        options.size / 1_000_000,
    ))?;
    view.part("With Godwit: its server's machine crashes, then it moves twenty times")?;
    let godwit = arm(content, mbit, true, view)?;
    view.part("The same crash with plain TCP")?;
    let control = arm(content, mbit, false, view)?;
    let summary = Summary { godwit, control };
    table(&summary, view)?;
    Ok(summary)
}

fn arm(content: Content, mbit: u64, protect: bool, view: &mut View) -> Result<Outcome> {
    let lab = Lab::new(LabOptions {
        witness: protect,
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(Shape::mbit(mbit)))?;
    let mut stage = Stage {
        cluster: None,
        servers: BTreeMap::new(),
        lab: &lab,
    };
    if protect {
        stage.cluster = Some(Cluster::start(&lab, cluster_options())?);
    }
    for host in Host::SERVERS {
        stage.serve(host)?;
    }
    if let Some(cluster) = &mut stage.cluster {
        cluster.wait_in_sync(Host::A, IN_SYNC)?;
        view.event("godwit: a owns the service, b has the latest snapshot of each connection")?;
    } else {
        lab.take_service_address(Host::A)?;
        view.event("a has the service address; b will get it when a is gone")?;
    }
    let resets = ResetCounter::start(lab.client())?;
    let viewer = Viewer::start(&lab, content)?;
    view.event(&format!("the client {} streams", viewer.address))?;
    let seen = stage.watch(&viewer, content.length, view)?;
    let meter = Arc::clone(&viewer.meter);
    let (exact, said) = viewer.finish()?;
    let resets = resets.read()?;
    let stalled = seen.crash.and_then(|since| meter.longest_gap_since(since));
    view.event(if exact {
        "the stream is complete"
    } else {
        &said
    })?;
    Ok(Outcome {
        bytes: meter.bytes(),
        exact,
        resets: resets.received + resets.sent,
        handshakes: resets.opened,
        seen,
        stall: stalled.map(|gap| gap.length).unwrap_or_default(),
    })
}

/// With a lease: a machine that stands still for longer than three heartbeats, as where
/// its host runs others, would be taken over in the middle of the moves.
fn cluster_options() -> ClusterOptions {
    let service = Service {
        standby: "snapshot",
        extra: "snapshots = \"eager\"".to_owned(),
        ..Service::new("web", PORT)
    };
    ClusterOptions {
        services: vec![service],
        fencing: Fencing::Lease,
        ..ClusterOptions::default()
    }
}

/// A client that reads a stream on a thread of its own.
struct Viewer {
    meter: Arc<Meter>,
    address: SocketAddr,
    thread: JoinHandle<Result<Verdict>>,
}

impl Viewer {
    fn start(lab: &Lab, content: Content) -> Result<Self> {
        let service = SocketAddr::from((SERVICE_V4, PORT));
        let connect = || Client::connect(service, PATIENCE);
        let mut client = lab.client().enter(connect)??;
        let address = client.stream().local_addr()?;
        let meter = Arc::<Meter>::default();
        let seen = Arc::clone(&meter);
        let thread = thread::Builder::new()
            .name("viewer".to_owned())
            .spawn(move || client.get(content, &seen))
            .context("starting a thread")?;
        Ok(Self {
            meter,
            address,
            thread,
        })
    }

    /// Whether every byte came, and was right; and what it has to say if not.
    fn finish(self) -> Result<(bool, String)> {
        let ended = self.thread.join();
        match ended.map_err(|_| anyhow!("the client panicked"))? {
            Ok(Verdict { exact: true, .. }) => Ok((true, String::new())),
            Ok(verdict) => Ok((false, format!("the client got something else: {verdict:?}"))),
            Err(error) => Ok((false, format!("the client gave up: {error:#}"))),
        }
    }
}

/// Two machines, with a streaming server each.
struct Stage<'a> {
    // Before the servers: agents end first.
    cluster: Option<Cluster<'a>>,
    servers: BTreeMap<Host, Process>,
    lab: &'a Lab,
}

impl Stage<'_> {
    fn serve(&mut self, host: Host) -> Result<()> {
        let node = self.lab.node(host);
        let agent = match &self.cluster {
            Some(cluster) => cluster.app_socket(host)?,
            None => Path::new("/nonexistent").to_owned(),
        };
        let server = stream::start(node, PORT, &agent)?;
        self.servers.insert(host, server);
        Ok(())
    }

    /// Shows the stream until it ends. A crashes after an eighth; what follows is
    /// spread over what is left when it is protected again.
    fn watch(&mut self, viewer: &Viewer, total: u64, view: &mut View) -> Result<Seen> {
        let (mut seen, mut owner) = (Seen::default(), Host::A);
        let mut gate = Gate::default();
        while !viewer.thread.is_finished() {
            let bytes = viewer.meter.bytes();
            if seen.crash.is_none()
                && bytes >= total / 8
                && gate.is_open(self.cluster.as_ref(), owner, view)?
            {
                seen.crash = Some(self.crash(view)?);
                if self.cluster.is_some() {
                    owner = Host::B;
                    self.boot_again(view)?;
                }
            }
            if self.cluster.is_some() && seen.crash.is_some() {
                self.follow(viewer, &mut seen, view)?;
            }
            if let Some(from) = seen.protected_at.filter(|_| seen.moves < MOVES)
                && bytes >= from + (total - from) / u64::from(MOVES + 1) * u64::from(seen.moves + 1)
                && seen.refused.is_none_or(|at| at.elapsed() > AGAIN)
            {
                owner = self.hand_over(owner, &mut seen, view)?;
            }
            view.progress(Progress {
                bytes,
                total,
                owner: owner.name(),
            })?;
            thread::sleep(LOOK);
        }
        gate.close(view)?;
        Ok(seen)
    }

    fn crash(&self, view: &mut View) -> Result<Instant> {
        let crash = match self.cluster {
            Some(_) => self.lab.crash(Host::A)?,
            None => self
                .lab
                .crash_and_move_address(Host::A, Host::B, DETECTION)?,
        };
        view.event("a is dark: link cut, processes killed, not a packet sent")?;
        Ok(crash.from)
    }

    fn boot_again(&mut self, view: &mut View) -> Result<()> {
        let Some(cluster) = &mut self.cluster else {
            return Ok(());
        };
        self.servers.remove(&Host::A);
        cluster.power_off(Host::A)?;
        self.lab.reboot(Host::A)?;
        cluster.start_agent(Host::A)?;
        self.serve(Host::A)?;
        view.event("a has booted, with nothing of before")?;
        Ok(())
    }

    /// What b's server and its agent say after the crash.
    fn follow(&self, viewer: &Viewer, seen: &mut Seen, view: &mut View) -> Result<()> {
        if seen.resumed_at.is_none()
            && let Some(server) = self.servers.get(&Host::B)
            && let Some(at) = roam::came_at(&server.log(), viewer.address)
        {
            seen.resumed_at = Some(at);
            view.event(&format!(
                "b's server goes on from its snapshot at byte {at}"
            ))?;
        }
        if let (None, Some(cluster)) = (seen.protected_at, &self.cluster)
            && super::kill::is_protected_again(cluster, Host::B)?
        {
            seen.protected_at = Some(viewer.meter.bytes());
            view.event("the stream is protected again, by a")?;
        }
        Ok(())
    }

    /// Returns who has it then.
    fn hand_over(&self, from: Host, seen: &mut Seen, view: &mut View) -> Result<Host> {
        let to = if from == Host::A { Host::B } else { Host::A };
        let cluster = self.cluster.as_ref().context("there are agents")?;
        match cluster.hand_over("web", from, to) {
            Ok(report) => {
                seen.moves += 1;
                view.event(&format!(
                    "move {}: {from} to {to}, silent for {:.1} ms",
                    seen.moves, report.silent_ms
                ))?;
                Ok(to)
            }
            Err(error) => {
                seen.refused = Some(Instant::now());
                view.event(&format!("it stays on {from}: {error:#}"))?;
                Ok(from)
            }
        }
    }
}

fn table(summary: &Summary, view: &mut View) -> Result<()> {
    let rows: [Row<Outcome>; 6] = [
        ("bytes received", |o| o.bytes.to_string()),
        ("moves after the crash", |o| o.seen.moves.to_string()),
        ("handshakes", |o| o.handshakes.to_string()),
        ("RST on the client's wire", |o| o.resets.to_string()),
        ("longest silence", |o| {
            if o.exact {
                format!("{:.1} ms", tenths(o.stall))
            } else {
                "for ever".to_owned()
            }
        }),
        ("stream", |o| verdict(o.exact)),
    ];
    columns(&rows, [&summary.godwit, &summary.control], view)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Summary {
        let crashed = Seen {
            crash: Some(Instant::now()),
            ..Seen::default()
        };
        Summary {
            godwit: Outcome {
                bytes: 1 << 30,
                exact: true,
                handshakes: 1,
                seen: Seen {
                    resumed_at: Some(134_217_728),
                    moves: MOVES,
                    ..crashed
                },
                stall: Duration::from_micros(31_240),
                ..Outcome::default()
            },
            control: Outcome {
                seen: crashed,
                ..Outcome::default()
            },
        }
    }

    #[test]
    fn the_line_is_what_others_script_against() {
        let line = serde_json::to_string(&good().line()).expect("it is plain data");
        let expected = concat!(
            r#"{"schema":"godwit.demo/1","demo":"migrate","ok":true,"bytes":1073741824,"#,
            r#""digest_ok":true,"rst":0,"stall_ms":31.2,"control":{"digest_ok":false},"#,
            r#""handshakes":1,"moves":20,"crashes":1,"resumed_at":134217728}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn one_connection_must_outlive_the_crash_and_every_move() {
        assert!(good().ok());
        let mut again = good();
        again.godwit.handshakes = 2;
        let mut fewer = good();
        fewer.godwit.seen.moves -= 1;
        let mut calm = good();
        calm.godwit.seen.crash = None;
        let mut anew = good();
        anew.godwit.seen.resumed_at = None;
        let mut survived = good();
        survived.control.exact = true;
        let bad = [again, fewer, calm, anew, survived];
        assert!(!bad.iter().any(Summary::ok));
    }
}
