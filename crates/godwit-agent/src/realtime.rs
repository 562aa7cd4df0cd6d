//! Threads that must not wait for their turn.
//!
//! A late heartbeat looks like a dead node, so the threads that send, receive
//! and judge heartbeats run under SCHED_FIFO where the kernel permits it
//! (CAP_SYS_NICE, and no cgroup that forbids it). Everything works without,
//! but `misses * heartbeat` should then leave room for scheduling delays.
//!
//! Threads of the same urgency wait for each other, and the driver looks through
//! thousands of flows: it is less urgent than heartbeats. A thread inherits the
//! urgency of the one that made it, so what the driver has done aside must say
//! that it is [`be_ordinary`]. Links are before ordinary work: while one node
//! waits for another's word, a client does.

use godwit_sock::take_short_turns;
use thread_priority::{
    NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue,
    ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

/// Of the most urgent threads. Low among real-time threads: above all ordinary
/// work, below the kernel's own.
pub(crate) const PRIORITY: u8 = 10;

/// A niceness of 0, as that library counts.
const ORDINARY: u8 = 48;

/// A niceness of about -11.
const BRISK: u8 = 75;

/// RLIMIT_NICE that permits it, as the kernel counts: 20 less the niceness, -15.
pub(crate) const NICE_LIMIT: u64 = 35;

/// What must not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Heartbeats on their way out or in.
    Heartbeats,
    /// What follows from them, and what the data path reports.
    Decisions,
    /// Sockets that leave and come: a client waits for each of them. A large one is
    /// copied for milliseconds, which must not hold a decision up.
    Handoffs,
    /// What peers are told and asked. Before other work, but strangers make us
    /// do TLS here: they must not get the processor for themselves.
    Words,
}

/// Puts the calling thread under SCHED_FIFO, or for words before others of
/// SCHED_OTHER; says in the log if it may not be.
pub fn prefer(thread: &'static str, urgency: Urgency) -> bool {
    let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let other = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    let set = match urgency {
        Urgency::Heartbeats => schedule(PRIORITY, fifo),
        Urgency::Decisions => schedule(PRIORITY - 1, fifo),
        Urgency::Handoffs => schedule(PRIORITY - 2, fifo),
        // A share of the processor is not enough: they wait for others' turns to end.
        Urgency::Words => schedule(BRISK, other) && take_short_turns().is_ok(),
    };
    if !set {
        tracing::info!(
            thread,
            "no priority over other work; heartbeats or answers may be late under load"
        );
    }
    set
}

/// Gives up what the calling thread has inherited. That is always permitted.
pub fn be_ordinary() {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    schedule(ORDINARY, policy);
}

fn schedule(priority: u8, policy: ThreadSchedulePolicy) -> bool {
    let priority = ThreadPriorityValue::try_from(priority).map(ThreadPriority::Crossplatform);
    priority.is_ok_and(|priority| {
        set_thread_priority_and_policy(thread_native_id(), priority, policy).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use thread_priority::thread_schedule_policy_param;

    use super::*;

    fn now() -> (ThreadSchedulePolicy, i32) {
        let (policy, parameters) =
            thread_schedule_policy_param(thread_native_id()).expect("the kernel says so");
        (policy, parameters.sched_priority)
    }

    /// What the driver had done aside kept heartbeats from the processor.
    #[test]
    fn what_is_done_aside_is_not_urgent() {
        let aside = thread::spawn(|| {
            // Without privileges nothing is urgent.
            let urgent = prefer("test", Urgency::Decisions);
            let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
            assert!(!urgent || now() == (fifo, i32::from(PRIORITY) - 1));
            thread::spawn(|| {
                be_ordinary();
                now()
            })
            .join()
        });
        let aside = aside.join().expect("no panic").expect("no panic");
        let other = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
        assert_eq!(aside, (other, 0));
    }
}
