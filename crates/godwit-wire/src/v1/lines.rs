//! What a node's configuration says, line by line, so that two nodes with different files
//! can say what differs. Values are told as hashes: one may be a secret.

use alloc::string::String;
use alloc::vec::Vec;

use crate::cursor::{Reader, verify};
use crate::{EmitError, ParseError};

/// The most lines in one message.
pub const MAX_CONFIG_LINES: usize = 8192;

/// The longest section or key, in bytes.
const MAX_WORD: usize = 96;

/// One line: a key of a section, and what it is set to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigLine {
    /// As `service "web"`.
    pub section: String,
    /// As `address`.
    pub key: String,
    /// FNV-1a (64 bits) of the value.
    pub value: u64,
}

impl ConfigLine {
    /// The line of a value. What is longer than a message can say is cut.
    pub fn new(section: &str, key: &str, value: &str) -> Self {
        let hash = value
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let cut = |word: &str| word.chars().filter(char::is_ascii).take(MAX_WORD).collect();
        Self {
            section: cut(section),
            key: cut(key),
            value: hash,
        }
    }
}

pub(super) fn emit(out: &mut Vec<u8>, lines: &[ConfigLine]) -> Result<(), EmitError> {
    let fits = lines.len() <= MAX_CONFIG_LINES;
    let count = u16::try_from(lines.len()).ok().filter(|_| fits);
    let count = count.ok_or(EmitError {
        what: "config: lines",
        max: MAX_CONFIG_LINES,
        got: lines.len(),
    })?;
    out.extend_from_slice(&count.to_be_bytes());
    for line in lines {
        for word in [&line.section, &line.key] {
            let word = word.as_bytes();
            let word = word.get(..MAX_WORD).unwrap_or(word);
            out.push(u8::try_from(word.len()).unwrap_or(0));
            out.extend_from_slice(word);
        }
        out.extend_from_slice(&line.value.to_be_bytes());
    }
    Ok(())
}

pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Vec<ConfigLine>, ParseError> {
    let at = reader.at();
    let count = usize::from(reader.u16("config: lines")?);
    verify(count <= MAX_CONFIG_LINES, "config: lines", at, count as u64)?;
    let line = |_| {
        Ok(ConfigLine {
            section: parse_word(reader)?,
            key: parse_word(reader)?,
            value: reader.u64("config: value")?,
        })
    };
    (0..count).map(line).collect()
}

fn parse_word(reader: &mut Reader<'_>) -> Result<String, ParseError> {
    let at = reader.at();
    let len = usize::from(reader.u8("config: word")?);
    verify(len <= MAX_WORD, "config: word", at, len as u64)?;
    let bytes = reader.bytes(len, "config: word")?;
    let plain = bytes.iter().find(|byte| !(b' '..=b'~').contains(*byte));
    match plain {
        Some(other) => Err(ParseError {
            what: "config: word",
            at,
            got: u64::from(*other),
        }),
        None => Ok(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}
