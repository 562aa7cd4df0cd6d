//! The messages in a lease datagram, each about one share.
//!
//! The words are those of PaxosLease (Trencseni, Gazso, Reinhardt, 2012); the
//! decisions are in `godwit-core`.

use core::fmt;

use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::share::wire_enum;
use crate::{EmitError, Epoch, Generation, NodeName, ParseError, ShareId};

wire_enum! {
    /// On what ground a node proposes that it holds a lease.
    Standing, "standing" {
        /// A majority has just promised this epoch to it.
        Elected = 1, "elected";
        /// It holds the lease now.
        Unbroken = 2, "unbroken";
        /// It was the last to hold the lease, which has ended.
        Lapsed = 3, "lapsed";
        /// The same, but only asks whether that would be accepted.
        Asking = 4, "asking";
    }
}

wire_enum! {
    /// Why an acceptor refuses.
    Refusal, "refusal" {
        /// It has restarted, and a lease of before may still be in force.
        Quarantine = 1, "quarantine";
        /// Another node holds the lease.
        Held = 2, "held";
        /// A greater epoch was promised to another node.
        Promised = 3, "promised";
        /// The share has been leased under another epoch since.
        Superseded = 4, "superseded";
        /// It has forgotten who held the lease last.
        Forgotten = 5, "forgotten";
        /// The lease is longer than it could keep quiet for after a restart.
        TooLong = 6, "too_long";
    }
}

/// A standby in the in-sync set, and which of its generations is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stay {
    /// The standby.
    pub node: NodeName,
    /// The generation.
    pub generation: Generation,
}

/// The right to own a share for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Who may speak.
    pub holder: NodeName,
    /// The period of its ownership.
    pub epoch: Epoch,
    /// Orders what the holder proposes under one epoch: nanoseconds of its clock.
    pub number: u64,
    /// How long the lease lasts from when it is accepted, in nanoseconds;
    /// [`Lease::ENDLESS`] if it does not end by itself.
    pub term_ns: u64,
    /// Who may take over, at most [`Lease::MAX_IN_SYNC`].
    pub in_sync: Vec<Stay>,
}

impl Lease {
    /// The term of a lease that does not end by itself.
    pub const ENDLESS: u64 = u64::MAX;

    /// The most standbys in one lease.
    pub const MAX_IN_SYNC: usize = 8;

    /// Size on the wire, in bytes.
    fn len(&self) -> usize {
        let stays = self.in_sync.iter().map(|stay| stay.node.wire_len() + 4);
        self.holder.wire_len() + 8 + 8 + 8 + 1 + stays.sum::<usize>()
    }

    fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        let count = u8::try_from(self.in_sync.len())
            .ok()
            .filter(|count| usize::from(*count) <= Self::MAX_IN_SYNC)
            .ok_or(EmitError {
                what: "lease: in-sync set",
                max: Self::MAX_IN_SYNC,
                got: self.in_sync.len(),
            })?;
        self.holder.emit(out);
        for number in [self.epoch.0, self.number, self.term_ns] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(count);
        for stay in &self.in_sync {
            stay.node.emit(out);
            out.extend_from_slice(&stay.generation.0.to_be_bytes());
        }
        Ok(())
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            holder: NodeName::parse(reader)?,
            epoch: reader.epoch("lease: epoch")?,
            number: reader.u64("lease: number")?,
            term_ns: reader.u64("lease: term")?,
            in_sync: Self::parse_in_sync(reader)?,
        })
    }

    fn parse_in_sync(reader: &mut Reader<'_>) -> Result<Vec<Stay>, ParseError> {
        let at = reader.at();
        let count = usize::from(reader.u8("lease: in-sync set")?);
        let fits = count <= Self::MAX_IN_SYNC;
        verify(fits, "lease: in-sync set", at, count as u64)?;
        let stay = |_| {
            Ok(Stay {
                node: NodeName::parse(reader)?,
                generation: reader.generation("lease: generation")?,
            })
        };
        (0..count).map(stay).collect()
    }
}

/// What an acceptor knows of a share's last lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The lease that it accepted last.
    pub lease: Lease,
    /// Whether the holder has given it back.
    pub released: bool,
}

/// What is said about the lease of one share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseMessage {
    /// A candidate asks for promises.
    Prepare {
        /// The share.
        share: ShareId,
        /// The epoch that the candidate would own it under.
        epoch: Epoch,
        /// The lease of this epoch is void: its holder has been powered off.
        void: Epoch,
    },
    /// An acceptor will accept no lesser epoch for a while.
    Promise {
        /// The share.
        share: ShareId,
        /// The epoch asked for.
        epoch: Epoch,
        /// What it knows of the last lease, if anything.
        last: Option<Report>,
    },
    /// The holder, or whom a majority promised, asks to have it accepted.
    Propose {
        /// The share.
        share: ShareId,
        /// The lease; its holder is the sender.
        lease: Lease,
        /// On what ground.
        standing: Standing,
        /// As in `Prepare`.
        void: Epoch,
    },
    /// An acceptor holds the lease as proposed.
    Accepted {
        /// The share.
        share: ShareId,
        /// The epoch proposed.
        epoch: Epoch,
        /// The number proposed.
        number: u64,
    },
    /// An acceptor does neither promise nor accept.
    Refused {
        /// The share.
        share: ShareId,
        /// The epoch asked for or proposed.
        epoch: Epoch,
        /// The number proposed; 0 if a promise is refused.
        number: u64,
        /// Why.
        refusal: Refusal,
        /// The epoch that is in the way; none if there is none.
        by: Epoch,
        /// Whose that is.
        holder: Option<NodeName>,
        /// How long it stays in the way, in nanoseconds; 0 if that is not known.
        remaining_ns: u64,
    },
    /// The holder gives its lease back: nobody needs to wait for its end.
    Release {
        /// The share.
        share: ShareId,
        /// The epoch that it held the share under.
        epoch: Epoch,
        /// Above every number proposed before.
        number: u64,
    },
}

impl LeaseMessage {
    const HEAD_LEN: usize = 1 + 4 + 8;

    /// The share that it is about.
    pub const fn share(&self) -> ShareId {
        match self {
            Self::Prepare { share, .. }
            | Self::Promise { share, .. }
            | Self::Propose { share, .. }
            | Self::Accepted { share, .. }
            | Self::Refused { share, .. }
            | Self::Release { share, .. } => *share,
        }
    }

    /// The same, to be replaced: peers of version 1 have other numbers.
    pub const fn share_mut(&mut self) -> &mut ShareId {
        match self {
            Self::Prepare { share, .. }
            | Self::Promise { share, .. }
            | Self::Propose { share, .. }
            | Self::Accepted { share, .. }
            | Self::Refused { share, .. }
            | Self::Release { share, .. } => share,
        }
    }

    /// The epoch that is asked for or answered about.
    pub const fn epoch(&self) -> Epoch {
        match self {
            Self::Prepare { epoch, .. }
            | Self::Promise { epoch, .. }
            | Self::Accepted { epoch, .. }
            | Self::Refused { epoch, .. }
            | Self::Release { epoch, .. } => *epoch,
            Self::Propose { lease, .. } => lease.epoch,
        }
    }

    /// The stable name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "prepare",
            Self::Promise { .. } => "promise",
            Self::Propose { .. } => "propose",
            Self::Accepted { .. } => "accepted",
            Self::Refused { .. } => "refused",
            Self::Release { .. } => "release",
        }
    }

    /// Whether an acceptor said it, rather than a proposer.
    pub const fn is_answer(&self) -> bool {
        match self {
            Self::Promise { .. } | Self::Accepted { .. } | Self::Refused { .. } => true,
            Self::Prepare { .. } | Self::Propose { .. } | Self::Release { .. } => false,
        }
    }

    /// Size on the wire, in bytes.
    pub(super) fn len(&self) -> usize {
        Self::HEAD_LEN
            + match self {
                Self::Prepare { .. } | Self::Accepted { .. } | Self::Release { .. } => 8,
                Self::Promise { last: None, .. } => 1,
                Self::Promise {
                    last: Some(report), ..
                } => 1 + report.lease.len() + 1,
                Self::Propose { lease, .. } => lease.len() + 1 + 8,
                Self::Refused { holder, .. } => {
                    8 + 1 + 8 + 8 + holder.map_or(1, |name| name.wire_len())
                }
            }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Prepare { .. } => 1,
            Self::Promise { .. } => 2,
            Self::Propose { .. } => 3,
            Self::Accepted { .. } => 4,
            Self::Refused { .. } => 5,
            Self::Release { .. } => 6,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) -> Result<(), EmitError> {
        out.push(self.kind());
        out.extend_from_slice(&self.share().0.to_be_bytes());
        out.extend_from_slice(&self.epoch().0.to_be_bytes());
        let mut put = |number: u64| out.extend_from_slice(&number.to_be_bytes());
        match self {
            Self::Prepare { void, .. } => put(void.0),
            Self::Accepted { number, .. } | Self::Release { number, .. } => put(*number),
            Self::Promise { last: None, .. } => out.push(0),
            Self::Promise {
                last: Some(report), ..
            } => {
                out.push(1);
                report.lease.emit(out)?;
                out.push(u8::from(report.released));
            }
            Self::Propose {
                lease,
                standing,
                void,
                ..
            } => {
                lease.emit(out)?;
                out.push(standing.number());
                out.extend_from_slice(&void.0.to_be_bytes());
            }
            Self::Refused {
                number,
                refusal,
                by,
                holder,
                remaining_ns,
                ..
            } => {
                put(*number);
                put(by.0);
                put(*remaining_ns);
                out.push(refusal.number());
                match holder {
                    Some(holder) => holder.emit(out),
                    None => out.push(0),
                }
            }
        }
        Ok(())
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        let kind = reader.u8("lease: kind")?;
        let share = reader.share("lease: share")?;
        let epoch = reader.epoch("lease: epoch")?;
        Ok(match kind {
            1 => Self::Prepare {
                share,
                epoch,
                void: reader.epoch("lease: void")?,
            },
            2 => Self::Promise {
                share,
                epoch,
                last: parse_report(reader)?,
            },
            3 => parse_proposal(reader, share, epoch)?,
            4 => Self::Accepted {
                share,
                epoch,
                number: reader.u64("lease: number")?,
            },
            5 => Self::Refused {
                share,
                epoch,
                number: reader.u64("lease: number")?,
                by: reader.epoch("lease: by")?,
                remaining_ns: reader.u64("lease: remaining")?,
                refusal: Refusal::parse(reader)?,
                holder: parse_holder(reader)?,
            },
            6 => Self::Release {
                share,
                epoch,
                number: reader.u64("lease: number")?,
            },
            got => {
                return Err(ParseError {
                    what: "lease: kind",
                    at,
                    got: u64::from(got),
                });
            }
        })
    }
}

impl fmt::Display for LeaseMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} of share {}",
            self.name(),
            self.epoch(),
            self.share()
        )
    }
}

fn parse_flag(reader: &mut Reader<'_>, what: &'static str) -> Result<bool, ParseError> {
    let at = reader.at();
    let flag = reader.u8(what)?;
    verify(flag <= 1, what, at, flag)?;
    Ok(flag == 1)
}

fn parse_report(reader: &mut Reader<'_>) -> Result<Option<Report>, ParseError> {
    if !parse_flag(reader, "lease: report")? {
        return Ok(None);
    }
    Ok(Some(Report {
        lease: Lease::parse(reader)?,
        released: parse_flag(reader, "lease: released")?,
    }))
}

/// A proposal says its epoch twice: both must be the same.
fn parse_proposal(
    reader: &mut Reader<'_>,
    share: ShareId,
    epoch: Epoch,
) -> Result<LeaseMessage, ParseError> {
    let at = reader.at();
    let lease = Lease::parse(reader)?;
    verify(lease.epoch == epoch, "lease: epoch", at, lease.epoch.0)?;
    Ok(LeaseMessage::Propose {
        share,
        lease,
        standing: Standing::parse(reader)?,
        void: reader.epoch("lease: void")?,
    })
}

fn parse_holder(reader: &mut Reader<'_>) -> Result<Option<NodeName>, ParseError> {
    if reader.rest().first() == Some(&0) {
        reader.u8("lease: holder")?;
        return Ok(None);
    }
    NodeName::parse(reader).map(Some)
}
