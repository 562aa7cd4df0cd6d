//! A connection that was offered to another server with a request, and no answer came.
//!
//! The data paths settle questions between themselves (docs/adr/0020): the origin waits, and
//! the client's retransmissions put the question again. Where the link loses all of them, or
//! does not carry them, that never ends, though the server that was asked lives. Then the
//! agents settle it over their control link:
//!
//! ```text
//!  origin's agent                             target's agent
//!  no answer for 10 ms ── settle ───────────► rules the question out, then looks:
//!    TakeBack, serve it ◄─────── never ────── it is not there
//!    Lapse, ask the client ◄──── never ────── it is not there, and may have been
//!    LetGo, forward     ◄───────── has ────── it was accepted
//!    wait               ◄─────── later ────── it is being accepted this moment
//! ```
//!
//! This module decides what the origin does with an answer. That the target's two steps and the
//! two steps by which its data path accepts never give a connection two servers is
//! what the test beside it goes through, in each order.

use godwit_wire::QuestionWord;

/// How a question went to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// From server to server. So is one of which its origin has no copy, as an earlier owner of the
    /// share has put it, and one that was put again.
    Direct,
    /// By the standby of its origin, which has a twin of the connection.
    ByStandby,
}

impl Route {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Direct, Self::ByStandby];
}

/// What who answers would know, had the question been accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// All: it is who was asked, and has been there since.
    Whole,
    /// Perhaps not: it has started anew since, or has taken over what that one had.
    Partial,
}

impl Memory {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Whole, Self::Partial];
}

/// What the origin does about an open question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling {
    /// The connection is its own again, and its server gets the request, if that is kept.
    TakeBack,
    /// The same with the client's next segment, unless that acknowledges what only the target can
    /// have said. Then the connection is the target's.
    Lapse,
    /// The connection is the target's: its own socket ends, and it forwards.
    LetGo,
    /// The connection is the target's, and the standby must hear that as well: the question
    /// is put again by way of it, and the same answer comes back. Once: the target may have let
    /// the connection go on, and answers no more then.
    PutAgain,
    /// Nothing yet: the data path reminds its agent.
    Wait,
    /// Nothing: no origin is told this.
    Ignore,
}

/// What the target's word about a question means to its origin.
pub const fn settle(word: QuestionWord, route: Route, memory: Memory) -> Settling {
    match (word, route, memory) {
        (QuestionWord::Never, Route::Direct | Route::ByStandby, Memory::Whole) => {
            Settling::TakeBack
        }
        (QuestionWord::Never, Route::Direct | Route::ByStandby, Memory::Partial) => Settling::Lapse,
        (QuestionWord::Has, Route::Direct, Memory::Whole | Memory::Partial) => Settling::LetGo,
        (QuestionWord::Has, Route::ByStandby, Memory::Whole | Memory::Partial) => {
            Settling::PutAgain
        }
        (
            QuestionWord::Later,
            Route::Direct | Route::ByStandby,
            Memory::Whole | Memory::Partial,
        ) => Settling::Wait,
        (
            QuestionWord::Settle,
            Route::Direct | Route::ByStandby,
            Memory::Whole | Memory::Partial,
        ) => Settling::Ignore,
    }
}

#[cfg(test)]
mod tests;
