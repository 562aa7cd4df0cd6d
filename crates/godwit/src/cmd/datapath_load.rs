//! `godwit datapath-load`: what a segment costs in the data path, for `godwit bench datapath`.
//! Not for people; its answer may change with every version.

use std::process::ExitCode;

use crate::out;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Gets the programs meanwhile.
    #[arg(long)]
    interface: String,
    /// The name of the folder for its pins, which the caller removes if this is killed.
    #[arg(long)]
    pins: String,
    /// How many batches of segments are put through them, of each kind and twice.
    #[arg(long)]
    batches: u32,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    out::json(&godwit_agent::segment_costs(
        &args.interface,
        &args.pins,
        args.batches,
    )?)?;
    Ok(ExitCode::SUCCESS)
}
