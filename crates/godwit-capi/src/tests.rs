//! The header says what this library does: a C compiler and this one agree.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;
use std::process::Command;

use super::*;

/// What C calls it, and what it is here.
fn constants() -> Vec<(String, i64)> {
    let mut all = Vec::new();
    let mut add = |name: &str, value: i64| all.push((name.to_owned(), value));
    let size = |value: usize| i64::try_from(value).expect("small");
    add("GW_OK", 0);
    for (name, result) in [
        ("GW_NULL_PARAMETER", GwResult::NullParameter),
        ("GW_PANIC", GwResult::Panic),
        ("GW_BAD_DESCRIPTOR", GwResult::BadDescriptor),
        ("GW_TOO_LARGE", GwResult::TooLarge),
        ("GW_NO_SPACE", GwResult::NoSpace),
        ("GW_EMIGRATED", GwResult::Emigrated),
        ("GW_UNSUPPORTED", GwResult::Unsupported),
        ("GW_WOULD_BLOCK", GwResult::WouldBlock),
        ("GW_INTERRUPTED", GwResult::Interrupted),
        ("GW_BAD_SIZE", GwResult::BadSize),
        ("GW_SYSTEM", GwResult::System),
        ("GW_UNPROTECTED", GwResult::Unprotected),
        ("GW_MISPLACED", GwResult::Misplaced),
    ] {
        add(name, result as i64);
    }
    add("GW_LISTEN_STATELESS", LISTEN_STATELESS.into());
    add("GW_ACCEPT_NONBLOCK", ACCEPT_NONBLOCK.into());
    add("GW_ACCEPT_CLOEXEC", ACCEPT_CLOEXEC.into());
    add("GW_EXPORT_COMMIT", EXPORT_COMMIT.into());
    add("GW_MAX_SNAPSHOT", MAX_SNAPSHOT.into());
    add("GW_MAX_SESSION", size(godwit_app::MAX_SESSION));
    for (name, text) in [
        ("GW_VERSION_MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("GW_VERSION_MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("GW_VERSION_PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        add(name, text.parse().expect("a number"));
    }
    add("sizeof(struct gw_options)", size(size_of::<GwOptions>()));
    add(
        "offsetof(struct gw_options, flags)",
        size(offset_of!(GwOptions, flags)),
    );
    add("sizeof(struct gw_accepted)", size(size_of::<GwAccepted>()));
    let accepted = [
        ("flags", offset_of!(GwAccepted, flags)),
        ("fd", offset_of!(GwAccepted, fd)),
        ("migrated", offset_of!(GwAccepted, migrated)),
        ("snapshot_size", offset_of!(GwAccepted, snapshot_size)),
    ];
    for (field, offset) in accepted {
        add(
            &format!("offsetof(struct gw_accepted, {field})"),
            size(offset),
        );
    }
    all
}

#[test]
fn c_and_rust_have_the_same_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut source = String::from("#include <godwit.h>\n");
    for (name, value) in constants() {
        let line = format!("_Static_assert({name} == {value}, \"{value}\");");
        writeln!(source, "{line}").expect("a string");
    }
    let path = folder.path().join("same.c");
    fs::write(&path, source).expect("the folder is ours");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Werror", "-fsyntax-only", include])
        .arg(&path)
        .status();
    assert!(compiled.expect("a C compiler").success());
}

#[test]
fn every_result_of_the_header_is_tested() {
    let header = include_str!("../include/godwit.h");
    let known: Vec<_> = constants().into_iter().map(|(name, _)| name).collect();
    let named = header.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(" = ")?;
        let number = value.trim_end_matches(',').parse::<i64>().is_ok();
        (number && name.starts_with("GW_")).then_some(name)
    });
    let missing: Vec<_> = named
        .filter(|name| !known.iter().any(|known| known == name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_result_has_a_sentence() {
    let text = |result| {
        // SAFETY: it returns static strings.
        let text = unsafe { CStr::from_ptr(gw_result_str(result)) };
        text.to_str().expect("English").to_owned()
    };
    assert_eq!(text(0), "done");
    assert_eq!(text(7), "done");
    assert_eq!(
        text(GwResult::Emigrated as c_int),
        "the connection has moved to another server"
    );
    assert_eq!(text(-99), "no result of this release");
}

#[test]
fn a_panic_is_a_number() {
    let result: c_int = boundary(|| panic!("a defect, said on purpose"));
    assert_eq!(result, GwResult::Panic as c_int);
}
