//! Files that change: a service that is nobody's business comes, moves and goes, and all
//! nodes take their files one after the other.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::host::Host;

/// How nodes take their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// `godwit reload`.
    Reload,
    /// Their processes end (SIGTERM), and others start.
    Restart,
}

/// A service at an address of its own, where nobody listens.
fn guest(last: u8) -> String {
    format!(
        "[[service]]\nname = \"guest\"\naddress = [\"10.9.0.{last}:9\", \
         \"[2001:db8:9::{last}]:9\"]\nprimary = \"a\"\nbackups = [\"b\"]\n\n"
    )
}

/// The file with that service before all others, or without it.
fn with_guest(text: &str, last: Option<u8>) -> Option<String> {
    let services = text.find("[[service]]")?;
    let (head, mut rest) = text.split_at(services);
    if rest.starts_with("[[service]]\nname = \"guest\"") {
        let (_, others) = rest.split_once("\n\n")?;
        rest = others;
    }
    let guest = last.map(guest).unwrap_or_default();
    Some(format!("{head}{guest}{rest}"))
}

/// It comes, and gets another address.
pub(super) fn begin(cluster: &mut Cluster<'_>, hosts: &[Host], how: How) -> Result<()> {
    [120, 121]
        .into_iter()
        .try_for_each(|last| take(cluster, hosts, how, Some(last)))
}

/// It goes.
pub(super) fn end(cluster: &mut Cluster<'_>, hosts: &[Host], how: How) -> Result<()> {
    take(cluster, hosts, how, None)
}

fn take(cluster: &mut Cluster<'_>, hosts: &[Host], how: How, last: Option<u8>) -> Result<()> {
    for host in hosts {
        let path = cluster.config_file(*host)?;
        let text = fs::read_to_string(&path).context("reading a configuration")?;
        let text = with_guest(&text, last).context("it has services")?;
        fs::write(&path, text).context("writing a configuration")?;
        match how {
            How::Reload => {
                let socket = cluster.socket(*host)?;
                let socket = socket.to_str().context("its path is UTF-8")?;
                let output = cluster.godwit(*host, &["reload", "--socket", socket])?;
                ensure!(output.status.success(), "{host}: {}", output.stderr.trim());
            }
            How::Restart => {
                cluster.stop_agent(*host)?;
                cluster.start_agent(*host)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_comes_moves_and_goes_without_a_trace() {
        let file = "[node]\nname = \"a\"\n\n[[service]]\nname = \"web\"\n\n[[service]]\n";
        let with = |text: &str, last| with_guest(text, last).expect("it has services");
        let (here, there) = (with(file, Some(120)), with(file, Some(121)));
        assert_ne!(here, there);
        assert_eq!(with(&here, Some(121)), there);
        assert_eq!(with(&there, None), file);
        assert_eq!(with(file, None), file);
    }
}
