//! Answers requests on the control socket.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::{Done, Refusal, Request, Restorer, RunningFile};
use crate::config::Config;
use crate::descriptors::{Reserve, is_shortage};
use crate::directed::DrainWish;
use crate::events::{EventLog, EventRecord};
use crate::input::{Inbox, Input, Query};
use crate::moves::{FlowWish, Part, Selection, Wish};
use crate::reload::Reloads;

/// How often is looked whether the socket is there.
const LOOK: Duration = Duration::from_millis(300);

/// Clients at a time; more wait in the backlog.
const MAX_CLIENTS: usize = 64;

/// The longest request, in bytes.
const MAX_REQUEST: u64 = 4096;

/// How long the driver may take for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Connections go a few at a time; each takes milliseconds, and a second at most.
const MOVES_LIMIT: Duration = Duration::from_secs(30);

/// Leaving the cluster in order takes a few round trips; ending programs a bit more.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How long a client may say nothing, while others wait in the backlog. Longer than an
/// agent takes to end, as whoever has asked for that waits for the connection's end.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// What every client's task needs.
#[derive(Debug, Clone)]
pub(crate) struct Office {
    pub(crate) node: String,
    /// The file that the agent runs with.
    pub(crate) config: Arc<Config>,
    pub(crate) reloads: Reloads,
    pub(crate) inbox: Inbox,
    pub(crate) events: EventLog,
    /// Requests that are being answered: the agent ends after them.
    pub(crate) busy: Arc<AtomicUsize>,
    /// [`IDLE_LIMIT`], but for tests.
    pub(crate) idle_limit: Duration,
}

/// Binds the socket; clients are served as long as the runtime lives. It is made anew when
/// somebody deletes it.
///
/// # Errors
/// If the socket can't be made.
pub(crate) fn serve(place: Restorer, office: Office) -> io::Result<()> {
    let listener = bind(&place.socket())?;
    place.has_begun();
    tokio::spawn(watch(place, listener, office));
    Ok(())
}

fn bind(socket: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Looks whether the socket is still there. The one before is closed then: nobody finds it.
async fn watch(place: Restorer, first: UnixListener, office: Office) {
    let socket = place.socket();
    let mut serving = tokio::spawn(accept(first, office.clone()));
    let mut said = String::new();
    loop {
        sleep(LOOK).await;
        match put_back(&place) {
            Ok(None) => said.clear(),
            Ok(Some(listener)) => {
                said.clear();
                serving.abort();
                serving = tokio::spawn(accept(listener, office.clone()));
                tracing::warn!(socket = %socket.display(), "was deleted, made anew");
            }
            // The fact `run_dir` says it, too.
            Err(error) if error.to_string() != said => {
                said = error.to_string();
                tracing::warn!(%error, socket = %socket.display(), "was deleted, can't be made anew");
            }
            Err(_) => {}
        }
    }
}

/// A new socket if there is none.
fn put_back(place: &Restorer) -> io::Result<Option<UnixListener>> {
    let was_gone = place.restore()?;
    let socket = place.socket();
    match fs::symlink_metadata(&socket) {
        Ok(_) if !was_gone => return Ok(None),
        // Of the folder that is there now: of nobody who lives.
        Ok(_) => fs::remove_file(&socket)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    bind(&socket).map(Some)
}

async fn accept(listener: UnixListener, office: Office) {
    let clients = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut reserve = Reserve::default();
    reserve.refill();
    loop {
        let permit = clients.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                reserve.refill();
                let office = office.clone();
                tokio::spawn(async move {
                    // A client that goes away in the middle is its own business.
                    let _ = attend(stream, &office).await;
                    drop(permit);
                });
            }
            // What is answered is what is wrong.
            Err(error) if is_shortage(&error) && reserve.release() => {}
            Err(error) => {
                tracing::warn!(%error, "can't accept clients of the control socket");
                sleep(Duration::from_millis(100)).await;
                reserve.refill();
            }
        }
    }
}

async fn attend(stream: UnixStream, office: &Office) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut reader).take(MAX_REQUEST);
        let read = timeout(office.idle_limit, limited.read_until(b'\n', &mut line)).await;
        let Ok(read) = read else {
            return answer(&mut writer, &Refusal::new("nothing was asked")).await;
        };
        if read? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            return answer(&mut writer, &Refusal::new("the request is too long or cut")).await;
        }
        match serde_json::from_slice(&line) {
            Ok(Request::Events { follow }) => {
                return stream_events(&mut reader, &mut writer, office, follow).await;
            }
            Ok(request) => {
                office.busy.fetch_add(1, Ordering::Relaxed);
                let handled = handle(request, &mut writer, office).await;
                office.busy.fetch_sub(1, Ordering::Relaxed);
                handled?;
            }
            Err(error) => {
                let refusal = Refusal::new(format!("not a request: {error}"));
                answer(&mut writer, &refusal).await?;
            }
        }
    }
}

async fn handle(request: Request, writer: &mut OwnedWriteHalf, office: &Office) -> io::Result<()> {
    match request {
        Request::Status => {
            let status = ask(office, ANSWER_LIMIT, |reply| {
                Input::Query(Query::Status(reply))
            })
            .await;
            answer_or_refuse(writer, status).await
        }
        Request::Flows => {
            let flows = ask(office, ANSWER_LIMIT, |reply| {
                Input::Query(Query::Flows(reply))
            })
            .await;
            answer_or_refuse(writer, flows).await
        }
        Request::Move { service, to, force } => {
            let wish = |reply| {
                Input::Move(Wish {
                    service,
                    to,
                    force,
                    reply,
                })
            };
            let moved = ask(office, ANSWER_LIMIT, wish).await;
            answer_or_refuse(writer, moved.and_then(|moved| moved.map_err(Into::into))).await
        }
        Request::MoveFlows {
            flow,
            service,
            count,
            percent,
            to,
        } => {
            let Some(which) = selection(flow, service, (count, percent)) else {
                let refusal = Refusal::new("name one connection, or a service and how many");
                return answer(writer, &refusal).await;
            };
            let wish = |reply| Input::MoveFlows(FlowWish { which, to, reply });
            let moved = ask(office, MOVES_LIMIT, wish).await;
            answer_or_refuse(writer, moved.and_then(|moved| moved.map_err(Into::into))).await
        }
        Request::Drain { node, drained } => {
            let wish = |reply| Input::Drain(DrainWish::new(node, drained, reply));
            let done = ask(office, ANSWER_LIMIT, wish).await;
            answer_or_refuse(writer, done.and_then(|done| done.map_err(Into::into))).await
        }
        Request::File => answer(writer, &RunningFile::of(&office.config)).await,
        Request::Reload => {
            let taken = office.reloads.take().await;
            let taken = taken.map(|_| Done::new()).map_err(Refusal::new);
            answer_or_refuse(writer, taken).await
        }
        Request::Stop { reason } => {
            let reason = reason.into();
            let done = |reply| Input::Stop {
                reason,
                done: Some(reply),
            };
            let stopped = ask(office, STOP_LIMIT, done).await;
            answer_or_refuse(writer, stopped.map(|()| Done::new())).await
        }
        Request::Events { .. } => Ok(()),
    }
}

/// Which connections a request is about, if it says so, and once.
fn selection(
    flow: Option<String>,
    service: Option<String>,
    (count, percent): (Option<usize>, Option<u8>),
) -> Option<Selection> {
    match (flow, service, count, percent) {
        (Some(flow), None, None, None) => Some(Selection::Flow(flow)),
        (None, Some(service), count, None) => {
            let part = Part::Count(count.unwrap_or(usize::MAX));
            Some(Selection::Some(service, part))
        }
        (None, Some(service), None, Some(percent)) if percent <= 100 => {
            Some(Selection::Some(service, Part::Percent(percent)))
        }
        _ => None,
    }
}

/// Puts a question to the driver and waits for its answer.
async fn ask<T>(
    office: &Office,
    limit: Duration,
    input: impl FnOnce(oneshot::Sender<T>) -> Input,
) -> Result<T, Refusal> {
    let (reply, answer) = oneshot::channel();
    let ending = || Refusal::new("the agent is ending");
    office.inbox.send(input(reply)).map_err(|_| ending())?;
    match timeout(limit, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(ending()),
        Err(_) => Err(Refusal::new("the agent is too busy to answer")),
    }
}

/// What is remembered and, with `follow`, everything until the client leaves.
async fn stream_events(
    reader: &mut BufReader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
    office: &Office,
    follow: bool,
) -> io::Result<()> {
    let mut subscription = office.events.subscribe();
    for record in &subscription.past {
        answer(writer, record.as_ref()).await?;
    }
    if !follow {
        return Ok(());
    }
    let mut ignored = [0; 64];
    loop {
        let record = tokio::select! {
            record = subscription.future.recv() => record,
            // A client that only listens is done when its side closes.
            read = reader.read(&mut ignored) => match read? {
                0 => return Ok(()),
                _ => continue,
            },
        };
        match record {
            Ok(record) => answer(writer, record.as_ref()).await?,
            Err(RecvError::Lagged(count)) => {
                answer(writer, &EventRecord::lost(&office.node, count)).await?;
            }
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}

async fn answer_or_refuse<T: Serialize>(
    writer: &mut OwnedWriteHalf,
    outcome: Result<T, Refusal>,
) -> io::Result<()> {
    match outcome {
        Ok(value) => answer(writer, &value).await,
        Err(refusal) => answer(writer, &refusal).await,
    }
}

async fn answer(writer: &mut OwnedWriteHalf, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    writer.write_all(&line).await
}
