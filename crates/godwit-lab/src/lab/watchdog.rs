//! A process that outlives the lab's, to clean up if that one is killed.
//!
//! It waits on a pipe that only the lab's process holds. A line means that the
//! lab has cleaned up itself; the end of the pipe alone means that its process
//! died. Ctrl-C does not reach it: it is in a process group of its own.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

/// Arguments: the lab's folder, then its namespaces.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
read -r answer && exit 0
folder=$1
shift
for ns in "$@"; do kill -9 $(ip netns pids "$ns") ; done
for ns in "$@"; do ip netns del "$ns"; done
grep -o " $folder/[^ ]*" /proc/self/mounts | while read -r at; do umount -l "$at"; done
[ -f "$folder/remove-at-end" ] && while read -r path; do rmdir "$path" || rm -rf -- "$path"; done < "$folder/remove-at-end"
rm -rf -- "$folder"
"#;

/// File in the lab's folder with one path a line.
const LIST: &str = "remove-at-end";

/// The waiting process.
#[derive(Debug)]
pub(super) struct Watchdog {
    child: Child,
}

impl Watchdog {
    pub(super) fn start(folder: &Path, namespaces: &[String]) -> Result<Self> {
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "godwit-lab-watchdog"])
            .arg(folder)
            .args(namespaces)
            .current_dir("/")
            .stdin(Stdio::piped())
            // Not ours: whoever reads our output must not wait for this one.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the lab's watchdog")?;
        Ok(Self { child })
    }

    /// Tells it that everything is clean, and waits for its end.
    pub(super) fn dismiss(mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            // It can only fail if the watchdog is gone, which is what we want.
            let _ = stdin.write_all(b"done\n");
        }
        let _ = self.child.wait();
    }
}

/// Adds `path` to what must be removed with the lab in `folder`.
pub(super) fn remember(folder: &Path, path: &Path) -> Result<()> {
    let list = folder.join(LIST);
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&list)
        .with_context(|| format!("opening {}", list.display()))?;
    writeln!(file, "{}", path.display()).context("remembering a path")
}

/// Removes everything that was remembered; what is already gone is fine.
pub(super) fn remove_remembered(folder: &Path) {
    let list = fs::read_to_string(folder.join(LIST)).unwrap_or_default();
    for path in list.lines().map(PathBuf::from) {
        // Best effort by design: it runs in `Drop` and in the sweep.
        // A control group has files that can't be removed, and goes all the same.
        let _ = fs::remove_dir(&path)
            .or_else(|_| fs::remove_dir_all(&path))
            .or_else(|_| fs::remove_file(&path));
    }
}
