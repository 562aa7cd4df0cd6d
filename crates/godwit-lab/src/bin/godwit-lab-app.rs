//! Server and client of the lab as a program of their own.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    match godwit_lab::apps::command::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write as _;
            // Nobody may be listening any more; the exit code says it too.
            let _ = writeln!(std::io::stderr(), "godwit-lab-app: {error:#}");
            ExitCode::FAILURE
        }
    }
}
