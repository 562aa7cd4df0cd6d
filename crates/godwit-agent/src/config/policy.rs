//! The `[service.policy]` section: where connections begin, and programs of the user's own.

use std::path::PathBuf;

use godwit_bpf::Policy;

use super::error::ConfigError;
use super::reader::{Place, Section};
use super::value::{FromValue, Unfit, Value};

/// What a server measures of its processors' pressure, unless another file is named.
const PRESSURE: &str = "/proc/pressure/cpu";

/// Percent by which another server must be lighter.
const MARGIN: u32 = 20;

/// Most connections that can be called a full load.
const MOST_CONNECTIONS: u32 = 1 << 24;

/// `[service.policy]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyConfig {
    /// From which load on new connections are passed on, 1 to 100 percent; `None`: never.
    pub redirect: Option<u8>,
    /// Only to a server whose load is so much less, 1 to 100 percent.
    pub margin: u8,
    /// How many sockets of TCP in use are a full load; `None`: they are not counted.
    pub connections: Option<u32>,
    /// Pressure stall information of the processors that count.
    pub pressure: PathBuf,
    /// Who is asked first.
    pub program: Option<ProgramConfig>,
}

/// A program of the user's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgramConfig {
    /// One that comes with Godwit, by name.
    BuiltIn(String),
    /// A compiled one.
    File(PathBuf),
}

/// A name, or a path.
struct Program(String);

impl FromValue for Program {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let is_known = |text: &&str| text.contains('/') || Policy::built_in(text).is_some();
        let text = value.as_str().filter(is_known);
        text.map(|text| Self(text.to_owned())).ok_or_else(|| {
            let names: Vec<_> = Policy::built_in_names()
                .map(|name| format!("\"{name}\""))
                .collect();
            format!(
                "one of {}, or the path of a compiled program",
                names.join(", ")
            )
            .into()
        })
    }
}

pub(super) fn read(
    service: &str,
    mut section: Section<'_>,
) -> Result<(PolicyConfig, Place), ConfigError> {
    section.rename(format!("{service}: policy"));
    let show = |number: u32| number.to_string();
    let redirect = section.ranged("redirect", 0, 1..100, show)?;
    let margin = section.ranged("margin", MARGIN, 1..100, show)?;
    let connections = section.ranged("connections", 0, 1..MOST_CONNECTIONS, show)?;
    let pressure = section.optional::<String>("pressure")?;
    let program = section.optional::<Program>("program")?;
    let at = section.at();
    let resolve = |path: &str| section.resolve(path);
    let given = |number: u32| (number != 0).then_some(number);
    let percent = |number: u32| u8::try_from(number).unwrap_or(100);
    let policy = PolicyConfig {
        redirect: given(redirect.value).map(percent),
        margin: percent(margin.value),
        connections: given(connections.value),
        pressure: pressure.map_or_else(|| PRESSURE.into(), |item| resolve(&item.value)),
        program: program.map(|item| {
            if item.value.0.contains('/') {
                ProgramConfig::File(resolve(&item.value.0))
            } else {
                ProgramConfig::BuiltIn(item.value.0)
            }
        }),
    };
    section.finish()?;
    Ok((policy, at))
}
