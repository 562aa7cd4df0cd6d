//! Removes the labs of processes that are no more.

use std::fs;
use std::path::Path;

use super::watchdog;
use crate::netns::{Netns, RUN_NETNS};

/// A lab's folder is this and its id.
pub(super) const FOLDER_PREFIX: &str = "godwit-lab-";

/// Removes namespaces and folders whose process is dead; best effort.
///
/// Namespaces first, as their processes may still write into the folders.
pub(super) fn stale() {
    for name in names_in(Path::new(RUN_NETNS)) {
        if is_stale(&name) {
            // Another lab may be sweeping the same one right now.
            let _ = Netns::named(name).delete();
        }
    }
    let temp = std::env::temp_dir();
    for name in names_in(&temp) {
        if name.strip_prefix(FOLDER_PREFIX).is_some_and(is_stale) {
            let folder = temp.join(name);
            watchdog::remove_remembered(&folder);
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// True if `id` begins like a lab's, `gw<pid>-<number>`, and the process is gone.
fn is_stale(id: &str) -> bool {
    owner(id).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

/// Process id in a lab's id or in the name of one of its namespaces.
fn owner(id: &str) -> Option<u32> {
    let (pid, rest) = id.strip_prefix("gw")?.split_once('-')?;
    let number = rest.split('-').next()?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_labs_have_an_owner() {
        assert_eq!(owner("gw12-0-client"), Some(12));
        assert_eq!(owner("gw12-3"), Some(12));
        for other in ["gw12", "gw-1", "gwx-1", "gw12-x-a", "web12-0", "gw12-"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn a_living_process_keeps_its_lab() {
        assert!(!is_stale(&format!("gw{}-0", std::process::id())));
        // pid_max is at most 2^22.
        assert!(is_stale("gw4194999-0-switch"));
    }
}
