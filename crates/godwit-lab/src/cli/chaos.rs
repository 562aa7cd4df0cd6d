//! `godwit chaos`: what can go wrong goes wrong, in network namespaces of its own.

use std::time::Duration;

use crate::chaos::{self, ChaosOptions};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long, in seconds; the last round ends a little later.
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// Chooses what is done, in which order.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Three servers that stand by for each other behind two directors, with faults of its own.
    #[arg(long)]
    ring: bool,
    /// Nothing fails, and a stranger on the clients' network tries what he can.
    #[arg(long, conflicts_with = "ring")]
    hostile: bool,
    /// Only the faults, or attacks, whose names begin so, as `dark,tap`.
    #[arg(long, value_name = "PREFIX")]
    faults: Option<String>,
    /// End at the first violation.
    #[arg(long)]
    until_violation: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let options = ChaosOptions {
        duration: Duration::from_secs(args.seconds),
        seed: args.seed,
        faults: args.faults.clone(),
        until_violation: args.until_violation,
    };
    let run = if args.hostile {
        chaos::hostile::run
    } else if args.ring {
        chaos::ring::run
    } else {
        chaos::run
    };
    run(&options)
}
