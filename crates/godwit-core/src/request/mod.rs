//! A connection that goes from server to server with its requests, as one server's data path
//! has it: the reference for `gw_transfer.h` and the headers about it.
//!
//! The data path decides each segment by itself, on the entry that it has of the connection.
//! [`Connection`] is that entry with the socket beside it, and [`Connection::hear`] is what
//! each input makes of it. It has no clock and sends nothing: the [`Verdict`] says what
//! becomes of the frame at hand. Three things use it:
//!
//! | | |
//! |---|---|
//! | the tests beside it | every input in every place: the result is legal, and a server becomes a voice for a named reason only |
//! | `godwit-bpf/tests/hooks/request.rs` | drives the programs and this by the same sequences, and compares |
//! | `godwit-sim/src/requests` | runs rings of servers made of it, with losses, deaths and moves |
//!
//! ```text
//!   origin              its standby            target             its standby
//!   Asked ── Ask ─────► Told ── Ask ─────────► Here
//!                                               │ ── Twin ──────► Twin
//!   Gone ◄── Accepted ── Gone ◄── Accepted ─────┘
//! ```
//!
//! The rules that the places keep, whatever is lost, late or repeated:
//!
//! - *One voice.* A server is silent from its question on. Only the answer, or that whom it
//!   has asked is without power, gives it its voice back ([`Connection::is_voice`]).
//! - *The client knows.* Who was asked may remember nothing, as it was without power since. Then
//!   the client's next segment decides: it acknowledges what only that server has said, or the
//!   connection is this server's again ([`Input::Lapse`]).
//! - *One answer.* What was refused under a number is never accepted under it, nor the other
//!   way round.
//! - *A standby knows first.* It is told of a question before the target is.

mod hear;
mod input;

pub use input::{Around, Input, Mate, Offer, Reason, Said, Verdict};

/// One of the servers of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server(pub u8);

/// Where a connection is, as a server knows: `enum gw_transfer_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Place {
    /// There is no entry. With a socket the connection is here, and has never gone.
    #[default]
    Unknown,
    /// It is here, and the number of its last handoff is known.
    Here,
    /// It is offered to another server, which has not answered.
    Asked,
    /// Another server has it.
    Gone,
    /// It is another server's, and was refused here.
    Refused,
    /// A standby: its owner has asked.
    Told,
    /// A standby: its owner got it with a request.
    Twin,
    /// It is being accepted on another processor.
    Coming,
}

impl Place {
    /// Every one.
    pub const ALL: [Self; 8] = [
        Self::Unknown,
        Self::Here,
        Self::Asked,
        Self::Gone,
        Self::Refused,
        Self::Told,
        Self::Twin,
        Self::Coming,
    ];

    /// Its number in the data path; 0: there is no entry.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Here => 1,
            Self::Asked => 2,
            Self::Gone => 3,
            Self::Refused => 4,
            Self::Told => 5,
            Self::Twin => 6,
            Self::Coming => 7,
        }
    }

    /// As people read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Here => "here",
            Self::Asked => "asked",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Told => "told",
            Self::Twin => "twin",
            Self::Coming => "coming",
        }
    }
}

/// What the server has of the connection itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Socket {
    /// Nothing.
    #[default]
    None,
    /// A socket that has spoken from its first segment on.
    Own,
    /// A silent one: the connection is another server's.
    Twin,
    /// A twin of before, whose owner this server is now.
    Adopted,
}

impl Socket {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::None, Self::Own, Self::Twin, Self::Adopted];

    /// Whether this server is the owner of the share that it belongs to.
    #[must_use]
    pub const fn is_owners(self) -> bool {
        match self {
            Self::Own | Self::Adopted => true,
            Self::None | Self::Twin => false,
        }
    }
}

/// One connection at one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Connection {
    /// Where it is.
    pub place: Place,
    /// What is here of it.
    pub socket: Socket,
    /// Of the handoff at hand, or of the last one.
    pub number: u32,
    /// The last number that was refused here; 0: none.
    pub refused: u32,
    /// The last number that was ruled out here (`gw_settle.h`); 0: none.
    pub ruled_out: u32,
    /// Asked, told: which request the question is about.
    pub request: u32,
    /// Asked, told, gone: who was asked, or has it.
    pub to: Option<Server>,
    /// Told, twin: whose twin it is.
    pub owner: Option<Server>,
    /// Asked: nobody remembers what became of the question. The client knows.
    pub lapsed: bool,
}

impl Connection {
    /// One that begins at this server.
    #[must_use]
    pub const fn begun() -> Self {
        Self {
            place: Place::Unknown,
            socket: Socket::Own,
            number: 0,
            refused: 0,
            ruled_out: 0,
            request: 0,
            to: None,
            owner: None,
            lapsed: false,
        }
    }

    /// Whether clients hear what this server's socket says.
    #[must_use]
    pub const fn is_voice(&self) -> bool {
        match self.place {
            Place::Asked | Place::Gone => false,
            Place::Unknown
            | Place::Here
            | Place::Refused
            | Place::Told
            | Place::Twin
            | Place::Coming => self.socket.is_owners(),
        }
    }

    /// What is known is forgotten, but what was ruled out and what there is of it.
    const fn forget(&mut self) {
        *self = Self {
            place: Place::Unknown,
            number: 0,
            refused: 0,
            request: 0,
            to: None,
            owner: None,
            lapsed: false,
            socket: self.socket,
            ruled_out: self.ruled_out,
        };
    }
}

#[cfg(test)]
mod tests;
