//! A disk of its own for a machine: a file system in a file, which the kernel reads
//! without keeping that file in memory as well.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::tool;

/// A file with a file system.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
}

/// A file system that is mounted, until this is dropped.
#[derive(Debug)]
pub struct Volume {
    at: PathBuf,
    device: String,
}

impl Image {
    /// Makes the file `path`, with room for so many bytes in so many files, and what
    /// `fill` writes below the folder that it is called with.
    ///
    /// # Errors
    /// Fails if the kernel has no loop devices, or `fill` does.
    pub fn create(
        path: &Path,
        (bytes, files): (u64, u32),
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        // Inodes, folders, bitmaps; and half as much again is not written to.
        let room = bytes * 3 / 2 + u64::from(files) * 1024 + (16 << 20);
        file.set_len(room).context("giving an image its size")?;
        let image = Self {
            path: path.to_owned(),
        };
        let count = (files + 1000).to_string();
        // No journal: nobody loses anything. Debian package e2fsprogs.
        let options = [
            "-q",
            "-t",
            "ext4",
            "-O",
            "^has_journal",
            "-m",
            "0",
            "-N",
            &count,
        ];
        tool::run("mke2fs", &[&options[..], &[image.path()?]].concat())?;
        let folder = path.with_extension("filled");
        let volume = image.attach(&folder, false)?;
        fill(&folder)?;
        drop(volume);
        fs::remove_dir(&folder).context("removing a folder")?;
        Ok(image)
    }

    /// The same for another machine.
    ///
    /// # Errors
    /// Fails if the file can't be copied.
    pub fn copy(&self, path: &Path) -> Result<Self> {
        fs::copy(&self.path, path).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Mounts it at the folder `at`, which is made, for reading. Nothing of it is in
    /// memory.
    ///
    /// # Errors
    /// Fails if the kernel has no loop devices.
    pub fn mount(&self, at: &Path) -> Result<Volume> {
        self.attach(at, true)
    }

    fn attach(&self, at: &Path, read_only: bool) -> Result<Volume> {
        fs::create_dir_all(at).with_context(|| format!("creating {}", at.display()))?;
        let mut options = vec!["--find", "--show", "--direct-io=on"];
        options.extend(read_only.then_some("--read-only"));
        options.push(self.path()?);
        let device = tool::run("losetup", &options)?;
        let device = device.trim();
        let mut flags = MsFlags::MS_NOATIME;
        flags.set(MsFlags::MS_RDONLY, read_only);
        let mounted = mount(Some(device), at, Some("ext4"), flags, None::<&str>)
            .with_context(|| format!("mounting {device} at {}", at.display()));
        // In use, it stays until it is unmounted.
        tool::run("losetup", &["--detach", device])?;
        mounted?;
        let name = device.trim_start_matches("/dev/");
        let numbers = fs::read_to_string(format!("/sys/class/block/{name}/dev"));
        Ok(Volume {
            at: at.to_owned(),
            device: numbers.context("looking for a device")?.trim().to_owned(),
        })
    }

    fn path(&self) -> Result<&str> {
        self.path.to_str().context("the image's path is no UTF-8")
    }
}

impl Volume {
    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.at
    }

    /// `MAJOR:MINOR` of its device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Files may be open; the lab's watchdog tries again if this fails.
        let _ = umount2(&self.at, MntFlags::empty())
            .or_else(|_| umount2(&self.at, MntFlags::MNT_DETACH));
    }
}
