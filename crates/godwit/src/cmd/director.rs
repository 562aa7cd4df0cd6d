//! `godwit director`: gives the connections of services to back-ends.

use std::path::PathBuf;
use std::process::ExitCode;

use godwit_agent::config::PeerRole;
use godwit_agent::logging;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, the same on all nodes but for `[node]`.
    #[arg(long, value_name = "FILE", default_value = "/etc/godwit/godwit.toml")]
    config: PathBuf,
    /// End the running director, if there is one, and remove programs and addresses.
    /// All its connections break.
    #[arg(long)]
    detach: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.detach {
        return super::detach::of_file(&args.config, PeerRole::Director);
    }
    logging::init();
    logging::die_on_panic();
    let ended = godwit_agent::direct(&args.config);
    logging::flush();
    ended?;
    Ok(ExitCode::SUCCESS)
}
