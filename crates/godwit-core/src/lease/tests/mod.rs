//! Tables for either machine; clusters of them are in `tests/lease.rs`.

use std::time::Duration;

use godwit_wire::{
    Epoch, Generation, Lease, LeaseMessage, NodeName, Refusal, Report, ShareId, Standing, Stay,
};

use super::*;
use crate::MonoTime;

mod acceptor;
mod proposer;

const SHARE: ShareId = ShareId(3);

fn ms(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).expect("a literal")
}

fn terms() -> Terms {
    Terms {
        long_term: Duration::from_millis(200),
        ..Terms::default()
    }
}

fn stay(node: &str, generation: u32) -> Stay {
    Stay {
        node: name(node),
        generation: Generation(generation),
    }
}

fn lease(holder: &str, epoch: u64, number: u64) -> Lease {
    Lease {
        holder: name(holder),
        epoch: Epoch(epoch),
        number,
        term_ns: 60_000_000,
        in_sync: Vec::new(),
    }
}

fn promise(epoch: Epoch, last: Option<Lease>) -> LeaseMessage {
    LeaseMessage::Promise {
        share: SHARE,
        epoch,
        last: last.map(|lease| Report {
            lease,
            released: false,
        }),
    }
}

fn accepted(epoch: Epoch, number: u64) -> LeaseMessage {
    LeaseMessage::Accepted {
        share: SHARE,
        epoch,
        number,
    }
}

fn refused(epoch: Epoch, number: u64, refusal: Refusal, by: (u64, &str), ms: u64) -> LeaseMessage {
    LeaseMessage::Refused {
        share: SHARE,
        epoch,
        number,
        refusal,
        by: Epoch(by.0),
        holder: (!by.1.is_empty()).then(|| name(by.1)),
        remaining_ns: ms * 1_000_000,
    }
}
