//! Names the library as the loader looks for it: programs that were linked with
//! another major version do not load this one.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgodwit.so.{major}");
}
