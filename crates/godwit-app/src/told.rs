//! Servers that count themselves what they read and write.
//!
//! To ask the kernel where a server stands takes a system call, longer than all the
//! rest of an export. A server that says it is believed, and the kernel asked every
//! [`CHECK`]. What it is found to have said wrongly is forgotten, and it is not believed
//! any more.

use std::time::{Duration, Instant};

use godwit_sock::StreamPosition;

/// How long a server is believed.
const CHECK: Duration = Duration::from_millis(1);

/// What a server has read and written of a connection since it was given it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// What it has read.
    pub read: u64,
    /// What it has written.
    pub written: u64,
}

/// What is known of a server's own count of one connection.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// Where the server was given the connection; `None` if that is not known, or if it is
    /// not believed.
    begun: Option<Progress>,
    /// When the kernel was asked last, and what it said.
    checked: Option<(Instant, StreamPosition)>,
    /// Where the server said it was.
    latest: Progress,
    /// Whether it was believed since.
    believed: bool,
}

/// Where a server is believed to stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Believed {
    pub(crate) position: StreamPosition,
    /// Not the first time since the kernel was asked.
    pub(crate) again: bool,
}

/// What the kernel says of what a server has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checked {
    /// It is right, or nobody has said anything.
    Right,
    /// Nobody says anything now; what was believed since the server stood there is known
    /// from nobody else.
    UnknownSince(Progress),
    /// It is wrong; so may be all that was said since the server stood there.
    WrongSince(Progress),
}

impl Count {
    /// Of a server that is given a connection that has come as far as that.
    pub(crate) fn from(read: u64, written: u64) -> Self {
        Self {
            begun: Some(Progress { read, written }),
            ..Self::default()
        }
    }

    /// Where the server stands, if it is believed without the kernel.
    pub(crate) fn believed(&mut self, said: Progress, now: Instant) -> Option<Believed> {
        let (at, known) = self.checked?;
        let Progress { read, written } = self.place(said)?;
        let is_recent = now.saturating_duration_since(at) < CHECK;
        // Nobody goes back.
        let is_later = read >= self.latest.read && written >= self.latest.written;
        // What is known of the place that the kernel has confirmed is not to be replaced.
        let is_confirmed = (read, written) == (known.read, known.written);
        if !is_recent || !is_later || is_confirmed {
            return None;
        }
        self.latest = Progress { read, written };
        Some(Believed {
            position: StreamPosition {
                read,
                written,
                ..known
            },
            again: std::mem::replace(&mut self.believed, true),
        })
    }

    /// Takes note of what the kernel says.
    pub(crate) fn check(
        &mut self,
        said: Option<Progress>,
        found: StreamPosition,
        now: Instant,
    ) -> Checked {
        let StreamPosition { read, written, .. } = found;
        let before = self.checked.replace((now, found));
        self.latest = Progress { read, written };
        let believed = std::mem::take(&mut self.believed);
        let since = before.map(|(_, before)| Progress {
            read: before.read,
            written: before.written,
        });
        let begun = self.begun.unwrap_or_default();
        let Some(said) = said.and_then(|said| self.place(said)) else {
            return match since {
                Some(since) if believed => Checked::UnknownSince(since),
                Some(_) | None => Checked::Right,
            };
        };
        if said == self.latest {
            return Checked::Right;
        }
        self.begun = None;
        Checked::WrongSince(since.unwrap_or(begun))
    }

    fn place(&self, said: Progress) -> Option<Progress> {
        let begun = self.begun?;
        Some(Progress {
            read: begun.read.checked_add(said.read)?,
            written: begun.written.checked_add(said.written)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(read: u64, written: u64) -> StreamPosition {
        StreamPosition {
            read,
            written,
            acknowledged: 0,
            unread: 0,
        }
    }

    const fn said(read: u64, written: u64) -> Progress {
        Progress { read, written }
    }

    #[test]
    fn a_server_is_believed_for_a_while_once_it_was_right() {
        let (mut count, now) = (Count::from(100, 1000), Instant::now());
        assert_eq!(count.believed(said(1, 2), now), None, "never checked");
        let right = count.check(Some(said(1, 2)), found(101, 1002), now);
        assert_eq!(right, Checked::Right);
        let soon = now + CHECK / 2;
        for again in [false, true] {
            let position = found(101, 1005);
            let believed = count.believed(said(1, 5), soon);
            assert_eq!(believed, Some(Believed { position, again }));
        }
        assert_eq!(count.believed(said(1, 4), soon), None, "backwards");
        assert_eq!(count.believed(said(0, 9), soon), None, "backwards");
        assert_eq!(count.believed(said(u64::MAX, 9), soon), None);
        assert_eq!(count.believed(said(1, 9), now + CHECK), None, "too long");
        let mut unknown = Count::default();
        unknown.check(None, found(0, 0), now);
        assert_eq!(unknown.believed(said(0, 0), now), None);
    }

    #[test]
    fn who_was_wrong_is_not_believed_again() {
        let (mut count, now) = (Count::from(0, 0), Instant::now());
        count.check(Some(said(0, 10)), found(0, 10), now);
        assert!(count.believed(said(0, 30), now).is_some());
        let wrong = count.check(Some(said(0, 40)), found(0, 35), now);
        assert_eq!(wrong, Checked::WrongSince(said(0, 10)));
        assert_eq!(count.believed(said(0, 35), now), None);
        let again = count.check(Some(said(0, 50)), found(0, 45), now);
        assert_eq!(again, Checked::Right, "nobody listens");
    }

    /// What is known of it is right, and would be lost.
    #[test]
    fn nothing_is_believed_of_the_place_that_was_confirmed() {
        let (mut count, now) = (Count::from(0, 0), Instant::now());
        count.check(Some(said(1, 2)), found(1, 2), now);
        assert_eq!(count.believed(said(1, 2), now), None);
        assert!(count.believed(said(1, 3), now).is_some());
    }

    #[test]
    fn what_was_believed_is_forgotten_by_one_who_does_not_count() {
        let (mut count, now) = (Count::from(0, 0), Instant::now());
        count.check(Some(said(1, 2)), found(1, 2), now);
        assert!(count.believed(said(1, 9), now).is_some());
        let since = Checked::UnknownSince(said(1, 2));
        assert_eq!(count.check(None, found(1, 5), now), since);
        assert_eq!(count.check(None, found(1, 5), now), Checked::Right);
    }
}
