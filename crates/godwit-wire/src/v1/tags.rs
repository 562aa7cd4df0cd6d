//! Keys of the tags that prove, on the data network, whose a server's frames are.

use core::fmt;

use alloc::vec::Vec;

use crate::ParseError;
use crate::cursor::Reader;

/// What servers say of such a key. The key of what goes from one server to another is made by
/// the one that is to believe it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TagWord {
    /// What the receiver of this message sends to its sender is to have tags of this key. They
    /// are believed from now on.
    Key([u8; 16]),
    /// What the sender of this message sends to its receiver has tags of the latest key.
    Used,
}

/// The key is a secret, so it is not printed.
impl fmt::Debug for TagWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key",
            Self::Used => "Used",
        })
    }
}

impl TagWord {
    const KEY: u8 = 1;
    const USED: u8 = 2;

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Key(key) => {
                out.push(Self::KEY);
                out.extend_from_slice(key);
            }
            Self::Used => out.push(Self::USED),
        }
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        match reader.u8("tags: word")? {
            Self::KEY => Ok(Self::Key(reader.array("tags: key")?)),
            Self::USED => Ok(Self::Used),
            other => Err(ParseError {
                what: "tags: word",
                at,
                got: other.into(),
            }),
        }
    }
}
