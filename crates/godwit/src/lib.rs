//! One binary: agent, director, witness, and what people ask them.
//!
//! A file per subcommand in `cmd/`; each parses its arguments and calls a
//! library. Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 refused
//! with a reason.
//!
//! A library beside the program, for what makes manual pages of the same definitions
//! (`godwit-manual`).
#![forbid(unsafe_code)]

mod agent_socket;
mod cmd;
mod exit;
mod helper;
mod out;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Keeps TCP connections alive when the server behind them changes.
#[derive(Debug, Parser)]
#[command(
    name = "godwit",
    version,
    long_version = godwit_agent::VERSION,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent of this server.
    Agent(cmd::agent::Args),
    /// Vote on leases, for clusters of two servers.
    Witness(cmd::witness::Args),
    /// Give the connections of services to back-ends, from a machine before them.
    Director(cmd::director::Args),
    /// Show this node, its peers and its services.
    Status(cmd::status::Args),
    /// Show every flow, and why it is or is not protected.
    Flows(cmd::flows::Args),
    /// Hand a service to its standby, with all its connections, or single ones.
    Move(cmd::hand_over::MoveArgs),
    /// Hand every service of this node to its standby; at a director: give a back-end no
    /// new connections.
    Drain(cmd::hand_over::DrainArgs),
    /// Have the running agent, or witness, take its changed configuration.
    Reload(cmd::reload::Args),
    /// Show what happened.
    Events(cmd::events::Args),
    /// Check what Godwit needs of this machine, and say what to do.
    Doctor(cmd::doctor::Args),
    /// Say what another configuration would change, and change nothing.
    Check(cmd::check::Args),
    /// See it work, in network namespaces of its own.
    Demo(cmd::lab::Args),
    /// Measure against plain TCP, in network namespaces of its own.
    Bench(cmd::lab::Args),
    /// Break it at random, in network namespaces of its own.
    Chaos(cmd::lab::Args),
    /// Make and revoke certificates of a cluster.
    Pki(cmd::pki::Args),
    #[command(hide = true)]
    StonithHelper(cmd::stonith_helper::Args),
    #[command(hide = true)]
    DatapathLoad(cmd::datapath_load::Args),
    #[command(hide = true)]
    DirectorLoad(cmd::director_load::Args),
}

/// What the program can be told.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Commands that are programs of their own, which know their options.
const PROGRAMS: [&str; 4] = ["demo", "bench", "chaos", "pki"];

/// What was typed, but `godwit help demo` as `godwit demo --help`.
fn words(typed: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = typed.into_iter().collect();
    let asks = words.get(1).is_some_and(|it| it == "help");
    let of = words.get(2).and_then(|it| it.to_str());
    if asks && of.is_some_and(|it| PROGRAMS.contains(&it)) {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// The program.
pub fn run() -> ExitCode {
    let result = match Cli::parse_from(words(std::env::args_os())).command {
        Command::Agent(args) => cmd::agent::run(&args),
        Command::Witness(args) => cmd::witness::run(&args),
        Command::Director(args) => cmd::director::run(&args),
        Command::Status(args) => cmd::status::run(&args),
        Command::Flows(args) => cmd::flows::run(&args),
        Command::Move(args) => cmd::hand_over::run_move(&args),
        Command::Drain(args) => cmd::hand_over::run_drain(&args),
        Command::Reload(args) => cmd::reload::run(&args),
        Command::Events(args) => cmd::events::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Check(args) => cmd::check::run(&args),
        Command::Demo(args) => cmd::lab::run("demo", &args),
        Command::Bench(args) => cmd::lab::run("bench", &args),
        Command::Chaos(args) => cmd::lab::run("chaos", &args),
        Command::Pki(args) => cmd::pki::run(&args),
        Command::StonithHelper(args) => cmd::stonith_helper::run(&args),
        Command::DatapathLoad(args) => cmd::datapath_load::run(&args),
        Command::DirectorLoad(args) => cmd::director_load::run(&args),
    };
    result.unwrap_or_else(|error| {
        out::error(&error);
        exit::code_of(&error)
    })
}
