//! What a demonstration shows: events as lines, progress as a line that is
//! drawn again in place on a terminal, and once a second elsewhere.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Time between two pictures of the progress on a terminal.
const REFRESH: Duration = Duration::from_millis(100);

/// Time between two lines of progress elsewhere.
const PLAIN_REFRESH: Duration = Duration::from_secs(1);

/// Cells of the progress bar.
const BAR: usize = 24;

/// Rates kept for the sparkline: the last 2.4 s on a terminal.
const HISTORY: usize = 24;

/// Where a download stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress<'a> {
    pub(super) bytes: u64,
    pub(super) total: u64,
    /// The server that the client's neighbour table names for the service.
    pub(super) owner: &'a str,
}

/// Whether a terminal, with this environment, is for more than text: it is not if its type is
/// `dumb` or unknown, or if the user has set `NO_COLOR`.
pub(super) fn may_move_cursor(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let kind = variable("TERM").unwrap_or_default();
    let is_plain = variable("NO_COLOR").is_some_and(|it| !it.is_empty());
    !kind.is_empty() && kind != "dumb" && !is_plain
}

/// The demonstration's screen.
pub(super) struct View {
    out: Box<dyn Write>,
    live: bool,
    started: Instant,
    shown: Instant,
    last_bytes: u64,
    rates: Vec<f64>,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

impl View {
    /// Shows on `out`, with cursor movement if `live`.
    pub(super) fn new(out: Box<dyn Write>, live: bool) -> Self {
        let now = Instant::now();
        Self {
            out,
            live,
            started: now,
            shown: now,
            last_bytes: 0,
            rates: Vec::new(),
        }
    }

    /// Begins a part with a title of its own; the clock starts again.
    pub(super) fn part(&mut self, title: &str) -> io::Result<()> {
        self.started = Instant::now();
        self.shown = self.started;
        self.last_bytes = 0;
        self.rates.clear();
        let title = if self.live {
            format!("\x1b[1m{title}\x1b[0m")
        } else {
            title.to_owned()
        };
        self.line(&format!("\n{title}"))
    }

    /// Something happened.
    pub(super) fn event(&mut self, text: &str) -> io::Result<()> {
        let at = self.started.elapsed().as_secs_f64();
        self.line(&format!("  {at:7.3} s  {text}"))
    }

    /// A line as it is.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        if self.live {
            self.out.write_all(b"\r\x1b[K")?;
        }
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Draws the progress if its time has come.
    pub(super) fn progress(&mut self, progress: Progress<'_>) -> io::Result<()> {
        let pause = if self.live { REFRESH } else { PLAIN_REFRESH };
        let passed = self.shown.elapsed();
        if passed < pause {
            return Ok(());
        }
        let new = progress.bytes.saturating_sub(self.last_bytes);
        let rate = new as f64 / passed.as_secs_f64();
        self.shown = Instant::now();
        self.last_bytes = progress.bytes;
        if self.rates.len() == HISTORY {
            self.rates.remove(0);
        }
        self.rates.push(rate);
        let text = self.picture(progress, rate);
        if self.live {
            write!(self.out, "\r\x1b[K{text}")?;
            self.out.flush()
        } else {
            self.event(text.trim_start())
        }
    }

    fn picture(&self, progress: Progress<'_>, rate: f64) -> String {
        let Progress {
            bytes,
            total,
            owner,
        } = progress;
        let done = bytes as f64 / total.max(1) as f64;
        let numbers = format!(
            "{:5.1} %  {:7.1} MiB  {:6.1} MB/s  owner: {owner}",
            done * 100.0,
            bytes as f64 / f64::from(1 << 20),
            rate / 1e6,
        );
        if !self.live {
            return numbers;
        }
        let full = (0..BAR).map(|cell| (cell as f64) < done * BAR as f64);
        let bar = full
            .map(|full| if full { '█' } else { '·' })
            .collect::<String>();
        format!("  {bar} {numbers}  {}", sparkline(&self.rates))
    }
}

/// One block per rate, the highest one full.
fn sparkline(rates: &[f64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = rates.iter().copied().fold(1.0, f64::max);
    let block = |rate: &f64| {
        let level = BLOCKS.iter().enumerate();
        // The first block that is not below the rate.
        let mut reached = level.filter(|(i, _)| (*i + 1) as f64 / 8.0 >= rate / most);
        reached.next().map_or('█', |(_, block)| *block)
    };
    rates.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_terminal_gets_text_alone() {
        let environment = |term: &'static str, no_color: &'static str| {
            may_move_cursor(move |name| match name {
                "TERM" => Some(term.into()),
                "NO_COLOR" => Some(no_color.into()),
                _ => None,
            })
        };
        assert!(environment("xterm", ""));
        assert!(!environment("dumb", ""));
        assert!(!environment("", ""));
        assert!(!environment("xterm", "1"));
        assert!(!may_move_cursor(|_| None));
    }

    #[test]
    fn a_sparkline_scales_to_its_highest_rate() {
        assert_eq!(sparkline(&[0.0, 50.0, 100.0]), "▁▄█");
        assert_eq!(sparkline(&[]), "");
    }
}
