//! Servers whose Godwit is the Debian package.
//!
//! Each has a root of its own: this machine's, with what is written to it kept in memory. dpkg
//! installs there what `packaging/deb.sh` has made, and runs its scripts. systemd does not run
//! there: a script stands in the place of `systemctl`, starts what the units say and ends it
//! with their signals. What else units say (limits, what they forbid) is not in force.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use godwit_lab::cluster::{self, Cluster};
use godwit_lab::host::Host;
use godwit_lab::{Lab, Node, Output, Process};

use crate::until_some;

const ROOT: &str = include_str!("root.sh");
const SYSTEMCTL: &str = include_str!("systemctl.sh");

/// What [`Packaged`] and [`Packages`] need of a machine.
const NEEDED: &str = "command -v dpkg dpkg-shlibdeps >/dev/null || { echo no dpkg; exit 1; }
mount -t tmpfs tmpfs /mnt && mkdir /mnt/written /mnt/work /mnt/root &&
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/written,workdir=/mnt/work /mnt/root";

/// Names the `godwit` of an earlier version.
pub const PREVIOUS: &str = "GODWIT_PREVIOUS";

/// How long making or installing a package may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What says whether services may start and stop.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// The agent's unit.
const UNIT: &str = "godwit.service";

/// Two versions of the package.
#[derive(Debug)]
pub struct Packages {
    /// Of an earlier version: its `godwit` is the one of [`PREVIOUS`], or the same one.
    pub earlier: PathBuf,
    /// Of this one.
    pub next: PathBuf,
}

impl Packages {
    /// Makes them in the lab's folder of the programs that tests run.
    ///
    /// # Errors
    /// Fails if one can't be made.
    pub fn make(lab: &Lab) -> Result<Self> {
        let programs = cluster::binary()?;
        let programs = programs.parent().context("a program is in a folder")?;
        let next = package(programs, &lab.folder().join("next"), &[])?;
        let older = lab.folder().join("programs");
        fs::create_dir(&older).context("creating a folder")?;
        for name in ["godwit", "godwit-pki", "godwit-lab", "godwit-manual"] {
            symlink(programs.join(name), older.join(name)).context("linking a program")?;
        }
        if let Some(previous) = env::var_os(PREVIOUS) {
            fs::remove_file(older.join("godwit"))?;
            symlink(&previous, older.join("godwit")).context("linking a program")?;
        }
        // A tilde comes before everything, as in Debian's policy.
        let version = ("DEB_VERSION", concat!(env!("CARGO_PKG_VERSION"), "~before"));
        let earlier = package(&older, &lab.folder().join("earlier"), &[version])?;
        Ok(Self { earlier, next })
    }
}

fn package(programs: &Path, to: &Path, variables: &[(&str, &str)]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb.sh");
    let output = Command::new(script)
        .args([programs, to])
        .env("DEB_LEVEL", "0")
        .envs(variables.iter().copied())
        .output()
        .context("running packaging/deb.sh")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "packaging/deb.sh: {said}");
    let said = String::from_utf8(output.stdout).context("it prints a path")?;
    let path = said.lines().last().context("it prints a path")?;
    Ok(path.into())
}

/// The process that runs as a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its number.
    pub pid: String,
    /// Of its program, to tell one version from another.
    pub inode: u64,
}

/// A server of a lab with the package.
#[derive(Debug)]
pub struct Packaged {
    node: Node,
    holder: Process,
}

impl Packaged {
    /// Why there can be none here, if so.
    ///
    /// # Errors
    /// Fails if it can't be tried.
    pub fn unavailable() -> Result<Option<String>> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", NEEDED]);
        let output = command.output().context("running unshare")?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        Ok((!output.status.success()).then_some(said))
    }

    /// Gives the machine a root of its own, with nothing installed there.
    ///
    /// # Errors
    /// Fails where it is [unavailable](Self::unavailable).
    pub fn new(lab: &Lab, cluster: &Cluster<'_>, host: Host) -> Result<Self> {
        lab.remove_at_end(&cluster.pins(host)?)?;
        let node = lab.node(host).clone();
        for (name, text) in [("root.sh", ROOT), ("systemctl.sh", SYSTEMCTL)] {
            fs::write(lab.folder().join(name), text).with_context(|| format!("writing {name}"))?;
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh"]);
        command.arg(lab.folder().join("root.sh")).arg(lab.folder());
        let mut holder = node.spawn("root", command)?;
        until_some("a root of its own", || {
            let log = holder.log();
            ensure!(holder.is_running(), "no root of its own: {log}");
            Ok(log.contains("is up").then_some(()))
        })?;
        let up = Self { node, holder };
        // It becomes another program just after it has said so.
        until_some("a root of its own", || {
            let there = up.run(&["test", "-d", "/run/systemd/system"])?;
            Ok(there.status.success().then_some(()))
        })?;
        Ok(up)
    }

    /// Runs a program there, as root.
    ///
    /// # Errors
    /// Fails if it can't be started or takes longer than a minute.
    pub fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--root", "--wd=/", "--target"]);
        command.arg(self.holder.pid().to_string()).args(words);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        self.node.run(command, PATIENCE)
    }

    /// As [`run`](Self::run); returns what it said.
    ///
    /// # Errors
    /// Fails if the program does, too.
    pub fn must(&self, words: &[&str]) -> Result<String> {
        let output = self.run(words)?;
        let said = output.stdout + &output.stderr;
        ensure!(output.status.success(), "{}: {said}", words.join(" "));
        Ok(said)
    }

    /// Has dpkg install a package; returns what was said.
    ///
    /// # Errors
    /// Fails as dpkg does.
    pub fn install(&self, package: &Path) -> Result<String> {
        let package = package.to_str().context("the lab's folder is no UTF-8")?;
        self.must(&["dpkg", "--install", package])
    }

    /// Has policy-rc.d refuse whatever a package wants of a service.
    ///
    /// # Errors
    /// Fails if it can't be written.
    pub fn deny_services(&self) -> Result<()> {
        let write = format!("printf '#!/bin/sh\\nexit 101\\n' >{POLICY} && chmod 755 {POLICY}");
        self.must(&["sh", "-c", &write]).map(drop)
    }

    /// Takes that back.
    ///
    /// # Errors
    /// Fails if it can't be removed.
    pub fn allow_services(&self) -> Result<()> {
        self.must(&["rm", POLICY]).map(drop)
    }

    /// Makes it a machine without systemd. What runs goes on.
    ///
    /// # Errors
    /// Fails if it can't be hidden.
    pub fn hide_systemd(&self) -> Result<()> {
        let hide = "rmdir /run/systemd/system && mv /usr/bin/systemctl /usr/bin/hidden";
        self.must(&["sh", "-c", hide]).map(drop)
    }

    /// Takes that back.
    ///
    /// # Errors
    /// Fails if it can't be shown.
    pub fn show_systemd(&self) -> Result<()> {
        let show = "mkdir /run/systemd/system && mv /usr/bin/hidden /usr/bin/systemctl";
        self.must(&["sh", "-c", show]).map(drop)
    }

    /// Does what an administrator does after the installation: writes the configuration, copies
    /// the certificates, starts the agent.
    ///
    /// # Errors
    /// Fails if something of that does.
    pub fn configure(&self, cluster: &Cluster<'_>) -> Result<()> {
        let file = cluster.config_file(self.node.host())?;
        let folder = file.parent().context("a file is in a folder")?;
        for name in ["godwit.toml", "ca.pem", "node.pem", "node.key"] {
            let from = folder.join(name);
            let from = from.to_str().context("the lab's folder is no UTF-8")?;
            self.must(&["cp", from, "/etc/godwit/"])?;
        }
        self.must(&["systemctl", "start", UNIT]).map(drop)
    }

    /// The agent, if it runs.
    ///
    /// # Errors
    /// Fails if it can't be looked for.
    pub fn agent(&self) -> Result<Option<Running>> {
        if !self
            .run(&["systemctl", "is-active", UNIT])?
            .status
            .success()
        {
            return Ok(None);
        }
        let pid = self.must(&["cat", &format!("/run/{UNIT}.pid")])?;
        let pid = pid.trim().to_owned();
        let inode = match fs::metadata(format!("/proc/{pid}/exe")) {
            Ok(program) => program.ino(),
            // It has ended, and nobody has waited for it yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("looking at the agent"),
        };
        Ok(Some(Running { pid, inode }))
    }

    /// Whether there is such a file.
    ///
    /// # Errors
    /// Fails if it can't be looked for.
    pub fn has(&self, path: &str) -> Result<bool> {
        Ok(self.run(&["test", "-e", path])?.status.success())
    }
}

/// The pins of programs on interfaces, with a number for each that changes when it is made anew.
///
/// # Errors
/// Fails if the machine is gone.
pub fn links(cluster: &Cluster<'_>, host: Host) -> Result<BTreeMap<String, u64>> {
    let entries = fs::read_dir(cluster.pins(host)?.join("links"));
    let entries = entries.into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let inode = entry.metadata().ok()?.ino();
        Some((entry.file_name().into_string().ok()?, inode))
    });
    Ok(named.collect())
}
