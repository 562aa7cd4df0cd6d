//! Settings of the kernel that twins or clients depend on.
//!
//! A write to a file of /proc/sys makes an inotify event, as long as somebody has the
//! file open: else its inode may be another one by then. A write through another mount
//! of /proc makes none, so the files are read once a second as well.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use godwit_core::fitness::Consequence;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::of_checks;
use super::watch::Source;
use crate::config::Config;
use crate::doctor::{Host, Scope, TCP_OPTIONS, settings};
use crate::facts::{Look, Wrong};

/// Some ten small files.
const PERIOD: Duration = Duration::from_secs(1);

/// The fact that options of TCP were switched off while the agent ran.
const OPTIONS: &str = "tcp_options";

/// The settings that [`settings`] checks.
pub(super) struct Sysctls<H> {
    host: H,
    scope: Scope,
    events: Inotify,
    /// So that their inodes stay.
    open: Vec<File>,
    /// Options of TCP that were on at some time: connections have them.
    seen_on: BTreeSet<&'static str>,
}

impl<H: Host> Sysctls<H> {
    pub(super) fn new(config: &Config, host: H) -> io::Result<Self> {
        let events = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let mut this = Self {
            host,
            scope: Scope::of(config),
            events,
            open: Vec::new(),
            seen_on: BTreeSet::new(),
        };
        this.watch_files();
        Ok(this)
    }

    /// What can't be watched is read every second all the same.
    fn watch_files(&mut self) {
        for path in self.scope.settings_files() {
            if let Ok(file) = File::open(&path) {
                let modified = AddWatchFlags::IN_MODIFY;
                if self.events.add_watch(path.as_str(), modified).is_ok() {
                    self.open.push(file);
                }
            }
        }
    }

    /// A connection that has an option gets no twin where the option is off.
    fn switched_off(&mut self) -> Option<Wrong> {
        let mut off = Vec::new();
        for option in TCP_OPTIONS {
            match self.host.number(&format!("/proc/sys/net/ipv4/{option}")) {
                Some(0) if self.seen_on.contains(option) => off.push(option),
                Some(0) | None => {}
                Some(_) => {
                    self.seen_on.insert(option);
                }
            }
        }
        let settings: Vec<_> = off
            .iter()
            .map(|option| format!("net.ipv4.{option}=1"))
            .collect();
        (!off.is_empty()).then(|| Wrong {
            name: OPTIONS.into(),
            share: None,
            consequence: Consequence::NoTwins,
            found: format!(
                "{} switched off while the agent runs: connections that have it get no twin",
                off.join(", ")
            ),
            advice: format!(
                "sysctl -w {}, or restart the agent once all servers have it off",
                settings.join(" ")
            ),
        })
    }
}

impl<H: Host + Send> Source for Sysctls<H> {
    fn name(&self) -> &'static str {
        "sysctl"
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn take_events(&mut self) -> bool {
        // Which file it was does not matter: all are read.
        while self.events.read_events().is_ok_and(|some| !some.is_empty()) {}
        true
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn look(&mut self) -> Look {
        let checks = settings(&self.host, &self.scope);
        let mut look = of_checks("sysctl", checks);
        if let Some(wrong) = self.switched_off() {
            look.wrong.retain(|other| other.name != OPTIONS);
            look.wrong.push(wrong);
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::doctor::LiveHost;
    use crate::testing::Pair;

    fn names(look: &Look) -> Vec<(&str, Consequence)> {
        let wrong = look.wrong.iter();
        wrong
            .map(|wrong| (wrong.name.as_str(), wrong.consequence))
            .collect()
    }

    /// A machine whose files are below a folder.
    struct Folder(PathBuf);

    impl Host for Folder {
        fn read(&self, path: &str) -> io::Result<Vec<u8>> {
            fs::read(self.0.join(path.trim_start_matches('/')))
        }

        fn run(&self, _: &str, _: &[&str]) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn has_address(&self, address: std::net::IpAddr) -> bool {
            LiveHost.has_address(address)
        }

        fn find_group(&self, _: &str) -> Result<(), String> {
            Ok(())
        }

        fn run_dir(&self, _: &std::path::Path) -> Option<crate::doctor::RunDir> {
            None
        }

        fn devices(&self) -> io::Result<godwit_sock::Devices> {
            Ok(godwit_sock::Devices::default())
        }

        fn standing(&self, _: &str, _: &str) -> io::Result<godwit_bpf::Standing> {
            Ok(godwit_bpf::Standing::default())
        }

        fn beside(&self, _: &str, _: &str) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn left_addresses(&self, _: &str, _: &[std::net::SocketAddr]) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn refusals(
            &self,
            _: &str,
            _: &[std::net::SocketAddr],
        ) -> io::Result<Vec<godwit_sock::Refusal>> {
            Ok(Vec::new())
        }

        fn has_bpffs(&self, _: &str) -> bool {
            true
        }
    }

    fn write(folder: &std::path::Path, setting: &str, value: &str) {
        let path = folder.join("proc/sys/net/ipv4").join(setting);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, value).expect("written");
    }

    #[test]
    fn each_setting_is_said_with_what_follows_and_taken_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let set = |setting: &str, value: &str| write(folder.path(), setting, value);
        for option in TCP_OPTIONS {
            set(option, "1\n");
        }
        set("tcp_syncookies", "1\n");
        set("tcp_ecn", "2\n");
        let config = &Pair::new().a;
        let mut source =
            Sysctls::new(config, Folder(folder.path().to_owned())).expect("there is inotify");
        let interface = config.node.interface.to_string();
        assert_eq!(names(&source.look()), []);
        let table = [
            ("tcp_syncookies", "0", "1", Consequence::NoTwins),
            ("tcp_timestamps", "0", "1", Consequence::NoTwins),
            ("tcp_sack", "0", "1", Consequence::NoTwins),
            ("tcp_window_scaling", "0", "1", Consequence::NoTwins),
            ("tcp_ecn", "0", "2", Consequence::Say),
            ("conf/all/arp_ignore", "1", "0", Consequence::NoService),
            ("conf/all/rp_filter", "1", "0", Consequence::Say),
        ];
        for (setting, bad, good, consequence) in table {
            let fact = match setting.rsplit('/').next() {
                Some(option) if TCP_OPTIONS.contains(&option) => OPTIONS,
                Some(leaf) => leaf,
                None => setting,
            };
            set(setting, bad);
            assert_eq!(names(&source.look()), [(fact, consequence)], "{setting}");
            set(setting, good);
            assert_eq!(names(&source.look()), [], "{setting}");
        }
        let own = format!("conf/{interface}/arp_ignore");
        set(&own, "2");
        let look = source.look();
        assert_eq!(names(&look), [("arp_ignore", Consequence::NoService)]);
    }

    /// Servers may all have it off: then nothing is wrong but a warning.
    #[test]
    fn an_option_that_was_never_on_is_only_said() {
        let folder = tempfile::tempdir().expect("a folder");
        for option in TCP_OPTIONS {
            write(folder.path(), option, "0\n");
        }
        write(folder.path(), "tcp_syncookies", "1\n");
        let config = &Pair::new().a;
        let mut source =
            Sysctls::new(config, Folder(folder.path().to_owned())).expect("there is inotify");
        assert_eq!(names(&source.look()), [(OPTIONS, Consequence::Say)]);
    }
}
