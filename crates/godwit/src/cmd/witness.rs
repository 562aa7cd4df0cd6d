//! `godwit witness`: a vote without a server.

use std::path::PathBuf;
use std::process::ExitCode;

use godwit_agent::logging;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, the same on all nodes but for `[node]`.
    #[arg(long, value_name = "FILE", default_value = "/etc/godwit/godwit.toml")]
    config: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    logging::init();
    logging::die_on_panic();
    let ended = godwit_agent::witness(&args.config);
    logging::flush();
    ended?;
    Ok(ExitCode::SUCCESS)
}
