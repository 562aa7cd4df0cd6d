//! An unmodified Apache, as Debian builds it: static files.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::wait_until_listening;
use crate::lab::{Node, which};
use crate::limits::Limits;
use crate::process::Process;

/// Where Debian has Apache's modules.
const MODULES: &str = "/usr/lib/apache2/modules";

/// Threads of each process with [`Mpm::Event`].
const THREADS: u32 = 64;

/// What answers requests, a multi-processing module of Apache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpm {
    /// A process for each connection.
    Prefork,
    /// A thread for each request; connections that are idle have none.
    Event,
}

/// How an Apache serves.
#[derive(Clone, Debug)]
pub struct ApacheOptions<'a> {
    /// What answers requests.
    pub mpm: Mpm,
    /// The folder that is served.
    pub root: &'a Path,
    /// Port, at every address.
    pub port: u16,
    /// Whether a connection is for more than one request.
    pub keep_alive: bool,
    /// Requests that are answered at the same time, at most.
    pub workers: u32,
    /// What its page cache and its disk are held to.
    pub limits: Option<&'a Limits>,
}

/// A running Apache of one machine.
#[derive(Debug)]
pub struct Apache {
    /// The process that all others come of; killing it kills them too.
    pub process: Process,
}

impl Apache {
    /// Starts Apache on `node`. Each of its replies says who it is: `Served-By: a`.
    ///
    /// # Errors
    /// Fails if Apache is not installed or does not listen within five seconds.
    pub fn start(node: &Node, options: &ApacheOptions<'_>) -> Result<Self> {
        let program =
            which("apache2").context("apache2 is not installed (Debian package apache2-bin)")?;
        let folder = node.folder()?.join(format!("apache-{}", options.port));
        fs::create_dir_all(&folder).context("creating Apache's folder")?;
        let config = folder.join("apache2.conf");
        let text = configuration(&folder, node.host().name(), options);
        fs::write(&config, text).context("writing apache2.conf")?;
        let mut command = match options.limits {
            Some(limits) => limits.command(&program),
            None => Command::new(program),
        };
        command.arg("-f").arg(&config).args(["-D", "FOREGROUND"]);
        let mut process = node.spawn("apache", command)?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
        wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
        Ok(Self { process })
    }
}

/// No log of requests, all processes from the start, and as many requests on a
/// connection as its client likes; nothing else differs from what a server would have.
fn configuration(folder: &Path, name: &str, options: &ApacheOptions<'_>) -> String {
    let ApacheOptions {
        mpm,
        root,
        port,
        keep_alive,
        workers,
        ..
    } = options;
    let (folder, root) = (folder.display(), root.display());
    let keep_alive = if *keep_alive { "On" } else { "Off" };
    let mpm = mpm.lines(*workers);
    format!(
        "# written by godwit-lab
ServerRoot {folder}
DefaultRuntimeDir {folder}
PidFile {folder}/apache2.pid
ServerName {name}
# As root it would not serve.
User www-data
Group www-data
LoadModule authz_core_module {MODULES}/mod_authz_core.so
LoadModule headers_module {MODULES}/mod_headers.so
{mpm}
Listen {port}
ListenBacklog 4096
ErrorLog /dev/stderr
LogLevel error
Timeout 300
KeepAlive {keep_alive}
KeepAliveTimeout 60
MaxKeepAliveRequests 0
EnableSendfile On
DocumentRoot {root}
<Directory {root}>
    Options FollowSymLinks
    AllowOverride None
    Require all granted
</Directory>
Header always set Served-By {name}
"
    )
}

impl Mpm {
    fn lines(self, workers: u32) -> String {
        match self {
            Self::Prefork => format!(
                "LoadModule mpm_prefork_module {MODULES}/mod_mpm_prefork.so
StartServers {workers}
MinSpareServers 1
MaxSpareServers {workers}
ServerLimit {workers}
MaxRequestWorkers {workers}"
            ),
            Self::Event => {
                let processes = workers.div_ceil(THREADS);
                let workers = processes * THREADS;
                format!(
                    "LoadModule mpm_event_module {MODULES}/mod_mpm_event.so
StartServers {processes}
ServerLimit {processes}
ThreadsPerChild {THREADS}
MinSpareThreads 1
MaxSpareThreads {workers}
MaxRequestWorkers {workers}"
                )
            }
        }
    }
}
