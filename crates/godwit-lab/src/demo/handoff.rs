//! `godwit demo handoff`: one connection of an unmodified curl, thirty requests. Three
//! unmodified Apaches behind a director have the files of one class each, and each request
//! is handed, with the connection, to the one that has its file. Beside it the same curl
//! and one of the Apaches, without Godwit.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::line::{Facts, Line, Row, columns, tenths};
use super::view::View;
use crate::apps::apache::{Apache, ApacheOptions, Mpm};
use crate::apps::webstone::{FileSet, Name};
use crate::capture::ResetCounter;
use crate::cluster::{Cluster, ClusterOptions, Service};
use crate::host::{Host, SERVICE_V4};
use crate::lab::{Lab, LabOptions, which};

const PORT: u16 = 80;

/// Files of each kind are as many as in WebStone's list.
const FILES: FileSet = FileSet { factor: 1 };

/// Who has the files of class 0, 1 and 2: 500 bytes, 5 KB and 50 KB.
const BACKENDS: [Host; 3] = [Host::A, Host::B, Host::C];

/// Requests of each class.
const ROUNDS: u32 = 10;

/// Director, agents and servers must have found each other by then.
const START: Duration = Duration::from_secs(20);

/// All of a session.
const SESSION: Duration = Duration::from_secs(30);

/// What curl says of each request: status, connections that it opened for it, when the
/// reply began, and who served it.
const SAID: &str = "%{http_code} %{num_connects} %{time_starttransfer} %header{served-by}\\n";

/// What this demonstration says besides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct More {
    handshakes: u64,
    /// Requests that were served by another server than the one before.
    handoffs: usize,
    /// Who served each request.
    served: Vec<String>,
}

/// How a session ended.
#[derive(Clone, Debug, Default)]
struct Outcome {
    bytes: u64,
    exact: bool,
    resets: u64,
    handshakes: u64,
    /// The longest time until a reply began.
    longest: Duration,
    served: Vec<String>,
}

/// Both arms.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    godwit: Outcome,
    control: Outcome,
}

impl Outcome {
    fn handoffs(&self) -> usize {
        self.served.windows(2).filter(|it| it[0] != it[1]).count()
    }
}

impl Summary {
    /// True if one connection brought every file, each from the server that has it, and
    /// one server alone did not have them.
    pub(super) fn ok(&self) -> bool {
        let Self { godwit, control } = self;
        let one = godwit.exact && godwit.resets == 0 && godwit.handshakes == 1;
        let placed = godwit.served.iter().map(String::as_str).eq(wanted());
        one && placed && !control.exact
    }

    pub(super) fn line(&self) -> Line<More> {
        let godwit = &self.godwit;
        let facts = Facts {
            bytes: godwit.bytes,
            exact: godwit.exact,
            resets: godwit.resets,
            stall_ms: tenths(godwit.longest),
            control_exact: self.control.exact,
        };
        let more = More {
            handshakes: godwit.handshakes,
            handoffs: godwit.handoffs(),
            served: godwit.served.clone(),
        };
        Line::new("handoff", self.ok(), facts, more)
    }
}

/// Runs both arms, one after the other.
pub(super) fn run(view: &mut View) -> Result<Summary> {
    view.line(
        "A client, a director, three servers and a switch, in network namespaces. Apache on a has\n\
         the files of class 0, on b those of class 1, on c those of class 2. curl wants ten of each,\n\
         in turn.",
    )?;
    let lab = Lab::new(LabOptions {
        third: true,
        director: true,
        ..LabOptions::default()
    })?;
    let mut servers = Vec::new();
    view.part("Without Godwit: curl and a's Apache")?;
    for (class, host) in BACKENDS.into_iter().enumerate() {
        servers.push(serve(&lab, host, class)?);
    }
    let control = session(&lab, Host::A.v4().into())?;
    show(&control, view)?;
    view.part("With Godwit: the same curl and the service's address")?;
    let _cluster = Cluster::start(&lab, cluster_options())?;
    wait_placed(&lab)?;
    view.event("godwit: the director knows all three, and each of them knows the rules")?;
    let godwit = session(&lab, SERVICE_V4.into())?;
    show(&godwit, view)?;
    let summary = Summary { godwit, control };
    table(&summary, view)?;
    Ok(summary)
}

fn serve(lab: &Lab, host: Host, class: usize) -> Result<Apache> {
    let node = lab.node(host);
    let root = node.folder()?.join("root");
    FILES.write_class(class, &root)?;
    let options = ApacheOptions {
        mpm: Mpm::Event,
        root: &root,
        port: PORT,
        keep_alive: true,
        workers: 64,
        limits: None,
    };
    Apache::start(node, &options)
}

fn cluster_options() -> ClusterOptions {
    let mut extra = "front = \"director\"\n".to_owned();
    for (class, host) in BACKENDS.iter().enumerate() {
        extra.push_str(&format!(
            "\n[[service.rule]]\nprefix = \"/class{class}/\"\nto = [\"{host}\"]\n"
        ));
    }
    ClusterOptions {
        services: vec![Service {
            standby: "none",
            others: &[Host::C],
            extra,
            ..Service::new("web", PORT)
        }],
        // XDP_TX on a veth needs a peer that polls, and the switch's end does not.
        sections: "[director]\nseed = \"0123456789abcdef\"\nhook = \"tcx\"\n".into(),
        more: &[Host::C, Host::Director],
        ..ClusterOptions::unfenced()
    }
}

/// What is asked for, in this order.
fn names() -> impl Iterator<Item = Name> {
    (0..ROUNDS).flat_map(|number| (0..BACKENDS.len()).map(move |kind| Name { kind, number }))
}

/// Who has it.
fn wanted() -> impl Iterator<Item = &'static str> {
    names().map(|name| BACKENDS[name.kind].name())
}

/// Requests go where they should from now on.
fn wait_placed(lab: &Lab) -> Result<()> {
    let end = Instant::now() + START;
    loop {
        let seen = session(lab, SERVICE_V4.into());
        if let Ok(seen) = &seen
            && seen.served.iter().map(String::as_str).eq(wanted())
        {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "requests do not go where they should: {seen:?}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

/// One curl, one connection, all of it.
fn session(lab: &Lab, address: IpAddr) -> Result<Outcome> {
    let client = lab.client();
    let folder = client.folder()?.join("got");
    fs::create_dir_all(&folder).context("making a folder")?;
    let program = which("curl").context("curl is not installed (Debian package curl)")?;
    let mut curl = Command::new(program);
    curl.args(["-sS", "--connect-timeout", "2", "-w", SAID]);
    let server = SocketAddr::new(address, PORT);
    let mut path = String::new();
    for (index, name) in names().enumerate() {
        path.clear();
        name.put_path(&mut path);
        curl.arg("-o").arg(file(&folder, index));
        curl.arg(format!("http://{server}{path}"));
    }
    let counter = ResetCounter::start(client)?;
    let output = client.run(curl, SESSION)?;
    let counted = counter.read()?;
    let mut outcome = Outcome {
        exact: output.status.success(),
        resets: counted.received + counted.sent,
        handshakes: counted.opened,
        ..Outcome::default()
    };
    for line in output.stdout.lines() {
        outcome.read(line)?;
    }
    for (index, name) in names().enumerate() {
        outcome.compare(&file(&folder, index), name);
    }
    Ok(outcome)
}

fn file(folder: &Path, index: usize) -> PathBuf {
    folder.join(index.to_string())
}

impl Outcome {
    /// What curl says of one request.
    fn read(&mut self, line: &str) -> Result<()> {
        let mut words = line.split(' ');
        let mut next = || words.next().context("curl says less than it should");
        let (status, _, began, by) = (next()?, next()?, next()?, next()?);
        self.exact &= status == "200";
        let began = Duration::try_from_secs_f64(began.parse()?)?;
        self.longest = self.longest.max(began);
        self.served.push(by.to_owned());
        Ok(())
    }

    fn compare(&mut self, file: &Path, name: Name) {
        let got = fs::read(file).unwrap_or_default();
        let content = name.content();
        let mut expected = vec![0; got.len()];
        content.fill(0, &mut expected);
        self.exact &= got.len() as u64 == content.length && got == expected;
        self.bytes += got.len() as u64;
    }
}

fn show(outcome: &Outcome, view: &mut View) -> Result<()> {
    let served = outcome.served.join(" ");
    view.event(&format!("curl was served by {served}"))?;
    Ok(())
}

fn table(summary: &Summary, view: &mut View) -> Result<()> {
    let rows: [Row<Outcome>; 6] = [
        ("bytes received", |o| o.bytes.to_string()),
        ("handoffs", |o| o.handoffs().to_string()),
        ("handshakes", |o| o.handshakes.to_string()),
        ("RST on the client's wire", |o| o.resets.to_string()),
        ("longest wait for a reply", |o| {
            format!("{:.1} ms", tenths(o.longest))
        }),
        ("files", |o| {
            if o.exact { "all of them" } else { "not all" }.to_owned()
        }),
    ];
    columns(&rows, [&summary.godwit, &summary.control], view)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Summary {
        Summary {
            godwit: Outcome {
                bytes: 568_200,
                exact: true,
                handshakes: 1,
                longest: Duration::from_micros(1240),
                served: wanted().map(str::to_owned).collect(),
                ..Outcome::default()
            },
            control: Outcome::default(),
        }
    }

    #[test]
    fn the_line_is_what_others_script_against() {
        let mut summary = good();
        summary.godwit.served.truncate(3);
        let line = serde_json::to_string(&summary.line()).expect("it is plain data");
        let expected = concat!(
            r#"{"schema":"godwit.demo/1","demo":"handoff","ok":false,"bytes":568200,"#,
            r#""digest_ok":true,"rst":0,"stall_ms":1.2,"control":{"digest_ok":false},"#,
            r#""handshakes":1,"handoffs":2,"served":["a","b","c"]}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn each_request_must_be_served_by_the_one_that_has_its_file() {
        assert!(good().ok());
        assert_eq!(good().godwit.handoffs(), 29);
        let mut again = good();
        again.godwit.handshakes = 2;
        let mut elsewhere = good();
        elsewhere.godwit.served[5] = "a".to_owned();
        let mut wrong = good();
        wrong.godwit.exact = false;
        let mut alone = good();
        alone.control.exact = true;
        assert!(!([again, elsewhere, wrong, alone].iter().any(Summary::ok)));
    }
}
