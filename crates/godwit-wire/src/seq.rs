//! Sequence numbers of TCP: a circle of 2^32 (RFC 9293 §3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A TCP sequence number.
///
/// There is no `Ord`: on a circle "less" depends on where one stands, so the
/// comparison is spelled out at each use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Whether `self` comes before `other`, both within 2^31 of each other.
    pub const fn lt(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) > i32::MAX as u32
    }

    /// Whether `self` is `other` or comes before it.
    pub const fn le(self, other: Self) -> bool {
        !other.lt(self)
    }

    /// Whether `self` comes after `other`.
    pub const fn gt(self, other: Self) -> bool {
        other.lt(self)
    }

    /// Whether `self` is `other` or comes after it.
    pub const fn ge(self, other: Self) -> bool {
        !self.lt(other)
    }

    /// Whether `self` lies in `[low, high)`, as the acceptability test of
    /// RFC 9293 §3.10.7.4 asks; an empty range holds nothing.
    pub const fn between(self, low: Self, high: Self) -> bool {
        self.0.wrapping_sub(low.0) < high.0.wrapping_sub(low.0)
    }

    /// Bytes from `earlier` up to `self`; `None` if `earlier` is not earlier.
    ///
    /// Numbers of strangers may lie anywhere, so there is no plain subtraction
    /// of two sequence numbers.
    pub const fn checked_distance(self, earlier: Self) -> Option<u32> {
        if self.lt(earlier) {
            None
        } else {
            Some(self.0.wrapping_sub(earlier.0))
        }
    }

    /// The later of the two.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.lt(other) { other } else { self }
    }

    /// The earlier of the two.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if other.lt(self) { other } else { self }
    }
}

impl Add<u32> for SeqNumber {
    type Output = Self;

    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNumber {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for SeqNumber {
    type Output = Self;

    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl From<u32> for SeqNumber {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl fmt::Display for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: SeqNumber = SeqNumber(u32::MAX);

    #[test]
    fn order_holds_across_the_wrap() {
        assert!(TOP.lt(SeqNumber(0)) && SeqNumber(0).gt(TOP));
        assert!(SeqNumber(0x7fff_ffff).lt(SeqNumber(0x8000_0000)));
        assert!(TOP.le(TOP) && TOP.ge(TOP) && !TOP.lt(TOP));
        assert_eq!(TOP.max(SeqNumber(4)), SeqNumber(4));
        assert_eq!(TOP.min(SeqNumber(4)), TOP);
    }

    #[test]
    fn a_foreign_number_has_no_distance() {
        assert_eq!(SeqNumber(3).checked_distance(TOP), Some(4));
        assert_eq!(TOP.checked_distance(SeqNumber(3)), None);
        assert_eq!(TOP.checked_distance(TOP), Some(0));
    }

    #[test]
    fn between_is_half_open() {
        assert!(TOP.between(TOP, SeqNumber(1)));
        assert!(SeqNumber(0).between(TOP, SeqNumber(1)));
        assert!(!SeqNumber(1).between(TOP, SeqNumber(1)));
        assert!(!TOP.between(TOP, TOP));
    }

    #[test]
    fn addition_wraps() {
        let mut seq = TOP;
        seq += 2;
        assert_eq!(seq, SeqNumber(1));
        assert_eq!(seq - 2, TOP);
    }
}
