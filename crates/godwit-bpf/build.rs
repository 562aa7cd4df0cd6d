//! Compiles the programs with clang and writes their skeletons to `OUT_DIR`.
//!
//! `MUTANT=NAME` leaves one mechanism out, for a chaos run to find (docs/testing.md), in a
//! build with the feature `mutants` alone: no environment makes a build for use another one.
//! The agent of such a build says so loudly.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

/// What is compiled, and what its skeleton is called.
const SOURCES: [(&str, &str); 3] = [
    ("bpf/director.bpf.c", "director.skel.rs"),
    ("bpf/godwit.bpf.c", "godwit.skel.rs"),
    ("bpf/socket.bpf.c", "socket.skel.rs"),
];

/// Policies that come with Godwit, as programs of their own (docs/policies.md).
const POLICIES: [&str; 3] = ["by_class", "by_cookie", "least_loaded"];

/// Without padding.
const INTEGERS: [&str; 8] = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"];

/// What may be left out, in the order of `enum gw_mutant` (gw_mutant.h) after
/// its first.
const MUTANTS: [&str; 4] = ["no-fence", "no-gate", "no-timestamp-offset", "no-proof"];

/// What tests try on its own.
const TRIAL: &str = "tests/phases.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=../../examples/policies");
    println!("cargo:rerun-if-changed={TRIAL}");
    println!("cargo:rerun-if-env-changed=GODWIT_CLANG");
    println!("cargo:rerun-if-env-changed=MUTANT");
    println!("cargo:rustc-env=GODWIT_COMPILER={}", compiler());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for (source, skeleton) in SOURCES {
        SkeletonBuilder::new()
            .source(source)
            .clang(clang())
            .clang_args(clang_args().into_iter().chain(mutation()))
            .reference_obj(true)
            .build_and_generate(out.join(skeleton))
            .unwrap_or_else(|err| panic!("can't compile {source}: {err:#}"));
        let skeleton = out.join(skeleton);
        let text = fs::read_to_string(&skeleton).expect("it was written just now");
        let fields = skeleton.with_extension("").with_extension("fields.rs");
        fs::write(fields, fields_of(&text)).expect("there is room");
    }
    for name in POLICIES {
        let source = format!("../../examples/policies/{name}.bpf.c");
        compile(&source, &out.join(format!("{name}.bpf.o")));
    }
    compile(TRIAL, &out.join("phases.bpf.o"));
}

/// A program without a skeleton.
fn compile(source: &str, object: &Path) {
    SkeletonBuilder::new()
        .source(source)
        .clang(clang())
        .clang_args(clang_args())
        .obj(object)
        .build()
        .unwrap_or_else(|err| panic!("can't compile {source}: {err:#}"));
}

/// What the fields of each layout take together, for the compiler to see whether there is
/// padding between them (`src/convert.rs`). Layouts of other things are left out.
fn fields_of(skeleton: &str) -> String {
    let mut layouts = BTreeMap::new();
    let lines = skeleton.lines().map(str::trim);
    let mut lines = lines.skip_while(|line| *line != "pub mod types {");
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("pub struct ");
        if let Some(name) = name.and_then(|rest| rest.strip_suffix(" {")) {
            let fields = lines.by_ref().take_while(|line| *line != "}");
            let types = fields.filter_map(|line| line.split_once(": "));
            let types = types.map(|(_, kind)| kind.trim_end_matches(','));
            layouts.insert(name, types.collect::<Vec<_>>());
        }
    }
    loop {
        let before = layouts.len();
        let known: BTreeSet<_> = layouts.keys().copied().collect();
        let is_known = |kind: &&str| {
            let part = kind.trim_start_matches('[').split(';').next();
            let part = part.unwrap_or_default();
            kind.starts_with("*mut ") || INTEGERS.contains(&part) || known.contains(part)
        };
        layouts.retain(|_, types| types.iter().all(&is_known));
        if layouts.len() == before {
            break;
        }
    }
    let code = layouts.iter().map(|(name, types)| {
        let sizes = types.iter().map(|kind| format!("<{kind} as Fields>::SIZE"));
        let sum = sizes.collect::<Vec<_>>().join(" + ");
        let sum = if sum.is_empty() { "0" } else { &sum };
        format!("impl Fields for {name} {{ const SIZE: usize = {sum}; }}\n")
    });
    code.collect()
}

/// clang-14 is what the programs are checked with (Debian 12); a plain `clang`
/// of another version is taken when it is missing.
fn clang() -> OsString {
    if let Some(chosen) = env::var_os("GODWIT_CLANG") {
        return chosen;
    }
    ["/usr/bin/clang-14", "/usr/bin/clang-19"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or("clang")
        .into()
}

/// What the compiler calls itself, with its version: `Debian clang version 14.0.6`.
fn compiler() -> String {
    let said = Command::new(clang()).arg("--version").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let first = said
        .ok()
        .and_then(|said| said.lines().next().map(str::to_owned));
    first.unwrap_or_else(|| "an unknown compiler".into())
}

/// The compiler's argument for the mutant that is asked for, if one is.
fn mutation() -> Option<OsString> {
    let wanted = env::var("MUTANT").ok().filter(|name| !name.is_empty())?;
    assert!(
        env::var_os("CARGO_FEATURE_MUTANTS").is_some(),
        "MUTANT={wanted} is for tests of tests: it needs the feature `mutants`, which no build \
         for use has"
    );
    let number = MUTANTS.iter().zip(1..).find(|(name, _)| **name == wanted);
    let Some((name, number)) = number else {
        panic!("there is no mutant {wanted:?}; there are: {MUTANTS:?}");
    };
    println!("cargo:rustc-env=GODWIT_MUTANT={name}");
    Some(format!("-DGW_MUTANT={number}").into())
}

fn clang_args() -> Vec<OsString> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the folder");
    [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
        "-Wno-sign-compare",
        "-mcpu=v3",
        "-Ibpf",
        "-Iinclude",
        // The same object wherever it is built: the lines of its BTF name files.
        &format!("-fdebug-prefix-map={here}=."),
        // Debian keeps <asm/types.h> in the multiarch folder.
        &format!("-I/usr/include/{arch}-linux-gnu"),
    ]
    .into_iter()
    .map(OsString::from)
    .collect()
}
