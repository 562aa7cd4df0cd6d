//! What the agent says that runs with this configuration: it sees what no single look does,
//! such as paths to other servers and files that differ.

use godwit_sock::netns_cookie;

use super::{Check, Level};
use crate::config::Config;
use crate::control::{Client, ClientError, FindError, find};
use crate::sentence::whole;

const NAME: &str = "agent";

/// The agent that runs with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Running {
    /// There is none.
    Nobody,
    /// It does not answer.
    Silent,
    /// Its answer is not understood, or it may not be asked.
    Unclear(String),
    /// It does, and warns of these.
    Warns(Vec<String>),
}

impl Running {
    /// Asks it; takes five seconds at most.
    pub fn ask(config: &Config) -> Self {
        let cookie = match netns_cookie() {
            Ok(cookie) => cookie,
            Err(error) => return Self::Unclear(error.to_string()),
        };
        let path = match find(&config.node.run_dir, cookie, Some(config.node.name)) {
            Ok(path) => path,
            Err(FindError::NoAgent { .. }) => return Self::Nobody,
            Err(error) => return Self::Unclear(whole(&error)),
        };
        let status = Client::connect(&path).and_then(|mut client| client.status());
        match status {
            Ok(status) => Self::Warns(status.warnings),
            Err(error) if error.is_absence() => Self::Nobody,
            Err(ClientError::Silent) => Self::Silent,
            Err(error) => Self::Unclear(whole(&error)),
        }
    }
}

pub(super) fn checks(running: Option<&Running>) -> Vec<Check> {
    let Some(running) = running else {
        return Vec::new();
    };
    match running {
        Running::Nobody => vec![Check::ok(NAME, "none runs with this configuration")],
        Running::Silent => vec![Check::fail(
            NAME,
            "it does not answer: it is stopped, or its host has no time for it",
            "let it go on (`kill -CONT PID`) or restart it: other nodes take over what it owns",
        )],
        Running::Unclear(why) => vec![Check::warn(
            NAME,
            format!("can't be asked: {why}"),
            "run as root, with the `godwit` of the running agent",
        )],
        Running::Warns(warnings) if warnings.is_empty() => {
            vec![Check::ok(NAME, "runs, and warns of nothing")]
        }
        // Each says what to do itself.
        Running::Warns(warnings) => warnings
            .iter()
            .map(|warning| Check {
                level: Level::Warn,
                ..Check::ok(NAME, warning.as_str())
            })
            .collect(),
    }
}
