//! `godwit bench`: what Godwit costs, and what a client sees of a failure.

use std::process::ExitCode;

use godwit_lab::bench::{self, BenchOptions};

use crate::exit;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which: standby, failover, migrate, director.
    name: String,
    /// One line of JSON per figure, schema godwit.bench/1.
    #[arg(long)]
    json: bool,
    /// End within 45 s: fewer runs, no 99th percentiles.
    #[arg(long)]
    quick: bool,
    /// Measure only the figures whose names begin so, as `stall,exact`.
    #[arg(long, value_name = "PREFIX")]
    only: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = BenchOptions {
        json: args.json,
        quick: args.quick,
        only: args.only.clone(),
    };
    let measured = bench::run(&args.name, &options)?;
    Ok(if measured {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::FAILED)
    })
}
