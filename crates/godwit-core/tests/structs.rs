//! A struct has no more fields than a reader can keep in mind: what belongs together is a
//! struct of its own.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "source/mod.rs"]
mod source;

use source::tokens;

/// As many fields may one have.
const MOST: usize = 20;

/// Those that may have more, and why.
const EXCEPTIONS: [(&str, &str, &str); 1] = [(
    "crates/godwit-bpf/src/maps/flows.rs",
    "FlowState",
    "mirrors `struct gw_flow` of the data path and its flags",
)];

/// The structs of a file that have fields with names, and how many.
fn structs(text: &str) -> Vec<(String, usize)> {
    let tokens = tokens(text);
    let mut structs = Vec::new();
    for (at, name) in tokens.iter().enumerate().skip(1) {
        let is_name = name.starts_with(|c: char| c.is_alphabetic());
        if tokens[at - 1] != "struct" || !is_name {
            continue;
        }
        // Bounds of a `where` have no braces.
        let body = tokens[at..].iter().position(|it| it == "{" || it == ";");
        let Some(body) = body.map(|body| at + body).filter(|at| tokens[*at] == "{") else {
            continue;
        };
        structs.push((name.clone(), fields(&tokens[body..])));
    }
    structs
}

/// How many colons are in the braces that these begin with, but in no others.
fn fields(body: &[String]) -> usize {
    let (mut depth, mut fields) = (0, 0);
    for token in body {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            ":" if depth == 1 => fields += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    fields
}

/// All files of Rust below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn structs_have_few_fields() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    collect(&root.join("crates"), &mut files);
    collect(&root.join("tests"), &mut files);
    files.sort();
    let (mut seen, mut large) = (0, Vec::new());
    for path in files {
        let text = fs::read_to_string(&path).expect("it was listed");
        let file = path.strip_prefix(&root).expect("it is below");
        let file = file.to_string_lossy();
        for (name, fields) in structs(&text) {
            seen += 1;
            let mut known = EXCEPTIONS.iter();
            let is_known = known.any(|it| (it.0, it.1) == (&*file, name.as_str()));
            if fields > MOST && !is_known {
                large.push(format!("{file}: {name}: {fields} fields"));
            }
        }
    }
    assert!(seen > 500, "{seen} structs were found");
    assert!(large.is_empty(), "more than {MOST} fields: {large:#?}");
}

#[test]
fn what_is_no_field_is_not_counted() {
    let text = "
        struct Unit;
        struct Pair(u8, std::net::IpAddr);
        /// struct Said { a: u8 }
        pub(crate) struct Bound<'a, T: Copy>
        where
            T: Into<u8>,
        {
            #[serde(default = \"f\", with = \"a::b\")]
            pub one: [(&'a T, u8); 2],
            // not: u8,
            two: fn(of: u8) -> core::fmt::Result,
        }
        enum Other { Variant { a: u8 } }
        const SAID: &str = \"struct Text { a: u8 }\";
        macro_rules! made { () => { struct $name { a: u8 } } }";
    assert_eq!(structs(text), [("Bound".to_owned(), 2)]);
}
