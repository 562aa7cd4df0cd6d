//! A server of very many quiet connections, all of which may move: one thread waits
//! for all of them, as servers with epoll do.
//!
//! It answers each [`REQUEST`] bytes of [`UP`] with as many of
//! [`DOWN`], and exports how much it has said and heard.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use godwit_app::{Listener, export_state};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::command;
use super::roam::{DOWN, UP, listen, place, start_program};
use crate::lab::Node;
use crate::process::Process;

/// Its command.
pub(crate) const VERB: &str = "chats";

/// Bytes of a question, and of its answer.
pub const REQUEST: usize = 150;

/// Events taken at a time.
const EVENTS: usize = 256;

/// Starts it as [`roam::start`](super::roam::start) does.
///
/// # Errors
/// Fails if it does not listen within five seconds.
pub fn start(node: &Node, port: u16, agent: &Path) -> Result<Process> {
    start_program(node, port, agent, &[VERB])
}

/// Serves at all of the addresses until the process ends.
pub(crate) fn run(addresses: &[String]) -> Result<()> {
    let mut threads = Vec::new();
    for address in addresses {
        let listener = command::address(address).and_then(listen);
        let listener = listener.with_context(|| format!("listening at {address}"))?;
        let room = Arc::new(Room {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll")?,
            chats: Mutex::default(),
        });
        let inside = Arc::clone(&room);
        threads.push(thread::spawn(move || inside.serve()));
        threads.push(thread::spawn(move || room.let_in(&listener)));
    }
    for thread in threads {
        thread.join().ok().context("a thread ended")??;
    }
    Ok(())
}

/// The connections of one listener.
struct Room {
    epoll: Epoll,
    chats: Mutex<BTreeMap<u64, Chat>>,
}

struct Chat {
    stream: TcpStream,
    said: u64,
    heard: u64,
}

impl Room {
    fn let_in(&self, listener: &Listener) -> Result<()> {
        for name in 0.. {
            let accepted = listener.accept()?;
            let stream = accepted.stream;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let came = accepted.migrated.as_deref().map(place).transpose()?;
            let (said, heard) = came.unwrap_or_default();
            let chat = Chat {
                stream,
                said,
                heard,
            };
            if chat.export().is_err() {
                // It has gone again.
                continue;
            }
            let mut chats = self
                .chats
                .lock()
                .ok()
                .context("the other thread panicked")?;
            let stream = &chats.entry(name).or_insert(chat).stream;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, name);
            self.epoll.add(stream, event).context("waiting for one")?;
        }
        Ok(())
    }

    fn serve(&self) -> Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => return Err(error).context("waiting"),
            };
            let mut chats = self
                .chats
                .lock()
                .ok()
                .context("the other thread panicked")?;
            for event in &events[..count] {
                let name = event.data();
                let Some(chat) = chats.get_mut(&name) else {
                    continue;
                };
                match chat.turn() {
                    Ok(true) => {}
                    // Its client has left, or another server has it.
                    Ok(false) => drop(chats.remove(&name)),
                    Err(error) => {
                        // The log of the process.
                        let _ = writeln!(std::io::stderr(), "{error:#}");
                        chats.remove(&name);
                    }
                }
            }
        }
    }
}

impl Chat {
    /// Whether it goes on.
    fn turn(&mut self) -> Result<bool> {
        let mut buffer = [0; REQUEST];
        // A question whose rest is under way: it is in the snapshot.
        let asked = usize::try_from(self.heard - self.said)?;
        match self.stream.read(&mut buffer[asked..]) {
            Ok(0) => return Ok(false),
            Ok(length) => {
                let mut expected = [0; REQUEST];
                UP.fill(self.heard, &mut expected[..length]);
                let came = &buffer[asked..asked + length];
                ensure!(came == &expected[..length], "wrong behind {}", self.heard);
                self.heard += length as u64;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(_) => return Ok(false),
        }
        if self.heard - self.said == REQUEST as u64 {
            DOWN.fill(self.said, &mut buffer);
            match self.stream.write(&buffer) {
                Ok(REQUEST) => self.said += REQUEST as u64,
                Ok(_) => bail!("an answer does not fit"),
                Err(_) => return Ok(false),
            }
        }
        Ok(self.export().is_ok())
    }

    fn export(&self) -> Result<(), godwit_app::Error> {
        let state = [self.said.to_be_bytes(), self.heard.to_be_bytes()].concat();
        export_state(&self.stream, &state)
    }
}
