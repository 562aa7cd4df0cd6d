//! `godwit`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    godwit_cli::run()
}
