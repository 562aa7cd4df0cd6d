//! Threads that must not wait for their turn.
//!
//! A late heartbeat looks like a dead node, so the threads that send, receive
//! and judge heartbeats run under SCHED_FIFO where the kernel permits it
//! (CAP_SYS_NICE, and no cgroup that forbids it). Everything works without,
//! but `misses * heartbeat` should then leave room for scheduling delays.

use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// Low among real-time threads: above all ordinary work, below the kernel's own.
pub(crate) const PRIORITY: u8 = 10;

/// Puts the calling thread under SCHED_FIFO; says in the log if it may not be.
pub fn prefer(thread: &'static str) -> bool {
    let priority = ThreadPriorityValue::try_from(PRIORITY).map(ThreadPriority::Crossplatform);
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let set = priority.is_ok_and(|priority| {
        set_thread_priority_and_policy(thread_native_id(), priority, policy).is_ok()
    });
    if !set {
        tracing::info!(
            thread,
            "no real-time priority; heartbeats may be late under load"
        );
    }
    set
}
