//! The commands of `godwit-lab app`, which runs in the lab's namespaces; see [`program`].

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::client::{Client, Rounds};
use super::content::Content;
use super::{chats, exports, flood, hiccup, holder, odd, roam, server, stream, webstone};
use crate::cluster;
use crate::meter::Meter;

/// Command of `godwit-lab` that calls [`run`].
pub const COMMAND: &str = "app";

/// The program that has it.
const PROGRAM: &str = "godwit-lab";

/// Option of `serve`: the name of a congestion control follows.
pub(crate) const CONGESTION: &str = "--congestion";

/// Option of `serve`: bytes per second follow.
pub(crate) const PACE: &str = "--pace";

pub(super) const USAGE: &str = "usage:
  godwit-lab app serve [--congestion NAME] [--pace BYTES] ADDRESS:PORT...
  godwit-lab app roam [--manner STATE,CHUNK,MICROSECONDS,SESSIONS] ADDRESS:PORT...
  godwit-lab app chats ADDRESS:PORT...
  godwit-lab app stream [--manner BALLAST,EXPORTS,MICROSECONDS,AFTER,MICROSECONDS] ADDRESS:PORT...
  godwit-lab app exports ADDRESS:PORT...
  godwit-lab app odd MANNER PORT
  godwit-lab app flood real|spoofed RATE WINDOW MILLISECONDS PORT MAC
  godwit-lab app hold files|sockets COUNT
  godwit-lab app webstone OPTIONS
  godwit-lab app echo ADDRESS:PORT [ROUNDS [BYTES]]
  godwit-lab app ask ADDRESS:PORT [ROUNDS [REQUEST [REPLY]]]
  godwit-lab app get ADDRESS:PORT BYTES
  godwit-lab app put ADDRESS:PORT BYTES
  godwit-lab app hiccup MILLISECONDS";

/// How long a command waits for the server's next byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// `serve`, with what follows it.
fn serve(mut args: &[String]) -> Result<()> {
    let mut tuning = server::Tuning::default();
    loop {
        match args {
            [option, name, rest @ ..] if option == CONGESTION => {
                tuning.congestion = Some(name);
                args = rest;
            }
            [option, pace, rest @ ..] if option == PACE => {
                tuning.pace = Some(pace.parse().context(USAGE)?);
                args = rest;
            }
            addresses => {
                let addresses = addresses.iter().map(|a| address(a));
                return server::serve(&addresses.collect::<Result<Vec<_>>>()?, tuning);
            }
        }
    }
}

/// Runs one command; `args` begin after the program's name.
///
/// # Errors
/// Fails with the usage if `args` make no sense, else as the command does.
pub fn run(args: &[String]) -> Result<()> {
    let Some((verb, [first, rest @ ..])) = args.split_first() else {
        bail!(USAGE);
    };
    if verb == "serve" {
        return serve(&args[1..]);
    }
    if verb == roam::VERB {
        return roam::run(&args[1..]);
    }
    if verb == chats::VERB {
        return chats::run(&args[1..]);
    }
    if verb == stream::VERB {
        return stream::run(&args[1..]);
    }
    if verb == exports::VERB {
        return exports::run(&args[1..]);
    }
    if verb == flood::VERB {
        return flood::run(&args[1..]);
    }
    if verb == holder::VERB {
        return holder::run(&args[1..]);
    }
    if verb == odd::VERB {
        return odd::run(&args[1..]);
    }
    if verb == webstone::VERB {
        return webstone::load::run(first);
    }
    if verb == hiccup::VERB {
        return hiccup::run(Duration::from_millis(first.parse().context(USAGE)?));
    }
    let server = address(first)?;
    let numbers = rest.iter().map(|n| n.parse().context(USAGE));
    let numbers = numbers.collect::<Result<Vec<u64>>>()?;
    let number = |index: usize, default: u64| numbers.get(index).copied().unwrap_or(default);
    let content = Content {
        seed: 1,
        length: number(0, 1 << 20),
    };
    let rounds = Rounds {
        count: u32::try_from(number(0, 100)).context(USAGE)?,
        request: usize::try_from(number(1, 150)).context(USAGE)?,
        reply: None,
        pause: Duration::ZERO,
    };
    let meter = Meter::default();
    let mut client = Client::connect(server, PATIENCE)?;
    match verb.as_str() {
        "echo" => client.exchange(rounds, &meter).map(drop)?,
        "ask" => {
            let reply = usize::try_from(number(2, 10_000)).context(USAGE)?;
            let reply = Some(reply);
            client
                .exchange(Rounds { reply, ..rounds }, &meter)
                .map(drop)?;
        }
        "get" if !client.get(content, &meter)?.exact => bail!("a byte is wrong or missing"),
        "get" => {}
        "put" => client.put(content, &meter)?,
        _ => bail!(USAGE),
    }
    report(&meter)
}

/// How to start `godwit-lab app` with `args`.
///
/// # Errors
/// Fails if there is no such program; the message says how to build it.
pub fn program(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(path()?);
    command.arg(COMMAND).args(args);
    Ok(command)
}

/// The `godwit-lab` program: the running one if that is what it is, else one that was built
/// beside it (a test runs in `target/<profile>/deps`), else the one beside `godwit`.
///
/// # Errors
/// Fails if there is none; the message says how to build it.
pub fn path() -> Result<PathBuf> {
    let running = std::env::current_exe().context("looking for the running program")?;
    if running.file_name().is_some_and(|name| name == PROGRAM) {
        return Ok(running);
    }
    let beside = running.ancestors().skip(1).take(2);
    let beside = beside.map(|folder| folder.join(PROGRAM));
    let other = cluster::binary().map(|path| path.with_file_name(PROGRAM));
    beside
        .chain(other.ok())
        .find(|path| path.is_file())
        .with_context(|| format!("no {PROGRAM}; run `make build`"))
}

/// One line of JSON: bytes, seconds, longest silence.
fn report(meter: &Meter) -> Result<()> {
    let longest = meter.longest_gap().map_or(Duration::ZERO, |gap| gap.length);
    let line = serde_json::json!({
        "bytes": meter.bytes(),
        "seconds": Instant::now().duration_since(meter.started()).as_secs_f64(),
        "longest_gap_ms": longest.as_secs_f64() * 1e3,
    });
    writeln!(std::io::stdout(), "{line}").context("writing the report")
}

pub(super) fn address(text: &str) -> Result<SocketAddr> {
    text.parse()
        .with_context(|| format!("{text:?} is no ADDRESS:PORT\n{USAGE}"))
}
