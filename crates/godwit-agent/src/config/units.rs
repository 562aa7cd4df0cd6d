//! Durations and sizes as people write them: `"10ms"`, `"4MiB"`.

use std::time::Duration;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes(pub(super) u64);

const DURATIONS: &[(&str, u64)] = &[
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Reads a duration: a whole number and `us`, `ms`, `s`, `m` or `h`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    scaled(text, DURATIONS).map(Duration::from_nanos)
}

/// Reads a size: a whole number and `B`, `KiB`, `MiB`, `GiB`, `kB`, `MB` or `GB`.
pub(super) fn bytes(text: &str) -> Option<Bytes> {
    scaled(text, SIZES).map(Bytes)
}

/// Writes a duration in the largest unit that keeps it whole.
pub(super) fn show_duration(duration: Duration) -> String {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    show(ns, DURATIONS, "ns")
}

/// Writes a size in the largest binary unit that keeps it whole.
pub(super) fn show_bytes(bytes: Bytes) -> String {
    show(bytes.0, &SIZES[..4], "B")
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

fn show(value: u64, units: &[(&str, u64)], smallest: &str) -> String {
    units
        .iter()
        .rev()
        .find(|(_, scale)| value != 0 && value.is_multiple_of(*scale))
        .map_or_else(
            || format!("{value}{smallest}"),
            |(name, scale)| format!("{}{name}", value / scale),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_back() {
        for text in ["10ms", "60s", "2h", "250us"] {
            assert!(duration(text).is_some(), "{text}");
        }
        assert_eq!(duration("10 ms"), Some(Duration::from_millis(10)));
        assert_eq!(show_duration(Duration::from_millis(30)), "30ms");
        assert_eq!(show_duration(Duration::from_secs(120)), "2m");
        assert_eq!(show_duration(Duration::ZERO), "0ns");
    }

    #[test]
    fn sizes_are_read_and_written_back() {
        assert_eq!(bytes("4MiB"), Some(Bytes(4 << 20)));
        assert_eq!(bytes("1kB"), Some(Bytes(1000)));
        assert_eq!(show_bytes(Bytes(64 << 10)), "64KiB");
        assert_eq!(show_bytes(Bytes(1001)), "1001B");
    }

    #[test]
    fn what_has_no_unit_or_overflows_is_refused() {
        for text in [
            "",
            "10",
            "ms",
            "-1ms",
            "1.5s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!(bytes("4mib"), None);
    }
}
