//! The configuration file: no text panics, every error is one line that names
//! the file, and what is accepted is accepted again with the same digest.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

// The module alone: the agent itself would bring libbpf along.
#[expect(dead_code, unused_imports, reason = "a target uses a part of it")]
#[path = "../../crates/godwit-agent/src/config/mod.rs"]
mod config;
#[path = "../../crates/godwit-agent/src/files.rs"]
mod files;

use config::Config;

// The little that the configuration has of godwit-bpf.
extern crate self as godwit_bpf;
/// Masks of a service, and bytes of one.
pub const MAX_MASKS: usize = 4;
/// As that.
pub const MAX_MASK_LEN: usize = 31;

/// From where on a client's input is kept.
#[derive(Debug)]
pub enum LogMode {
    /// No log is kept.
    Off,
    /// With the connection.
    Connection,
    /// With the latest request.
    Request,
    /// Anywhere.
    Latest,
}

/// What of a service's output is compared.
#[derive(Debug)]
pub struct Verification {
    /// Of 2^32.
    pub part: u32,
    /// Names of headers.
    pub masks: Vec<String>,
}

/// Programs of a server at a time.
pub const MAX_POLICIES: usize = 4;
/// Routers of one back-end.
pub const MAX_ROUTERS: usize = 16;

/// Programs that come with Godwit.
#[derive(Debug)]
pub struct Policy;

impl Policy {
    /// One of them.
    pub fn built_in(name: &str) -> Option<Self> {
        Self::built_in_names().any(|known| known == name).then_some(Self)
    }

    /// Their names.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        ["by_class", "by_cookie", "least_loaded"].into_iter()
    }
}

/// Servers that rules can name, and bytes of what they say of a path.
pub const MAX_PLACED_NODES: u16 = 64;
/// As that.
pub const MAX_RULE_PREFIX: usize = 48;
/// As that.
pub const MAX_RULE_SUFFIX: usize = 12;

/// Which paths a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulePath {
    /// Those that begin so.
    Prefix(String),
    /// Those that end so.
    Suffix(String),
}

/// A rule as the data path has it.
#[derive(Debug)]
pub struct PlacingRule {
    /// Of one host.
    pub host: Option<String>,
    /// Of these paths.
    pub path: RulePath,
    /// Servers by number.
    pub nodes: Vec<u32>,
}

const FILE: &str = "/etc/godwit/godwit.toml";

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    match Config::parse(Path::new(FILE), text) {
        Ok(config) => {
            let again = Config::parse(Path::new(FILE), text).expect("was valid");
            assert_eq!(config, again);
            assert_eq!(config.own_peer().name, config.node.name);
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with(FILE) && !error.contains('\n'), "{error}");
        }
    }
});
