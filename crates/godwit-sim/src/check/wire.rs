//! What is under way between two machines.

use std::collections::VecDeque;
use std::sync::Arc;

use godwit_core::Beat;
use godwit_wire::{LeaseDatagram, Message, ShareClaim};

use super::print::{Mill, Print};
use super::time::Times;

/// Something under way.
#[derive(Debug)]
pub(super) enum What {
    /// A heartbeat; its number is not part of what it says.
    Beat(u64, Vec<ShareClaim>),
    Lease(LeaseDatagram),
    Message(Message),
    /// The other end is gone.
    Gone,
}

impl What {
    /// As an agent of `incarnation` says it.
    pub(super) fn beat(incarnation: u64, sequence: u64, claims: &[ShareClaim]) -> Beat {
        Beat {
            incarnation,
            sequence,
            sent: None,
            shares: claims.to_vec(),
        }
    }
}

/// Something under way, and who sent it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) incarnation: u64,
    pub(super) what: What,
    print: Print,
}

impl Item {
    pub(super) fn new(incarnation: u64, what: What) -> Arc<Self> {
        let print = match &what {
            What::Beat(_, claims) => Print::of(claims),
            What::Lease(datagram) => Print::of(datagram),
            What::Message(message) => Print::of(message),
            What::Gone => Print::of(&"gone"),
        };
        Arc::new(Self {
            incarnation,
            what,
            print,
        })
    }
}

/// Why nothing arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    No,
    /// What is sent is lost, for so many ticks.
    Cut(u8),
    /// It comes late: so many ticks, or as soon as nothing else is to be done.
    Late(u8),
}

/// One direction between two machines: what was sent first arrives first.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    pub(super) items: VecDeque<Arc<Item>>,
    pub(super) block: Block,
}

impl Wire {
    pub(super) const fn new() -> Self {
        Self {
            items: VecDeque::new(),
            block: Block::No,
        }
    }

    /// A step of time has passed.
    pub(super) const fn pass(&mut self) {
        self.block = match self.block {
            Block::No | Block::Cut(0 | 1) | Block::Late(0 | 1) => Block::No,
            Block::Cut(left) => Block::Cut(left - 1),
            Block::Late(left) => Block::Late(left - 1),
        };
    }

    pub(super) fn mix(&self, mill: &mut Mill, times: &Times) {
        let block = match self.block {
            Block::No => 0,
            Block::Cut(left) => 0x100 + u64::from(left),
            Block::Late(left) => 0x200 + u64::from(left),
        };
        mill.add(block + ((self.items.len() as u64) << 16));
        for item in &self.items {
            mill.add(item.incarnation);
            item.print.mix(mill, times);
        }
    }
}
