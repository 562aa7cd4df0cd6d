//! Shows when the machine itself stood still: the control for whatever judges
//! others by the clock.

use std::fmt;
use std::io::Write as _;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// The command's name.
pub(crate) const VERB: &str = "hiccup";

const NAP: Duration = Duration::from_millis(1);
/// What is worth a line.
const LATE: Duration = Duration::from_millis(10);

/// A processor did not run a thread that was due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hiccup {
    /// When it ran again, since 1970.
    pub(crate) end: Duration,
    /// How much too late that was.
    pub(crate) late: Duration,
    /// Which, from 0.
    pub(crate) cpu: usize,
}

/// `SECONDS MILLISECONDS CPU`.
impl fmt::Display for Hiccup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (end, late) = (self.end.as_secs_f64(), self.late.as_secs_f64() * 1e3);
        write!(f, "{end:.6} {late:.3} {}", self.cpu)
    }
}

impl FromStr for Hiccup {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = line.split_ascii_whitespace();
        let mut next = || words.next().ok_or_else(|| anyhow!("no hiccup: {line:?}"));
        let (end, late, cpu) = (next()?, next()?, next()?);
        Ok(Self {
            end: Duration::try_from_secs_f64(end.parse()?)?,
            late: Duration::try_from_secs_f64(late.parse::<f64>()? / 1e3)?,
            cpu: cpu.parse()?,
        })
    }
}

/// On each processor a thread that only sleeps for a millisecond, again and again,
/// for `span`: prints a line whenever it woke up ten or more too late.
pub(crate) fn run(span: Duration) -> Result<()> {
    let cpus = thread::available_parallelism().context("counting the CPUs")?;
    let watches = (0..cpus.get()).map(|cpu| thread::spawn(move || watch(cpu, span)));
    for watch in watches.collect::<Vec<_>>() {
        watch.join().map_err(|_| anyhow!("a watch panicked"))??;
    }
    Ok(())
}

fn watch(cpu: usize, span: Duration) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).context("no such CPU")?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning to CPU {cpu}"))?;
    let end = Instant::now() + span;
    let mut before = Instant::now();
    while before < end {
        thread::sleep(NAP);
        let late = before.elapsed().saturating_sub(NAP);
        before += NAP + late;
        if late >= LATE {
            let end = SystemTime::now().duration_since(UNIX_EPOCH);
            let end = end.context("the clock is before 1970")?;
            let hiccup = Hiccup { end, late, cpu };
            writeln!(std::io::stdout(), "{hiccup}").context("writing the log")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let hiccup = Hiccup {
            end: Duration::from_micros(1_795_375_131_511_575),
            late: Duration::from_micros(23_300),
            cpu: 1,
        };
        assert_eq!(hiccup.to_string(), "1795375131.511575 23.300 1");
        let read: Hiccup = hiccup.to_string().parse().expect("its own line");
        assert_eq!(read.cpu, 1);
        assert!(read.end.abs_diff(hiccup.end) < Duration::from_micros(2));
        assert!(read.late.abs_diff(hiccup.late) < Duration::from_micros(2));
        assert!("3 12.5".parse::<Hiccup>().is_err());
    }
}
