//! Programs that run in a lab: unmodified ones, and a deterministic one of ours.
//!
//! [`nginx`], [`apache`], [`redis`] and [`curl`] start what Debian ships. [`server`] is a
//! small server whose every reply is a function of one connection's bytes, and
//! [`client`] talks to it and checks each byte, and [`raw`] does so in frames of
//! its own making; [`webstone`] is a load of many; server and client are also commands of the
//! `godwit-lab app` command ([`command`]), so that a server is a process that
//! can die with its machine.

pub mod apache;
pub mod chats;
pub mod client;
pub mod command;
pub mod content;
pub mod curl;
pub(crate) mod exports;
pub(crate) mod flood;
pub(crate) mod hiccup;
pub(crate) mod holder;
pub mod nginx;
pub mod odd;
pub mod raw;
pub mod redis;
pub mod roam;
pub mod server;
pub mod stream;
pub mod webstone;

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::lab::Node;
use crate::process::Process;

/// Waits until `process`, on `node`, accepts connections at `address`.
///
/// # Errors
/// Fails if it ends before, with its log; or after `deadline`.
pub fn wait_until_listening(
    node: &Node,
    process: &mut Process,
    address: SocketAddr,
    deadline: Duration,
) -> Result<()> {
    let end = Instant::now() + deadline;
    loop {
        let attempt =
            node.enter(|| TcpStream::connect_timeout(&address, Duration::from_millis(100)))?;
        match attempt {
            Ok(_) => return Ok(()),
            Err(_) if !process.is_running() => {
                bail!(
                    "{address} on {}: the server ended: {}",
                    node.host(),
                    process.log().trim()
                )
            }
            Err(e) if Instant::now() > end => {
                bail!(
                    "nothing listens at {address} on {} after {deadline:?}: {e}",
                    node.host()
                )
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}
