//! An unmodified curl whose bytes pass through our hands: counted, timed, checked.

use std::io::{Read as _, Write as _};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

use super::content::{Checker, Content, Verdict};
use crate::lab::{Node, which};
use crate::meter::Meter;
use crate::process::{Pipes, Process};

/// A transfer by curl that is under way.
#[derive(Debug)]
pub struct Transfer {
    /// Progress as the client sees it.
    pub meter: Arc<Meter>,
    curl: Process,
    worker: JoinHandle<Verdict>,
}

/// How a transfer ended.
#[derive(Debug)]
pub struct Report {
    /// curl's exit status; 0 = it is satisfied, 28 = too slow, 56 = reset.
    pub status: ExitStatus,
    /// What curl said on its standard error.
    pub said: String,
    /// What came (download), or what was handed to curl (upload).
    pub verdict: Verdict,
}

/// When curl itself gives up: after this long below one byte per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(
    /// Whole seconds, at least 1.
    pub u32,
);

/// Starts downloading `url` on `node`; what comes is compared with `expected`.
///
/// # Errors
/// Fails if curl is not installed or can't be started.
pub fn download(node: &Node, url: &str, expected: Content, patience: Patience) -> Result<Transfer> {
    download_all(node, &[url], expected, patience)
}

/// Starts downloading `urls` on `node`, one after the other over one connection
/// as curl does it; all of them together are compared with `expected`.
///
/// # Errors
/// Fails if curl is not installed or can't be started.
pub fn download_all<S: AsRef<str>>(
    node: &Node,
    urls: &[S],
    expected: Content,
    patience: Patience,
) -> Result<Transfer> {
    let mut command = curl(patience)?;
    command.args(urls.iter().map(AsRef::as_ref));
    let mut curl = node.start("curl", command, Pipes::Output)?;
    let mut stream = curl.take_stdout().context("curl has no output")?;
    let meter = Arc::new(Meter::default());
    let seen = Arc::clone(&meter);
    let worker = spawn("download", move || {
        let mut checker = Checker::new(expected);
        let mut buffer = vec![0; 256 * 1024];
        // A read error is an end like any other; curl's status says why.
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            seen.record(length);
            checker.feed(&buffer[..length]);
        }
        checker.finish()
    })?;
    Ok(Transfer {
        meter,
        curl,
        worker,
    })
}

/// Starts uploading `content` to `url` by PUT on `node`.
///
/// # Errors
/// Fails if curl is not installed or can't be started.
pub fn upload(node: &Node, url: &str, content: Content, patience: Patience) -> Result<Transfer> {
    let mut command = curl(patience)?;
    command.args(["--upload-file", "-"]).arg(url);
    let mut curl = node.start("curl", command, Pipes::Input)?;
    let mut stream = curl.take_stdin().context("curl has no input")?;
    let meter = Arc::new(Meter::default());
    let seen = Arc::clone(&meter);
    let worker = spawn("upload", move || {
        let mut checker = Checker::new(content);
        let mut buffer = vec![0; 16 * 1024];
        let mut offset = 0;
        while offset < content.length {
            let part = content.part(offset, &mut buffer);
            if stream.write_all(part).is_err() {
                break;
            }
            offset += part.len() as u64;
            seen.record(part.len());
            checker.feed(part);
        }
        checker.finish()
    })?;
    Ok(Transfer {
        meter,
        curl,
        worker,
    })
}

impl Transfer {
    /// True until curl ended.
    pub fn is_running(&mut self) -> bool {
        self.curl.is_running()
    }

    /// The curl process, to stop it for a while.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.curl
    }

    /// Waits for curl's end.
    ///
    /// # Errors
    /// Fails if it still runs after `deadline`; it is killed then.
    pub fn finish(mut self, deadline: Duration) -> Result<Report> {
        let ended = self.curl.wait(deadline);
        if ended.is_err() {
            self.curl.kill()?;
        }
        // curl is gone and with it the other end of the pipe.
        let verdict = self
            .worker
            .join()
            .map_err(|_| anyhow!("the thread that checks the bytes panicked"))?;
        Ok(Report {
            status: ended?,
            said: self.curl.log().trim().to_owned(),
            verdict,
        })
    }
}

fn curl(patience: Patience) -> Result<Command> {
    let program = which("curl").context("curl is not installed (Debian package curl)")?;
    let mut command = Command::new(program);
    // A ~/.curlrc of the user must not decide what is measured; this comes first.
    command.arg("--disable");
    command.args([
        "--silent",
        "--show-error",
        "--fail",
        "--noproxy",
        "*",
        "--globoff",
    ]);
    command.args([
        "--speed-limit",
        "1",
        "--speed-time",
        &patience.0.to_string(),
    ]);
    Ok(command)
}

fn spawn(
    name: &str,
    work: impl FnOnce() -> Verdict + Send + 'static,
) -> Result<JoinHandle<Verdict>> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).context("starting a thread")
}
