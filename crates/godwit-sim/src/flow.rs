//! Connections as data paths and kernels know them, and what is on the wire.
//!
//! Streams are counted, not carried: a position stands for its byte. The
//! application is deterministic, its output a function of how much it has read,
//! so two nodes that are at one position have said the same bytes.

use godwit_core::MonoTime;
use godwit_wire::Generation;

/// Payload of a full segment.
pub(crate) const MSS: u32 = 1_000;

/// What may be under way, either way.
pub(crate) const WINDOW: u32 = 8 * MSS;

/// A dialogue: the service answers each request of `ask` bytes with `answer`
/// bytes. An upload has few large requests, a download few large answers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Script {
    pub(crate) ask: u32,
    pub(crate) answer: u32,
    pub(crate) rounds: u32,
}

impl Script {
    pub(crate) const fn asked(self) -> u32 {
        self.ask * self.rounds
    }

    pub(crate) const fn answered(self) -> u32 {
        self.answer * self.rounds
    }

    /// How much the client has to say that has heard so much.
    pub(crate) fn asks(self, heard: u32) -> u32 {
        self.ask * (heard / self.answer + 1).min(self.rounds)
    }

    /// How much the service has to say that has read so much.
    pub(crate) const fn answers(self, read: u32) -> u32 {
        read / self.ask * self.answer
    }
}

/// What a flow is on one node; `enum gw_phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// There is none.
    #[default]
    None,
    Confirming,
    Protected,
    Unprotected,
    Twin,
    Closed,
    Ended,
    Rejoining,
}

/// One flow on one node: the entry of the data path and the kernel's socket.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    /// Names the connection of its slot; 0: there is none.
    pub(crate) irs: u32,
    /// The initial sequence number of the service.
    pub(crate) iss: u32,
    pub(crate) generation: Generation,
    pub(crate) phase: Phase,
    pub(crate) gate: Gate,
    /// Its new twin has all that the client was told.
    pub(crate) whole: bool,
    /// Must not be served at a takeover.
    pub(crate) not_in_sync: bool,
    /// Its socket was materialised here.
    pub(crate) twin: bool,
    /// It serves the client.
    pub(crate) adopted: bool,
    /// Its process has died; silent.
    pub(crate) orphaned: bool,
    /// Whether the kernel has a socket for it.
    pub(crate) socket: bool,
    /// It changed since the last digest.
    pub(crate) changed: bool,
    /// The client was heard since the takeover.
    pub(crate) heard: bool,
    pub(crate) script: Script,
    /// RCV.NXT of the socket.
    pub(crate) rcv_nxt: u32,
    pub(crate) snd_nxt: u32,
    /// The client's acknowledged point.
    pub(crate) snd_una: u32,
    pub(crate) born: MonoTime,
    /// In true time.
    pub(crate) ended_ns: u64,
    pub(crate) rto: Rto,
}

/// What the gate knows of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gate {
    /// Whether it was closed for the flow; holds only for its generation.
    pub(crate) gated: bool,
    pub(crate) twin_ack: u32,
    /// What the client was told last.
    pub(crate) told_ack: u32,
    /// Since when it holds something back.
    pub(crate) held: Option<MonoTime>,
    /// An acknowledgement was held back.
    pub(crate) owed: bool,
    /// A watchdog is under way.
    pub(crate) watched: bool,
}

/// The retransmission timer of a socket: one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rto {
    /// In true time.
    pub(crate) at_ns: u64,
    /// Whether its wake-up is queued.
    pub(crate) queued: bool,
}

impl Flow {
    /// What a segment of the client says to a kernel: only what comes in order.
    pub(crate) fn take(&mut self, frame: Frame) {
        self.snd_una = self.snd_una.max(frame.ack);
        if frame.seq <= self.rcv_nxt {
            self.rcv_nxt = self.rcv_nxt.max(frame.seq + frame.len);
        }
    }

    pub(crate) const fn is_over(&self) -> bool {
        match self.phase {
            Phase::None | Phase::Ended => true,
            Phase::Confirming
            | Phase::Protected
            | Phase::Unprotected
            | Phase::Twin
            | Phase::Closed
            | Phase::Rejoining => false,
        }
    }

    /// gw_is_rejoining
    pub(crate) fn is_rejoining(&self, generation: Generation) -> bool {
        self.phase == Phase::Rejoining && self.is_tapped(generation)
    }

    /// Not whole at a takeover: nobody serves it.
    pub(crate) fn is_given_up(&self) -> bool {
        !self.adopted && (self.not_in_sync || self.phase == Phase::Closed)
    }

    /// Whether the gate of a share in that generation holds for it.
    pub(crate) fn is_gated(&self, generation: Generation) -> bool {
        self.gate.gated && self.is_tapped(generation)
    }

    /// Whether the standby of that generation runs a twin of it.
    pub(crate) fn is_tapped(&self, generation: Generation) -> bool {
        !self.generation.is_none() && self.generation == generation
    }
}

/// Why a client is told that its connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Nothing listens.
    Refused,
    /// The node that took over does not know it.
    UnprotectedAtTakeover,
    /// Its twin lacks bytes, and had left protection before.
    NotInSync,
    /// Its twin had closed.
    TwinClosed,
    /// Its twin, or its own socket, was not born yet.
    Unborn,
    /// The process that served it died, and no other node held it.
    ServerDied,
    /// The process died and nobody took over.
    NoTaker,
    /// Its share has moved, and the new owner has no twin of it.
    ForcedMove,
}

impl Why {
    /// Whether its node had not spoken to the client before.
    pub(crate) const fn is_of_twin(self) -> bool {
        match self {
            Self::NotInSync | Self::TwinClosed | Self::Unborn => true,
            Self::Refused
            | Self::UnprotectedAtTakeover
            | Self::ServerDied
            | Self::NoTaker
            | Self::ForcedMove => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Syn,
    SynAck,
    /// Third ACK of the handshake.
    Third,
    /// A segment of the client.
    Client,
    /// The client has all, and says so.
    Fin,
    /// A segment of the service.
    Service,
    /// One acknowledged byte again, for the client to answer.
    Probe,
    Reset(Why),
    /// Gratuitous ARP, or an answer to [`Kind::WhoHas`].
    Announce,
    WhoHas,
    /// The twin's acknowledgement, from the standby to the owner.
    TwinAck,
}

/// One frame on the data network. It says what a real one says, no more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) slot: usize,
    pub(crate) irs: u32,
    /// Of the service: with it SEG.ACK of the client, and SEG.SEQ of the service, begin.
    pub(crate) iss: u32,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: u32,
}

impl Frame {
    pub(crate) const fn bare(kind: Kind, slot: usize, irs: u32) -> Self {
        Self {
            kind,
            slot,
            irs,
            iss: 0,
            seq: 0,
            len: 0,
            ack: 0,
        }
    }

    /// As [`Self::bare`], of a handshake in which the service has answered.
    pub(crate) const fn begun(kind: Kind, slot: usize, irs: u32, iss: u32) -> Self {
        Self {
            iss,
            ..Self::bare(kind, slot, irs)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialogue_goes_on_round_by_round() {
        let script = Script {
            ask: 10,
            answer: 100,
            rounds: 3,
        };
        assert_eq!((script.asks(0), script.answers(9)), (10, 0));
        assert_eq!((script.answers(10), script.asks(99)), (100, 10));
        assert_eq!((script.asks(100), script.asks(300)), (20, 30));
        assert_eq!(script.answers(script.asked()), script.answered());
    }
}
