//! A server that answers a line with a number `N` like a web server that sends
//! `N` bytes, and a few that answer otherwise: what a standby must notice.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use std::{fmt, io};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::command;
use super::content::Content;
use super::server::{Tuning, listen};
use super::wait_until_listening;
use crate::lab::Node;
use crate::process::Process;

/// Verb of the program that runs it.
pub(super) const VERB: &str = "odd";

/// What all of them say of the time, unless they say another.
const DATE: &str = "Sat, 21 Nov 2026 22:38:23 GMT";

/// What the others say.
const OTHER_DATE: &str = "Sun, 22 Nov 2026 00:50:59 GMT";

/// Bytes too few or too many.
const ERROR: usize = 10;

/// Bytes written at once at a pace.
const STEP: usize = 16 * 1024;

const BODY: Content = Content {
    seed: 0x0dd,
    length: u64::MAX,
};

/// How a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As asked.
    Exact,
    /// Some bytes are missing at the end.
    Short,
    /// Some bytes are too many at the end.
    Long,
    /// One byte is another one.
    Other,
    /// The date in the header is another one.
    Dated,
    /// As asked, at so many bytes a second.
    Paced(u32),
}

/// Starts one on `node` as a process, at `port` of every address.
///
/// # Errors
/// Fails if it does not listen within five seconds.
pub fn start(node: &Node, port: u16, manner: Manner) -> Result<Process> {
    let port = port.to_string();
    let command = command::program(&[VERB, &manner.to_string(), &port])?;
    let mut process = node.spawn("odd", command)?;
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?));
    wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
    Ok(process)
}

/// Serves until the process ends; `args` are the manner and the port.
///
/// # Errors
/// Fails if the port is in use or `args` make no sense.
pub(super) fn run(args: &[String]) -> Result<()> {
    let [manner, port] = args else {
        bail!("usage: {VERB} MANNER PORT");
    };
    let manner = Manner::parse(manner).context("no such manner")?;
    let port = port.parse().context("no port")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        let addresses: [SocketAddr; 2] = [
            (Ipv4Addr::UNSPECIFIED, port).into(),
            (Ipv6Addr::UNSPECIFIED, port).into(),
        ];
        let [v4, v6] = addresses.map(|address| listen(address, Tuning::default()));
        let (v4, v6) = (v4.context("listening")?, v6.context("listening")?);
        loop {
            let accepted = tokio::select! {
                accepted = v4.accept() => accepted,
                accepted = v6.accept() => accepted,
            };
            if let Ok((stream, _)) = accepted {
                // A connection that breaks is the client's business.
                tokio::spawn(async move { manner.serve(stream).await.unwrap_or_default() });
            }
        }
    })
}

impl Manner {
    async fn serve(self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return stream.shutdown().await;
            }
            let Ok(length) = line.trim_end().parse() else {
                return Ok(());
            };
            let reply = self.reply(length);
            let Self::Paced(per_second) = self else {
                stream.write_all(&reply).await?;
                continue;
            };
            let span = Duration::from_secs_f64(STEP as f64 / f64::from(per_second));
            let mut due = tokio::time::Instant::now();
            for part in reply.chunks(STEP) {
                stream.write_all(part).await?;
                due += span;
                tokio::time::sleep_until(due).await;
            }
        }
    }

    /// The reply with a body of `length` bytes, or nearly.
    pub fn reply(self, length: usize) -> Vec<u8> {
        let date = match self {
            Self::Dated => OTHER_DATE,
            Self::Exact | Self::Short | Self::Long | Self::Other | Self::Paced(_) => DATE,
        };
        let mut reply = format!("HTTP/1.1 200 OK\r\nDate: {date}\r\n\r\n").into_bytes();
        let body = reply.len();
        reply.resize(body + length, 0);
        BODY.fill(0, &mut reply[body..]);
        match self {
            Self::Short => reply.truncate(body + length.saturating_sub(ERROR)),
            Self::Long => reply.resize(body + length + ERROR, b'!'),
            Self::Other => reply[body + length / 2] ^= 0x20,
            Self::Exact | Self::Dated | Self::Paced(_) => {}
        }
        reply
    }

    fn parse(word: &str) -> Option<Self> {
        Some(match word.split_once('=') {
            Some(("paced", rate)) => Self::Paced(rate.parse().ok().filter(|rate| *rate > 0)?),
            None => match word {
                "exact" => Self::Exact,
                "short" => Self::Short,
                "long" => Self::Long,
                "other" => Self::Other,
                "dated" => Self::Dated,
                _ => return None,
            },
            Some(_) => return None,
        })
    }
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Short => f.write_str("short"),
            Self::Long => f.write_str("long"),
            Self::Other => f.write_str("other"),
            Self::Dated => f.write_str("dated"),
            Self::Paced(rate) => write!(f, "paced={rate}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manner_reads_as_it_is_written() {
        use Manner::{Dated, Exact, Long, Other, Paced, Short};
        for manner in [Exact, Short, Long, Other, Dated, Paced(7)] {
            assert_eq!(Manner::parse(&manner.to_string()), Some(manner));
        }
        for word in ["", "exact=1", "paced", "paced=0", "odd"] {
            assert_eq!(Manner::parse(word), None, "{word}");
        }
    }

    #[test]
    fn each_manner_differs_in_one_thing() {
        let right = Manner::Exact.reply(100);
        assert_eq!(Manner::Short.reply(100), right[..right.len() - ERROR]);
        assert_eq!(Manner::Long.reply(100).len(), right.len() + ERROR);
        let other = Manner::Other.reply(100);
        assert_eq!(other.iter().zip(&right).filter(|(a, b)| a != b).count(), 1);
        let dated = Manner::Dated.reply(100);
        assert!(dated.len() == right.len() && dated != right);
    }
}
