//! Times in seconds since 1970, and as the record has them.

use std::time::{Duration, SystemTime};

use time::{Date, Month, OffsetDateTime, Time};

/// Seconds of a day.
pub(crate) const DAY: i64 = 86_400;

pub(crate) fn now() -> i64 {
    of(SystemTime::now())
}

/// Before 1970 it is negative.
pub(crate) fn of(time: SystemTime) -> i64 {
    OffsetDateTime::from(time).unix_timestamp()
}

/// As certificates have it; times beyond the calendar are its end.
pub(crate) fn date(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds)
        .unwrap_or_else(|_| OffsetDateTime::UNIX_EPOCH + Duration::from_secs(u32::MAX.into()))
}

/// `2026-11-29T16:05:00Z`
pub(crate) fn show(seconds: i64) -> String {
    let it = date(seconds);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        it.year(),
        u8::from(it.month()),
        it.day(),
        it.hour(),
        it.minute(),
        it.second()
    )
}

/// The reverse of [`show`].
pub(crate) fn read(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z')?;
    let (day, hour) = text.split_once('T')?;
    let mut day = day.splitn(3, '-');
    let year = day.next()?.parse().ok()?;
    let month: u8 = day.next()?.parse().ok()?;
    let date = Date::from_calendar_date(
        year,
        Month::try_from(month).ok()?,
        day.next()?.parse().ok()?,
    );
    let mut hour = hour.splitn(3, ':').map(|part| part.parse::<u8>().ok());
    let time = Time::from_hms(hour.next()??, hour.next()??, hour.next()??);
    let it = OffsetDateTime::new_utc(date.ok()?, time.ok()?);
    Some(it.unix_timestamp())
}
