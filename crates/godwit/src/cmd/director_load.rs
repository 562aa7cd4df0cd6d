//! `godwit director-load`: what a director's frames cost, for `godwit bench director`. Not
//! for people; its answer may change with every version.

use std::process::ExitCode;

use crate::out;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Gets the program meanwhile.
    #[arg(long)]
    interface: String,
    /// The name of the folder for its pins, which the caller removes if this is killed.
    #[arg(long)]
    pins: String,
    /// How often a million frames are put through it, of each kind.
    #[arg(long)]
    rounds: u32,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    out::json(&godwit_agent::director::frame_costs(
        &args.interface,
        &args.pins,
        args.rounds,
    )?)?;
    Ok(ExitCode::SUCCESS)
}
