//! Durations and sizes as people write them: `"10ms"`, `"4MiB"`.

use std::time::Duration;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes(pub(super) u64);

/// A part of something, 0 to 1, to a hundredth of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction(u32);

impl Fraction {
    const WHOLE: u32 = 10_000;

    /// So many percent, at most 100.
    pub(super) const fn from_percent(percent: u32) -> Self {
        Self(percent * 100)
    }

    /// Of 2^32; everything is `u32::MAX`.
    pub fn of_2_32(self) -> u32 {
        let part = (u64::from(self.0) << 32) / u64::from(Self::WHOLE);
        u32::try_from(part).unwrap_or(u32::MAX)
    }
}

impl std::fmt::Display for Fraction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02}%", self.0 / 100, self.0 % 100)
    }
}

/// Reads a part: a number with at most two decimals and `%`, up to `100%`.
pub(super) fn fraction(text: &str) -> Option<Fraction> {
    let (whole, decimals) = match text.strip_suffix('%')?.split_once('.') {
        Some((whole, decimals)) => (whole, decimals),
        None => (text.strip_suffix('%')?, "0"),
    };
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
        return None;
    }
    let hundredths: u32 = format!("{decimals:0<2}").parse().ok()?;
    let part = whole.parse::<u32>().ok()?.checked_mul(100)? + hundredths;
    (part <= Fraction::WHOLE).then_some(Fraction(part))
}

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
    fn parts_are_read_and_written_back() {
        for (text, shown) in [("1%", "1.00%"), ("0.5%", "0.50%"), ("100%", "100.00%")] {
            assert_eq!(fraction(text).unwrap().to_string(), shown);
        }
        assert_eq!(fraction("100%").unwrap().of_2_32(), u32::MAX);
        assert_eq!(fraction("0%").unwrap().of_2_32(), 0);
        assert_eq!(fraction("50%").unwrap().of_2_32(), 1 << 31);
        for text in ["", "%", "1", "101%", "1.234%", "-1%", ".5%", "1.%"] {
            assert_eq!(fraction(text), None, "{text}");
        }
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
