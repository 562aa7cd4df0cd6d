//! Rate limits, by the kernel's token bucket (tc-tbf).
//!
//! A frame that waits in a switch is no longer its sender's. A veth pair does not know
//! that: what waits behind it counts as unsent in the socket that it came from. TCP
//! small queues then hold back the retransmission of a short segment, while longer ones
//! with new data pass, until the retransmission timer decides (`tcp_small_queue_check`
//! compares with twice the size of what is to be sent). So the switch queues copies.

use std::time::Duration;

/// Rate of a link, and how long its queue may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bits per second on the wire, Ethernet header included.
    pub rate_bits: u64,
    /// Longest time that a frame waits before the queue drops; longer where the kernel
    /// comes to look at the bucket more than 1 ms late.
    pub queue: Duration,
}

/// Mark of a frame that is a copy already; a mark does not leave its namespace.
const COPY: u32 = 0x77;

/// For `nft`: what leaves the switch by `port` waits there as a copy, which belongs to
/// no socket. Replaces what was there for that port; nothing without `shaped`.
pub(crate) fn disown(port: &str, shaped: bool) -> String {
    let table = format!("table netdev godwit_wire_{}", port.replace('-', "_"));
    let clear = format!("{table}\ndelete {table}\n");
    if !shaped {
        return clear;
    }
    format!(
        "{clear}{table} {{\nchain out {{\n\
         type filter hook egress device \"{port}\" priority 0; policy accept;\n\
         meta mark {COPY} accept\n\
         meta mark set {COPY} dup to \"{port}\" drop\n}}\n}}\n"
    )
}

impl Shape {
    /// A link of `mbit` megabits per second with a queue of 4 ms.
    ///
    /// Short on purpose: a deep queue would hide a server's silence from the
    /// client for as long as it drains.
    pub const fn mbit(mbit: u64) -> Self {
        Self {
            rate_bits: mbit * 1_000_000,
            queue: Duration::from_millis(4),
        }
    }

    /// Line for `tc -batch`.
    pub(crate) fn command(self, interface: &str) -> String {
        format!(
            "qdisc replace dev {interface} root tbf rate {}bit burst {} latency {}us",
            self.rate_bits,
            self.burst_bytes(),
            self.queue.as_micros()
        )
    }

    /// Bucket size: 1 ms of the rate. From about 600 Mbit/s on it holds a whole
    /// 64 KiB offloaded segment; below, the kernel splits it before it waits.
    fn burst_bytes(self) -> u64 {
        (self.rate_bits / 8 / 1000).max(8 * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gigabit_bucket_holds_an_offloaded_segment() {
        let line = Shape::mbit(1000).command("eth0");
        assert_eq!(
            line,
            "qdisc replace dev eth0 root tbf rate 1000000000bit burst 125000 latency 4000us"
        );
        assert_eq!(Shape::mbit(10).burst_bytes(), 8192);
    }
}
