//! Runs a configuration tool (`ip`, `tc`, `bridge`, `nft`) to its end.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs `program` with `args` and returns its standard output.
///
/// # Errors
/// Fails if the program is missing or ends with another status than 0; the
/// message then holds the command and what it said.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    feed(program, args, "")
}

/// As [`run`], with `input` on the program's standard input.
pub(crate) fn feed(program: &str, args: &[&str], input: &str) -> Result<String> {
    let shown = || format!("{program} {}", args.join(" "));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}` (is it installed?)", shown()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it read everything says why on stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("waiting for `{}`", shown()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}\n{input}", shown(), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
