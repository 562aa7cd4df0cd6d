//! How checks look at a machine.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use godwit_bpf::{Foreign, Standing};
use godwit_sock::{Devices, Refusal, legacy_refusals, refusals};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::RunDir;
use crate::added;
use crate::control::{is_in_memory, unfit_for_places};
use crate::files;
use crate::reload::machine::find_group;

/// A machine, as far as checks may see it.
pub trait Host {
    /// The bytes of a file, by absolute path.
    ///
    /// # Errors
    /// If it can't be read.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// What a program prints; only ever one that looks and changes nothing.
    ///
    /// # Errors
    /// If it is not there or fails.
    fn run(&self, program: &str, args: &[&str]) -> io::Result<String>;

    /// Whether an address is one of this machine's, in this network namespace.
    fn has_address(&self, address: IpAddr) -> bool;

    /// Whether there is a group of that name.
    ///
    /// # Errors
    /// A sentence if there is none.
    fn find_group(&self, name: &str) -> Result<(), String>;

    /// What such a `run_dir` is, or would be; `None`: that can't be seen.
    fn run_dir(&self, path: &Path) -> Option<RunDir>;

    /// The network devices of this network namespace.
    ///
    /// # Errors
    /// If they can't be listed.
    fn devices(&self) -> io::Result<Devices>;

    /// Whether a bpffs is mounted at a path.
    fn has_bpffs(&self, path: &str) -> bool;

    /// The programs on an interface, and where those of the agent are that pins its own in
    /// a folder of that name.
    ///
    /// # Errors
    /// If they can't be listed.
    fn standing(&self, pins: &str, interface: &str) -> io::Result<Standing>;

    /// Other nodes whose agents have left programs on the interface, `pins` apart.
    ///
    /// # Errors
    /// If they can't be listed.
    fn beside(&self, pins: &str, interface: &str) -> io::Result<Vec<String>>;

    /// Addresses that agents have added and left, as `10.0.0.1 on lo`; `pins` is this agent's.
    ///
    /// # Errors
    /// If they can't be listed.
    fn left_addresses(&self, pins: &str, services: &[SocketAddr]) -> io::Result<Vec<String>>;

    /// The firewall rules of this network namespace that drop packets of `services` on an
    /// interface.
    ///
    /// # Errors
    /// If they can't be read.
    fn refusals(&self, interface: &str, services: &[SocketAddr]) -> io::Result<Vec<Refusal>>;

    /// The clock of day, seconds since 1970.
    fn seconds(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }

    /// A file as text without the white space around it.
    fn text(&self, path: &str) -> Option<String> {
        let bytes = self.read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file that holds one number.
    fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }
}

/// The machine that this process runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct LiveHost;

impl Host for LiveHost {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        // What the kernel makes is as long as it is, and waits for nobody.
        if path.starts_with("/proc/") || path.starts_with("/sys/") {
            return fs::read(path);
        }
        files::read(Path::new(path))
    }

    fn run(&self, program: &str, args: &[&str]) -> io::Result<String> {
        // Often missing from an ordinary user's PATH.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let output = Command::new(program)
            .args(args)
            .env("PATH", path)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "{program} failed: {}",
                output.status
            )));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn has_address(&self, address: IpAddr) -> bool {
        UdpSocket::bind((address, 0)).is_ok()
    }

    fn find_group(&self, name: &str) -> Result<(), String> {
        find_group(name)
    }

    fn run_dir(&self, path: &Path) -> Option<RunDir> {
        if let Some(why) = unfit_for_places(path) {
            return Some(RunDir::Unfit(why.to_string()));
        }
        Some(match is_in_memory(path)? {
            true => RunDir::InMemory,
            false => RunDir::OnDisk,
        })
    }

    fn devices(&self) -> io::Result<Devices> {
        Devices::read()
    }

    fn standing(&self, pins: &str, interface: &str) -> io::Result<Standing> {
        let devices = Devices::read()?;
        let device = devices.named(interface).ok_or(io::ErrorKind::NotFound)?;
        Standing::look(pins, device.index)
    }

    fn beside(&self, pins: &str, interface: &str) -> io::Result<Vec<String>> {
        let devices = Devices::read()?;
        let device = devices.named(interface).ok_or(io::ErrorKind::NotFound)?;
        let left = Foreign::beside(pins, device.index).map_err(io::Error::other)?;
        Ok(left.iter().map(|it| it.node().to_owned()).collect())
    }

    fn left_addresses(&self, pins: &str, services: &[SocketAddr]) -> io::Result<Vec<String>> {
        let services = services.iter().map(SocketAddr::ip).collect();
        Ok(added::names(&added::left_over(&services, pins)?))
    }

    fn refusals(&self, interface: &str, services: &[SocketAddr]) -> io::Result<Vec<Refusal>> {
        let devices = Devices::read()?;
        let index = devices.named(interface).map_or(0, |device| device.index);
        let mut all = legacy_refusals((interface, index), services)?;
        match refusals((interface, index), services) {
            Ok(rules) => all.extend(rules),
            // The kernel has no nftables.
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {}
            Err(error) => return Err(error),
        }
        Ok(all)
    }

    fn has_bpffs(&self, path: &str) -> bool {
        statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
    }
}
