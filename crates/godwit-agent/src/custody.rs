//! Who may change what the agent believes: its configuration, its authority, its keys, the
//! programs of its policies, and the one that powers other nodes off.
//!
//! A file is as safe as the way to it: whoever may write to a folder of that way puts another
//! file there. So a path is judged as a whole, from the root to the file, through each symbolic
//! link, as sshd's `StrictModes` does:
//!
//! | what | is right if |
//! |---|---|
//! | the file | it belongs to root or this process's user, and neither group nor others may write it |
//! | a folder | the same; with the sticky bit (`/tmp`) everybody may write there, because nobody renames what belongs to somebody else |
//! | a symbolic link | it belongs to root or this process's user |
//!
//! A group that may write counts as others do, also the owner's own: nothing here knows who
//! else is in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use nix::unistd::geteuid;

use crate::config::{Config, ProgramConfig};

/// Bits of a mode: the group and others may write.
const WRITABLE: u32 = 0o022;

/// Bit of a folder's mode: only its owner renames or removes what is in it.
const STICKY: u32 = 0o1000;

/// Most symbolic links on a way, as the kernel has it.
const MOST_LINKS: usize = 40;

/// Where programs without a path are looked for, as `/bin/sh` does that was told nothing.
const PROGRAMS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Somebody else may change a file, or put another one in its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Changeable {
    /// By writing.
    #[error(
        "{}: its group or others may write {} (mode {mode:03o}): chmod go-w {}",
        path.display(), Thing(path, at), at.display()
    )]
    Writable {
        /// The file.
        path: PathBuf,
        /// The file, or a folder on the way to it.
        at: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// As an owner.
    #[error(
        "{}: {} belongs to user {owner}, neither root nor the user of this process: chown {}",
        path.display(), Thing(path, at), at.display()
    )]
    Owned {
        /// The file.
        path: PathBuf,
        /// The file, a folder or a symbolic link on the way to it.
        at: PathBuf,
        /// Whose it is.
        owner: u32,
    },
}

impl Changeable {
    /// The file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Writable { path, .. } | Self::Owned { path, .. } => path,
        }
    }

    /// The thing that is wrong: the file, or what is on the way to it.
    fn at(&self) -> &Path {
        match self {
            Self::Writable { at, .. } | Self::Owned { at, .. } => at,
        }
    }
}

/// A thing on the way to a file, in a sentence about that file.
struct Thing<'a>(&'a Path, &'a Path);

impl std::fmt::Display for Thing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, at) = (self.0, self.1.display());
        if path == self.1 {
            f.write_str("it")
        } else if path.starts_with(self.1) {
            write!(f, "the folder {at}")
        } else {
            write!(f, "{at}")
        }
    }
}

/// Whether only root and this process's user can change what a path leads to. What is not
/// there, or can't be looked at, is for who reads it to say.
///
/// # Errors
/// The first thing on the way that somebody else can change.
pub(crate) fn judge(path: &Path) -> Result<(), Changeable> {
    let mut left = names(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    let Ok(root) = fs::symlink_metadata(&at) else {
        return Ok(());
    };
    judge_one(path, &at, &root)?;
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(name);
        let Ok(found) = fs::symlink_metadata(&next) else {
            return Ok(());
        };
        judge_one(path, &next, &found)?;
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        let target = fs::read_link(&next).ok().filter(|_| links <= MOST_LINKS);
        let Some(target) = target else {
            return Ok(());
        };
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(names(&target));
    }
    Ok(())
}

/// The names of a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|it| match it {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

fn judge_one(path: &Path, at: &Path, found: &Metadata) -> Result<(), Changeable> {
    let (path, at) = (path.to_owned(), at.to_owned());
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    if owner != 0 && owner != own_user() {
        return Err(Changeable::Owned { path, at, owner });
    }
    let is_shared = found.is_dir() && mode & STICKY != 0;
    if mode & WRITABLE != 0 && !is_shared && !found.is_symlink() {
        return Err(Changeable::Writable { path, at, mode });
    }
    Ok(())
}

/// As it was when the process began: later its filter of system calls knows no such question.
pub(crate) fn own_user() -> u32 {
    static USER: OnceLock<u32> = OnceLock::new();
    *USER.get_or_init(|| geteuid().as_raw())
}

/// All files whose content an agent with this configuration believes.
pub(crate) fn believed(config: &Config) -> Vec<PathBuf> {
    let tls = &config.tls;
    let named = [&config.path, &tls.ca, &tls.cert, &tls.key].into_iter();
    let policies = config.programs().into_iter().filter_map(|it| match it {
        ProgramConfig::File(path) => Some(path),
        ProgramConfig::BuiltIn(_) => None,
    });
    let command = config.stonith_in_force().map(|(command, _)| command);
    let programs = command.into_iter().flat_map(programs);
    let all = named.chain(&tls.crl).chain(policies);
    let all = all.cloned().chain(programs);
    // Several may be one file.
    let mut seen = BTreeSet::new();
    all.filter(|path| seen.insert(path.clone())).collect()
}

/// What a command of a shell runs and reads, as far as words say so: paths from the root on,
/// and the program that it begins with.
fn programs(command: &str) -> Vec<PathBuf> {
    let is_around = |it: char| "'\"`;&|()<>{}".contains(it) || it.is_whitespace();
    let mut words = command.split(is_around).filter(|word| !word.is_empty());
    let first = words.clone().next().filter(|word| !word.contains('/'));
    let folders = PROGRAMS.split(':').map(Path::new);
    let mut found = folders.filter_map(|folder| Some(folder.join(first?)));
    let program = found.find(|path| path.is_file());
    let paths = words.by_ref().map(Path::new).filter(|it| it.is_absolute());
    let paths = paths.filter(|it| it.is_file()).map(Path::to_owned);
    program.into_iter().chain(paths).collect()
}

/// One sentence for each thing by which somebody else can change one of these files.
pub(crate) fn faults(believed: &[PathBuf]) -> Vec<String> {
    let faults = believed.iter().filter_map(|path| judge(path).err());
    // Several files are in one folder.
    let mut seen = BTreeSet::new();
    let faults = faults.filter(|fault| seen.insert(fault.at().to_owned()));
    faults.map(|fault| fault.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    use tempfile::TempDir;

    use super::*;
    use crate::testing::Pair;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }

    /// `/tmp/…/outer/inner/file`, which nobody else can change.
    fn nested() -> (TempDir, [PathBuf; 3]) {
        let dir = tempfile::tempdir().expect("a folder");
        let outer = dir.path().join("outer");
        let inner = outer.join("inner");
        let file = inner.join("file");
        for folder in [&outer, &inner] {
            fs::create_dir(folder).expect("made");
            chmod(folder, 0o755);
        }
        fs::write(&file, "text").expect("written");
        chmod(&file, 0o644);
        (dir, [outer, inner, file])
    }

    #[test]
    fn a_file_is_as_safe_as_each_folder_on_its_way() {
        let (_dir, [outer, inner, file]) = nested();
        assert_eq!(judge(&file), Ok(()));
        for (at, right) in [(&file, 0o644), (&inner, 0o755), (&outer, 0o755)] {
            for wrong in [0o20, 0o2] {
                let mode = right | wrong;
                chmod(at, mode);
                let (path, at) = (file.clone(), at.clone());
                let expected = Changeable::Writable { path, at, mode };
                assert_eq!(judge(&file), Err(expected));
            }
            chmod(at, right);
            assert_eq!(judge(&file), Ok(()));
        }
        chmod(&outer, 0o1777);
        assert_eq!(judge(&file), Ok(()), "as /tmp");
        chmod(&file, 0o1666);
        assert!(judge(&file).is_err(), "a file that is sticky is no safer");
        assert_eq!(judge(&inner.join("missing")), Ok(()), "said elsewhere");
    }

    #[test]
    fn a_link_is_followed_by_each_name() {
        let (dir, [outer, inner, file]) = nested();
        let open = dir.path().join("open");
        fs::create_dir(&open).expect("made");
        chmod(&open, 0o777);
        let link = outer.join("link");
        symlink("inner/../inner/file", &link).expect("made");
        assert_eq!(judge(&link), Ok(()));
        // By the way of a folder where anybody may put another link.
        symlink(&file, open.join("second")).expect("made");
        fs::remove_file(&link).expect("it is there");
        symlink("../open/second", &link).expect("made");
        let said = judge(&link)
            .expect_err("through an open folder")
            .to_string();
        assert!(said.contains("/open (mode 777): chmod go-w "), "{said}");
        chmod(&open, 0o755);
        chmod(&inner, 0o775);
        assert!(judge(&link).is_err(), "where it leads to");
        symlink("loop", open.join("loop")).expect("made");
        assert_eq!(judge(&open.join("loop")), Ok(()), "nobody can read it");
    }

    #[test]
    fn what_belongs_to_somebody_else_is_not_believed() {
        if own_user() != 0 {
            eprintln!("skipped: only root gives files away");
            return;
        }
        let (dir, [outer, _, file]) = nested();
        let link = dir.path().join("link");
        symlink(&file, &link).expect("made");
        for at in [&outer, &file, &link] {
            lchown(at, Some(12_345), None).expect("we are root");
            let said = judge(&link).expect_err("another's").to_string();
            let expected = format!("{} belongs to user 12345", Thing(&link, at));
            assert!(said.contains(&expected), "{said}");
            lchown(at, Some(0), Some(12_345)).expect("we are root");
            assert_eq!(judge(&link), Ok(()), "a group that may not write");
        }
    }

    #[test]
    fn a_sentence_says_which_file_what_of_it_and_what_to_do() {
        let (_dir, [outer, _, file]) = nested();
        let (shown, folder) = (file.display(), outer.display());
        chmod(&file, 0o666);
        assert_eq!(
            faults(std::slice::from_ref(&file)),
            [format!(
                "{shown}: its group or others may write it (mode 666): chmod go-w {shown}"
            )]
        );
        chmod(&file, 0o644);
        chmod(&outer, 0o777);
        let beside = file.with_file_name("beside");
        fs::write(&beside, "text").expect("written");
        assert_eq!(
            faults(&[file.clone(), beside]),
            [format!(
                "{shown}: its group or others may write the folder {folder} (mode 777): chmod \
                 go-w {folder}"
            )]
        );
    }

    #[test]
    fn the_program_that_powers_off_is_believed_too() {
        let (_dir, [_, _, file]) = nested();
        let shown = file.display();
        for command in [
            format!("{shown} $GODWIT_NODE"),
            format!("sh '{shown}' off"),
            format!("true && \"{shown}\""),
        ] {
            assert!(programs(&command).contains(&file), "{command}");
        }
        assert!(programs("sh x").iter().any(|it| it.ends_with("bin/sh")));
        assert_eq!(programs("/nowhere/at/all -x"), Vec::<PathBuf>::new());
        let pair = Pair::new();
        let tls = pair.a.tls.clone();
        let expected = [pair.a.path.clone(), tls.ca, tls.cert, tls.key];
        assert_eq!(believed(&pair.a), expected);
        let with_policy = format!(
            "{}standby = \"none\"\n[service.policy]\nprogram = \"./p.o\"\n",
            pair.a.text
        );
        let config = Config::parse(&pair.a.path, &with_policy).expect("valid");
        let program = pair.a.path.with_file_name("p.o");
        assert_eq!(believed(&config).last(), Some(&program));
    }
}
