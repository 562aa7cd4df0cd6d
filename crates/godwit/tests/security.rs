//! SECURITY.md: each test that it names is there, in the file that it names, and its first
//! paragraph says what is not defended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the tests of each kind are, as the head of SECURITY.md says.
const PLACES: [(&str, &[&str]); 8] = [
    ("agent", &["crates/godwit-agent/src"]),
    ("app", &["crates/godwit-app/tests"]),
    ("bpf", &["crates/godwit-bpf/tests/hooks"]),
    (
        "core",
        &["crates/godwit-core/src", "crates/godwit-core/tests"],
    ),
    ("e2e", &["tests/tests"]),
    ("lab", &["crates/godwit-lab/src"]),
    ("pki", &["crates/godwit-pki/src"]),
    ("wire", &["crates/godwit-wire/src"]),
];

/// Whom there has to be a table about.
const WHO: [&str; 9] = [
    "**On the client network**",
    "**On the data network**",
    "**On the data network, with a server's MAC address**",
    "**On the control network**",
    "**With the key and certificate of a node**",
    "**A member of `app_group`**",
    "**An account on a node**",
    "**A server process**",
    "**A policy program**",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text() -> String {
    fs::read_to_string(root().join("SECURITY.md")).expect("it is there")
}

/// Sources of a module: its file, and all below the folder of its name.
fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    let file = path.with_extension("rs");
    found.extend(file.is_file().then_some(file));
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    for entry in entries.map(|entry| entry.path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|it| it == "rs") {
            found.push(entry);
        }
    }
}

/// The functions in a source that an attribute makes a test, `#[tokio::test]` too.
fn tests_of(source: &str) -> BTreeSet<String> {
    let (mut names, mut is_test) = (BTreeSet::new(), false);
    for line in source.lines().map(str::trim) {
        let attribute = line.split(['(', ']']).next().unwrap_or_default();
        if attribute.starts_with("#[") {
            is_test |= attribute == "#[test" || attribute.ends_with("::test");
        } else if let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            names.extend(is_test.then(|| name.to_owned()));
            is_test = false;
        } else if line.ends_with('}') && !line.starts_with("reason") {
            is_test = false;
        }
    }
    names
}

/// The tests of `module` in the places of `kind`.
fn tests(kind: &str, module: &str) -> BTreeSet<String> {
    let places: BTreeMap<_, _> = PLACES.into_iter().collect();
    let mut files = Vec::new();
    for place in places[kind] {
        let path = module
            .split("::")
            .fold(root().join(place), |at, part| at.join(part));
        sources(&path, &mut files);
    }
    let read = |path: &PathBuf| tests_of(&fs::read_to_string(path).expect("it is text"));
    files.iter().flat_map(read).collect()
}

/// One thing that a table says is tested.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// All tests of a kind and module.
    All(String, String),
    One(String, String, String),
}

/// `agent `peers`: `one`, `two`; `events` (all)` as what it names, in order.
fn named(cell: &str) -> Vec<Named> {
    let (mut found, mut kind, mut module) = (Vec::new(), None, None);
    let parts: Vec<_> = cell.split('`').collect();
    for (at, name) in parts.iter().enumerate().skip(1).step_by(2) {
        let before = parts[at - 1].split_whitespace().last().unwrap_or_default();
        let before = before.trim_start_matches('(');
        kind = PLACES
            .iter()
            .map(|place| place.0)
            .find(|it| *it == before)
            .or(kind);
        let after = parts.get(at + 1).copied().unwrap_or_default();
        let Some(kind) = kind else { continue };
        if after.starts_with(':') {
            module = Some(*name);
        } else if after.starts_with(" (all)") {
            found.push(Named::All(kind.to_owned(), (*name).to_owned()));
        } else if let Some(module) = module {
            let one = (kind.to_owned(), module.to_owned(), (*name).to_owned());
            found.push(Named::One(one.0, one.1, one.2));
        }
    }
    found
}

/// The last cells of the rows of all tables that say who can do what: those before the keys.
fn cells(text: &str) -> Vec<&str> {
    let (text, _) = text.split_once("\n## Keys\n").expect("it is a section");
    let last = |line| {
        let row = str::strip_prefix(line, "| ")?.strip_suffix(" |")?;
        row.rsplit_once(" | ").map(|(_, cell)| cell)
    };
    text.lines().filter_map(last).collect()
}

#[test]
fn each_test_that_is_named_is_there() {
    let text = text();
    let (mut missing, mut count) = (Vec::new(), 0);
    for cell in cells(&text) {
        for one in named(cell) {
            count += 1;
            let there = match &one {
                Named::All(kind, module) => !tests(kind, module).is_empty(),
                Named::One(kind, module, name) => tests(kind, module).contains(name),
            };
            if !there {
                missing.push(one);
            }
        }
    }
    assert!(count > 100, "{count} tests are named");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A row without a test says so with a dash.
#[test]
fn each_row_names_a_test_or_says_that_there_is_none() {
    let text = text();
    let bare = cells(&text).into_iter().filter(|cell| {
        let is_head = ["---", "test", "what Godwit does about it"].contains(cell);
        !is_head && *cell != "–" && named(cell).is_empty()
    });
    assert_eq!(bare.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn what_is_not_defended_comes_first() {
    let text = text();
    let place = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("{what} is missing"))
    };
    let first = place("## What is not defended");
    assert!(first < place("## Threat model"));
    let mut at = first;
    for who in WHO {
        let next = text[at..].find(who);
        at += next.unwrap_or_else(|| panic!("{who} is missing, or not in its place"));
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    let cell = "agent `peers`: `one`, `two`; `events` (all); e2e `spoof`: `three`";
    let one = |kind: &str, module: &str, name: &str| {
        Named::One(kind.to_owned(), module.to_owned(), name.to_owned())
    };
    let expected = [
        one("agent", "peers", "one"),
        one("agent", "peers", "two"),
        Named::All("agent".to_owned(), "events".to_owned()),
        one("e2e", "spoof", "three"),
    ];
    assert_eq!(named(cell), expected);
    let source = "#[test]\n#[ignore = \"long\"]\npub(crate) fn one() {\n}\n\nfn two() {}\n\
                  #[tokio::test(start_paused = true)]\nasync fn three() {}\n";
    let names = ["one", "three"].map(str::to_owned);
    assert_eq!(tests_of(source), BTreeSet::from(names));
}
