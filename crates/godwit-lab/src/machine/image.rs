//! What a machine boots: a stock Debian kernel or User-mode Linux, and a root in
//! memory with busybox, `godwit` and the node's files at the paths that they have
//! outside.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::apps::command;
use crate::cluster;

/// Environment variable that names the folder of [`Kernel`].
pub const KERNEL_VARIABLE: &str = "GODWIT_LAB_KERNEL";

/// The shell that names its own commands.
const BUSYBOX: &str = "/bin/busybox";

/// Folder of the kernel that is a process.
const USER_MODE: &str = "user-mode";

const INIT: &str = include_str!("init.sh");

/// What every root has, be it empty.
const FOLDERS: [&str; 8] = [
    "bin", "dev", "proc", "run", "sys", "tmp", "lib64", "modules",
];

/// A kernel and its modules, as `packaging/own-kernel.sh` leaves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    folder: PathBuf,
}

impl Kernel {
    /// The kernel in the folder that `GODWIT_LAB_KERNEL` names, else beside the
    /// build's own folder: `target/own-kernel` for `target/release/godwit`.
    pub(super) fn find() -> Option<Self> {
        let named = std::env::var_os(KERNEL_VARIABLE).map(PathBuf::from);
        let built = || {
            let binary = cluster::binary().ok()?;
            Some(binary.parent()?.parent()?.join("own-kernel"))
        };
        let kernel = Self {
            folder: named.or_else(built)?,
        };
        kernel.image().is_file().then_some(kernel)
    }

    /// One that is too old for Godwit.
    pub(super) fn old(&self) -> Self {
        Self {
            folder: self.folder.join("old"),
        }
    }

    /// One that is a process; it has no modules.
    pub(super) fn user_mode(&self) -> Self {
        Self {
            folder: self.folder.join(USER_MODE),
        }
    }

    /// Whether it is [`Self::user_mode`].
    pub(super) fn is_user_mode(&self) -> bool {
        self.folder.ends_with(USER_MODE)
    }

    /// The compressed kernel, or the program that is one.
    pub(super) fn image(&self) -> PathBuf {
        let name = if self.is_user_mode() {
            "linux"
        } else {
            "vmlinuz"
        };
        self.folder.join(name)
    }

    /// The archive of a Debian with systemd and nginx, if it is there.
    pub(super) fn system(&self) -> Option<PathBuf> {
        let archive = self.folder.join("system.cpio");
        archive.is_file().then_some(archive)
    }

    fn modules(&self) -> PathBuf {
        self.folder.join("modules")
    }
}

/// The root of a machine while it is put together, a folder here.
pub(super) struct Root {
    folder: PathBuf,
    top: PathBuf,
}

impl Root {
    /// A root in `folder` with what every machine has: the kernel's modules, the
    /// first process, busybox under the names of `commands`, `godwit` and `godwit-lab`.
    pub(super) fn new(kernel: &Kernel, folder: &Path, commands: &[&str]) -> Result<Self> {
        let root = Self {
            folder: folder.to_owned(),
            top: folder.join("root"),
        };
        for name in FOLDERS {
            make_folder(&root.top.join(name))?;
        }
        root.copy(Path::new(BUSYBOX), "/bin/busybox")?;
        for command in commands {
            root.link("busybox", &format!("/bin/{command}"))?;
        }
        let programs = [
            (cluster::binary()?, "/bin/godwit"),
            (command::path()?, "/bin/godwit-lab"),
        ];
        for (program, path) in programs {
            // Debugging information is most of it, and would have to be unpacked.
            let stripped = root.inside(path);
            run(Command::new("strip").arg("-o").arg(stripped).arg(&program))?;
            for library in libraries(&program)? {
                root.copy(&library, &library)?;
            }
        }
        for entry in fs::read_dir(kernel.modules()).context("listing the kernel's modules")? {
            let path = entry.context("listing the kernel's modules")?.path();
            let name = path.file_name().context("a file has a name")?;
            root.copy(&path, Path::new("/modules").join(name))?;
        }
        root.write("/init", INIT)?;
        fs::set_permissions(root.inside("/init"), fs::Permissions::from_mode(0o755))
            .context("making it run")?;
        Ok(root)
    }

    /// Puts a file of this machine at the path `to` of that one, with its rights and
    /// the time of its last change.
    pub(super) fn copy(&self, from: &Path, to: impl AsRef<Path>) -> Result<()> {
        let to = self.inside(to);
        let failed = || format!("copying {} to {}", from.display(), to.display());
        to.parent().map_or(Ok(()), make_folder)?;
        fs::copy(from, &to).with_context(failed)?;
        let changed = fs::metadata(from).and_then(|file| file.modified());
        let copy = fs::File::options().append(true).open(&to);
        changed
            .and_then(|time| copy?.set_modified(time))
            .with_context(failed)
    }

    /// Makes a file with this text.
    pub(super) fn write(&self, to: &str, text: &str) -> Result<()> {
        let to = self.inside(to);
        to.parent().map_or(Ok(()), make_folder)?;
        fs::write(&to, text).with_context(|| format!("writing {}", to.display()))
    }

    /// Makes a symbolic link at `at`.
    pub(super) fn link(&self, target: &str, at: &str) -> Result<()> {
        let at = self.inside(at);
        at.parent().map_or(Ok(()), make_folder)?;
        symlink(target, &at).with_context(|| format!("linking {}", at.display()))
    }

    /// The archive that the kernel unpacks: `base`, if any, and this root over it.
    pub(super) fn pack(self, base: Option<&Path>) -> Result<PathBuf> {
        let initrd = self.folder.join("initrd");
        match base {
            Some(base) => fs::copy(base, &initrd).map(drop),
            None => fs::write(&initrd, ""),
        }
        .with_context(|| format!("writing {}", initrd.display()))?;
        archive(&self.top, &initrd)?;
        fs::remove_dir_all(&self.top).context("removing what was packed")?;
        Ok(initrd)
    }

    fn inside(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.top.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The shared libraries of a program, the loader among them, as ldd(1) says.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(binary).output();
    let output = output.context("starting `ldd`")?;
    ensure!(
        output.status.success(),
        "ldd can't read {}",
        binary.display()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

/// Appends an archive in the format that a kernel unpacks, one after the other:
/// initramfs buffer format "newc".
fn archive(root: &Path, to: &Path) -> Result<()> {
    let file = fs::File::options().append(true).open(to);
    let file = file.with_context(|| format!("opening {}", to.display()))?;
    let mut list = Command::new("find")
        .arg(".")
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("starting `find`")?;
    let names = list.stdout.take().context("its output was piped")?;
    run(Command::new("cpio")
        .args(["--create", "--format=newc", "--quiet"])
        .current_dir(root)
        .stdin(names)
        .stdout(file))?;
    let status = list.wait().context("waiting for `find`")?;
    ensure!(status.success(), "`find` failed ({status})");
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))
}
