//! Files of the core and of the agent do not all know each other.
//!
//! A file knows another one if it names something that is defined there, by a `use` or by a
//! path; who names a re-export knows the file that defines it. A circle is a set of files each
//! of which knows all others, if by way of others. What only tests name does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "source/mod.rs"]
mod source;

use source::tokens;

/// As many files may be in one circle.
const MOST: usize = 12;

type Module = Vec<String>;

/// What one file says of others.
#[derive(Debug, Default)]
struct Said {
    /// Paths that it names, from a `use` or elsewhere.
    paths: Vec<Vec<String>>,
    /// What it has from elsewhere under a name of its own, and may hand on.
    uses: BTreeMap<String, Vec<String>>,
    defines: BTreeSet<String>,
}

/// Where the item or the group that begins at `at` ends: behind its `;` or its last brace.
fn end_of_item(tokens: &[String], at: usize) -> usize {
    let mut depth = 0_usize;
    for (next, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token == "}" {
                    return next + 1;
                }
            }
            ";" if depth == 0 => return next + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Without what is there for tests only, and without who may see what.
fn stripped(tokens: &[String]) -> Vec<String> {
    let begins = |at: usize, with: &[&str]| {
        let there = tokens.get(at..at + with.len());
        there.is_some_and(|it| it.iter().map(String::as_str).eq(with.iter().copied()))
    };
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if begins(at, &["#", "[", "cfg", "(", "test", ")", "]"]) {
            at = end_of_item(tokens, at + 7);
        } else if begins(at, &["pub", "("]) {
            let end = tokens[at..].iter().position(|it| it == ")");
            at += end.map_or(1, |end| end + 1);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The paths of a `use`, each with the name under which it is known.
fn expand(tree: &[String], before: &[String], into: &mut Vec<(String, Vec<String>)>) {
    let mut path = before.to_vec();
    let mut name = None;
    let mut at = 0;
    while at < tree.len() {
        match tree[at].as_str() {
            "::" => {}
            "as" => {
                name = tree.get(at + 1).cloned();
                at += 1;
            }
            "{" => {
                let (mut depth, mut from) = (0, at + 1);
                for next in at..tree.len() {
                    match tree[next].as_str() {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    let ends = depth == 0 || (depth == 1 && tree[next] == ",");
                    if ends && from < next {
                        expand(&tree[from..next], &path, into);
                    }
                    if ends {
                        from = next + 1;
                    }
                }
                return;
            }
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    let last = path.last().cloned();
    if let Some(known_as) = name.or(last) {
        into.push((known_as, path));
    }
}

const DEFINING: [&str; 8] = [
    "struct", "enum", "fn", "type", "trait", "const", "static", "mod",
];

fn said(text: &str) -> Said {
    let tokens = stripped(&tokens(text));
    let mut said = Said::default();
    let mut at = 0;
    while at < tokens.len() {
        let is_step = |at: usize| tokens.get(at).is_some_and(|it| it == "::");
        if tokens[at] == "use" {
            let end = tokens[at..].iter().position(|it| it == ";");
            let end = end.map_or(tokens.len(), |end| at + end);
            let mut paths = Vec::new();
            expand(&tokens[at + 1..end], &[], &mut paths);
            for (name, path) in paths {
                said.paths.push(path.clone());
                said.uses.insert(name, path);
            }
            at = end;
        } else if DEFINING.contains(&tokens[at].as_str()) {
            said.defines.extend(tokens.get(at + 1).cloned());
        } else if is_step(at + 1) && (at == 0 || !is_step(at - 1)) {
            let mut path = vec![tokens[at].clone()];
            while is_step(at + 1) && tokens.get(at + 2).is_some_and(|it| it != "<") {
                path.push(tokens[at + 2].clone());
                at += 2;
            }
            said.paths.push(path);
        }
        at += 1;
    }
    said
}

/// A crate's files, by their modules.
struct Crate(BTreeMap<Module, Said>);

impl Crate {
    fn read(name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{name}/src"));
        let mut files = BTreeMap::new();
        collect(&source, &[], &mut files);
        let read = |path: &PathBuf| fs::read_to_string(path).expect("it was listed");
        let said = files
            .iter()
            .map(|(module, path)| (module.clone(), said(&read(path))));
        Self(said.collect())
    }

    /// In which file the beginning of a path leads, and to what there.
    fn resolve(&self, from: &Module, path: &[String]) -> Option<(Module, Option<String>)> {
        let mut path = path.iter();
        let mut at = match path.next()?.as_str() {
            "crate" => Module::new(),
            "self" => from.clone(),
            "super" => parent(from)?,
            word => {
                let child = [from.as_slice(), &[word.to_owned()]].concat();
                self.0.contains_key(&child).then_some(child)?
            }
        };
        for word in path {
            let child = [at.as_slice(), std::slice::from_ref(word)].concat();
            if word == "super" {
                at = parent(&at)?;
            } else if self.0.contains_key(&child) {
                at = child;
            } else {
                return Some((at, Some(word.clone())));
            }
        }
        Some((at, None))
    }

    /// The file that defines what a path names.
    fn home(&self, from: &Module, path: &[String]) -> Option<Module> {
        let (mut module, mut name) = self.resolve(from, path)?;
        // Re-exports of re-exports end somewhere.
        for _ in 0..8 {
            let here = &self.0[&module];
            let Some(what) = name.as_ref().filter(|what| !here.defines.contains(*what)) else {
                break;
            };
            let Some(handed_on) = here.uses.get(what) else {
                break;
            };
            let Some(next) = self.resolve(&module, handed_on) else {
                break;
            };
            (module, name) = next;
        }
        Some(module)
    }

    fn known(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let known = self.0.iter().map(|(module, said)| {
            let homes = said.paths.iter().filter_map(|path| self.home(module, path));
            (module, homes.filter(|home| home != module).collect())
        });
        known.collect()
    }

    fn largest_circle(&self) -> Vec<String> {
        let known = self.known();
        let reach = |from: &Module| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(module) = next.pop() {
                for one in &known[&module] {
                    if seen.insert(one.clone()) {
                        next.push(one.clone());
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<_, _> = known.keys().map(|one| (*one, reach(one))).collect();
        let circle = |of: &Module| -> Vec<String> {
            let with = reached[of].iter().filter(|one| reached[*one].contains(of));
            with.map(|one| one.join("::")).collect()
        };
        let circles = known.keys().map(|one| circle(one));
        circles.max_by_key(Vec::len).unwrap_or_default()
    }
}

fn parent(module: &Module) -> Option<Module> {
    let (_, parent) = module.split_last()?;
    Some(parent.to_vec())
}

fn collect(folder: &Path, module: &[String], files: &mut BTreeMap<Module, PathBuf>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it is listed").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if ["tests", "testing"].contains(&&*name) {
            continue;
        }
        let below = [module, &[name.clone().into_owned()]].concat();
        if path.is_dir() {
            collect(&path, &below, files);
        } else if ["lib", "main", "mod"].contains(&&*name) {
            files.insert(module.to_vec(), path);
        } else {
            files.insert(below, path);
        }
    }
}

/// Who opens one file need not read fifty to know what it stands on.
#[test]
fn circles_of_files_are_small() {
    for name in ["godwit-core", "godwit-agent"] {
        let circle = Crate::read(name).largest_circle();
        assert!(
            circle.len() > 2,
            "{name}: nothing was found to know anything"
        );
        assert!(
            circle.len() <= MOST,
            "{name}: {} files know each other: {circle:?}",
            circle.len()
        );
    }
}

#[test]
fn a_re_export_leads_to_the_file_that_defines() {
    let files = [
        (
            vec![],
            "mod a; mod b; pub use a::{One, Two as Other}; fn x() { crate::b::f(); }",
        ),
        (vec!["a"], "pub struct One; struct Two; use crate::b::f;"),
        (
            vec!["b"],
            "use super::Other; pub(in super::super) fn f() { \"crate::c::g\"; }",
        ),
        (
            vec!["c"],
            "#[cfg(test)] mod tests { use super::super::a::One; } use crate::One;",
        ),
    ];
    let files = files.map(|(module, text)| {
        let module: Module = module.into_iter().map(str::to_owned).collect();
        (module, said(text))
    });
    let all = Crate(files.into());
    let names = |of: &str| -> Vec<String> {
        let homes = &all.known()[&vec![of.to_owned()]];
        homes.iter().map(|home| home.join("::")).collect()
    };
    assert_eq!(
        (names("a"), names("b")),
        (vec!["b".into()], vec!["a".into()])
    );
    assert_eq!(names("c"), ["a"]);
    assert_eq!(all.largest_circle(), ["a", "b"]);
}
