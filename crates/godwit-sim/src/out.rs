//! Standard output that takes no more.

use std::io::{self, ErrorKind, Write as _};

/// The exit code of a program whose standard output failed: it ends quietly if its reader has
/// had enough (`godwit-sim --trace | head`), as `godwit` does; else it says the reason.
pub fn unheard(error: &io::Error) -> u8 {
    if error.kind() == ErrorKind::BrokenPipe {
        return 0;
    }
    // Nobody may be listening here either.
    let _ = writeln!(io::stderr(), "godwit-sim: writing: {error}");
    1
}

/// Prints a line of a history. Nobody needs the rest of one that can't be written.
pub(crate) fn line(text: &str) {
    if let Err(error) = writeln!(io::stdout(), "{text}") {
        std::process::exit(unheard(&error).into());
    }
}
