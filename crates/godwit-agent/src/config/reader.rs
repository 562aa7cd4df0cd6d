//! Reads TOML tables key by key, remembering where everything stood.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Problem};
use super::spelling::closest;
use super::value::{FromValue, ListEntry, Unfit, Value};

/// A file and its text: turns places into line numbers.
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

/// Offset of something in the text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place(pub(super) usize);

/// A value and where it stood.
#[derive(Debug, Clone)]
pub(super) struct Item<T> {
    pub(super) value: T,
    pub(super) at: Place,
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
        absolute(&folder.join(path))
    }

    /// The file itself.
    pub(super) fn absolute(&self) -> PathBuf {
        absolute(self.path)
    }

    pub(super) fn path(&self) -> &Path {
        self.path
    }

    pub(super) const fn text(&self) -> &'a str {
        self.text
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

/// The agent may change its working folder with its mount namespace. This fails only where
/// there is no working folder; then nothing is relative.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
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

    /// An error of this file.
    pub(super) fn error(&self, place: Place, problem: Problem) -> ConfigError {
        self.source.error(place, problem)
    }

    /// What a path means that may be relative to the file.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.source.resolve(path)
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
        match T::from_value(&value) {
            Ok(value) => Ok(Some(Item { value, at })),
            Err(unfit) => Err(self.unfit(at, key, &value, unfit)),
        }
    }

    /// The value of a key can't become what the key needs.
    fn unfit(&self, at: Place, key: &'static str, value: &Value<'_>, unfit: Unfit) -> ConfigError {
        let (section, expected) = (self.title.clone(), unfit.expected);
        let got = unfit.got.unwrap_or_else(|| value.show());
        let (at, problem) = match unfit.entry {
            None => {
                let problem = Problem::Malformed {
                    section,
                    key,
                    expected,
                    got,
                };
                (at, problem)
            }
            Some(ListEntry { number, at }) => {
                let problem = Problem::MalformedEntry {
                    section,
                    key,
                    number,
                    expected,
                    got,
                };
                (at, problem)
            }
        };
        self.source.error(at, problem)
    }

    pub(super) fn required<T: FromValue>(
        &mut self,
        key: &'static str,
    ) -> Result<Item<T>, ConfigError> {
        self.optional(key)?.ok_or_else(|| {
            // A misspelt key is reported as that, not as the one it was to be.
            let slip = |entry: &&Entry<'_>| closest(&entry.key, [key].into_iter()).is_some();
            if let Some(entry) = self.entries.iter().find(slip) {
                return self.unknown(&entry.key, entry.at, Some(key));
            }
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
        if !entry.value.get_ref().is_array() {
            return Err(self.malformed(entry.at, key, expected, &Value(entry.value.get_ref())));
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
        let Some(entry) = self.entries.first() else {
            return Ok(());
        };
        let suggestion = closest(&entry.key, self.known.iter().copied());
        Err(self.unknown(&entry.key, entry.at, suggestion))
    }

    fn unknown(&self, key: &str, at: Place, suggestion: Option<&str>) -> ConfigError {
        let problem = Problem::UnknownKey {
            section: self.title.clone(),
            key: key.to_owned(),
            suggestion: suggestion.map(str::to_owned),
        };
        self.source.error(at, problem)
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
