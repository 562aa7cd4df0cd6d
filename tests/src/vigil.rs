//! Clients that exchange a little all the time, and note how long each answer takes.
//!
//! A test machine with other work delays any of them. So one client talks to a server
//! that nobody protects (the *control*): a wait during which the control waited, too, is
//! the machine's.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::stream::{expect, send};

/// Shorter ones are not noted.
const NOTED: Duration = Duration::from_millis(20);

/// The control waits a moment before or after.
const NEAR: Duration = Duration::from_millis(50);

/// An answer that took long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// When it was asked for.
    pub from: Instant,
    /// How long it took.
    pub length: Duration,
}

/// A client on a thread of its own.
#[derive(Debug)]
pub struct Vigil {
    name: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Wait>>>,
}

/// All clients of a test.
#[derive(Debug)]
pub struct Vigils {
    control: Vigil,
    clients: Vec<Vigil>,
}

/// What clients had to wait for, after a moment.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Waits that the machine does not explain, of each client by its name.
    pub unexplained: Vec<(String, Duration, Duration)>,
    /// The longest wait of any client.
    pub longest: Duration,
    /// The longest wait of the control.
    pub control: Duration,
}

impl Vigil {
    /// Exchanges once per `interval`, until it is stopped or something fails.
    pub fn start(
        name: &str,
        interval: Duration,
        mut exchange: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut waits = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let from = Instant::now();
                exchange()?;
                let length = from.elapsed();
                if length > NOTED {
                    waits.push(Wait { from, length });
                }
                thread::sleep(interval);
            }
            Ok(waits)
        });
        Self {
            name: name.to_owned(),
            stop,
            thread,
        }
    }

    /// Echoes lines of the lab's server on a new connection.
    ///
    /// # Errors
    /// If the connection breaks at once.
    pub fn echo(name: &str, interval: Duration, mut stream: TcpStream) -> Result<Self> {
        send(&mut stream, "echo\n")?;
        let mut number = 0_u64;
        Ok(Self::start(name, interval, move || {
            number += 1;
            let line = format!("{number:08}");
            send(&mut stream, &line)?;
            expect(&mut stream, &line)
        }))
    }

    fn finish(self) -> Result<(String, Vec<Wait>)> {
        self.stop.store(true, Ordering::Relaxed);
        let waits = self.thread.join();
        let waits = waits.map_err(|_| anyhow!("{} has panicked", self.name))?;
        Ok((self.name, waits?))
    }
}

impl Vigils {
    /// `clients`, and one that talks to a server which nobody protects.
    pub const fn new(control: Vigil, clients: Vec<Vigil>) -> Self {
        Self { control, clients }
    }

    /// Ends all clients and says who has waited for longer than `limit` later than
    /// `since`.
    ///
    /// # Errors
    /// If the connection of one of them has broken.
    pub fn judge(self, since: Instant, limit: Duration) -> Result<Verdict> {
        let (_, noise) = self.control.finish()?;
        let noise = later(noise, since);
        let mut verdict = Verdict {
            control: longest(&noise),
            ..Verdict::default()
        };
        for client in self.clients {
            let (name, waits) = client.finish()?;
            let waits = later(waits, since);
            verdict.longest = verdict.longest.max(longest(&waits));
            let long = waits.iter().filter(|wait| wait.length > limit);
            for wait in long.filter(|wait| !is_explained(wait, &noise)) {
                let at = wait.from.duration_since(since);
                verdict.unexplained.push((name.clone(), at, wait.length));
            }
        }
        Ok(verdict)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "longest wait {:?}, of the control {:?}, not the machine's: {:?}",
            self.longest, self.control, self.unexplained
        )
    }
}

fn later(mut waits: Vec<Wait>, since: Instant) -> Vec<Wait> {
    waits.retain(|wait| wait.from >= since);
    waits
}

fn longest(waits: &[Wait]) -> Duration {
    let lengths = waits.iter().map(|wait| wait.length);
    lengths.max().unwrap_or_default()
}

/// Whether the control waited for a third as long, at that time.
fn is_explained(wait: &Wait, noise: &[Wait]) -> bool {
    let (from, to) = (wait.from - NEAR, wait.from + wait.length + NEAR);
    noise.iter().any(|noise| {
        let overlaps = noise.from < to && noise.from + noise.length > from;
        overlaps && noise.length >= wait.length / 3
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_the_machines_only_if_the_control_waited_then_and_for_long() {
        let start = Instant::now() + Duration::from_secs(10);
        let wait = |at: u64, length: u64| Wait {
            from: start + Duration::from_millis(at),
            length: Duration::from_millis(length),
        };
        let long = wait(1000, 300);
        assert!(is_explained(&long, &[wait(1100, 100)]));
        assert!(is_explained(&long, &[wait(890, 110)]));
        assert!(!is_explained(&long, &[wait(1100, 90)]), "too short");
        assert!(!is_explained(&long, &[wait(700, 200), wait(1400, 200)]));
        assert!(!is_explained(&long, &[]));
    }
}
