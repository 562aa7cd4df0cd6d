//! The only place that writes to standard output.
//!
//! `println!` panics when the reader has gone (`godwit events | head`); here
//! that ends the process quietly.

use std::io::{self, ErrorKind, Write as _};

/// Writes lines and flushes them, so that a reader sees each as it happens.
pub(crate) fn lines(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| {
        if text.ends_with('\n') {
            Ok(())
        } else {
            out.write_all(b"\n")
        }
    });
    match written.and_then(|()| out.flush()) {
        // The reader has had enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// Writes one value as one line of JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    lines(&serde_json::to_string(value)?)
}

/// Says on standard error why a command failed, causes included.
pub(crate) fn error(error: &anyhow::Error) {
    // There is nobody left to tell if this fails.
    let _ = writeln!(io::stderr(), "godwit: {error:#}");
}
