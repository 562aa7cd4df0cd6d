//! The `[[service.rule]]` sections: where requests of one kind are served best.

use std::fmt;

use godwit_bpf::{MAX_RULE_PREFIX, MAX_RULE_SUFFIX, PlacingRule, RulePath};
use godwit_wire::{NodeName, node_id};

use super::error::{ConfigError, Problem};
use super::reader::{Item, Place, Section};
use super::value::{FromValue, Unfit, Value};

/// One `[[service.rule]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleConfig {
    /// Of requests to this host only, without port.
    pub host: Option<String>,
    /// Of requests for these paths.
    pub path: RulePath,
    /// The servers, by name; of several the path's hash draws one.
    pub to: Vec<NodeName>,
}

/// Where the parts of a rule stood.
#[derive(Debug, Clone, Copy)]
pub(super) struct RulePlaces {
    pub(super) at: Place,
    pub(super) to: Place,
}

/// What `prefix` can be.
struct Prefix(String);

/// What `suffix` can be, without its dot.
struct Suffix(String);

/// What `host` can be.
struct HostName(String);

impl FromValue for Prefix {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let text = value
            .as_str()
            .filter(|text| text.starts_with('/') && text.len() <= MAX_RULE_PREFIX && is_path(text));
        text.map(|text| Self(text.to_owned())).ok_or_else(|| {
            format!("the beginning of a path, such as \"/images/\", of at most {MAX_RULE_PREFIX} characters").into()
        })
    }
}

impl FromValue for Suffix {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let suffix = value.as_str().and_then(|text| text.strip_prefix('.'));
        let suffix = suffix.filter(|text| {
            !text.is_empty()
                && text.len() <= MAX_RULE_SUFFIX
                && is_path(text)
                && !text.contains(['/', '.'])
        });
        suffix.map(|text| Self(text.to_owned())).ok_or_else(|| {
            format!("what a path ends in, such as \".png\", of at most {MAX_RULE_SUFFIX} characters behind its only dot").into()
        })
    }
}

impl FromValue for HostName {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let is_name = |text: &&str| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !text.is_empty() && text.bytes().all(letter)
        };
        let name = value.as_str().filter(is_name);
        name.map(|text| Self(text.to_owned()))
            .ok_or_else(|| "the name of a host without a port, such as \"www.example.org\"".into())
    }
}

/// RFC 3986 section 3.3, as it is on the wire: no query, nothing that would be escaped.
fn is_path(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_graphic() && !b"?#\"<>\\^`{|}".contains(&byte))
}

pub(super) fn read(
    service: &str,
    mut section: Section<'_>,
) -> Result<(RuleConfig, RulePlaces), ConfigError> {
    section.rename(format!("{service}: rule"));
    let host = section.optional::<HostName>("host")?;
    let prefix = section.optional::<Prefix>("prefix")?;
    let suffix = section.optional::<Suffix>("suffix")?;
    let to = section.required::<Vec<Item<NodeName>>>("to")?;
    let at = section.at();
    let path = match (prefix, suffix) {
        (Some(_), Some(suffix)) => {
            let title = section.title().to_owned();
            return Err(section.error(suffix.at, Problem::RuleOfTwoPaths { section: title }));
        }
        (Some(prefix), None) => RulePath::Prefix(prefix.value.0),
        (None, Some(suffix)) => RulePath::Suffix(suffix.value.0),
        (None, None) => RulePath::Prefix(String::new()),
    };
    section.finish()?;
    let rule = RuleConfig {
        host: host.map(|item| item.value.0),
        path,
        to: to.value.into_iter().map(|item| item.value).collect(),
    };
    Ok((rule, RulePlaces { at, to: to.at }))
}

/// As in the file, on one line.
impl fmt::Display for RuleConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{ ")?;
        if let Some(host) = &self.host {
            write!(f, "host = \"{}\", ", host.to_ascii_lowercase())?;
        }
        match &self.path {
            RulePath::Prefix(path) if path.is_empty() => {}
            RulePath::Prefix(path) => write!(f, "prefix = \"{path}\", ")?,
            RulePath::Suffix(suffix) => write!(f, "suffix = \".{suffix}\", ")?,
        }
        let to: Vec<_> = self.to.iter().map(|it| format!("\"{it}\"")).collect();
        write!(f, "to = [{}] }}", to.join(", "))
    }
}

impl RuleConfig {
    /// As the data path has it: servers by the numbers of their names.
    pub(crate) fn placing(&self) -> PlacingRule {
        PlacingRule {
            host: self.host.clone(),
            path: self.path.clone(),
            nodes: self.to.iter().map(|name| node_id(*name).get()).collect(),
        }
    }
}
