//! `godwit-sim`: histories of whole clusters, checked.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use godwit_sim::{Limits, Mutant};

/// Simulates clusters in which everything goes wrong that can, and checks that
/// no two nodes speak and that nothing acknowledged is lost.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The first seed. With --trace: the only one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop when so many faults have counted [default: 1000000 without --seconds].
    #[arg(long)]
    faults: Option<u64>,
    /// Run the history of one seed and say what happens.
    #[arg(long)]
    trace: bool,
    /// Stop when so many histories were wrong.
    #[arg(long, default_value_t = 10)]
    violations: usize,
    /// Threads [default: one per CPU].
    #[arg(long)]
    threads: Option<usize>,
    /// Take a mechanism away, to see that it is missed.
    #[arg(long, value_enum)]
    mutant: Option<Mutant>,
}

fn main() -> io::Result<ExitCode> {
    let args = Args::parse();
    let (tally, wrong) = if args.trace {
        let outcome = godwit_sim::history(args.seed, args.mutant, true);
        let tally = outcome.tally.clone();
        let wrong = outcome.violation.is_some().then_some(outcome);
        (tally, wrong.into_iter().collect())
    } else {
        godwit_sim::run(&limits(&args))
    };
    let mut out = io::stdout().lock();
    for outcome in &wrong {
        let what = outcome.violation.as_deref().unwrap_or_default();
        writeln!(out, "seed {}: {what}", outcome.seed)?;
        writeln!(out, "    again: godwit-sim --seed {} --trace", outcome.seed)?;
    }
    writeln!(out, "{tally}")?;
    writeln!(
        out,
        "{} faults, {} takeovers, {} streams, {} violations",
        tally.faults,
        tally.takeovers,
        tally.streams,
        wrong.len()
    )?;
    Ok(if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn limits(args: &Args) -> Limits {
    let endless = u64::MAX;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Limits {
        seed: args.seed,
        faults: match (args.faults, args.seconds) {
            (Some(faults), _) => faults,
            (None, Some(_)) => endless,
            (None, None) => 1_000_000,
        },
        time: Duration::from_secs(args.seconds.unwrap_or(endless)),
        violations: args.violations,
        threads: args.threads.unwrap_or(threads),
        mutant: args.mutant,
    }
}
