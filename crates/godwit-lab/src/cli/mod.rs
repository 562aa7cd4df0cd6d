//! `godwit-lab`, which `godwit demo`, `bench` and `chaos` run: clusters in network namespaces.
//!
//! A file per subcommand; each parses its arguments and calls the library.

mod app;
mod bench;
mod chaos;
mod demo;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::ensure;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::{Unknown, out};

/// The version of the `godwit` that runs this program.
const CALLER: &str = "GODWIT_LAB_CALLER";

/// Clusters of Godwit in network namespaces of their own.
#[derive(Debug, Parser)]
#[command(
    name = "godwit-lab",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it work, in network namespaces of its own.
    Demo(demo::Args),
    /// Measure against plain TCP, in network namespaces of its own.
    Bench(bench::Args),
    /// Break it at random, in network namespaces of its own.
    Chaos(chaos::Args),
    /// Servers and clients that run in those namespaces.
    #[command(hide = true)]
    App(app::Args),
}

/// What the program can be told.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The program.
pub fn run() -> ExitCode {
    carry_out(&Cli::parse().command).unwrap_or_else(|error| {
        if out::is_unread(&error) {
            return ExitCode::SUCCESS;
        }
        // Nobody may be listening any more; the exit code says it too.
        let _ = writeln!(io::stderr(), "godwit-lab: {error:#}");
        code_of(&error)
    })
}

/// `godwit` becomes this program, so the codes are those of `godwit`: 1 failed, 2 usage.
fn code_of(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.is::<Unknown>() { 2 } else { 1 })
}

fn carry_out(command: &Command) -> anyhow::Result<ExitCode> {
    if !matches!(command, Command::App(_)) {
        of_one_build()?;
    }
    let done = match command {
        Command::Demo(args) => demo::run(args)?,
        Command::Bench(args) => bench::run(args)?,
        Command::Chaos(args) => chaos::run(args)?,
        Command::App(args) => app::run(args)?,
    };
    Ok(if done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the lab expects of `godwit` changes with its version.
fn of_one_build() -> anyhow::Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    let caller = std::env::var(CALLER).unwrap_or_else(|_| own.to_owned());
    ensure!(
        caller == own,
        "this is godwit-lab {own}, and godwit is of version {caller}: install both from one build"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a word that clap does not know.
    #[test]
    fn a_name_that_does_not_exist_is_wrong_usage() {
        for line in [
            "demo nope",
            "bench nope",
            "bench datapath --only zzz",
            "chaos --faults nope",
            "chaos --ring --faults nope",
            "chaos --hostile --faults nope",
        ] {
            let words = ["godwit-lab"].into_iter().chain(line.split(' '));
            let cli = Cli::try_parse_from(words).expect("names are free text");
            let error = carry_out(&cli.command).expect_err("nothing is called so");
            assert_eq!(code_of(&error), ExitCode::from(2), "{line}: {error:#}");
            assert!(
                error
                    .to_string()
                    .contains(line.split(' ').next_back().unwrap_or_default())
            );
        }
        assert_eq!(code_of(&anyhow::anyhow!("no root")), ExitCode::from(1));
    }
}
