//! Whether a node is to remember what it votes for, and where it can't.

use std::path::Path;

use crate::config::{Config, Fencing};

/// What is wrong with a `run_dir` of a node that votes if it is not in memory, and what to do.
pub(crate) fn forgets(run_dir: &Path) -> (String, &'static str) {
    let found = format!(
        "{} is not in memory (tmpfs): an agent that is killed forgets its votes, and its \
         successor votes 10 s late",
        run_dir.display()
    );
    let advice = "set run_dir to a folder in memory (tmpfs, as /run is on most systems), and \
                  restart the agent";
    (found, advice)
}

/// Whether a node votes, and so is to remember what it has voted for.
pub(crate) fn votes(config: &Config) -> bool {
    config.fencing() == Fencing::Lease && config.voters.contains(&config.node.name)
}
