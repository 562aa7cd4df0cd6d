//! Reads TOML tables key by key, remembering where everything stood.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use godwit_wire::NodeName;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::InterfaceName;
use super::error::{ConfigError, Problem};
use super::units::{self, Bytes};

/// A file and its text: turns places into line numbers.
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

/// Offset of something in the text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place(usize);

/// A value and where it stood.
#[derive(Debug, Clone)]
pub(super) struct Item<T> {
    pub(super) value: T,
    pub(super) at: Place,
}

/// A raw value, as far as the conversions need to see it.
pub(super) struct Value<'a>(&'a DeValue<'a>);

/// A type that a value of the file can become.
pub(super) trait FromValue: Sized {
    /// Converts, or says what would be right ("a duration such as ...").
    fn from_value(value: &Value<'_>) -> Result<Self, String>;
}

/// One table: every key is taken once, and what is left over is an error.
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    title: String,
    at: Place,
    entries: Vec<Entry<'a>>,
    known: Vec<&'static str>,
}

struct Entry<'a> {
    key: String,
    at: Place,
    value: Spanned<DeValue<'a>>,
}

impl Place {
    /// This place, or another one where this is not known.
    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::default() { other } else { self }
    }
}

impl<'a> Source<'a> {
    pub(super) const fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text }
    }

    pub(super) fn line(&self, place: Place) -> usize {
        let before = self.text.get(..place.0).unwrap_or(self.text);
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    pub(super) fn error(&self, place: Place, problem: Problem) -> ConfigError {
        ConfigError::Invalid {
            path: self.path.to_owned(),
            line: self.line(place),
            problem: Box::new(problem),
        }
    }

    /// Makes a path of the file absolute: relative ones start at the file's folder.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        let folder = self.path.parent().unwrap_or_else(|| Path::new(""));
        let path = folder.join(path);
        // The agent may change its working folder with its mount namespace. It
        // fails only where there is no working folder; then nothing is relative.
        std::path::absolute(&path).unwrap_or(path)
    }

    pub(super) fn path(&self) -> &Path {
        self.path
    }

    /// The whole file as one table.
    pub(super) fn root(&'a self) -> Result<Section<'a>, ConfigError> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let message = error.message().replace('\n', ", ");
            let at = Place(error.span().unwrap_or_default().start);
            self.error(at, Problem::Syntax { message })
        })?;
        Ok(Section::new(
            self,
            "top level".into(),
            Place(0),
            table.into_inner(),
        ))
    }
}

impl<'a> Section<'a> {
    fn new(source: &'a Source<'a>, title: String, at: Place, table: DeTable<'a>) -> Self {
        let entries = table
            .into_iter()
            .map(|(key, value)| Entry {
                at: Place(key.span().start),
                key: key.into_inner().into_owned(),
                value,
            })
            .collect();
        Self {
            source,
            title,
            at,
            entries,
            known: Vec::new(),
        }
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    pub(super) const fn at(&self) -> Place {
        self.at
    }

    /// Gives it a better name, once its own `name` is known.
    pub(super) fn rename(&mut self, title: String) {
        self.title = title;
    }

    pub(super) fn optional<T: FromValue>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Item<T>>, ConfigError> {
        let Some(entry) = self.take(key) else {
            return Ok(None);
        };
        let at = Place(entry.value.span().start);
        let value = Value(entry.value.get_ref());
        T::from_value(&value)
            .map(|value| Some(Item { value, at }))
            .map_err(|expected| {
                let section = self.title.clone();
                let got = value.show();
                self.source.error(
                    at,
                    Problem::Malformed {
                        section,
                        key,
                        expected,
                        got,
                    },
                )
            })
    }

    pub(super) fn required<T: FromValue>(
        &mut self,
        key: &'static str,
    ) -> Result<Item<T>, ConfigError> {
        self.optional(key)?.ok_or_else(|| {
            let section = self.title.clone();
            self.source
                .error(self.at, Problem::Missing { section, key })
        })
    }

    /// Like [`Self::optional`], within a range that is shown when it is left.
    pub(super) fn ranged<T: FromValue + PartialOrd>(
        &mut self,
        key: &'static str,
        default: T,
        range: Range<T>,
        show: impl Fn(T) -> String,
    ) -> Result<Item<T>, ConfigError> {
        let Some(item) = self.optional::<T>(key)? else {
            return Ok(Item {
                value: default,
                at: self.at,
            });
        };
        // `range.end` is the most that is allowed, itself included.
        if item.value >= range.start && item.value <= range.end {
            return Ok(item);
        }
        let problem = Problem::OutOfRange {
            section: self.title.clone(),
            key,
            got: show(item.value),
            least: show(range.start),
            most: show(range.end),
        };
        Err(self.source.error(item.at, problem))
    }

    /// A `[key]` table.
    pub(super) fn table(&mut self, key: &'static str) -> Result<Option<Self>, ConfigError> {
        let Some(entry) = self.take(key) else {
            return Ok(None);
        };
        let title = format!("[{key}]");
        self.subsection(key, title, entry.at, entry.value, "a table")
            .map(Some)
    }

    /// The `[[key]]` tables, in the order of the file.
    pub(super) fn tables(&mut self, key: &'static str) -> Result<Vec<Self>, ConfigError> {
        let Some(entry) = self.take(key) else {
            return Ok(Vec::new());
        };
        let expected = "a list of tables";
        match entry.value.get_ref() {
            DeValue::Array(_) => {}
            other => return Err(self.malformed(entry.at, key, expected, &Value(other))),
        }
        let DeValue::Array(items) = entry.value.into_inner() else {
            return Ok(Vec::new());
        };
        items
            .into_iter()
            .map(|item| {
                let at = Place(item.span().start);
                self.subsection(key, format!("[[{key}]]"), at, item, expected)
            })
            .collect()
    }

    /// Ends the reading: a key that nobody asked for is an error.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let Some(entry) = self.entries.into_iter().next() else {
            return Ok(());
        };
        let suggestion = closest(&entry.key, self.known.iter().copied()).map(str::to_owned);
        let problem = Problem::UnknownKey {
            section: self.title,
            key: entry.key,
            suggestion,
        };
        Err(self.source.error(entry.at, problem))
    }

    fn take(&mut self, key: &'static str) -> Option<Entry<'a>> {
        self.known.push(key);
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(index))
    }

    fn subsection(
        &self,
        key: &'static str,
        title: String,
        at: Place,
        value: Spanned<DeValue<'a>>,
        expected: &str,
    ) -> Result<Self, ConfigError> {
        match value.into_inner() {
            DeValue::Table(table) => Ok(Self::new(self.source, title, at, table)),
            other @ (DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)) => Err(self.malformed(at, key, expected, &Value(&other))),
        }
    }

    fn malformed(
        &self,
        at: Place,
        key: &'static str,
        expected: &str,
        value: &Value<'_>,
    ) -> ConfigError {
        let problem = Problem::Malformed {
            section: self.title.clone(),
            key,
            expected: expected.to_owned(),
            got: value.show(),
        };
        self.source.error(at, problem)
    }
}

impl Value<'_> {
    pub(super) fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// The value as an error message quotes it: cut, and on one line.
    fn show(&self) -> String {
        match self.0 {
            DeValue::String(text) => {
                let cut: String = text.chars().take(60).collect();
                let more = if cut.len() < text.len() { "..." } else { "" };
                format!("{:?}", cut + more)
            }
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Datetime(_) => "a date".into(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        }
    }
}

impl FromValue for String {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        value
            .as_str()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| "a string in quotes".into())
    }
}

impl FromValue for u32 {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        let digits = value.0.as_integer().filter(|number| number.radix() == 10);
        digits
            .and_then(|number| number.as_str().parse().ok())
            .ok_or_else(|| "a whole number".into())
    }
}

impl FromValue for Duration {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        value
            .as_str()
            .and_then(units::duration)
            .ok_or_else(|| "a duration such as \"10ms\" or \"2s\"".into())
    }
}

impl FromValue for Bytes {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        value
            .as_str()
            .and_then(units::bytes)
            .ok_or_else(|| "a size such as \"64KiB\" or \"4MiB\"".into())
    }
}

impl FromValue for NodeName {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        value
            .as_str()
            .and_then(|text| Self::new(text).ok())
            // The certificate carries it as a DNS name.
            .filter(|name| is_dns_name(name.as_str()))
            .ok_or_else(|| "a name of 1 to 32 letters, digits, `-`, `_` or `.`".into())
    }
}

impl FromValue for InterfaceName {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        value
            .as_str()
            .filter(|name| (1..=15).contains(&name.len()) && !matches!(*name, "." | ".."))
            .filter(|name| {
                name.bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b'/')
            })
            .map(|name| Self(name.to_owned()))
            .ok_or_else(|| "the name of an interface (1 to 15 characters)".into())
    }
}

impl FromValue for SocketAddr {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        value
            .as_str()
            .and_then(|text| text.parse::<Self>().ok())
            .filter(|socket| socket.port() != 0)
            .map(|socket| Self::new(socket.ip().to_canonical(), socket.port()))
            .ok_or_else(|| {
                "address and port, such as \"10.9.0.11:7400\" or \"[2001:db8::1]:80\"".into()
            })
    }
}

impl FromValue for IpAddr {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        value
            .as_str()
            .and_then(|text| text.parse::<Self>().ok())
            .map(|addr| addr.to_canonical())
            .ok_or_else(|| "an address without port, such as \"10.9.0.11\"".into())
    }
}

/// One value or a list of them.
impl<T: FromValue> FromValue for Vec<Item<T>> {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        let Some(items) = value.0.as_array() else {
            let at = Place::default();
            return T::from_value(value).map(|value| vec![Item { value, at }]);
        };
        items
            .iter()
            .map(|item| {
                let at = Place(item.span().start);
                T::from_value(&Value(item.get_ref()))
                    .map(|value| Item { value, at })
                    .map_err(|expected| format!("a list, each {expected}"))
            })
            .collect()
    }
}

fn is_dns_name(name: &str) -> bool {
    rustls::pki_types::DnsName::try_from(name).is_ok()
}

/// The candidate that differs from `word` in at most two letters, or a third of them.
pub(super) fn closest<'w>(
    word: &str,
    candidates: impl Iterator<Item = &'w str>,
) -> Option<&'w str> {
    // A hostile key may be as long as the file; the distance is quadratic.
    let word = Some(word).filter(|word| word.len() <= 64)?;
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(2))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
