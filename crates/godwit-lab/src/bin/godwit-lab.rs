//! `godwit-lab`, which `godwit demo`, `bench` and `chaos` run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    godwit_lab::cli::run()
}
