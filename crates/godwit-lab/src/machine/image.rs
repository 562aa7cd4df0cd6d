//! What a machine boots: a stock Debian kernel or User-mode Linux, and a root in
//! memory with busybox, `godwit` and the node's files at the paths that they have
//! outside.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::cluster;

/// Environment variable that names the folder of [`Kernel`].
pub const KERNEL_VARIABLE: &str = "GODWIT_LAB_KERNEL";

/// The shell that names its own commands.
const BUSYBOX: &str = "/bin/busybox";

/// Folder of the kernel that is a process.
const USER_MODE: &str = "user-mode";

const INIT: &str = include_str!("init.sh");

/// What the first process of a machine needs of busybox.
const COMMANDS: [&str; 9] = [
    "cat", "echo", "insmod", "ip", "mount", "nc", "sh", "sleep", "tail",
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

    fn modules(&self) -> PathBuf {
        self.folder.join("modules")
    }
}

/// Packs the root of a machine into `folder/initrd`; `files` go to the path that
/// they have here.
pub(super) fn pack(kernel: &Kernel, folder: &Path, files: &[PathBuf]) -> Result<PathBuf> {
    let root = folder.join("root");
    for name in [
        "bin", "dev", "proc", "run", "sys", "tmp", "lib64", "modules",
    ] {
        make_folder(&root.join(name))?;
    }
    copy(Path::new(BUSYBOX), &root.join("bin/busybox"))?;
    for command in COMMANDS {
        symlink("busybox", root.join("bin").join(command)).context("linking a command")?;
    }
    let binary = cluster::binary()?;
    // Debugging information is most of it, and would have to be unpacked.
    run(Command::new("strip")
        .arg("-o")
        .arg(root.join("bin/godwit"))
        .arg(&binary))?;
    for library in libraries(&binary)? {
        copy(&library, &inside(&root, &library))?;
    }
    for entry in fs::read_dir(kernel.modules()).context("listing the kernel's modules")? {
        let path = entry.context("listing the kernel's modules")?.path();
        let name = path.file_name().context("a file has a name")?;
        copy(&path, &root.join("modules").join(name))?;
    }
    for file in files {
        copy(file, &inside(&root, file))?;
    }
    let init = root.join("init");
    fs::write(&init, INIT).context("writing the first process")?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).context("making it run")?;
    let initrd = folder.join("initrd");
    archive(&root, &initrd)?;
    fs::remove_dir_all(&root).context("removing what was packed")?;
    Ok(initrd)
}

/// Where an absolute path is to be found under `root`.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
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

/// The format that a kernel unpacks, initramfs buffer format "newc".
fn archive(root: &Path, to: &Path) -> Result<()> {
    let file = fs::File::create(to).with_context(|| format!("creating {}", to.display()))?;
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

fn copy(from: &Path, to: &Path) -> Result<()> {
    to.parent().map_or(Ok(()), make_folder)?;
    let copied = fs::copy(from, to).map(drop);
    copied.with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))
}
