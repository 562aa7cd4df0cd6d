//! `godwit datapath-load` and `godwit director-load`: they pin programs and maps in a folder of
//! their own, which is to go with them also if they are killed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cluster::PIN_ROOT;
use crate::host::{Host, Network};
use crate::lab::Lab;

/// A command by its name; the name of its folder ends in that, behind its namespace's cookie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load(&'static str);

pub(super) const DATAPATH: Load = Load("datapath-load");
pub(super) const DIRECTOR: Load = Load("director-load");

impl Load {
    /// What `godwit` is told on a machine of the lab, which removes the pins at its end.
    pub(super) fn on(self, lab: &Lab, host: Host) -> Result<Vec<String>> {
        let cookie = lab.node(host).enter(godwit_sock::netns_cookie)?;
        let cookie = cookie.context("asking for the namespace's cookie")?;
        self.arguments(cookie, |pins| lab.remove_at_end(pins))
    }

    /// The same, after `at_end` got its pins: they must go with the lab if it is killed.
    fn arguments(
        self,
        cookie: u64,
        at_end: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Vec<String>> {
        let pins = format!("n{cookie}-{}", self.0);
        at_end(&Path::new(PIN_ROOT).join(&pins))?;
        let interface = Network::Data.interface();
        let arguments = [self.0, "--interface", interface, "--pins", &pins];
        Ok(arguments.map(str::to_owned).into())
    }

    /// Removes what earlier runs have pinned that were killed.
    pub(super) fn sweep(self) -> Result<()> {
        let names = listed(PIN_ROOT).map(|it| it.file_name().to_string_lossy().into_owned());
        let names: Vec<_> = names.collect();
        // Whoever makes such a folder runs before it is there, so processes are looked at last.
        let lines = listed("/proc").filter_map(|it| fs::read(it.path().join("cmdline")).ok());
        let lines: Vec<_> = lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .collect();
        for name in names.iter().filter(|it| self.is_orphan(it, &lines)) {
            let folder = Path::new(PIN_ROOT).join(name);
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing {}", folder.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether `name` is the folder of such a command that is none of the processes with these
    /// command lines.
    fn is_orphan(self, name: &str, lines: &[String]) -> bool {
        let cookie = name
            .strip_prefix('n')
            .and_then(|it| it.strip_suffix(self.0)?.strip_suffix('-'));
        if cookie.is_none_or(|it| it.parse::<u64>().is_err()) {
            return false;
        }
        let mut loads = lines.iter().map(|it| it.split('\0'));
        !loads.any(|words| {
            let is = |word: &str| words.clone().any(|it| it == word);
            // One of an earlier version names its folder itself.
            is(self.0) && (is(name) || !is("--pins"))
        })
    }
}

fn listed(folder: &str) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// They were there until the machine was restarted.
    #[test]
    fn pins_of_a_run_that_was_killed_are_found_and_no_others() {
        for (load, other) in [(DATAPATH, DIRECTOR), (DIRECTOR, DATAPATH)] {
            let named = |cookie: &str| format!("{cookie}-{}", load.0);
            let runs = format!("godwit\0{}\0--pins\0{}\0", load.0, named("n2"));
            let earlier = format!("godwit\0{}\0--rounds\09\0", load.0);
            let lines = [runs, "godwit\0agent\0".to_owned()];
            assert!(load.is_orphan(&named("n1"), &lines));
            assert!(!load.is_orphan(&named("n2"), &lines));
            assert!(!load.is_orphan(&named("n1"), &[earlier]));
            for name in ["n1", &named("nx"), &named("a"), &named("1")] {
                assert!(!load.is_orphan(name, &lines), "{name}");
            }
            let foreign = format!("n1-{}", other.0);
            assert!(!load.is_orphan(&foreign, &lines), "{foreign}");
        }
    }

    /// Ctrl-C ends the process that has pinned: the lab's watchdog removes that folder.
    #[test]
    fn pins_go_with_the_lab() {
        for load in [DATAPATH, DIRECTOR] {
            let mut removed = PathBuf::new();
            let arguments = load.arguments(77, |pins| {
                removed = pins.to_owned();
                Ok(())
            });
            let arguments = arguments.expect("nothing fails");
            assert_eq!(arguments[0], load.0);
            let mut rest = arguments.iter().skip_while(|it| *it != "--pins").skip(1);
            let pins = rest.next().expect("it is told");
            assert_eq!(removed, Path::new("/sys/fs/bpf/godwit").join(pins));
            assert!(pins.starts_with("n77-"), "{pins}");
        }
    }
}
