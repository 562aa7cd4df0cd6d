//! Snapshots of applications on their way to a twin.

pub mod commit;
pub mod exports;
pub mod parcel;
pub mod room;

/// Bytes of a snapshot in one message.
pub const PART: usize = 256 << 10;

/// In how many messages so many bytes go; an empty snapshot goes in one, too.
#[must_use]
pub const fn part_count(bytes: usize) -> usize {
    let parts = bytes.div_ceil(PART);
    if parts == 0 { 1 } else { parts }
}
