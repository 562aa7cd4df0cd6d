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
        // Nobody may be listening any more; the exit code says it too.
        let _ = writeln!(io::stderr(), "godwit-lab: {error:#}");
        ExitCode::FAILURE
    })
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
