//! Clients whose requests take them from server to server, and some that stay.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::super::crowd::Crowd;
use super::super::phase::Phase;
use super::super::plan::Random;
use super::super::seat::{Fate, Number, Seat};
use super::super::talk::{Pace, Talk, Told};
use super::world::{PLACED, PLAIN};
use crate::apps::content::Content;
use crate::host::SERVICE;
use crate::lab::Lab;

/// Folders of the servers' root. Rules name a server for all but the last.
pub(super) const FOLDERS: [&str; 4] = ["a", "b", "c", STAYS];

/// What is served by who has the connection.
const STAYS: &str = "d";

/// Files of each folder: less than a segment, some dozens, and more than a window.
pub(super) const FILES: [(&str, u64); 3] = [("small", 700), ("file", 20_000), ("large", 600_000)];

/// Age at which a connection comes to an orderly end, in seconds.
const LIFE_SECS: (u64, u64) = (4, 40);

/// Between two requests of clients that are more busy, or less, in milliseconds.
const SHORT_MS: (u64, u64) = (0, 20);
const MEDIUM_MS: (u64, u64) = (0, 200);
const LONG_MS: (u64, u64) = (200, 700);

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Asks for what is served where it is.
    Stay,
    /// Asks a service that has no rules.
    Plain,
    /// Asks for this and that, and each goes elsewhere.
    Roam,
    /// The same, with long pauses.
    Stroll,
    /// The same, each request in two segments.
    Split,
    /// The same, two requests at once.
    Pipeline,
    /// The same, one request on each connection.
    Dial,
}

const CLIENTS: [Work; 9] = [
    Work::Stay,
    Work::Plain,
    Work::Roam,
    Work::Roam,
    Work::Stroll,
    Work::Stroll,
    Work::Split,
    Work::Pipeline,
    Work::Dial,
];

/// One client.
struct Client {
    work: Work,
    service: SocketAddr,
    random: Random,
    moves: Arc<AtomicU64>,
}

/// One connection of a client.
struct Tour<'a> {
    talk: Talk<'a>,
    number: Number,
    /// Who served its last request.
    at: Option<String>,
    client: &'a mut Client,
}

/// Starts all clients, one of each for each family. `moves` counts the requests that were
/// served by another server than the one before.
pub(in crate::chaos) fn start(lab: &Lab, seed: u64, moves: &Arc<AtomicU64>) -> Result<Crowd> {
    let mut seeds = Random::new(seed);
    let all = CLIENTS
        .into_iter()
        .flat_map(|work| SERVICE.map(|it| (work, it)));
    let clients = all.map(|(work, address)| {
        let program = match work {
            Work::Plain => PLAIN,
            Work::Stay | Work::Roam | Work::Stroll | Work::Split | Work::Pipeline | Work::Dial => {
                PLACED
            }
        };
        let mut client = Client {
            work,
            service: SocketAddr::new(address, program.port),
            random: Random::new(seeds.next()),
            moves: Arc::clone(moves),
        };
        (work.name(), move |seat: &Seat| client.perform(seat))
    });
    Crowd::of(lab, clients)
}

/// What is in a file.
pub(super) fn content(folder: &str, (name, length): (&str, u64)) -> Content {
    let letters = folder.bytes().chain(name.bytes());
    Content {
        seed: letters.fold(7, |seed, it| seed * 31 + u64::from(it)),
        length,
    }
}

impl Work {
    const fn name(self) -> &'static str {
        match self {
            Self::Stay => "stay",
            Self::Plain => "plain",
            Self::Roam => "roam",
            Self::Stroll => "stroll",
            Self::Split => "split",
            Self::Pipeline => "pipeline",
            Self::Dial => "dial",
        }
    }
}

impl Client {
    fn perform(&mut self, seat: &Seat) {
        while !seat.is_dismissed() {
            let (number, fate) = self.one(seat);
            let exact = fate == Fate::Exact;
            seat.close(number, fate);
            // One loss is told once; the next connection may do better.
            thread::sleep(Duration::from_millis(if exact { 3 } else { 100 }));
        }
    }

    fn one(&mut self, seat: &Seat) -> (Number, Fate) {
        let (number, stream) = match seat.open(self.work.name(), self.service) {
            Ok(opened) => opened,
            Err(failed) => return failed,
        };
        let pace = Pace {
            pause: Duration::ZERO,
            life: Duration::from_secs(self.random.between(LIFE_SECS)),
        };
        let mut tour = Tour {
            talk: Talk::new(seat, stream, pace),
            number,
            at: None,
            client: self,
        };
        (number, tour.go().err().unwrap_or(Fate::Exact))
    }
}

impl Tour<'_> {
    fn go(&mut self) -> Told {
        if self.client.work == Work::Dial {
            let wish = self.draw();
            self.ask(&[wish], "Connection: close\r\n")?;
            return self.talk.expect_end();
        }
        while !self.talk.is_over() {
            let wish = self.draw();
            match self.client.work {
                Work::Pipeline => {
                    let other = self.draw();
                    self.ask(&[wish, other], "")?;
                }
                Work::Stay | Work::Plain | Work::Roam | Work::Stroll | Work::Split | Work::Dial => {
                    self.ask(&[wish], "")?;
                }
            }
            let span = match self.client.work {
                Work::Stroll => LONG_MS,
                Work::Split | Work::Pipeline => MEDIUM_MS,
                Work::Stay | Work::Plain | Work::Roam | Work::Dial => SHORT_MS,
            };
            self.talk.seat.set(Phase::Idle);
            thread::sleep(Duration::from_millis(self.client.random.between(span)));
        }
        self.talk.end()
    }

    /// A folder and a file; large ones are rare.
    fn draw(&mut self) -> (&'static str, (&'static str, u64)) {
        let random = &mut self.client.random;
        let folder = match self.client.work {
            Work::Stay | Work::Plain => STAYS,
            Work::Roam | Work::Stroll | Work::Split | Work::Pipeline | Work::Dial => {
                FOLDERS[random.index(FOLDERS.len())]
            }
        };
        let file = match random.index(32) {
            0 => FILES[2],
            1..=10 => FILES[1],
            _ => FILES[0],
        };
        (folder, file)
    }

    /// Requests that are made at once, and their replies. `fields` of the head.
    fn ask(&mut self, wishes: &[(&'static str, (&'static str, u64))], fields: &str) -> Told {
        let mut text = String::new();
        for (folder, (file, _)) in wishes {
            text.push_str(&format!(
                "GET /{folder}/{file} HTTP/1.1\r\nHost: lab\r\n{fields}\r\n"
            ));
        }
        let at = self.at.as_deref();
        if wishes.iter().any(|(it, _)| *it != STAYS && at != Some(*it)) {
            self.talk.seat.send_off(self.number);
        }
        let cut = match self.client.work {
            Work::Split => 1 + self.client.random.index(text.len() - 1),
            Work::Stay | Work::Plain | Work::Roam | Work::Stroll | Work::Pipeline | Work::Dial => 0,
        };
        let (first, rest) = text.as_bytes().split_at(cut);
        if !first.is_empty() {
            self.talk.send(first)?;
            thread::sleep(Duration::from_millis(self.client.random.between((0, 4))));
        }
        self.talk.send(rest)?;
        for (folder, file) in wishes {
            let content = content(folder, *file);
            let head = self.talk.expect_head(content)?;
            self.note(&head);
            self.talk.expect(content, 0, content.length)?;
        }
        Ok(())
    }

    /// Who has served it.
    fn note(&mut self, head: &str) {
        let by = head.lines().find_map(|it| it.strip_prefix("Served-By: "));
        let by = by.map(str::to_owned);
        if self.at.is_some() && by != self.at {
            self.client.moves.fetch_add(1, Ordering::Relaxed);
        }
        self.at = by;
    }
}
