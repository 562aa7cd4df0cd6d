//! Sentences for people have one blank between words: a literal that goes over the end of a
//! line without a backslash has the next line's indentation in it.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose literals people read as they stand.
const CRATES: [&str; 6] = [
    "godwit",
    "godwit-agent",
    "godwit-bpf",
    "godwit-core",
    "godwit-pki",
    "godwit-sock",
];

#[test]
fn no_sentence_has_two_blanks_in_a_row() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let crates = crates.expect("it is among others");
    let (mut seen, mut wrong) = (0, Vec::new());
    for name in CRATES {
        for file in sources(&crates.join(name).join("src")) {
            let text = fs::read_to_string(&file).expect("it is readable");
            for literal in literals(&text) {
                seen += 1;
                if has_gap(&literal) {
                    wrong.push(format!("{}: {literal:?}", file.display()));
                }
            }
        }
    }
    assert!(seen > 1000, "the sources are found: {seen}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_gap_is_found_wherever_it_comes_from() {
    let gap = |text: &str| literals(text).iter().any(|it| has_gap(it));
    assert!(gap("say(\"only peers   reach it\")"));
    assert!(gap("say(\"only peers\n      reach it\")"));
    assert!(gap("let c = '\"'; say(\"only, peers  reach\")"));
    assert!(gap("fn f<'a>() { say(\"a \\\" b  c\") }"));
    assert!(!gap("say(\"only peers \\\n     reach it\")"));
    assert!(!gap("// say \"only   peers\"\nsay(\"only\", \"peers\")"));
    assert!(!gap("say(\"a     b\\nlong  x\\n\")"), "a table");
}

/// What tests read is none of it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it is readable").path();
        if path.file_stem().is_some_and(|it| it == "tests") {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
    found
}

/// The string literals of a source, as the compiler sees them; escapes stay as they are.
fn literals(source: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(['"', '\'', '/', 'r']) {
        rest = &rest[at..];
        let skipped = ["'\"'", "'\\\"'", "'\\''", "r#\"", "r\""];
        if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, next)| next);
        } else if let Some(kind) = skipped.iter().find(|kind| rest.starts_with(**kind)) {
            rest = &rest[kind.len()..];
            let end = match *kind {
                "r#\"" => "\"#",
                "r\"" => "\"",
                _ => continue,
            };
            rest = rest.split_once(end).map_or("", |(_, next)| next);
        } else if let Some(text) = rest.strip_prefix('"') {
            let (literal, next) = literal(text);
            found.push(literal);
            rest = next;
        } else {
            rest = &rest[1..];
        }
    }
    found
}

/// Behind the quote: the literal, and what follows it.
fn literal(text: &str) -> (String, &str) {
    let mut literal = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (literal, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((at, '\n')) => {
                    let next = text[at..].trim_start();
                    chars = text.char_indices();
                    let behind = text.len() - next.len();
                    chars.by_ref().find(|(at, _)| at + 1 == behind);
                }
                Some((_, escaped)) => literal.extend(['\\', escaped]),
                None => break,
            },
            _ => literal.push(char),
        }
    }
    (literal, "")
}

/// Two blanks between words. What has lines of its own is a table.
fn has_gap(literal: &str) -> bool {
    let is_word = |char: char| char.is_ascii_lowercase() || "`({".contains(char);
    let mut blanks = 0;
    for char in literal.trim_start().chars() {
        if char.is_whitespace() {
            blanks += 1;
        } else if blanks > 1 && is_word(char) {
            return !literal.contains("\\n");
        } else {
            blanks = 0;
        }
    }
    false
}
