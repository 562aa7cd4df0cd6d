//! What people read of connections: few lines, whatever comes.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::wire::Refused;

/// So many lines ...
const LINES: u32 = 20;

/// ... in this time.
const PERIOD: Duration = Duration::from_secs(10);

/// Lines, and what was counted.
#[derive(Debug, Default)]
pub(super) struct Said(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
    refused: [u64; Refused::ALL.len()],
}

impl Said {
    /// The line for what became of a connection, if there is room for one.
    pub(super) fn line(
        &self,
        from: IpAddr,
        became: Result<&str, (Refused, &str)>,
        now: Instant,
    ) -> Option<String> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match became {
            Ok(what) => what.to_owned(),
            Err((reason, who)) => {
                let count = counts.refused.get_mut(reason.index())?;
                *count += 1;
                format!("refused: {reason}{who}, {count} of these")
            }
        };
        if counts
            .since
            .is_none_or(|it| now.duration_since(it) >= PERIOD)
        {
            counts.since = Some(now);
            counts.lines = 0;
        }
        if counts.lines >= LINES {
            counts.left_out += 1;
            return None;
        }
        counts.lines += 1;
        let left_out = match std::mem::take(&mut counts.left_out) {
            0 => String::new(),
            some => format!(" ({some} lines were left out)"),
        };
        Some(format!("godwit-pki: {from}: {text}{left_out}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_few_and_say_what_was_left_out() {
        let said = Said::default();
        let from = "192.0.2.1".parse().expect("an address");
        let now = Instant::now();
        let mut lines = Vec::new();
        for _ in 0..1000 {
            lines.extend(said.line(from, Err((Refused::Crowded, "")), now));
        }
        assert_eq!(lines.len(), 20);
        assert_eq!(
            lines[1],
            "godwit-pki: 192.0.2.1: refused: crowded, 2 of these"
        );
        let later = now + PERIOD;
        let next = said.line(from, Err((Refused::Crowded, " (a)")), later);
        let expected = "godwit-pki: 192.0.2.1: refused: crowded (a), 1001 of these \
                        (980 lines were left out)";
        assert_eq!(next.as_deref(), Some(expected));
        let done = said.line(from, Ok("renewed a"), later);
        assert_eq!(done.as_deref(), Some("godwit-pki: 192.0.2.1: renewed a"));
    }
}
