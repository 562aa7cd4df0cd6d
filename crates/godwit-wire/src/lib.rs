//! Bytes on the wire: addresses, segments, flow records and peer messages.
//!
//! Every format has one module with the same parts in the same order:
//! constants, representation, `parse`, `emit`, `Display`, tests. Whatever
//! comes from a socket is hostile: no parser panics, allocates by an
//! unchecked length or loops without bound. `docs/protocol.md` has the tables.
//!
//! Addresses are 16 bytes everywhere (IPv4 as `::ffff:a.b.c.d`), so IPv6 is
//! never a second path. Names follow RFC 9293 and RFC 7323.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod addr;
pub mod app;
mod arp;
mod checksum;
mod cursor;
mod error;
mod ethernet;
mod flow;
mod handoff;
mod heartbeat;
mod lease;
mod message;
mod name;
mod ndp;
mod record;
mod restore;
mod segment;
mod seq;
mod share;
pub mod snapshot;
mod stable_id;
#[cfg(test)]
mod strategies;
mod tag;
pub mod v1;

pub use addr::{Endpoint, MacAddr};
pub use arp::{ArpOperation, ArpPacket};
pub use error::{EmitError, ParseError};
pub use ethernet::EthernetHeader;
pub use flow::{FlowId, FlowKey};
pub use handoff::{FlowEpoch, HandoffId, HandoffRefusal};
pub use heartbeat::Heartbeat;
pub use lease::{Lease, LeaseDatagram, LeaseMessage, Refusal, Report, Standing, Stay};
pub use message::{
    ALL_TAGS_VERSION, ASKED_VERSION, BOUND_KEYS, CANARY_VERSION, Decoder, MAX_VERSION, MIN_VERSION,
    NAMED_SHARES, PLACE_VERSION, TAGS_VERSION,
};
pub use name::{NameError, NodeName};
pub use ndp::{NeighbourAdvertisement, NeighbourSolicitation};
pub use record::{FlowRecord, Negotiated};
pub use restore::{MAX_INPUT_LEN, Restore};
pub use segment::{Segment, TcpFlags, TcpOptions, TimeStamps};
pub use seq::SeqNumber;
pub use share::{
    Epoch, Generation, GoodbyeReason, LeaveReason, MoveRefusal, Role, ShareClaim, ShareId,
    UnprotectedReason,
};
pub use snapshot::{TcpSnapshot, TcpState};
pub use stable_id::{FIRST_STABLE_ID, node_id};
pub use tag::{TagDemand, TagKind, siphash, tag_of};
pub use v1::{
    Commit, ConfigLine, DigestEntry, DirectorWord, EntryWord, FlowMessage, HandoffMessage,
    HandoffStep, Hello, MAX_CONFIG_LINES, MAX_DIGEST_ENTRIES, MAX_DIRECTED, Message, MoveStep,
    NetworkMessage, OutputEntry, Party, PeerMessage, Question, QuestionWord, RejoinMessage, Said,
    Scope, SlotWord, SnapshotMessage, SnapshotPart, StandbyMessage, TagWord, TwinMessage,
};
