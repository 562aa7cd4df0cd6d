//! `godwit pki`: another program, so that what makes keys is no part of the agent.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use crate::helper;

const PROGRAM: &str = "godwit-pki";

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    /// For `godwit-pki`: `init`, `issue`, `revoke`, `serve` or `renew`, and what they need.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Becomes that program; it returns only if there is none.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    helper::become_program(PROGRAM, |path| {
        let mut command = Command::new(path);
        command.args(&args.arguments);
        command
    })
}
