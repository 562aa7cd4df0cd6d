//! Whether the file of votes is where it was.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use godwit_core::MonoTime;
use godwit_core::fitness::Consequence;

use crate::clock;
use crate::facts::Look;

/// The fact's name.
const FACT: &str = "votes";

/// Where the file is to be, and which one it is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) path: PathBuf,
    /// Its number on its file system; 0 before there is one.
    inode: AtomicU64,
    /// How the votes of the agent before were lost, and until when this one keeps quiet for
    /// that.
    lost: Option<(String, MonoTime)>,
}

impl Place {
    pub(super) const fn new(path: PathBuf, lost: Option<(String, MonoTime)>) -> Self {
        Self {
            path,
            inode: AtomicU64::new(0),
            lost,
        }
    }

    /// This file is the one from here on.
    pub(super) fn is(&self, file: &fs::File) {
        let inode = file.metadata().map_or(0, |it| it.ino());
        self.inode.store(inode, Ordering::Relaxed);
    }
}

/// Looks at it.
#[derive(Debug)]
pub(crate) struct VoteWatch(Arc<Place>);

impl VoteWatch {
    pub(crate) const fn new(place: Arc<Place>) -> Self {
        Self(place)
    }

    /// What is wrong now.
    pub(crate) fn look(&self) -> Look {
        let missed = self.missed().map(|found| {
            let advice = "leave it to the agent: without it the next agent here does not vote \
                          for 10 s";
            (found, advice)
        });
        let lost = || {
            let (how, until) = self.0.lost.as_ref()?;
            let found = format!("{how}, so its votes are forgotten");
            let advice = "wait: this node votes 10 s after its start";
            (clock::now() < *until).then_some((found, advice))
        };
        let (found, advice) = missed.or_else(lost).unzip();
        Look::of_one(FACT, Consequence::Say, found, advice.unwrap_or_default())
    }

    fn missed(&self) -> Option<String> {
        let (path, inode) = (&self.0.path, self.0.inode.load(Ordering::Relaxed));
        let shown = path.display();
        match fs::metadata(path) {
            Ok(there) if !there.is_file() => Some(format!("{shown} is no file")),
            Ok(there) if inode != 0 && there.ino() != inode => Some(format!(
                "{shown} is another file than the one of this agent"
            )),
            Ok(_) => None,
            Err(_) if inode == 0 => None,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Some(format!("{shown} has been deleted"))
            }
            Err(error) => Some(format!("{shown}: {error}")),
        }
    }
}

/// Whether that look says that the file has to be made anew.
pub(crate) fn is_missed(look: &Look) -> bool {
    look.source == FACT && !look.wrong.is_empty()
}
