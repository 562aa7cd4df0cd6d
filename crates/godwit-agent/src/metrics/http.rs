//! Just enough HTTP/1.1 for a scraper on a trusted network: one GET per connection.

use std::collections::VecDeque;
use std::io;
use std::net;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::{Sources, render};
use crate::input::{Input, Query};

/// Scrapers that are answered at a time.
const MAX_CLIENTS: usize = 8;

/// Connections at a time. One more ends the one that has kept silent for longest, so who
/// connects and says nothing keeps no scraper out.
const MAX_CONNECTIONS: usize = 32;

/// For the request, the driver's answer and the reply, each.
const STEP_LIMIT: Duration = Duration::from_secs(2);

/// The longest request head, in bytes.
const MAX_HEAD: usize = 8 << 10;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A bound socket that does not answer yet.
#[derive(Debug)]
pub(crate) struct Exporter(TcpListener);

impl Exporter {
    /// Takes a listener that does not block, within the runtime that answers.
    ///
    /// # Errors
    /// If the runtime has no room for it.
    pub(crate) fn new(listener: net::TcpListener) -> io::Result<Self> {
        TcpListener::from_std(listener).map(Self)
    }

    #[cfg(test)]
    pub(super) fn address(&self) -> io::Result<net::SocketAddr> {
        self.0.local_addr()
    }
}

/// A connection.
#[derive(Debug)]
struct Caller {
    task: AbortHandle,
    /// Whether its request is there.
    has_asked: Arc<AtomicBool>,
}

/// Answers for as long as the runtime lives.
pub(crate) async fn serve(exporter: Exporter, sources: Sources) {
    let clients = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut callers = VecDeque::new();
    loop {
        match exporter.0.accept().await {
            // A connection for which there is no room ends here.
            Ok((stream, _)) => {
                if make_room(&mut callers) {
                    callers.push_back(begin(stream, sources.clone(), clients.clone()));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "can't accept scrapers");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Whether there is room for one more, if need be in place of the oldest that has said nothing.
fn make_room(callers: &mut VecDeque<Caller>) -> bool {
    callers.retain(|it| !it.task.is_finished());
    if callers.len() < MAX_CONNECTIONS {
        return true;
    }
    let is_silent = |it: &Caller| !it.has_asked.load(Ordering::Relaxed);
    let oldest = callers.iter().position(is_silent);
    let oldest = oldest.and_then(|at| callers.remove(at));
    oldest.inspect(|it| it.task.abort()).is_some()
}

fn begin(stream: TcpStream, sources: Sources, clients: Arc<Semaphore>) -> Caller {
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = has_asked.clone();
    let task = tokio::spawn(async move {
        // A scraper that goes away is its own business.
        let _ = attend(stream, &sources, (&asked, &clients)).await;
    });
    Caller {
        task: task.abort_handle(),
        has_asked,
    }
}

async fn attend(
    mut stream: TcpStream,
    sources: &Sources,
    (asked, clients): (&AtomicBool, &Semaphore),
) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let head = timeout(STEP_LIMIT, read_head(&mut stream))
        .await
        .map_err(late)??;
    asked.store(true, Ordering::Relaxed);
    // It is never closed.
    let _permit = clients.acquire().await;
    let reply = answer(&head, sources).await;
    timeout(STEP_LIMIT, stream.write_all(&reply))
        .await
        .map_err(late)??;
    stream.shutdown().await
}

async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = stream.read(&mut chunk).await?;
        if len == 0 || head.len() + len > MAX_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(chunk.get(..len).unwrap_or_default());
    }
    Ok(head)
}

async fn answer(head: &[u8], sources: &Sources) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => match scrape(sources).await {
            Some(text) => reply("200 OK", OPENMETRICS, &text),
            None => reply(
                "503 Service Unavailable",
                "text/plain",
                "the agent is ending or too busy\n",
            ),
        },
        (Some(b"GET"), Some(_)) => reply("404 Not Found", "text/plain", "only /metrics is here\n"),
        _ => reply(
            "405 Method Not Allowed",
            "text/plain",
            "only GET is known\n",
        ),
    }
}

async fn scrape(sources: &Sources) -> Option<String> {
    let (sender, status) = oneshot::channel();
    sources
        .inbox
        .send(Input::Query(Query::Status(sender)))
        .ok()?;
    let status = timeout(STEP_LIMIT, status).await.ok()?.ok()?;
    render::render(&status, sources).ok()
}

fn reply(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
