//! The other end of the control socket, for the command line: blocking.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::{Done, Refusal, Request, RunningFile, StopReason};
use crate::directed::BackendDrain;
use crate::flows::Flows;
use crate::moves::{FlowMoves, MoveReport};
use crate::status::Status;

/// Longer than the agent's own limits, so that its refusal arrives.
const READ_LIMIT: Duration = Duration::from_secs(35);

/// What an agent says from memory comes sooner.
const GLANCE: Duration = Duration::from_secs(5);

/// From the end of an agent's runtime to that of its process.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// A connection to an agent.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Why an agent did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody is behind the socket.
    #[error("no agent answers at {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nobody knows whether somebody is behind the socket.
    #[error("this user may not ask the agent at {}, root may", path.display())]
    Forbidden {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("the agent went away")]
    Broken(#[source] io::Error),
    /// It has accepted the connection, or its kernel has, and says nothing.
    #[error("the agent does not answer: it is stopped, or its host has no time for it")]
    Silent,
    /// The agent refused.
    #[error("{}", .0.error)]
    Refused(Refusal),
    /// The agent speaks another version.
    #[error("the agent's answer is not understood")]
    Answer(#[source] serde_json::Error),
}

impl ClientError {
    /// Whether nobody is behind the socket: its agent was killed, or has ended.
    pub fn is_absence(&self) -> bool {
        use ErrorKind::{ConnectionRefused, NotFound};

        let gone = [ConnectionRefused, NotFound];
        matches!(self, Self::Connect { source, .. } if gone.contains(&source.kind()))
    }
}

impl Client {
    /// Connects to an agent's socket.
    ///
    /// # Errors
    /// If nobody listens there, or this user may not connect.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let connect = |source: io::Error| {
            let path = path.to_owned();
            if source.kind() == ErrorKind::PermissionDenied {
                return ClientError::Forbidden { path, source };
            }
            ClientError::Connect { path, source }
        };
        let stream = UnixStream::connect(path).map_err(connect)?;
        stream.set_read_timeout(Some(READ_LIMIT)).map_err(connect)?;
        Ok(Self {
            path: path.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// Asks for everything about the node.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn status(&mut self) -> Result<Status, ClientError> {
        self.ask(Request::Status)
    }

    /// Asks for every flow.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn flows(&mut self) -> Result<Flows, ClientError> {
        self.ask(Request::Flows)
    }

    /// Hands a service that the node owns to another node.
    ///
    /// # Errors
    /// If the agent refuses, or does not answer.
    pub fn hand_over(
        &mut self,
        service: &str,
        to: &str,
        force: bool,
    ) -> Result<MoveReport, ClientError> {
        self.ask(Request::Move {
            service: service.into(),
            to: to.into(),
            force,
        })
    }

    /// Hands one connection that the node has to another node.
    ///
    /// # Errors
    /// If the agent refuses, or does not answer.
    pub fn hand_over_flow(&mut self, flow: &str, to: &str) -> Result<FlowMoves, ClientError> {
        self.ask(Request::MoveFlows {
            flow: Some(flow.into()),
            service: None,
            count: None,
            percent: None,
            to: to.into(),
        })
    }

    /// Hands connections of a service that the node has to another node: at most
    /// `count`, or `percent` of a hundred, or all.
    ///
    /// # Errors
    /// If the agent refuses, or does not answer.
    pub fn hand_over_flows(
        &mut self,
        service: &str,
        (count, percent): (Option<usize>, Option<u8>),
        to: &str,
    ) -> Result<FlowMoves, ClientError> {
        self.ask(Request::MoveFlows {
            flow: None,
            service: Some(service.into()),
            count,
            percent,
            to: to.into(),
        })
    }

    /// Has a director give a back-end no new connections, or some again.
    ///
    /// # Errors
    /// If it refuses, or is none, or does not answer.
    pub fn drain(&mut self, node: &str, drained: bool) -> Result<BackendDrain, ClientError> {
        self.ask(Request::Drain {
            node: node.into(),
            drained,
        })
    }

    /// The file that the agent runs with.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn file(&mut self) -> Result<RunningFile, ClientError> {
        self.ask(Request::File)
    }

    /// Has the agent take its changed file; it is there again soon.
    ///
    /// # Errors
    /// If the file is refused: nothing has changed then.
    pub fn reload(&mut self) -> Result<(), ClientError> {
        self.ask::<Done>(Request::Reload).map(drop)
    }

    /// Ends the agent and waits until it is gone, so that another may start.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn stop(&mut self, reason: StopReason) -> Result<(), ClientError> {
        self.ask::<Done>(Request::Stop { reason })?;
        // The connection lasts as long as the agent's runtime, and its socket
        // is removed last. However the connection breaks, the agent is going.
        let _ = io::copy(&mut self.stream, &mut io::sink());
        let end = Instant::now() + LAST_STEPS;
        while self.path.exists() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The agent's events as lines of JSON; with `follow` without end.
    ///
    /// # Errors
    /// If the request can't be sent.
    pub fn events(
        mut self,
        follow: bool,
    ) -> Result<impl Iterator<Item = io::Result<String>>, ClientError> {
        self.greet()?;
        self.request(Request::Events { follow })?;
        let stream = self.stream.get_ref();
        if follow {
            // Nothing may happen for days.
            stream.set_read_timeout(None).map_err(ClientError::Broken)?;
        } else {
            stream
                .shutdown(std::net::Shutdown::Write)
                .map_err(ClientError::Broken)?;
        }
        Ok(self.stream.lines())
    }

    /// Nothing is asked of an agent that does not answer: it would do that when it goes on,
    /// perhaps long after whoever asked has given up.
    fn greet(&mut self) -> Result<(), ClientError> {
        match self.line(Request::File) {
            // One of an earlier version does not know the question.
            Ok(_) | Err(ClientError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn ask<T: DeserializeOwned>(&mut self, request: Request) -> Result<T, ClientError> {
        serde_json::from_str(&self.line(request)?).map_err(ClientError::Answer)
    }

    /// The agent's answer as it stands: one line of JSON without its end.
    ///
    /// # Errors
    /// If there is no answer, or the agent refuses.
    pub fn line(&mut self, request: Request) -> Result<String, ClientError> {
        let limit = match request {
            Request::Status | Request::Flows | Request::File => GLANCE,
            Request::Move { .. }
            | Request::MoveFlows { .. }
            | Request::Drain { .. }
            | Request::Reload
            | Request::Stop { .. }
            | Request::Events { .. } => {
                self.greet()?;
                READ_LIMIT
            }
        };
        let stream = self.stream.get_ref();
        stream
            .set_read_timeout(Some(limit))
            .map_err(ClientError::Broken)?;
        self.request(request)?;
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        read.map_err(|error| {
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
                ClientError::Silent
            } else {
                ClientError::Broken(error)
            }
        })?;
        if line.is_empty() {
            return Err(ClientError::Broken(ErrorKind::UnexpectedEof.into()));
        }
        line.truncate(line.trim_end().len());
        match serde_json::from_str::<Refusal>(&line) {
            Ok(refusal) => Err(ClientError::Refused(refusal)),
            Err(_) => Ok(line),
        }
    }

    fn request(&mut self, request: Request) -> Result<(), ClientError> {
        let mut line = serde_json::to_vec(&request).map_err(ClientError::Answer)?;
        line.push(b'\n');
        self.stream
            .get_mut()
            .write_all(&line)
            .map_err(ClientError::Broken)
    }
}
