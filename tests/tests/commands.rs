//! `godwit demo`, `bench` and `chaos` as others script them: exit codes, schemas,
//! two at once, and nothing left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use godwit_lab::Lab;
use godwit_lab::cluster::binary;
use godwit_tests::until;
use serde_json::Value;

/// What `--quick` promises.
const QUICK: Duration = Duration::from_secs(45);

/// Where agents pin programs and maps.
const PINS: &str = "/sys/fs/bpf/godwit";

/// A `godwit` command that runs.
struct Running {
    child: Child,
    since: Instant,
}

impl Running {
    fn start(args: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Ok(Self {
            child: command.spawn().context("starting godwit")?,
            since: Instant::now(),
        })
    }

    /// Waits for its good end, and until nothing of it is left; the lines of JSON
    /// that it wrote, and how long it took.
    fn finish(self) -> Result<(Vec<Value>, Duration)> {
        let (output, took) = self.end()?;
        ensure!(output.status.success(), "it ended with {}", output.status);
        Ok((lines(&output)?, took))
    }

    /// Waits for its end, and until nothing of it is left.
    fn end(self) -> Result<(Output, Duration)> {
        let pid = self.child.id();
        let output = self
            .child
            .wait_with_output()
            .context("waiting for godwit")?;
        let took = self.since.elapsed();
        until("everything of it to be gone", || Ok(rests(pid).is_empty()))
            .with_context(|| format!("left behind: {:?}", rests(pid)))?;
        Ok((output, took))
    }
}

fn lines(output: &Output) -> Result<Vec<Value>> {
    let text = String::from_utf8(output.stdout.clone()).context("it writes UTF-8")?;
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().context("each line is JSON")
}

/// Namespaces, folders and processes of the labs that a process has made: all
/// are called after it.
fn rests(pid: u32) -> Vec<String> {
    let lab = format!("gw{pid}-");
    let named = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains(&lab)).collect::<Vec<_>>()
    };
    let mut rests = named("/run/netns");
    rests.extend(named(&std::env::temp_dir().to_string_lossy()));
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(&lab) {
            rests.push(command);
        }
    }
    rests
}

/// Names of what agents have pinned, on this host whoever runs them.
fn pins() -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(PINS))
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

/// True if this machine can have labs; else says why not.
fn has_labs() -> bool {
    let reason = Lab::available().err();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_none()
}

fn keys(value: &Value) -> BTreeSet<&str> {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, _)| key.as_str()).collect()
}

/// A demonstration that went well says so in one line, with these fields and
/// `more`, and no others.
fn good_line(lines: &[Value], demo: &str, more: &[&'static str]) -> Result<Value> {
    let [line] = lines else {
        anyhow::bail!("{} lines", lines.len());
    };
    let common = [
        "schema",
        "demo",
        "ok",
        "bytes",
        "digest_ok",
        "rst",
        "stall_ms",
        "control",
    ];
    let wanted = common.iter().chain(more).copied().collect();
    ensure!(keys(line) == wanted, "{line}");
    ensure!(line["schema"] == "godwit.demo/1" && line["demo"] == demo);
    ensure!(line["ok"] == true && line["digest_ok"] == true, "{line}");
    ensure!(line["rst"] == 0 && line["stall_ms"].is_f64(), "{line}");
    ensure!(line["control"]["digest_ok"] == false, "{line}");
    Ok(line.clone())
}

/// Two at once: each ends well, with its one line.
#[test]
fn two_demonstrations_run_at_once_and_leave_nothing() -> Result<()> {
    if !has_labs() {
        return Ok(());
    }
    let before = pins();
    let args = ["demo", "shadow", "--json", "--size", "128"];
    let running = [Running::start(&args)?, Running::start(&args)?];
    for one in running {
        let (lines, _) = one.finish()?;
        let line = good_line(&lines, "shadow", &[])?;
        ensure!(line["bytes"] == 128 << 20, "{line}");
    }
    until("pins to be gone", || Ok(pins().is_subset(&before)))
}

/// The others, one after the other: one connection each.
#[test]
fn moves_and_kills_are_demonstrated_on_one_connection() -> Result<()> {
    if !has_labs() {
        return Ok(());
    }
    let before = pins();
    let moves = ["handshakes", "moves"];
    let kills = ["handshakes", "kills", "protected_again_ms"];
    let migrates = ["handshakes", "moves", "crashes", "resumed_at"];
    for (demo, more) in [
        ("move", &moves[..]),
        ("kill", &kills),
        ("migrate", &migrates),
    ] {
        let args = ["demo", demo, "--json", "--size", "64"];
        let (lines, _) = Running::start(&args)?.finish()?;
        let line = good_line(&lines, demo, more)?;
        ensure!(line["bytes"] == 64 << 20, "{line}");
        ensure!(line["handshakes"] == 1, "{line}");
    }
    until("pins to be gone", || Ok(pins().is_subset(&before)))
}

/// One connection, thirty requests, each served by the one that has its file.
#[test]
fn handoffs_are_demonstrated_on_one_connection() -> Result<()> {
    if !has_labs() {
        return Ok(());
    }
    let before = pins();
    let (lines, _) = Running::start(&["demo", "handoff", "--json"])?.finish()?;
    let more = ["handshakes", "handoffs", "served"];
    let line = good_line(&lines, "handoff", &more)?;
    ensure!(line["handshakes"] == 1 && line["handoffs"] == 29, "{line}");
    ensure!(
        line["served"].as_array().is_some_and(|it| it.len() == 30),
        "{line}"
    );
    until("pins to be gone", || Ok(pins().is_subset(&before)))
}

/// What was found is in the last line, and in the exit code.
#[test]
fn chaos_says_what_it_was_and_how_it_ended() -> Result<()> {
    if !has_labs() {
        return Ok(());
    }
    let before = pins();
    let args = [
        "chaos",
        "--seconds",
        "1",
        "--seed",
        "7",
        "--faults",
        "moved",
    ];
    let (output, _) = Running::start(&args)?.end()?;
    let text = String::from_utf8(output.stdout).context("it writes UTF-8")?;
    ensure!(text.starts_with("seed 7\n"), "{text}");
    let last = text.lines().last().context("it says something")?;
    let sums: Vec<_> = last.split(", ").map(|part| part.split_once(' ')).collect();
    let [
        Some((_, "faults")),
        Some((_, "streams")),
        Some((violations, "violations")),
    ] = sums[..]
    else {
        anyhow::bail!("{last}");
    };
    let told = text.lines().filter(|line| line.starts_with("violation: "));
    ensure!(violations.parse() == Ok(told.count()), "{text}");
    ensure!(output.status.success() == (violations == "0"), "{text}");
    until("pins to be gone", || Ok(pins().is_subset(&before)))
}

/// A quick benchmark keeps its promise: all figures, each once, in time.
#[test]
fn a_quick_benchmark_ends_in_time_with_every_figure() -> Result<()> {
    if !has_labs() {
        return Ok(());
    }
    let before = pins();
    let lines = quick_benchmark(&["standby"])?;
    for (name, unit) in [
        ("stall.machine.download.p50", "ms"),
        ("stall.machine.upload.p50", "ms"),
        ("stall.machine.echo.p50", "ms"),
    ] {
        let line = lines.iter().find(|line| line["figure"] == name);
        let line = line.with_context(|| format!("no {name}"))?;
        ensure!(line["unit"] == unit && line["value"].is_f64(), "{line}");
    }
    let known = ["exact.broken", "exact.rst"];
    for name in known {
        let line = lines.iter().find(|line| line["figure"] == name);
        ensure!(line.is_some_and(|line| line["value"] == 0.0), "{line:?}");
    }
    until("pins to be gone", || Ok(pins().is_subset(&before)))
}

/// The same of failures and moves; one figure with its percentiles, for the whole
/// takes 45 s.
#[test]
fn a_quick_benchmark_of_failures_has_the_figures_that_it_was_asked_for() -> Result<()> {
    if !has_labs() {
        return Ok(());
    }
    let before = pins();
    let lines = quick_benchmark(&["failover", "--only", "stall.move.one"])?;
    let figures = lines.iter().filter_map(|line| line["figure"].as_str());
    let [disturbed, middle, last] = ["disturbed", "p50", "p99"];
    let wanted = [disturbed, middle, last].map(|name| format!("stall.move.one.{name}"));
    let figures = figures.map(str::to_owned).collect::<BTreeSet<_>>();
    ensure!(figures == BTreeSet::from(wanted), "{figures:?}");
    let value = |name: &str| {
        let line = lines.iter().find(|line| {
            let figure = line["figure"].as_str();
            figure.is_some_and(|figure| figure.ends_with(name))
        });
        line.and_then(|line| line["value"].as_f64())
    };
    ensure!(
        value(disturbed).is_some() && value(middle).is_some() && value(last).is_none(),
        "three runs have a middle, and no more: {lines:?}"
    );
    until("pins to be gone", || Ok(pins().is_subset(&before)))
}

/// The same of connections that move one by one.
#[test]
fn a_quick_benchmark_of_single_moves_has_the_figures_that_it_was_asked_for() -> Result<()> {
    if !has_labs() {
        return Ok(());
    }
    let before = pins();
    let only = "migrate.first_data.0us.0k,migrate.freeze.0k,migrate.broken";
    let lines = quick_benchmark(&["migrate", "--only", only])?;
    let value = |name: &str| {
        let line = lines.iter().find(|line| line["figure"] == name);
        line.and_then(|line| line["value"].as_f64())
            .context(lines.len())
    };
    let (first_data, freeze) = (
        value("migrate.first_data.0us.0k.p50")?,
        value("migrate.freeze.0k.p50")?,
    );
    ensure!(
        0.0 < freeze && freeze < first_data,
        "{freeze}, {first_data}"
    );
    ensure!(
        value("migrate.broken")? == 0.0 && lines.len() == 5,
        "{lines:?}"
    );
    until("pins to be gone", || Ok(pins().is_subset(&before)))
}

/// Runs it; every line has the documented form, and no figure comes twice.
fn quick_benchmark(what: &[&str]) -> Result<Vec<Value>> {
    let args = [&["bench"], what, &["--quick", "--json"]].concat();
    let (lines, took) = Running::start(&args)?.finish()?;
    ensure!(took < QUICK, "it took {took:?}");
    let mut figures = BTreeSet::new();
    for line in &lines {
        let wanted = [
            "schema", "figure", "value", "unit", "control", "target", "ok", "runs",
        ];
        ensure!(keys(line) == BTreeSet::from(wanted), "{line}");
        ensure!(line["schema"] == "godwit.bench/1", "{line}");
        let name = line["figure"].as_str().context("a name")?;
        ensure!(figures.insert(name), "{name} comes twice");
        // 200 runs are needed to know one (docs/benchmarks.md).
        let runs = line["runs"].as_u64().context("a number of runs")?;
        ensure!(
            !name.ends_with(".p99") || runs >= 200 || line["value"].is_null(),
            "{line}"
        );
        ensure!(line["ok"].is_null() == line["value"].is_null(), "{line}");
    }
    Ok(lines)
}
