//! An unmodified nginx: static files, and uploads by PUT.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::wait_until_listening;
use crate::lab::{Node, which};
use crate::process::Process;

/// A running nginx of one machine.
#[derive(Debug)]
pub struct Nginx {
    /// The master process; killing it kills the worker too.
    pub process: Process,
    uploads: PathBuf,
}

impl Nginx {
    /// Starts nginx on `node`, serving the files below `root` at `port` of
    /// every address, IPv4 and IPv6, and taking uploads below `/upload/`.
    ///
    /// # Errors
    /// Fails if nginx is not installed or does not listen within five seconds.
    pub fn start(node: &Node, root: &Path, port: u16) -> Result<Self> {
        Self::start_with(node, root, port, "")
    }

    /// The same; each of its replies says who it is: `Served-By: a`.
    ///
    /// # Errors
    /// As with [`Nginx::start`].
    pub fn start_named(node: &Node, root: &Path, port: u16) -> Result<Self> {
        let name = format!("add_header Served-By {};", node.host().name());
        Self::start_with(node, root, port, &name)
    }

    fn start_with(node: &Node, root: &Path, port: u16, more: &str) -> Result<Self> {
        let program = which("nginx").context("nginx is not installed (Debian package nginx)")?;
        let folder = node.folder()?.join(format!("nginx-{port}"));
        let uploads = folder.join("www");
        fs::create_dir_all(uploads.join("upload")).context("creating nginx's folders")?;
        let config = folder.join("nginx.conf");
        fs::write(&config, configuration(&folder, root, port, more))
            .context("writing nginx.conf")?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&config).arg("-p").arg(&folder);
        command.args(["-e", "stderr"]);
        let mut process = node.spawn("nginx", command)?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        wait_until_listening(node, &mut process, local, Duration::from_secs(5))?;
        Ok(Self { process, uploads })
    }

    /// File that a PUT to `/upload/<name>` leaves on this machine.
    pub fn uploaded(&self, name: &str) -> PathBuf {
        self.uploads.join("upload").join(name)
    }
}

/// One worker, no logs, and `more` directives; nothing else differs from what a server would
/// have.
fn configuration(folder: &Path, root: &Path, port: u16, more: &str) -> String {
    let (folder, root) = (folder.display(), root.display());
    format!(
        "# written by godwit-lab
user root;
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 16000; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000;
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/octet-stream;
    {more}
    server {{
        listen {port} backlog=4096;
        listen [::]:{port} backlog=4096 ipv6only=on;
        location / {{ root {root}; }}
        location /upload/ {{
            root {folder}/www;
            dav_methods PUT DELETE;
        }}
    }}
}}
"
    )
}
