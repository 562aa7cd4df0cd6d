//! What a kernel keeps to itself of a socket, and a move has to know.

use crate::SeqNumber;

/// Fields of `struct tcp_sock` that no socket option tells, of a socket in
/// repair mode. Names are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// How far the time stamp of the last segment is ahead of the clock, in
    /// nanoseconds: pacing stamps segments with the time at which they will
    /// leave (`tcp_wstamp_ns`).
    pub ahead_ns: u64,
    /// Next byte that the application reads; a FIN that it was told of counts.
    pub copied_seq: SeqNumber,
    /// Next byte expected from the client; its FIN counts.
    pub rcv_nxt: SeqNumber,
    /// First byte that the client has not acknowledged; our FIN counts.
    pub snd_una: SeqNumber,
    /// Next byte that has never been sent; our FIN counts.
    pub snd_nxt: SeqNumber,
    /// Next byte that the application writes; our FIN counts.
    pub write_seq: SeqNumber,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Slow start threshold, in segments.
    pub snd_ssthresh: u32,
    /// Smoothed round-trip time, in microseconds; 0 if none was measured.
    pub srtt_us: u32,
    /// Its mean deviation, in microseconds.
    pub mdev_us: u32,
    /// Segments with data that have come in, modulo 2^32.
    pub data_segs_in: u32,
    /// Latest TSval of the client (RFC 7323 section 4.3); 0 without time stamps.
    pub ts_recent: u32,
    /// What forbids a move, or costs one something.
    pub traits: Traits,
}

/// What a socket has that most have not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "five independent facts, as the kernel tells them"
)]
pub struct Traits {
    /// A byte with the urgent flag waits (RFC 6093).
    pub is_urgent: bool,
    /// Segments wait for one before them. They are left behind: the client, told
    /// so by SACK, sends them again.
    pub is_out_of_order: bool,
    /// Its segments are signed (TCP-MD5, RFC 2385; TCP-AO, RFC 5925).
    pub is_signed: bool,
    /// The kernel runs a protocol on top of it (`TCP_ULP`, for one kTLS).
    pub is_layered: bool,
    /// The kernel itself reads or writes it (sockmap, a network file system).
    pub is_taken: bool,
}
