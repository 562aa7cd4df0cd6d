//! What a check says.

use serde::{Deserialize, Serialize};

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The stable name.
    pub name: String,
    /// How it went.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do, if there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but somebody should look at it.
    Warn,
    /// Will not work.
    Fail,
}

impl Level {
    /// The name in outputs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl Check {
    pub(super) fn ok(name: &str, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            level: Level::Ok,
            found: found.into(),
            advice: None,
        }
    }

    pub(super) fn warn(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            advice: Some(advice.into()),
            ..Self::ok(name, found)
        }
    }

    pub(super) fn fail(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Fail,
            advice: Some(advice.into()),
            ..Self::ok(name, found)
        }
    }
}
