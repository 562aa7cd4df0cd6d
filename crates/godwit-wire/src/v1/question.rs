//! What becomes of a connection that was offered over the link with a request, when no answer
//! came.

use alloc::vec::Vec;

use crate::cursor::Reader;
use crate::{FlowId, ParseError};

/// Between servers, about such a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The connection.
    pub flow: FlowId,
    /// The number of the question, in the life of the connection.
    pub number: u32,
    /// What is asked, or answered.
    pub word: QuestionWord,
}

impl Question {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        self.flow.emit(out);
        out.extend_from_slice(&self.number.to_be_bytes());
        out.push(self.word.number());
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            flow: FlowId::parse(reader)?,
            number: reader.u32("question: number")?,
            word: QuestionWord::parse(reader)?,
        })
    }
}

/// What servers say over the control link of a connection that one has offered to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionWord {
    /// From who has offered it: have you accepted? If not, never do.
    Settle,
    /// It has not, and never will under that number.
    Never,
    /// It has the connection, or had it.
    Has,
    /// It is accepting it this moment: to be asked again.
    Later,
}

impl QuestionWord {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Settle, Self::Never, Self::Has, Self::Later];

    const fn number(self) -> u8 {
        match self {
            Self::Settle => 1,
            Self::Never => 2,
            Self::Has => 3,
            Self::Later => 4,
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        let number = reader.u8("question: word")?;
        let word = Self::ALL.into_iter().find(|word| word.number() == number);
        word.ok_or_else(|| ParseError {
            what: "question: word",
            at,
            got: number.into(),
        })
    }
}
