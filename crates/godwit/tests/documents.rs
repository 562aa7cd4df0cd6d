//! What the documents say, as far as a program can check it: links lead somewhere, the
//! commands, options and targets that they name are there, README's commands run,
//! `docs/threads.md` has the threads of the sources, and sentences are short.

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

/// The headings of a document as the names that links to them have.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let name = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let words = words.replace(' ', "-");
        words.replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "")
    };
    headings.map(name).collect()
}

#[test]
fn links_into_documents_lead_to_headings() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (path, text) in documents() {
        let folder = path.parent().expect("it is in a folder");
        for link in text.split("](").skip(1) {
            let target = link.split([')', ' ']).next().unwrap_or_default();
            let Some((file, heading)) = target.split_once('#') else {
                continue;
            };
            if file.contains("://") {
                continue;
            }
            let there = match file {
                "" => text.clone(),
                _ => fs::read_to_string(folder.join(file)).unwrap_or_default(),
            };
            seen += 1;
            if !anchors(&there).contains(heading) {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(seen > 20, "documents lead to headings");
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

/// Names of threads, in files of the agent that hand orders to a worker.
fn workers_of_sources(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() {
            workers_of_sources(&path, names);
            continue;
        }
        let text = fs::read_to_string(&path).expect("it is text");
        if text.contains("Orders<") {
            let named = text.split(".name(\"").skip(1);
            let named = named.filter_map(|rest| rest.split_once('"'));
            names.extend(named.map(|(name, _)| name.to_owned()));
        }
    }
}

#[test]
fn the_table_of_workers_has_those_that_are_given_orders() {
    let mut sources = BTreeSet::new();
    workers_of_sources(&root().join("crates/godwit-agent/src"), &mut sources);
    let text = fs::read_to_string(root().join("docs/threads.md")).expect("it is there");
    let table = text.lines().skip_while(|it| *it != "| thread | work |");
    let rows = table.skip(2).take_while(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let named: BTreeSet<_> = cells
        .map(|cell| cell.trim_matches(['|', ' ', '`']).to_owned())
        .collect();
    assert!(sources.len() > 3, "{sources:?}");
    assert_eq!(named, sources, "docs/threads.md, sources");
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

#[test]
fn the_glossary_has_few_words_and_each_once() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).expect("it is there");
    let table = glossary
        .lines()
        .skip_while(|it| *it != "| word | meaning |");
    let rows = table.skip(2).take_while(|line| line.starts_with("| "));
    let words: Vec<_> = rows.filter_map(|row| row.split(" | ").next()).collect();
    let single: BTreeSet<_> = words.iter().filter(|it| !it.contains(',')).collect();
    assert!(words.len() > 30, "{words:?}");
    assert!(words.len() <= 40, "{} words", words.len());
    assert_eq!(words.len(), single.len(), "{words:?}");
}

/// Documents of short sentences.
const PLAIN: [&str; 17] = [
    "ARCHITECTURE.md",
    "docs/benchmarks.md",
    "docs/data-path.md",
    "docs/design.md",
    "docs/director.md",
    "docs/divergence.md",
    "docs/flow.md",
    "docs/glossary.md",
    "docs/kernel-facts.md",
    "docs/links.md",
    "docs/metrics.md",
    "docs/policies.md",
    "docs/protocol.md",
    "docs/reasons.md",
    "docs/requests.md",
    "docs/threads.md",
    "docs/unsuitable.md",
];

/// Documents whose sentences have at most [`LONGEST`] words. Their tables have many long ones.
const BOUNDED: [&str; 11] = [
    "README.md",
    "SECURITY.md",
    "bench/README.md",
    "docs/adr/0014-a-released-lease-does-not-wait-for-queues.md",
    "docs/configuration.md",
    "docs/facts.md",
    "docs/libgodwit.md",
    "docs/partitions.md",
    "docs/simulation.md",
    "docs/testing.md",
    "docs/upgrade.md",
];

/// Most words of a sentence, with exceptions: so many in a hundred, of so many words.
const SENTENCE: usize = 25;
const EXCEPTIONS: usize = 5;
const LONGEST: usize = 40;

/// Paragraphs, items of lists and cells of tables; no headings, and no code.
fn paragraphs(text: &str) -> Vec<String> {
    let (mut all, mut open, mut is_fenced) = (Vec::new(), String::new(), false);
    for line in text.lines().map(str::trim) {
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        let is_item = line.starts_with("- ")
            || line
                .split_once(". ")
                .is_some_and(|(it, _)| it.parse::<u32>().is_ok());
        let ends = is_fence || line.is_empty() || line.starts_with(['#', '|']) || is_item;
        if ends && !open.is_empty() {
            all.push(std::mem::take(&mut open));
        }
        if is_fenced || is_fence || line.starts_with('#') {
            continue;
        }
        if line.starts_with('|') {
            all.extend(line.split(" | ").map(str::to_owned));
            continue;
        }
        open.push_str(line);
        open.push(' ');
    }
    all.push(open);
    all
}

/// The words of each sentence. What stands between backquotes is one word.
fn sentences(paragraph: &str) -> Vec<Vec<String>> {
    let pieces = paragraph.split('`').enumerate();
    let prose = pieces.map(|(at, it)| if at % 2 == 0 { it } else { "code" });
    let prose: String = prose.collect();
    // An address of a link is no part of its sentence.
    let mut links = prose.split("](");
    let mut plain = links.next().unwrap_or_default().to_owned();
    plain.extend(links.filter_map(|it| it.split_once(')')).map(|(_, it)| it));
    let mut all = vec![Vec::new()];
    for word in plain.split_whitespace() {
        let last = all.last_mut().expect("there is one");
        if word.contains(char::is_alphanumeric) {
            last.push(word.to_owned());
        }
        if word
            .trim_end_matches([')', '*', '"'])
            .ends_with(['.', '?', '!'])
        {
            all.push(Vec::new());
        }
    }
    all.retain(|words| words.len() > 2);
    all
}

fn sentences_of(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join(name)).expect("it is there");
    let all: Vec<_> = paragraphs(&text)
        .iter()
        .flat_map(|it| sentences(it))
        .collect();
    assert!(all.len() > 20, "{name}: {} sentences", all.len());
    let longest = all.iter().max_by_key(|words| words.len());
    let longest = longest.expect("there are sentences");
    assert!(longest.len() <= LONGEST, "{name}: {longest:?}");
    all
}

#[test]
fn sentences_are_bounded() {
    for name in BOUNDED {
        sentences_of(name);
    }
}

#[test]
fn sentences_are_short() {
    for name in PLAIN {
        let all = sentences_of(name);
        let long = all.iter().filter(|words| words.len() > SENTENCE);
        let long: Vec<_> = long.map(|words| words.join(" ")).collect();
        assert!(
            long.len() * 100 <= all.len() * EXCEPTIONS,
            "{name}: {} of {} sentences have more than {SENTENCE} words: {long:#?}",
            long.len(),
            all.len()
        );
    }
}

#[test]
fn a_sentence_ends_where_one_does() {
    let text = "# No sentence at all here\n\nOne of `a b c d` ([x](y z.md#w)) here. Two is\n\
                there, at 10.9.0.1. \n\n| a cell that counts | two |\n|---|---|\n\n\
                ```\nno word of this\n```\n- an item too\n";
    let counts: Vec<_> = paragraphs(text)
        .iter()
        .flat_map(|it| sentences(it))
        .map(|words| words.len())
        .collect();
    assert_eq!(counts, [5, 5, 4, 3]);
}

/// All files of the sources below a folder, with their texts.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path
            .extension()
            .is_some_and(|it| it == "rs" || it == "h" || it == "c")
        {
            let text = fs::read_to_string(&path).expect("it is text");
            found.push((path, text));
        }
    }
}

/// What stands between single backquotes in a cell.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The table of `ARCHITECTURE.md` leads from a name to a file.
#[test]
fn the_architecture_says_where_reasons_are_counted() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let table = text.lines().skip_while(|it| !it.starts_with("| concern"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<_>> = rows.map(|row| row.split('|').skip(1).collect()).collect();
    let mut files = Vec::new();
    for part in ["core/src", "agent/src", "bpf/bpf"] {
        sources(&root().join(format!("crates/godwit-{part}")), &mut files);
    }
    let header = files.iter().find(|(path, _)| path.ends_with("gw_reason.h"));
    let (_, header) = header.expect("it is there");
    let reasons = header.split("GW_REASON_").skip(1);
    let reasons: BTreeSet<_> = reasons
        .filter_map(|it| it.split([' ', '\n', ',']).next())
        .collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for row in &rows {
        for name in row[1..4].iter().flat_map(|cell| quoted(cell)) {
            let name = name.trim_end_matches('/');
            let is_there = |(path, _): &(PathBuf, String)| {
                path.ends_with(name) || path.ancestors().any(|it| it.ends_with(name))
            };
            if !files.iter().any(is_there) {
                wrong.push(format!("no file {name}"));
            }
        }
        for name in quoted(row[0]) {
            let start = name.trim_end_matches('*').to_uppercase();
            let is_meant = |it: &&&str| match name.ends_with('*') {
                true => it.starts_with(&start),
                false => **it == start,
            };
            for reason in reasons.iter().filter(is_meant) {
                seen += 1;
                let counts = |(path, text): &(PathBuf, String)| {
                    quoted(row[3]).any(|it| path.ends_with(it))
                        && text
                            .split(&format!("GW_REASON_{reason}"))
                            .skip(1)
                            .any(|rest| {
                                !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
                            })
                };
                if !files.iter().any(counts) {
                    wrong.push(format!("{name} ({reason}) is not counted in {}", row[3]));
                }
            }
        }
    }
    assert!(rows.len() > 10 && seen > 100, "{} rows, {seen}", rows.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Headers that documents name are there, in whatever folder.
#[test]
fn headers_of_the_data_path_are_there() {
    let mut files = Vec::new();
    sources(&root().join("crates/godwit-bpf"), &mut files);
    let (mut wrong, mut seen) = (BTreeSet::new(), 0);
    for (path, text) in documents() {
        for code in code(&text) {
            let is_header = code.starts_with("gw_") && code.ends_with(".h");
            if !is_header || code.contains(' ') {
                continue;
            }
            seen += 1;
            if !files.iter().any(|(file, _)| file.ends_with(&code)) {
                wrong.insert(format!("{}: {code}", path.display()));
            }
        }
    }
    assert!(seen > 50, "documents name headers");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
