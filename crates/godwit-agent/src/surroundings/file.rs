//! The file that this node runs with, as it is on the disk now.
//!
//! An agent takes a changed file when somebody says so. Until then the next start would
//! take another file than the one in force, or none: that is said.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use godwit_core::fitness::Consequence;

use super::watch::Source;
use crate::config::Config;
use crate::facts::{Look, Wrong};
use crate::files;
use crate::peers::Identity;
use crate::reload::machine;
use crate::sentence::whole;

/// One small file is read. What is found twice in a row is said, so within a second:
/// editors write in steps, and who edits reloads.
const PERIOD: Duration = Duration::from_millis(450);

const FACT: &str = "configuration";

/// Most sections that a warning names.
const NAMED: usize = 3;

/// The file of a running node.
pub(super) struct File {
    config: Arc<Config>,
    /// What the look before has found.
    before: Option<Wrong>,
}

impl File {
    pub(super) fn new(config: &Arc<Config>) -> Self {
        Self {
            config: config.clone(),
            before: None,
        }
    }

    fn judge(&self) -> Option<Wrong> {
        let path = &self.config.path;
        match files::read_text(path) {
            Ok(text) if *text == *self.config.text => None,
            Ok(text) => self.judge_text(&text),
            Err(error) => Some(unusable(path, &in_words(path, &error))),
        }
    }

    fn judge_text(&self, text: &str) -> Option<Wrong> {
        let path = &self.config.path;
        let next = match Config::parse(path, text) {
            Ok(next) => next,
            Err(error) => return Some(unusable(path, &error.to_string())),
        };
        // Those that are in force are facts of their own.
        let identity = |config: &Config| (config.tls.clone(), config.node.name);
        if identity(&next) != identity(&self.config)
            && let Err(error) = Identity::load_welcome(&next.tls, next.node.name)
        {
            return Some(unusable(path, &whole(&error)));
        }
        // What was there at its start and is not now is a fact of its own, too.
        let control = |config: &Config| config.own_peer().control;
        let is_elsewhere = control(&next) != control(&self.config);
        if (is_elsewhere || next.node != self.config.node)
            && let Some(why) = machine::lacks(&next, machine::find_any_group).first()
        {
            return Some(unusable(path, why));
        }
        let changes = self.config.changes(&next);
        let changed = changes.iter().filter(|it| it.what != "unchanged");
        let changed: Vec<_> = changed.map(|it| it.section.as_str()).collect();
        if changed.is_empty() {
            return None;
        }
        let mut named = changed[..changed.len().min(NAMED)].join(", ");
        if changed.len() > NAMED {
            named += &format!(" and {} more", changed.len() - NAMED);
        }
        let found = format!("{} is not what is in force: {named}", path.display());
        let advice = format!(
            "see godwit check {}, then godwit reload, or undo it",
            path.display()
        );
        Some(say(found, advice))
    }
}

fn in_words(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn unusable(path: &Path, why: &str) -> Wrong {
    let found = format!("the file can't be used, and a restart would fail: {why}");
    let advice = format!("correct it; godwit check {} reads it", path.display());
    say(found, advice)
}

fn say(found: String, advice: String) -> Wrong {
    Wrong {
        name: FACT.into(),
        share: None,
        consequence: Consequence::Say,
        found,
        advice,
    }
}

impl Source for File {
    fn name(&self) -> &'static str {
        FACT
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn look(&mut self) -> Look {
        let found = self.judge();
        let lasts = found.is_some() && found == self.before;
        self.before.clone_from(&found);
        Look {
            source: FACT,
            watched: vec![FACT.into()],
            wrong: found.filter(|_| lasts).into_iter().collect(),
            days_left: [].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::Pair;

    /// What a second look finds.
    fn found(file: &mut File) -> Option<String> {
        file.look();
        file.look().wrong.pop().map(|wrong| wrong.found)
    }

    #[test]
    fn a_file_that_is_not_in_force_is_said_until_it_is() {
        let pair = Pair::new();
        let path = pair.dir().join("godwit.toml");
        let text = pair.a.text.to_string();
        let config = Config::parse(&path, &text).expect("it is valid");
        fs::write(&path, &text).expect("written");
        let mut file = File::new(&Arc::new(config));
        assert_eq!(found(&mut file), None);

        fs::write(&path, format!("# a comment\n{text}")).expect("written");
        assert_eq!(found(&mut file), None, "it says the same");

        fs::write(&path, format!("{text}\n[[service")).expect("written");
        assert!(file.look().wrong.is_empty(), "an editor may be writing");
        let torn = found(&mut file).expect("it is torn");
        assert!(torn.contains("a restart would fail"), "{torn}");

        let slower = text.replacen("[detect]", "[detect]\nflap_limit = 7", 1);
        assert_ne!(slower, text);
        fs::write(&path, slower).expect("written");
        let other = found(&mut file).expect("it is another");
        assert!(other.ends_with("not what is in force: detect"), "{other}");

        let keyless = text.replacen("node.key", "no.key", 1);
        assert_ne!(keyless, text);
        fs::write(&path, keyless).expect("written");
        let other = found(&mut file).expect("no agent could begin with it");
        assert!(other.contains("a restart would fail"), "{other}");

        let elsewhere = text.replacen("[node]", "[node]\nmetrics = \"192.0.2.7:9469\"", 1);
        assert_ne!(elsewhere, text);
        fs::write(&path, elsewhere).expect("written");
        let other = found(&mut file).expect("no agent could begin with it");
        assert!(other.contains("192.0.2.7 is no address"), "{other}");

        fs::remove_file(&path).expect("it is there");
        let gone = found(&mut file).expect("it is gone");
        assert!(gone.contains("a restart would fail"), "{gone}");

        fs::write(&path, &text).expect("written");
        assert_eq!(found(&mut file), None);
    }
}
