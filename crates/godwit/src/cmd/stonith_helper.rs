//! `godwit stonith-helper`: runs the stonith command for an agent, which starts
//! it. Not for people; what is said over its pipes may change with every version.

use std::process::ExitCode;

use anyhow::Context as _;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(Args {}: &Args) -> anyhow::Result<ExitCode> {
    godwit_agent::stonith::helper().context("the agent's pipe")?;
    Ok(ExitCode::SUCCESS)
}
