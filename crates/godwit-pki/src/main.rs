//! `godwit-pki`, which `godwit pki` runs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    godwit_pki::cli::run()
}
