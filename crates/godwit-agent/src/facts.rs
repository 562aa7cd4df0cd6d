//! What sources say of what a node relies on ([`crate::surroundings`]), and what people see
//! of it.

use std::collections::BTreeMap;

use godwit_core::fitness::Consequence;
use godwit_wire::ShareId;
use serde::{Deserialize, Serialize};

/// A fact that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The fact's stable name.
    pub name: String,
    /// The share that it concerns; `None`: the whole node.
    pub share: Option<ShareId>,
    /// What follows.
    pub consequence: Consequence,
    /// What was found.
    pub found: String,
    /// What to do.
    pub advice: String,
}

/// All that one source knows at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The source: a look replaces the one before of the same source.
    pub source: &'static str,
    /// Names of the facts that the source watches, wrong or right.
    pub watched: Vec<String>,
    /// Those that are wrong.
    pub wrong: Vec<Wrong>,
    /// Of certificates, by fact: the days that are left.
    pub days_left: BTreeMap<String, i64>,
}

/// What a source has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// All that it knows.
    Look(Look),
    /// The source of that name can't look for want of descriptors: what it said last stays.
    Nothing(&'static str),
}

impl From<Look> for Seen {
    fn from(look: Look) -> Self {
        Self::Look(look)
    }
}

/// A fact in `godwit.status/1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactReport {
    /// The stable name.
    pub name: String,
    /// The service that it concerns; absent: the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Whether it is as it should be.
    pub ok: bool,
    /// While it is wrong: the name of its [`Consequence`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consequence: Option<String>,
    /// While it is wrong: what was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// While it is wrong: what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Of a certificate: the days that are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days_left: Option<i64>,
}

impl Look {
    /// Of a source with one fact of its own name: what was found, if it is wrong.
    pub(crate) fn of_one(
        name: &'static str,
        consequence: Consequence,
        found: Option<String>,
        advice: &str,
    ) -> Self {
        let wrong = found.map(|found| Wrong {
            name: name.to_owned(),
            share: None,
            consequence,
            found,
            advice: advice.to_owned(),
        });
        Self {
            source: name,
            watched: vec![name.to_owned()],
            wrong: wrong.into_iter().collect(),
            days_left: BTreeMap::new(),
        }
    }
}

impl FactReport {
    /// As a sentence for `warnings`; `None` if the fact is right.
    pub(crate) fn warning(&self) -> Option<String> {
        let (found, advice) = (self.found.as_ref()?, self.advice.as_ref()?);
        let service = self.service.as_ref();
        let service = service.map_or_else(String::new, |name| format!("service {name}: "));
        let effect = match self.consequence.as_deref() {
            Some("no_twins") => "; this node does not stand by until then",
            Some("no_moves") => "; no planned move comes here until then",
            Some("no_server") => {
                "; until then no planned move comes here, and what a server elsewhere dies with is \
                 not taken over while its machine lives"
            }
            Some("hand_over") => {
                "; an owner hands over to a standby in sync, and no planned move comes here until \
                 then"
            }
            Some("no_service") => {
                "; this node does not stand by until then, and an owner hands over to a standby \
                 in sync"
            }
            _ => "",
        };
        let name = &self.name;
        Some(format!("{service}{name}: {found}; {advice}{effect}"))
    }
}
