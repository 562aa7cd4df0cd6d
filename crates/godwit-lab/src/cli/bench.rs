//! `godwit bench`: what Godwit costs, and what a client sees of a failure.

use crate::bench::{self, BenchOptions};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which: standby, failover, dead, idle, changes, reload, exit, migrate, director, handoff,
    /// datapath, flood.
    name: String,
    /// One line of JSON per figure, schema godwit.bench/1.
    #[arg(long)]
    json: bool,
    /// End within 45 s: fewer runs, no 99th percentiles of less than 200 values.
    #[arg(long)]
    quick: bool,
    /// Measure only the figures whose names begin so, as `stall,exact`.
    #[arg(long, value_name = "PREFIX")]
    only: Option<String>,
    /// How long `dead` keeps a machine dead (ten minutes), `idle` looks on (one), and `flood`
    /// floods (one).
    #[arg(long)]
    seconds: Option<u64>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let options = BenchOptions {
        json: args.json,
        quick: args.quick,
        only: args.only.clone(),
        seconds: args.seconds,
    };
    bench::run(&args.name, &options)
}
