//! `godwit pki`: another program, so that what makes keys is no part of the agent.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

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
    let own = env::current_exe().context("looking for the running program")?;
    let folder = own.parent().unwrap_or_else(|| Path::new("/"));
    for path in places(folder) {
        let error = Command::new(&path).args(&args.arguments).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error).with_context(|| format!("running {}", path.display()));
        }
    }
    bail!(
        "{PROGRAM} is not installed: it is neither in {}, nor in libexec beside that, nor in \
         PATH; make install puts it there",
        folder.display()
    )
}

/// Where it may be: beside this program, or where distributions have helpers, or in `PATH`.
fn places(folder: &Path) -> Vec<PathBuf> {
    let libexec = folder.join("../libexec");
    let mut places = vec![
        folder.join(PROGRAM),
        libexec.join("godwit").join(PROGRAM),
        libexec.join(PROGRAM),
    ];
    let path = env::var_os("PATH").unwrap_or_default();
    // An empty entry would be the current folder.
    let entries = env::split_paths(&path).filter(|entry| entry.is_absolute());
    places.extend(entries.map(|entry| entry.join(PROGRAM)));
    places
}
