//! How often a line of one kind is written.
//!
//! Somebody outside, or a state that lasts, can have a line written again and again: a peer
//! with an expired certificate, an account without rights on a peer's machine, clients that
//! come and go. So each kind of line has a budget: the first few are written at once, then one
//! a minute, which says how many were left out (`left_out`). What is left out for longer is
//! summed up by a line of its own.
//!
//! A kind is a place in the code, or the name of an event, with the first of [`SUBJECTS`] that
//! the line has. Other fields are no part of it: they hold numbers that change.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::bucket::{Bucket, Rate};

/// Fields that say whom a line is about; each has a budget of its own.
const SUBJECTS: [&str; 5] = ["peer", "node", "from", "service", "share"];

/// How often a line is written once the first few are.
const MINUTE: Duration = Duration::from_secs(60);

/// Of lines.
pub(crate) const LINES: Rate = every_minute(10);

/// Of what libbpf says, which has much to say of a program that the kernel refuses.
const OF_LIBBPF: Rate = every_minute(100);

/// Of events about a node or a service.
pub(crate) const EVENTS: Rate = every_minute(64);

/// Of events about connections, of which there are many.
pub(crate) const EVENTS_OF_FLOWS: Rate = every_minute(256);

/// Kinds with a subject that are known at once; of more, subjects are not told apart.
const MOST: usize = 1024;

/// What a line is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    /// A place in the code, or an event's name.
    pub(crate) what: String,
    /// May be empty.
    pub(crate) whom: String,
}

#[derive(Debug)]
struct Budget {
    rate: Rate,
    bucket: Bucket,
    /// The first line of this kind.
    example: String,
}

/// The budgets of all kinds.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    budgets: Mutex<BTreeMap<Kind, Budget>>,
    left_out: AtomicU64,
}

const fn every_minute(burst: u32) -> Rate {
    Rate {
        burst,
        refill: MINUTE,
    }
}

impl Bounds {
    pub(crate) const fn new() -> Self {
        Self {
            budgets: Mutex::new(BTreeMap::new()),
            left_out: AtomicU64::new(0),
        }
    }

    /// Whether a line may be written, and how many of its kind were left out before it. A line
    /// is written without its budget while another thread looks into the table.
    pub(crate) fn admit(
        &self,
        mut kind: Kind,
        rate: Rate,
        now: Instant,
        example: impl Fn() -> String,
    ) -> Option<u64> {
        let mut budgets = match self.budgets.try_lock() {
            Ok(budgets) => budgets,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Threads that keep a lease log, too: they wait for nobody.
            Err(TryLockError::WouldBlock) => return Some(0),
        };
        if budgets.len() >= MOST && !budgets.contains_key(&kind) {
            budgets.retain(|_, it| !it.bucket.is_as_new(it.rate, now));
            if budgets.len() >= MOST {
                kind.whom.clear();
            }
        }
        let budget = budgets.entry(kind).or_insert_with(|| Budget {
            rate,
            bucket: Bucket::full(rate, now),
            example: example(),
        });
        if budget.bucket.admits(rate, now) {
            return Some(budget.bucket.take_left_out());
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Lines that were left out, since the process started.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// What was left out of kinds of which there was none for a minute: no line of theirs
    /// will say so soon.
    pub(crate) fn sum_up(&self, now: Instant) -> Vec<(u64, String)> {
        let mut budgets = self.lock();
        let rests = |it: &Bucket| it.leaves_out_for(now).is_some() && it.rests_for(now) >= MINUTE;
        let due = budgets.values_mut().filter(|it| rests(&it.bucket));
        due.map(|it| (it.bucket.take_left_out(), it.example.clone()))
            .collect()
    }

    /// Held for a look into a table.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Kind, Budget>> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a line as `inner` does, if its kind has some left.
pub(super) struct Bounded<F> {
    pub(super) inner: F,
    pub(super) admit: Admit,
}

/// As [`Bounds::admit`].
type Admit = fn(Kind, Rate, &dyn Fn() -> String) -> Option<u64>;

impl<S, N, F> FormatEvent<S, N> for Bounded<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    /// Nothing is written where nothing was formatted.
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(rate) = rate_of(event.metadata()) else {
            return self.inner.format_event(ctx, writer, event);
        };
        let mut reader = Reader::default();
        event.record(&mut reader);
        let (kind, example) = reader.kind(event.metadata().name());
        match (self.admit)(kind, rate, &|| example.clone()) {
            None => Ok(()),
            Some(0) => self.inner.format_event(ctx, writer, event),
            Some(left_out) => {
                let mut line = String::new();
                self.inner
                    .format_event(ctx, Writer::new(&mut line), event)?;
                writeln!(writer, "{} left_out={left_out}", line.trim_end())
            }
        }
    }
}

/// `None`: it has no budget here. Events have one where they are published, and sums are what
/// the budgets say themselves.
fn rate_of(metadata: &Metadata<'_>) -> Option<Rate> {
    if *metadata.level() > Level::INFO {
        // Written where somebody has asked for all there is.
        return None;
    }
    match metadata.module_path() {
        Some("godwit_agent::events" | "godwit_agent::logging::bounds") => None,
        Some("godwit_agent::logging") => Some(OF_LIBBPF),
        _ => Some(LINES),
    }
}

/// Says what [`Bounds::sum_up`] has found.
pub(super) fn say(sums: Vec<(u64, String)>) {
    for (left_out, example) in sums {
        tracing::info!(left_out, "no more lines as: {example}");
    }
}

/// What a line says of its kind.
#[derive(Debug, Default)]
struct Reader {
    /// By the order of [`SUBJECTS`].
    subject: Option<(usize, String)>,
    message: String,
}

impl Reader {
    fn kind(self, place: &str) -> (Kind, String) {
        let whom = self.subject.map(|(_, it)| it).unwrap_or_default();
        let example = match &*whom {
            "" => self.message,
            whom => format!("{} ({whom})", self.message),
        };
        let what = place.to_owned();
        (Kind { what, whom }, example)
    }
}

impl Visit for Reader {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // A text cannot refuse to grow.
            let _ = write!(self.message, "{value:?}");
            return;
        }
        let Some(rank) = SUBJECTS.iter().position(|it| *it == field.name()) else {
            return;
        };
        if self.subject.as_ref().is_none_or(|(found, _)| rank < *found) {
            let text = format!("{value:?}");
            // Each connection has another port.
            let host = text.parse().map(|it: SocketAddr| it.ip().to_string());
            self.subject = Some((rank, host.unwrap_or(text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(what: &str, whom: &str) -> Kind {
        let (what, whom) = (what.to_owned(), whom.to_owned());
        Kind { what, whom }
    }

    /// What each of `count` lines of a kind hears at a moment.
    fn admitted(bounds: &Bounds, kind: &Kind, now: Instant, count: usize) -> Vec<u64> {
        let admit = || bounds.admit(kind.clone(), LINES, now, || "link closed".into());
        (0..count).filter_map(|_| admit()).collect()
    }

    #[test]
    fn a_kind_has_a_few_lines_and_then_one_a_minute() {
        let (bounds, start) = (Bounds::new(), Instant::now());
        let (b, c) = (kind("listen", "b"), kind("listen", "c"));
        assert_eq!(admitted(&bounds, &b, start, 1000), [0; 10]);
        assert_eq!(admitted(&bounds, &c, start, 3), [0; 3], "another peer");
        assert_eq!(bounds.left_out(), 990);
        let soon = start + MINUTE - Duration::from_millis(1);
        assert_eq!(admitted(&bounds, &b, soon, 10), Vec::<u64>::new());
        assert_eq!(admitted(&bounds, &b, start + MINUTE, 1000), [1000]);
        assert_eq!(admitted(&bounds, &b, start + 2 * MINUTE, 1000), [999]);
        let all_day = (3..1440).map(|minute| {
            let now = start + minute * MINUTE;
            admitted(&bounds, &b, now, 1000).len()
        });
        assert_eq!(all_day.max(), Some(1));
    }

    /// Nobody would say so otherwise.
    #[test]
    fn what_is_left_out_at_the_end_is_summed_up_once() {
        let (bounds, start) = (Bounds::new(), Instant::now());
        let b = kind("listen", "b");
        admitted(&bounds, &b, start, 15);
        let end = start + MINUTE / 2;
        admitted(&bounds, &b, end, 2);
        assert_eq!(bounds.sum_up(start + MINUTE), [], "it goes on, perhaps");
        let due = end + MINUTE;
        assert_eq!(bounds.sum_up(due), [(7, "link closed".to_owned())]);
        assert_eq!(bounds.sum_up(due), []);
        assert_eq!(bounds.left_out(), 7);
    }

    /// A peer may have any number of names, or a node any number of services.
    #[test]
    fn kinds_are_not_kept_without_end() {
        let (bounds, start) = (Bounds::new(), Instant::now());
        let of = |number: usize| kind("listen", &number.to_string());
        for number in 0..3 * MOST {
            admitted(&bounds, &of(number), start, 11);
        }
        assert_eq!(bounds.lock().len(), MOST + 1, "and one for all others");
        let later = start + 20 * MINUTE;
        bounds.sum_up(later);
        assert_eq!(admitted(&bounds, &of(5 * MOST), later, 20).len(), 10);
        assert_eq!(bounds.lock().len(), 1, "what is as new is forgotten");
    }
}
