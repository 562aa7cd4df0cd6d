//! Programs that belong to this one and are no part of it.

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

/// Becomes `program`, with what `command` makes of its path; it returns only if there is none.
pub(crate) fn become_program(
    program: &str,
    command: impl Fn(&Path) -> Command,
) -> anyhow::Result<ExitCode> {
    let own = env::current_exe().context("looking for the running program")?;
    let folder = own.parent().unwrap_or_else(|| Path::new("/"));
    for path in places(program, folder) {
        let error = command(&path).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error).with_context(|| format!("running {}", path.display()));
        }
    }
    bail!(
        "{program} is not installed: it is neither in {}, nor in libexec beside that, nor in \
         PATH; make install puts it there",
        folder.display()
    )
}

/// Where it may be: beside this program, or where distributions have helpers, or in `PATH`.
fn places(program: &str, folder: &Path) -> Vec<PathBuf> {
    let libexec = folder.join("../libexec");
    let mut places = vec![
        folder.join(program),
        libexec.join("godwit").join(program),
        libexec.join(program),
    ];
    let path = env::var_os("PATH").unwrap_or_default();
    // An empty entry would be the current folder.
    let entries = env::split_paths(&path).filter(|entry| entry.is_absolute());
    places.extend(entries.map(|entry| entry.join(program)));
    places
}
