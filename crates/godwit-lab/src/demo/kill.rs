//! `godwit demo kill`: one download over one connection outlives the server
//! process on one machine, and later the one on the other; a supervisor starts
//! each again. Beside it plain TCP, which ends with the first process.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::DemoOptions;
use super::arm::FILE;
use super::gate::Gate;
use super::line::{Facts, Line, Row, columns, tenths, verdict};
use super::view::{Progress, View};
use crate::apps::content::Content;
use crate::apps::curl::{self, Patience, Transfer};
use crate::apps::nginx::Nginx;
use crate::capture::ResetCounter;
use crate::cluster::{Cluster, ClusterOptions};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions};
use crate::links::Shape;
use crate::process::SAME_CAUSE;

/// The download takes so long at least: both kills must find it running.
const AT_LEAST: u64 = 8;

/// curl gives up after this long without a byte.
const PATIENCE: Patience = Patience(3);

/// How often the download is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Agents must have found each other by then.
const IN_SYNC: Duration = Duration::from_secs(20);

/// What a supervisor waits before it starts a process again.
const RESTART_AFTER: Duration = Duration::from_millis(100);

/// What this demonstration says besides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct More {
    handshakes: u64,
    kills: u32,
    /// From the first kill until the download was protected again.
    protected_again_ms: f64,
}

/// How a download ended.
#[derive(Clone, Debug, Default)]
struct Outcome {
    bytes: u64,
    exact: bool,
    resets: u64,
    handshakes: u64,
    kills: u32,
    stall: Duration,
    protected_again: Option<Duration>,
    said: String,
}

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    godwit: Outcome,
    control: Outcome,
}

impl Summary {
    /// True if the download outlived both processes on one connection, and the
    /// first kill ended it without Godwit.
    pub(super) const fn ok(&self) -> bool {
        let godwit = &self.godwit;
        let survived = godwit.exact && godwit.resets == 0 && godwit.kills == 2;
        let one = godwit.handshakes == 1 && godwit.protected_again.is_some();
        survived && one && self.control.kills == 1 && !self.control.exact
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
            kills: godwit.kills,
            protected_again_ms: tenths(godwit.protected_again.unwrap_or_default()),
        };
        Line::new("kill", self.ok(), facts, more)
    }
}

/// Runs both arms, one after the other.
pub(super) fn run(options: DemoOptions, view: &mut View) -> Result<Summary> {
    let content = options.content()?;
    view.part("With Godwit")?;
    let godwit = arm(options, content, true, view)?;
    view.part("The same with plain TCP")?;
    let control = arm(options, content, false, view)?;
    let summary = Summary { godwit, control };
    table(&summary, view)?;
    Ok(summary)
}

fn arm(options: DemoOptions, content: Content, protect: bool, view: &mut View) -> Result<Outcome> {
    let lab = Lab::new(LabOptions::default())?;
    let root = lab.folder().join("www");
    fs::create_dir(&root).context("creating the folder of the web server")?;
    content.write_to(&root.join(FILE))?;
    let mbit = options
        .mbit
        .min((options.size * 8 / 1_000_000 / AT_LEAST).max(1));
    lab.shape(Host::Client, Some(Shape::mbit(mbit)))?;
    let mut stage = Stage {
        servers: [
            Nginx::start(lab.a(), &root, 80)?,
            Nginx::start(lab.b(), &root, 80)?,
        ],
        cluster: None,
        lab: &lab,
        root: &root,
    };
    if protect {
        let mut cluster = Cluster::start(&lab, ClusterOptions::unfenced())?;
        cluster.wait_in_sync(Host::A, IN_SYNC)?;
        stage.cluster = Some(cluster);
        view.event("godwit: a owns the service, b shadows it")?;
    } else {
        lab.take_service_address(Host::A)?;
        view.event("a has the service address")?;
    }
    let counter = ResetCounter::start(lab.client())?;
    let url = format!("http://{SERVICE_V4}/{FILE}");
    let mut transfer = curl::download(lab.client(), &url, content, PATIENCE)?;
    view.event(&format!("curl {url}"))?;
    let seen = stage.watch(&mut transfer, content.length, view)?;
    let meter = std::sync::Arc::clone(&transfer.meter);
    let report = transfer.finish(Duration::from_secs(1))?;
    let counted = counter.read()?;
    let outcome = Outcome {
        bytes: report.verdict.bytes,
        exact: report.verdict.exact && report.status.success(),
        resets: counted.received + counted.sent,
        handshakes: counted.opened,
        kills: seen.kills,
        stall: seen
            .first_kill
            .and_then(|since| meter.longest_gap_since(since))
            .map(|gap| gap.length)
            .unwrap_or_default(),
        protected_again: seen.protected_again,
        said: report.said,
    };
    view.event(if outcome.exact {
        "curl is done"
    } else {
        &outcome.said
    })?;
    Ok(outcome)
}

/// Two machines with a supervised nginx each.
struct Stage<'a> {
    // Before the servers: agents end first.
    cluster: Option<Cluster<'a>>,
    servers: [Nginx; 2],
    lab: &'a Lab,
    root: &'a Path,
}

/// What happened during a download.
#[derive(Debug, Default)]
struct Seen {
    kills: u32,
    first_kill: Option<Instant>,
    protected_again: Option<Duration>,
}

impl Stage<'_> {
    /// Shows the download until curl ends. The owner's process is killed after
    /// a quarter, and the new owner's when the download is protected again and
    /// half of it is there.
    fn watch(&mut self, transfer: &mut Transfer, total: u64, view: &mut View) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut owner = Host::A;
        let mut gate = Gate::default();
        while transfer.is_running() {
            let bytes = transfer.meter.bytes();
            if seen.kills == 0
                && bytes >= total / 4
                && gate.is_open(self.cluster.as_ref(), owner, view)?
            {
                seen.first_kill = Some(Instant::now());
                self.kill(Host::A, view)?;
                seen.kills = 1;
                if self.cluster.is_some() {
                    owner = Host::B;
                    self.restart(Host::A, view)?;
                }
            }
            if let (None, Some(since), Some(cluster)) =
                (seen.protected_again, seen.first_kill, &self.cluster)
                && is_protected_again(cluster, owner)?
            {
                seen.protected_again = Some(since.elapsed());
                view.event("the download is protected again, by a")?;
            }
            let calm = seen
                .first_kill
                .is_some_and(|kill| kill.elapsed() > SAME_CAUSE);
            let ready = seen.protected_again.is_some() && bytes >= total / 2;
            if seen.kills == 1
                && ready
                && calm
                && gate.is_open(self.cluster.as_ref(), owner, view)?
            {
                self.kill(Host::B, view)?;
                seen.kills = 2;
                owner = Host::A;
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

    fn kill(&mut self, host: Host, view: &mut View) -> Result<()> {
        let [a, b] = &mut self.servers;
        let server = if host == Host::A { a } else { b };
        server.process.kill()?;
        view.event(&format!("kill -9 of nginx on {host}"))?;
        Ok(())
    }

    fn restart(&mut self, host: Host, view: &mut View) -> Result<()> {
        thread::sleep(RESTART_AFTER);
        let fresh = Nginx::start(self.lab.node(host), self.root, 80)?;
        let [a, b] = &mut self.servers;
        *(if host == Host::A { a } else { b }) = fresh;
        view.event(&format!("a supervisor has started nginx on {host} again"))?;
        Ok(())
    }
}

/// Whether a connection is, that was not for a while.
pub(super) fn is_protected_again(cluster: &Cluster<'_>, owner: Host) -> Result<bool> {
    let flows = cluster.flows(owner)?.flows;
    let mut lives = flows.iter().filter(|flow| flow.state != "ended");
    Ok(lives.any(|flow| flow.protected && flow.protected_again_ms.is_some()))
}

fn table(summary: &Summary, view: &mut View) -> Result<()> {
    let rows: [Row<Outcome>; 6] = [
        ("bytes received", |o| o.bytes.to_string()),
        ("processes killed", |o| o.kills.to_string()),
        ("handshakes", |o| o.handshakes.to_string()),
        ("RST on the client's wire", |o| o.resets.to_string()),
        ("longest silence", |o| {
            if o.exact {
                format!("{:.1} ms", o.stall.as_secs_f64() * 1e3)
            } else {
                "for ever".to_owned()
            }
        }),
        ("download", |o| verdict(o.exact)),
    ];
    columns(&rows, [&summary.godwit, &summary.control], view)?;
    if let Some(span) = summary.godwit.protected_again {
        view.line(&format!(
            "\n  protected again {:.0} ms after the first kill",
            span.as_secs_f64() * 1e3
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Summary {
        Summary {
            godwit: Outcome {
                bytes: 1 << 30,
                exact: true,
                handshakes: 1,
                kills: 2,
                stall: Duration::from_micros(5_240),
                protected_again: Some(Duration::from_micros(612_340)),
                ..Outcome::default()
            },
            control: Outcome {
                kills: 1,
                ..Outcome::default()
            },
        }
    }

    #[test]
    fn the_line_is_what_others_script_against() {
        let line = serde_json::to_string(&good().line()).expect("it is plain data");
        let expected = concat!(
            r#"{"schema":"godwit.demo/1","demo":"kill","ok":true,"bytes":1073741824,"#,
            r#""digest_ok":true,"rst":0,"stall_ms":5.2,"control":{"digest_ok":false},"#,
            r#""handshakes":1,"kills":2,"protected_again_ms":612.3}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn one_connection_must_outlive_both_kills() {
        assert!(good().ok());
        let mut twice = good();
        twice.godwit.handshakes = 2;
        assert!(!twice.ok());
        let mut once = good();
        once.godwit.kills = 1;
        assert!(!once.ok());
        let mut lucky = good();
        lucky.control.exact = true;
        assert!(!lucky.ok());
    }
}
