//! Rules of the data path's sources that no compiler knows.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of headers, each above those that may include it: the table of
/// docs/data-path.md.
fn folders() -> Vec<String> {
    let text = include_str!("../../../docs/data-path.md");
    let table = text.split("| folder | what its headers are about |").nth(1);
    let rows = table.expect("the table").lines().skip(2);
    let rows = rows.take_while(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('`').nth(1));
    names.map(str::to_owned).collect()
}

/// Includes that go down that table: ARCHITECTURE.md names them.
const DOWN: [(&str, &str); 2] = [
    ("flow/gw_watchdog.h", "request/gw_transfer.h"),
    ("request/gw_ring.h", "shadow/gw_shadow.h"),
];

/// The headers of a folder: path below `bpf/`, text.
fn headers(folder: &str) -> Vec<(String, String)> {
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let files = fs::read_dir(bpf.join(folder)).expect("the folder is there");
    let files = files.map(|file| file.expect("it can be read").path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let below = path.strip_prefix(&bpf).expect("it is there");
        let name = below.to_string_lossy().into_owned();
        (name, fs::read_to_string(path).expect("it is text"))
    };
    files.into_iter().map(read).collect()
}

/// A folder that is not in the table, or an include that goes down it, makes two chapters one.
#[test]
fn headers_include_what_is_above_them() {
    let folders = folders();
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let mut there = Vec::new();
    for entry in fs::read_dir(bpf).expect("the folder is there") {
        let entry = entry.expect("it can be read");
        if entry.path().is_dir() {
            there.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    let mut named = folders.clone();
    there.sort();
    named.sort();
    assert_eq!(there, named, "folders, and those of docs/data-path.md");
    let mut down = Vec::new();
    for (at, folder) in folders.iter().enumerate() {
        for (file, text) in headers(folder) {
            for include in text.lines().filter_map(|it| it.strip_prefix("#include \"")) {
                let include = include.trim_end_matches('"');
                let of = include.split_once('/').expect("it names a folder").0;
                let place = folders.iter().position(|it| it == of);
                if place.expect("it is in the table") > at {
                    down.push((file.clone(), include.to_owned()));
                }
            }
        }
    }
    down.sort();
    let known = DOWN.map(|(file, include)| (file.to_owned(), include.to_owned()));
    assert_eq!(down, known, "includes that go down the table");
}

/// Whoever writes a phase by itself leaves out the table of what may follow what.
#[test]
fn phases_are_written_in_one_place() {
    let mut folders = folders();
    folders.push(String::new());
    for (file, text) in folders.iter().flat_map(|folder| headers(folder)) {
        let mut lines = text.lines();
        let written = lines.find(|line| line.contains("phase = ") && line.contains("GW_PHASE"));
        assert_eq!(written, None, "{file}");
    }
}
