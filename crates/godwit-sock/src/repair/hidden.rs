//! What the kernel keeps to itself, and a move has to know.

/// Fields of `struct tcp_sock` that no socket option tells, read by the data
/// path while the socket is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// How far the time stamp of the last segment was ahead of the clock, in
    /// nanoseconds: pacing stamps segments with the time at which they will
    /// leave (`tcp_wstamp_ns`).
    pub ahead_ns: u64,
    /// Next byte that the application reads.
    pub copied_seq: u32,
    /// Next byte expected from the client.
    pub rcv_nxt: u32,
    /// Next byte that has never been sent.
    pub snd_nxt: u32,
    /// First byte that the client has not acknowledged.
    pub snd_una: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Slow start threshold, in segments.
    pub snd_ssthresh: u32,
    /// Smoothed round-trip time, in microseconds.
    pub srtt_us: u32,
    /// Whether a byte with the urgent flag waits (RFC 6093).
    pub is_urgent: bool,
}
