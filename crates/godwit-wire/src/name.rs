//! Names of nodes, short enough to be held in place.

use core::fmt;
use core::str::FromStr;

use alloc::vec::Vec;

use crate::ParseError;
use crate::cursor::Reader;

const FORM: &str = "node name: 1 to 32 of a-z A-Z 0-9 . _ -";

/// The name of a node: 1 to 32 letters, digits, `.`, `_` or `-`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName {
    // Unused bytes are zero, so the derived order is the order of the text.
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl NodeName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 32;

    /// Checks and takes a name.
    ///
    /// # Errors
    /// If it is empty, too long, or holds another character.
    pub fn new(name: &str) -> Result<Self, ParseError> {
        Self::from_bytes(name.as_bytes(), 0)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        // Only ASCII passes `from_bytes`, so this is the whole name.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Size on the wire, in bytes.
    pub(crate) const fn wire_len(&self) -> usize {
        1 + self.len as usize
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.push(self.len);
        out.extend_from_slice(self.as_bytes());
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let at = reader.at();
        let len = reader.u8(FORM)?;
        Self::from_bytes(reader.bytes(usize::from(len), FORM)?, at)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn from_bytes(name: &[u8], at: usize) -> Result<Self, ParseError> {
        let error = |got: u64| ParseError {
            what: FORM,
            at,
            got,
        };
        let len = u8::try_from(name.len()).map_err(|_| error(name.len() as u64))?;
        let mut bytes = [0; Self::MAX_LEN];
        let room = bytes
            .get_mut(..name.len())
            .filter(|room| !room.is_empty())
            .ok_or_else(|| error(u64::from(len)))?;
        room.copy_from_slice(name);
        match name.iter().find(|byte| !is_name_byte(**byte)) {
            Some(stranger) => Err(error(u64::from(*stranger))),
            None => Ok(Self { bytes, len }),
        }
    }
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name).map_err(|_| NameError::of(name))
    }
}

/// Why a text is no name of a node, for whoever has typed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It has no character.
    #[error("the name of a node can't be empty")]
    Empty,
    /// It has more than [`NodeName::MAX_LEN`] characters.
    #[error("the name of a node has at most 32 characters, and this one has {0}")]
    Long(usize),
    /// One of its characters is none of them.
    #[error(
        "the name of a node has letters (a-z, A-Z), digits, `.`, `_` and `-` only, and this one \
         has {0:?}"
    )]
    Character(char),
}

impl NameError {
    /// What is wrong with a text that is no name.
    fn of(name: &str) -> Self {
        let is_one = |it: &char| u8::try_from(*it).is_ok_and(is_name_byte);
        match name.chars().find(|it| !is_one(it)) {
            Some(stranger) => Self::Character(stranger),
            None if name.is_empty() => Self::Empty,
            None => Self::Long(name.chars().count()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(
            NodeName::new("rack-1.a_b").unwrap().to_string(),
            "rack-1.a_b"
        );
        assert!(NodeName::new(&"x".repeat(32)).is_ok());
        for bad in ["", "a b", "ä", "a\0", &"x".repeat(33), &"x".repeat(300)] {
            assert!(NodeName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_name_is_said_in_words() {
        let said = |name: &str| name.parse::<NodeName>().unwrap_err().to_string();
        assert!(said("").contains("empty"));
        assert!(said(&"x".repeat(38)).ends_with("this one has 38"));
        assert!(said("../x").ends_with("this one has '/'"));
        assert!(said("a\u{e4}").ends_with("this one has '\u{e4}'"));
        assert!("..".parse::<NodeName>().is_ok());
    }

    #[test]
    fn order_is_that_of_the_text() {
        let names = ["a", "ab", "b", "ba"].map(|name| NodeName::new(name).unwrap());
        assert!(names.is_sorted());
    }
}
