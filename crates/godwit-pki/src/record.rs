//! What an authority has issued: a line per certificate, for people and for [`revoke`].
//!
//! [`revoke`]: crate::revoke()

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use godwit_wire::NodeName;

use crate::error::PkiError;
use crate::{files, times};

/// The first line of the file.
const HEAD: &str = "# serial name issued ends revoked";

/// Before the number of the list, in a line that earlier versions pass over.
const LIST: &str = "# list ";

/// A certificate's number, unique among those of its authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serial(Vec<u8>);

/// A certificate of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub serial: Serial,
    /// Whose it is; `None`: it has a name that no node can have.
    pub name: Option<NodeName>,
    /// When it was made, seconds since 1970; `None`: before there was a record.
    pub issued: Option<i64>,
    /// Its last second.
    pub ends: i64,
    /// Since when it is revoked.
    pub revoked: Option<i64>,
}

/// The whole file.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) path: PathBuf,
    /// The number of the list that it was written with; one of an earlier version has none.
    pub(crate) list: Option<u64>,
    pub(crate) entries: Vec<Entry>,
}

impl Serial {
    /// Of big-endian bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Self(bytes.get(zeros..).unwrap_or_default().to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Serial {
    type Err = &'static str;

    /// Hexadecimal digits, with colons between them or without.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a serial number is hexadecimal digits, 20 octets at most";
        let digits: String = text.chars().filter(|it| *it != ':').collect();
        let is_hex = digits.chars().all(|it| it.is_ascii_hexdigit());
        if digits.is_empty() || !is_hex || digits.len() > 42 {
            return Err(WRONG);
        }
        let digits = format!("{}{digits}", if digits.len() % 2 == 1 { "0" } else { "" });
        let octets = digits.as_bytes().chunks(2).map(|pair| {
            let pair = str::from_utf8(pair).map_err(|_| WRONG)?;
            u8::from_str_radix(pair, 16).map_err(|_| WRONG)
        });
        octets
            .collect::<Result<Vec<_>, _>>()
            .map(|it| Self::new(&it))
    }
}

impl Record {
    /// Reads it; an authority of an earlier version has none.
    pub(crate) fn read(path: &Path) -> Result<Self, PkiError> {
        let text = files::read_if_there(path)?.unwrap_or_default();
        let mut notes = text.lines().filter_map(|line| line.strip_prefix(LIST));
        let list = notes.find_map(|number| number.trim().parse().ok());
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entries = lines.map(Entry::read).collect::<Option<_>>();
        let entries = entries.ok_or_else(|| PkiError::Content {
            path: path.to_owned(),
            wanted: "a line per certificate: serial name issued ends revoked",
        })?;
        Ok(Self {
            path: path.to_owned(),
            list,
            entries,
        })
    }

    pub(crate) fn write(&self) -> Result<(), PkiError> {
        let list = self.list.map(|number| format!("{LIST}{number}"));
        let entries = self.entries.iter().map(ToString::to_string);
        let lines = [HEAD.to_owned()].into_iter().chain(list).chain(entries);
        let lines: Vec<_> = lines.collect();
        files::write_beside(&self.path, &(lines.join("\n") + "\n"), 0o600)
    }

    pub(crate) fn find(&mut self, serial: &Serial) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|it| it.serial == *serial)
    }
}

/// What stands for nothing in a line.
const NONE: &str = "-";

impl Entry {
    fn read(line: &str) -> Option<Self> {
        let time = |word: &str| -> Option<Option<i64>> {
            if word == NONE {
                return Some(None);
            }
            times::read(word).map(Some)
        };
        let mut words = line.split_whitespace();
        let serial = words.next()?.parse().ok()?;
        let name = words.next()?;
        let name = match name {
            NONE => None,
            name => Some(NodeName::new(name).ok()?),
        };
        let (issued, ends, revoked) = (words.next()?, words.next()?, words.next()?);
        let entry = Self {
            serial,
            name,
            issued: time(issued)?,
            ends: times::read(ends)?,
            revoked: time(revoked)?,
        };
        words.next().is_none().then_some(entry)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |it: Option<i64>| it.map_or_else(|| NONE.to_owned(), times::show);
        let name = self.name.map(|name| name.to_string());
        let (name, ends) = (name.as_deref().unwrap_or(NONE), times::show(self.ends));
        let (issued, revoked) = (time(self.issued), time(self.revoked));
        write!(f, "{} {name} {issued} {ends} {revoked}", self.serial)
    }
}
