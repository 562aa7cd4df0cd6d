//! What the documents say, as far as a program can check it: links lead somewhere, the
//! commands, options and targets that they name are there, README's commands run, and
//! `docs/threads.md` has the threads of the sources.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents for users and developers, with their texts; not the history.
fn documents() -> Vec<(PathBuf, String)> {
    let root = root();
    let top = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ];
    let mut paths: Vec<_> = top.iter().map(|name| root.join(name)).collect();
    for folder in ["docs", "docs/adr"] {
        let entries = fs::read_dir(root.join(folder)).expect("the folder is there");
        let entries = entries.map(|entry| entry.expect("it is listed").path());
        paths.extend(entries.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("it is text");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// The lines of fenced blocks, and what stands between single backquotes.
fn code(text: &str) -> Vec<String> {
    let (mut found, mut is_fenced, mut prose) = (Vec::new(), false, String::new());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced {
            found.push(line.trim().to_owned());
        } else {
            prose.push_str(line);
            prose.push(' ');
        }
    }
    found.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    found
}

fn godwit(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_godwit"));
    command.args(arguments).output().expect("it runs")
}

#[test]
fn links_lead_to_files() {
    let mut broken = Vec::new();
    for (path, text) in documents() {
        let folder = path.parent().expect("it is in a folder");
        for link in text.split("](").skip(1) {
            let target = link.split([')', ' ', '#']).next().unwrap_or_default();
            let is_elsewhere = target.is_empty() || target.contains("://");
            if !is_elsewhere && !folder.join(target).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// `sudo godwit move --flow ...  # why` as `(move, [--flow])`.
fn command_of(code: &str) -> Option<(String, Vec<String>)> {
    let code = code.split(" # ").next()?;
    let mut words = code.split_whitespace();
    let mut first = words.next()?;
    while first == "sudo" || first == "$" {
        first = words.next()?;
    }
    let words: Vec<_> = words.collect();
    let subcommand = *words.first().filter(|_| first == "godwit")?;
    let is_name = subcommand
        .chars()
        .all(|c| c.is_ascii_lowercase() || c == '-');
    // `help` is the argument parser's.
    if !is_name || subcommand.starts_with('-') || subcommand == "help" {
        return None;
    }
    let options = words.iter().filter_map(|word| {
        let word = word.trim_start_matches('[').split(['=', ']', '|']).next()?;
        word.starts_with("--").then(|| word.to_owned())
    });
    Some((subcommand.to_owned(), options.collect()))
}

#[test]
fn commands_and_options_are_there() {
    common::pki();
    let mut wrong = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (path, text) in documents() {
        for (subcommand, options) in code(&text).iter().filter_map(|it| command_of(it)) {
            let help = godwit(&[&subcommand, "--help"]);
            if !help.status.success() {
                wrong.insert(format!("{}: godwit {subcommand}", path.display()));
                continue;
            }
            let mut help = String::from_utf8_lossy(&help.stdout).into_owned();
            // `pki` has commands of its own.
            for deeper in ["init", "issue", "revoke", "serve", "renew"] {
                let more = godwit(&[&subcommand, deeper, "--help"]);
                help.push_str(&String::from_utf8_lossy(&more.stdout));
            }
            for option in options.iter().filter(|it| !help.contains(it.as_str())) {
                wrong.insert(format!("{}: {subcommand} {option}", path.display()));
            }
            seen.insert(subcommand);
        }
    }
    assert!(
        seen.contains("status") && seen.contains("drain"),
        "{seen:?}"
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn targets_of_make_are_there() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("it is there");
    let targets: BTreeSet<_> = makefile
        .lines()
        .filter_map(|line| line.split_once(':').map(|(target, _)| target))
        .filter(|target| !target.starts_with(['\t', '.', '$']))
        .collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in documents() {
        for code in code(&text) {
            let code = code.trim_start_matches("sudo ");
            let Some(rest) = code.strip_prefix("make ") else {
                continue;
            };
            let target = rest.split_whitespace().next().unwrap_or_default();
            seen += 1;
            if !targets.contains(target) && !target.contains('=') {
                wrong.push(format!("{}: make {target}", path.display()));
            }
        }
    }
    assert!(seen > 5, "documents name targets");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Those that need no privileges: the certificates of two servers.
#[test]
fn the_commands_of_the_readme_run() {
    common::pki();
    let folder = tempfile::tempdir().expect("a folder");
    let readme = fs::read_to_string(root().join("README.md")).expect("it is there");
    let mut count = 0;
    for line in code(&readme) {
        let line = line.split(" # ").next().unwrap_or_default().trim();
        let Some(arguments) = line.strip_prefix("godwit pki ") else {
            continue;
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_godwit"));
        command.arg("pki").args(arguments.split_whitespace());
        let output = command.current_dir(folder.path()).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{line}: {output:?}");
        count += 1;
    }
    assert!(count >= 3, "the README makes certificates");
    assert!(folder.path().join("pki-b/node.key").exists());
}

#[test]
fn the_example_configuration_is_understood() {
    let example = root().join("packaging/godwit.toml");
    let config = godwit_agent::config::Config::load(&example).expect("it is valid");
    assert!(!config.services.is_empty());
    assert_eq!(config.warnings, Vec::<String>::new());
}

/// Names of threads in the sources of the agent.
fn threads_of_sources(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it is listed").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "tests" {
            threads_of_sources(&path, names);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).expect("it is text");
            let quoted = text.split("\"gw-").skip(1);
            let quoted = quoted.filter_map(|rest| rest.split_once('"'));
            names.extend(quoted.map(|(name, _)| format!("gw-{name}")));
        }
    }
}

#[test]
fn every_thread_is_in_the_table_and_no_other() {
    let mut sources = BTreeSet::new();
    threads_of_sources(&root().join("crates/godwit-agent/src"), &mut sources);
    let table = fs::read_to_string(root().join("docs/threads.md")).expect("it is there");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `gw-"));
    let cells = rows.filter_map(|row| row.split_once(" | "));
    let cells = cells.flat_map(|(cell, _)| cell.split(", ").collect::<Vec<_>>());
    let named: BTreeSet<_> = cells
        .map(|cell| format!("gw-{}", cell.trim_matches('`').trim_start_matches("gw-")))
        .collect();
    assert!(sources.contains("gw-driver"), "{sources:?}");
    assert_eq!(named, sources, "docs/threads.md, sources");
}

/// `docs/configuration.md` says `systemctl reload`, of whatever node.
#[test]
fn units_can_reload() {
    let folder = root().join("packaging");
    let entries = fs::read_dir(folder).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("it is listed").path());
    let units = paths.filter(|path| path.extension().is_some_and(|it| it == "service"));
    let mut count = 0;
    for unit in units {
        let text = fs::read_to_string(&unit).expect("it is text");
        // Those of the authority's program read no file of a node.
        if text.contains("\nExecStart=/usr/bin/godwit-pki ") {
            continue;
        }
        let reloads = |line: &str| line.starts_with("ExecReload=/usr/bin/godwit reload ");
        assert!(text.lines().any(reloads), "{}", unit.display());
        count += 1;
    }
    assert!(count >= 3, "{count} units");
}
