//! `gw_kepts`: the requests that other servers were asked to serve, until they have answered
//! (`gw_settle.h`).

use godwit_wire::{FlowId, FlowKey, MacAddr, SeqNumber, ShareId};
use libbpf_rs::MapHandle;

use super::{MapError, TypedMap};
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_kept>() == 1600);

/// Bytes of a slip, and of the tag that one has whose version says so.
const SLIP: usize = 52;
const TAG: usize = 8;
const MAGIC: &[u8] = b"gwsp";
const TAGGED: u8 = 3;
/// Where a slip has its kind.
const SLIP_KIND: usize = 5;
/// `GW_SLIP_ACCEPTED` and `GW_SLIP_REFUSED`.
const ACCEPTED: u8 = 2;
const REFUSED: u8 = 3;
/// The EtherTypes of IPv4 and IPv6.
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// A question that has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// The share of the connection here.
    pub share: ShareId,
    /// The connection.
    pub flow: FlowId,
    /// The number of the question, in the life of the connection.
    pub number: u32,
    /// The number of the name of whom it was put to.
    pub node: u32,
    /// Where its request is kept.
    pub(crate) place: u32,
}

impl Unanswered {
    /// A question to the server of number 0.
    pub const fn new(share: ShareId, flow: FlowId, number: u32) -> Self {
        Self {
            share,
            flow,
            number,
            node: 0,
            place: 0,
        }
    }
}

/// The frame of a question, as it left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptQuestion {
    frame: Vec<u8>,
    /// Where its slip begins.
    slip: usize,
    to: MacAddr,
    /// It went by way of this node's standby.
    pub by_way: bool,
}

impl KeptQuestion {
    /// The frame as it left, to be put again.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The answer of whom was asked, as if the link had brought it to `own`: for
    /// [`MARK_SETTLED`](crate::MARK_SETTLED).
    pub fn answer(&self, own: MacAddr, accepted: bool) -> Vec<u8> {
        let mut frame = self.frame.clone();
        frame[..6].copy_from_slice(&own.0);
        frame[6..12].copy_from_slice(&self.to.0);
        let is_v6 = frame[14] >> 4 == 6;
        frame[12..14].copy_from_slice(if is_v6 { &IPV6 } else { &IPV4 });
        // Its tag was another one's; what an agent says needs none.
        frame[self.slip + SLIP_KIND] = if accepted { ACCEPTED } else { REFUSED };
        frame
    }
}

/// Where the slip of a frame begins, and the packet ends.
fn slip_of(frame: &[u8]) -> Option<usize> {
    let tagged = frame.len().checked_sub(SLIP + TAG)?;
    let slip = frame.get(tagged..)?;
    let is_tagged = slip.starts_with(MAGIC) && slip.get(MAGIC.len()) == Some(&TAGGED);
    Some(if is_tagged { tagged } else { tagged + TAG })
}

/// Typed access to them.
#[derive(Debug)]
pub struct QuestionTable(TypedMap<u32, types::gw_kept>);

impl QuestionTable {
    pub(crate) fn new(map: MapHandle) -> Self {
        Self(TypedMap::new(map, "gw_kepts"))
    }

    /// What is kept of a question. `None` if it was too long, if another one has its place, or
    /// if it is being written this moment.
    ///
    /// # Errors
    /// Fails if the kernel does not give the map's content.
    pub fn get(&self, question: &Unanswered) -> Result<Option<KeptQuestion>, MapError> {
        let before = self.0.lookup(&question.place)?;
        // Whoever writes a place says so first: what is equal twice was not written meanwhile.
        let after = self.0.lookup(&question.place)?;
        let (Some(raw), Some(after)) = (before, after) else {
            return Ok(None);
        };
        let flow = FlowId {
            key: FlowKey::from(raw.key),
            irs: SeqNumber(raw.irs),
        };
        let len = usize::from(raw.len);
        let is_whole = len >= 14 + 40 + SLIP && raw.frame == after.frame && raw.len == after.len;
        if !is_whole || flow != question.flow || raw.number != question.number {
            return Ok(None);
        }
        let Some(frame) = raw.frame.get(..len) else {
            return Ok(None);
        };
        let mut frame = frame.to_vec();
        let Some(slip) = slip_of(&frame) else {
            return Ok(None);
        };
        if raw.partial != 0 && godwit_wire::Segment::fill_checksum(&mut frame[14..slip]).is_err() {
            return Ok(None);
        }
        Ok(Some(KeptQuestion {
            frame,
            slip,
            to: MacAddr(raw.to),
            by_way: raw.by_way != 0,
        }))
    }
}
