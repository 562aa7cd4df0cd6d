//! `godwit demo`, `bench` and `chaos`: another program, so that clusters and faults of the lab
//! are no part of the agent.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::helper;

const PROGRAM: &str = "godwit-lab";

/// Names this program for that one, unless the user names another.
const BINARY_VARIABLE: &str = "GODWIT_BIN";

/// Says which version calls. It refuses another than its own.
const VERSION_VARIABLE: &str = "GODWIT_LAB_CALLER";

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    /// For `godwit-lab`, which says what they are with `--help`.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Becomes that program, with its command `name`; it returns only if there is none.
pub(crate) fn run(name: &str, args: &Args) -> anyhow::Result<ExitCode> {
    let own = env::current_exe().context("looking for the running program")?;
    helper::become_program(PROGRAM, |path| {
        let mut command = Command::new(path);
        command.arg(name).args(&args.arguments);
        command.env(VERSION_VARIABLE, env!("CARGO_PKG_VERSION"));
        if env::var_os(BINARY_VARIABLE).is_none() {
            command.env(BINARY_VARIABLE, &own);
        }
        command
    })
}
