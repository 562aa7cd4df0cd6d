//! A machine that is run by systemd, as users have it: nginx and the agent are units,
//! with Debian's files and ours as they are.
//!
//! The root is Debian's packages laid out by `packaging/own-kernel.sh`, without what
//! their installation would do; files of this build are laid over it. The network and
//! the lab's shell are there before systemd is, so no unit is the lab's own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::image::{Kernel, Root};
use super::{FILES, Machine, folder_of, kernel_line};
use crate::cluster::Cluster;
use crate::host::Host;
use crate::lab::Lab;

/// The agent's unit, and the drop-in for that of nginx.
const AGENT: &str = include_str!("../../../../packaging/godwit.service");
const DRAIN: &str = include_str!("../../../../packaging/nginx-drain.conf");

/// Debian's nginx is not started again when it has died; an administrator says so.
const RESTART: &str = "[Service]\nRestart=on-failure\n";

/// Where units are that are no package's.
const UNITS: &str = "/etc/systemd/system";

/// Where Debian's nginx has what it serves.
const PAGES: &str = "/var/www/html";

/// What the first process needs of busybox; the rest is Debian's.
const COMMANDS: [&str; 3] = ["insmod", "ip", "nc"];

/// Where agents have their control sockets unless they are told otherwise.
const SOCKETS: &str = "/run/godwit/*/control.sock";

/// How long a boot may take: a minute of it is systemd's, on a slow processor.
const BOOT_DEADLINE: Duration = Duration::from_secs(240);

impl Machine {
    /// Says why there can be no machine with systemd here, if so.
    pub fn system_unavailable() -> Option<String> {
        let system = Kernel::find().and_then(|kernel| kernel.system());
        let missing = || "no Debian to boot; run packaging/own-kernel.sh".to_owned();
        Self::unavailable().or_else(|| system.is_none().then(missing))
    }

    /// Boots a server with systemd in the place of `host`. Its units are
    /// `godwit.service`, and `nginx.service` with our drop-in, which serves `page` at
    /// port 80 by its name, with the time of its last change; when nginx has died it is
    /// started again.
    ///
    /// # Errors
    /// Fails if there is no such system, or if its agent does not come up within four
    /// minutes; the message is its console.
    pub fn boot_system(lab: &Lab, host: Host, cluster: &Cluster<'_>, page: &Path) -> Result<Self> {
        let kernel = Kernel::find().context("no kernel to boot")?;
        let base = kernel.system().context("no Debian to boot")?;
        let root = Root::new(&kernel, &folder_of(lab, host)?, &COMMANDS)?;
        let config = cluster.config_file(host)?;
        let home = config.parent().context("a file is in a folder")?;
        for name in FILES {
            root.copy(&home.join(name), Path::new("/etc/godwit").join(name))?;
        }
        // Where the unit and the command line expect it.
        let text = cluster
            .options()
            .file_at_home(host, lab.options().control_network);
        root.write("/etc/godwit/godwit.toml", &text)?;
        root.link("../../bin/godwit", "/usr/bin/godwit")?;
        let name = page.file_name().context("a page has a name")?;
        root.copy(page, Path::new(PAGES).join(name))?;
        root.write(&format!("{UNITS}/godwit.service"), AGENT)?;
        root.write(&format!("{UNITS}/nginx.service.d/godwit.conf"), DRAIN)?;
        root.write(&format!("{UNITS}/nginx.service.d/restart.conf"), RESTART)?;
        for (unit, folder) in [("godwit", UNITS), ("nginx", "/lib/systemd/system")] {
            let wanted = format!("{UNITS}/multi-user.target.wants/{unit}.service");
            root.link(&format!("{folder}/{unit}.service"), &wanted)?;
        }
        let initrd = root.pack(Some(&base))?;
        let line = kernel_line(host, "system");
        let line = format!("{line} systemd.journald.forward_to_console=1");
        Self::power_on(lab, host, &kernel, &initrd, &line)?.wait_up(SOCKETS, BOOT_DEADLINE)
    }
}
