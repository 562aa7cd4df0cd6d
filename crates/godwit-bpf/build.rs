//! Compiles the data path with clang and writes its skeleton to `OUT_DIR`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "bpf/godwit.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=GODWIT_CLANG");
    let out =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("godwit.skel.rs");
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang(clang())
        .clang_args(clang_args())
        .reference_obj(true)
        .build_and_generate(&out)
        .unwrap_or_else(|err| panic!("can't compile {SOURCE}: {err:#}"));
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

fn clang_args() -> Vec<OsString> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
        "-Wno-sign-compare",
        "-mcpu=v3",
        // Debian keeps <asm/types.h> in the multiarch folder.
        &format!("-I/usr/include/{arch}-linux-gnu"),
    ]
    .into_iter()
    .map(OsString::from)
    .collect()
}
