//! `gw_kepts`: the requests that other servers were asked to serve, until they have answered
//! (`gw_settle.h`).

use godwit_wire::{FlowId, FlowKey, MacAddr, Segment, SeqNumber, ShareId, TcpFlags, TcpOptions};
use libbpf_rs::MapHandle;

use super::transfers::TransferEntry;
use super::{MapError, TypedMap};
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_kept>() == 1600);

/// Bytes of a slip, and of the tag that one has whose version says so.
const SLIP: usize = 52;
const TAG: usize = 8;
const MAGIC: &[u8] = b"gwsp";
const UNTAGGED: u8 = 2;
const TAGGED: u8 = 3;
/// Where a slip has its kind, the number of the handoff, and the client's first sequence number.
const SLIP_KIND: usize = 5;
const SLIP_NUMBER: usize = 8;
const SLIP_IRS: usize = 12;
/// And who is asked, and who asks by way of a standby.
const SLIP_NODES: usize = 28;
/// `GW_SLIP_BEQUEST`.
const BEQUEST: u8 = 7;
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
    /// When it was put, or a standby heard of it last, in nanoseconds of CLOCK_BOOTTIME.
    pub put_ns: u64,
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
            put_ns: 0,
            place: 0,
        }
    }
}

/// What an agent says to its own data path of a question (`enum gw_slip_kind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// Who was asked has the connection.
    Accepted,
    /// It has not, and never will.
    Refused,
    /// It has not, and may have forgotten that it had: the client's next segment decides.
    Lapsed,
}

impl Said {
    const fn kind(self) -> u8 {
        match self {
            Self::Accepted => 2,
            Self::Refused => 3,
            Self::Lapsed => 6,
        }
    }
}

impl TransferEntry {
    /// What becomes of its question, without the request: as if the link had brought it to `own`.
    /// `None`: the addresses are of two families.
    pub fn answer(&self, own: MacAddr, flow: FlowId, said: Said) -> Option<Vec<u8>> {
        self.said(own, self.to, flow, (said.kind(), self.number), [0, 0])
    }

    /// Who is to get this node's share, at `heir` on the link, is told that the connection is at
    /// the server of the number `at`. If the entry says that it has gone, that counts instead.
    pub fn bequest(&self, own: MacAddr, heir: MacAddr, flow: FlowId, at: u32) -> Option<Vec<u8>> {
        // It may be asked under the last number, or was.
        let number = self.number.saturating_sub(1);
        self.said(own, heir, flow, (BEQUEST, number), [at, 0])
    }

    fn said(
        &self,
        own: MacAddr,
        from: MacAddr,
        flow: FlowId,
        (kind, number): (u8, u32),
        nodes: [u32; 2],
    ) -> Option<Vec<u8>> {
        let segment = Segment {
            source: flow.key.client,
            destination: flow.key.service,
            seq: self.seq,
            ack: SeqNumber(0),
            flags: TcpFlags::ACK,
            wnd: 0,
            options: TcpOptions::default(),
            payload: &[],
        };
        let packet = segment.to_packet().ok()?;
        let is_v6 = packet.first()? >> 4 == 6;
        let ether_type = if is_v6 { IPV6 } else { IPV4 };
        let mut slip = [0; SLIP];
        slip[..MAGIC.len()].copy_from_slice(MAGIC);
        slip[MAGIC.len()] = UNTAGGED;
        slip[SLIP_KIND] = kind;
        slip[SLIP_NUMBER..SLIP_IRS].copy_from_slice(&number.to_be_bytes());
        slip[SLIP_IRS..SLIP_IRS + 4].copy_from_slice(&flow.irs.0.to_be_bytes());
        let nodes = nodes.map(u32::to_be_bytes);
        slip[SLIP_NODES..SLIP_NODES + 8].copy_from_slice(nodes.as_flattened());
        let parts = [&own.0, &from.0, &ether_type[..], &packet, &slip];
        Some(parts.concat())
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
    pub fn answer(&self, own: MacAddr, said: Said) -> Vec<u8> {
        let mut frame = self.frame.clone();
        frame[..6].copy_from_slice(&own.0);
        frame[6..12].copy_from_slice(&self.to.0);
        let is_v6 = frame[14] >> 4 == 6;
        frame[12..14].copy_from_slice(if is_v6 { &IPV6 } else { &IPV4 });
        // Its tag was another one's; what an agent says needs none.
        frame[self.slip + SLIP_KIND] = said.kind();
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
        if raw.partial != 0 && Segment::fill_checksum(&mut frame[14..slip]).is_err() {
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
