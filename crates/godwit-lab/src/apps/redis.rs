//! An unmodified redis server without persistence, and a way to talk to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::wait_until_listening;
use crate::lab::{Node, which};
use crate::process::{Output, Process};

/// Starts redis on `node` at `port` of every address, with `tcp-keepalive` at
/// `keepalive` seconds (0 switches it off).
///
/// # Errors
/// Fails if redis is not installed or does not listen within five seconds.
pub fn start(node: &Node, port: u16, keepalive: u32) -> Result<Process> {
    let program =
        which("redis-server").context("redis is not installed (Debian package redis-server)")?;
    let mut command = Command::new(program);
    command
        .args(["--port", &port.to_string()])
        .args(["--bind", "0.0.0.0", "::"])
        .args(["--tcp-keepalive", &keepalive.to_string()])
        .args(["--save", "", "--appendonly", "no"])
        .args(["--protected-mode", "no", "--daemonize", "no"])
        .arg("--dir")
        .arg(node.folder()?);
    let mut process = node.spawn("redis", command)?;
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
    Ok(process)
}

/// Runs one `redis-cli` command on `node` against `server`.
///
/// # Errors
/// Fails if redis-cli is not installed or does not end within `deadline`.
pub fn cli(node: &Node, server: SocketAddr, words: &[&str], deadline: Duration) -> Result<Output> {
    let program =
        which("redis-cli").context("redis-cli is not installed (Debian package redis-tools)")?;
    let mut command = Command::new(program);
    command.args(["-h", &server.ip().to_string()]);
    command.args(["-p", &server.port().to_string()]).args(words);
    node.run(command, deadline)
}
