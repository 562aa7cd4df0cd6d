//! What a driver does for handoffs, and what it says of that.

use std::time::Duration;

use godwit_wire::{FlowId, HandoffId, HandoffRefusal};

use crate::handoff::{Course, HandoffError, Order, Written};
use crate::{MonoTime, PeerId};

/// What a driver has to do for a connection that goes to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoffWork {
    /// Carry out an order; [`Order::Say`] is that of the state alone, the other
    /// words are sent as messages.
    Obey {
        /// The order.
        order: Order,
        /// What is to be written down of the connection before anything else.
        written: Option<Written>,
    },
    /// A part of the state of a connection that comes; [`Order::Restore`] follows
    /// the last one.
    State {
        /// The attempt.
        id: HandoffId,
        /// The bytes, in the order in which they were sent.
        part: Vec<u8>,
    },
    /// A packet of the client that has waited at a target to which its connection
    /// did not go.
    Held {
        /// The connection.
        flow: FlowId,
        /// From its IP header on.
        packet: Vec<u8>,
    },
    /// Answer whoever wanted a connection to move.
    Ended {
        /// The connection.
        flow: FlowId,
        /// When it came how far, or why it is still here.
        outcome: Result<Course, HandoffError>,
    },
}

/// What has become of such work, and what else is known of such connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoffReport {
    /// At start: what an earlier agent has written down.
    Resumed(FlowId, Written),
    /// Of [`Order::Hold`].
    Held(HandoffId, Result<(), HandoffRefusal>),
    /// Of [`Order::Freeze`]: since when it is silent.
    Frozen(HandoffId, Result<MonoTime, HandoffRefusal>),
    /// Of [`Order::Restore`].
    Restored(HandoffId, Result<(), HandoffRefusal>),
    /// Of [`Order::Place`].
    Placed(HandoffId),
    /// The connection is over here.
    Ended(FlowId),
    /// The client of one that this node forwards for has been silent for so long.
    Silent {
        /// The connection.
        flow: FlowId,
        /// How long its client has not been heard here.
        lasted: Duration,
        /// How long a target is waited for that can't be asked.
        patience: Duration,
    },
    /// Of [`Order::Look`]: there is no socket.
    Absent {
        /// What was looked for.
        id: HandoffId,
        /// Who wants to know.
        from: PeerId,
    },
}
