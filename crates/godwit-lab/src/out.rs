//! Standard output of the commands.
//!
//! A reader that has had enough (`godwit demo shadow | head -1`) is no failure: what is under way
//! ends, its labs are removed, and the program ends quietly.

use std::io::{self, ErrorKind, Write};

/// Nobody reads on. In an [`io::Error`], so that it is told from other broken pipes.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads what is said")]
struct ReaderGone;

/// Standard output, or what a test has in its place.
#[derive(Debug)]
pub(crate) struct Out<W>(W);

/// Standard output.
pub(crate) fn stdout() -> Out<io::Stdout> {
    Out(io::stdout())
}

impl<W: Write> Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

fn named(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::BrokenPipe {
        return io::Error::new(ErrorKind::BrokenPipe, ReaderGone);
    }
    error
}

/// Says a line, in one piece: threads may say others.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = stdout();
    out.write_all(format!("{text}\n").as_bytes())?;
    out.flush()
}

/// Whether it is only that nobody reads on.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|it| it.downcast_ref());
    causes.any(|it: &io::Error| it.get_ref().is_some_and(|it| it.is::<ReaderGone>()))
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_gone_is_told_from_another_pipe() {
        let said = |mut out: Box<dyn Write>| writeln!(out, "text").context("saying it");
        let gone = said(Box::new(Out(Broken))).expect_err("it is broken");
        assert!(is_unread(&gone), "{gone:?}");
        let other = said(Box::new(Broken)).expect_err("it is broken");
        assert!(!is_unread(&other), "{other:?}");
    }
}
