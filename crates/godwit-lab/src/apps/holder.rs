//! A process that holds very many descriptors, and waits for its end.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::thread;

use anyhow::{Context as _, Result};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::command::USAGE;

/// The command's name; what it holds and how many follow.
pub(crate) const VERB: &str = "hold";

/// What is said when all are open.
pub(crate) const READY: &str = "holds them";

/// What the program needs besides.
const SPARE: u64 = 64;

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Descriptors of one file.
    Files,
    /// TCP sockets.
    Sockets,
}

impl Kind {
    /// The word of the command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Sockets => "sockets",
        }
    }
}

/// `args`: a [`Kind::word`] and a number.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let [kind, count] = args else {
        anyhow::bail!(USAGE);
    };
    let kind = [Kind::Files, Kind::Sockets]
        .into_iter()
        .find(|it| it.word() == kind)
        .context(USAGE)?;
    let count: u64 = count.parse().context(USAGE)?;
    let limit = count + SPARE;
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).context("raising the limit")?;
    let null = File::open("/dev/null").context("opening /dev/null")?;
    let open = |_| match kind {
        Kind::Files => null.try_clone().map(OwnedFd::from),
        Kind::Sockets => Ok(socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?),
    };
    let held: Vec<_> = (0..count)
        .map(open)
        .collect::<Result<_, _>>()
        .context("opening descriptors")?;
    writeln!(std::io::stderr(), "{READY}")?;
    loop {
        thread::park();
        // Nobody unparks it: they are held until it is killed.
        std::hint::black_box(&held);
    }
}
