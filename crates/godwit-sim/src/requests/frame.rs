//! What is under way on the link.

use godwit_core::request::Offer;

use super::node::Id;

/// How often a client's frame may be sent on.
pub(super) const HOPS: u8 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// A client's request, or an acknowledgement of so many replies; by which server it was sent
    /// on, and how often it may be once more.
    Client {
        request: Option<u32>,
        heard: u32,
        by: Option<Id>,
        hops: u8,
    },
    /// A SYN of anybody's.
    Syn,
    /// What an owner mirrors to its standby.
    Fed { request: u32, from: Id },
    /// A question to who owns share `to`, perhaps by way of a standby.
    Ask {
        offer: Offer,
        from: Id,
        to: Id,
        by_way: Option<Id>,
    },
    /// Its answer, which goes back as it came.
    Answer {
        offer: Offer,
        accepted: bool,
        by: Id,
        /// Whom it was put to.
        of: Id,
        origin: Id,
        by_way: Option<Id>,
    },
    /// To the standby: its owner has got it.
    Came { offer: Offer, from: Id },
}

impl Frame {
    /// Of servers, under an EtherType of their own.
    pub(super) const fn is_slip(self) -> bool {
        match self {
            Self::Client { .. } | Self::Syn | Self::Fed { .. } => false,
            Self::Ask { .. } | Self::Answer { .. } | Self::Came { .. } => true,
        }
    }

    /// The request that it is about, if it is a question, an answer or a twin's.
    pub(super) const fn about(self) -> Option<u32> {
        match self {
            Self::Client { request, .. } => request,
            Self::Fed { request, .. } => Some(request),
            Self::Ask { offer, .. } | Self::Answer { offer, .. } | Self::Came { offer, .. } => {
                Some(offer.request)
            }
            Self::Syn => None,
        }
    }
}

/// A frame, and which server has it next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    pub(super) at: Id,
    pub(super) frame: Frame,
}

impl Flight {
    /// Whether it is a question of `owner` about that request, or an earlier one, and goes by its
    /// standby `at`.
    pub(super) fn is_question_by(&self, at: Id, owner: Id, request: u32) -> bool {
        match self.frame {
            Frame::Ask {
                offer,
                from,
                by_way,
                ..
            } => {
                let is_its = self.at == at && by_way == Some(at) && from == owner;
                is_its && offer.request <= request
            }
            Frame::Client { .. }
            | Frame::Syn
            | Frame::Fed { .. }
            | Frame::Answer { .. }
            | Frame::Came { .. } => false,
        }
    }
}
