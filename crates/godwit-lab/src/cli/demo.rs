//! `godwit demo`: see it work, in network namespaces of its own.

use crate::demo::{self, DemoOptions};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which: shadow, move, kill, migrate, handoff.
    name: String,
    /// End with one line of JSON, schema godwit.demo/1.
    #[arg(long)]
    json: bool,
    /// Bytes to download, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    size: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let options = DemoOptions {
        json: args.json,
        size: args.size << 20,
        ..DemoOptions::default()
    };
    demo::run(&args.name, options)
}
