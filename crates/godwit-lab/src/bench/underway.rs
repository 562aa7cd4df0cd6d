//! Whether bytes are under way, as the kernels at both ends know it.

use std::fs;

use anyhow::{Context as _, Result};

use super::pair::PORT;
use crate::lab::Node;

/// More than an echo session ever has under way: a full segment, in bytes.
const BULK: u64 = 1448;

/// `TCP_ESTABLISHED` in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

/// Whether the client's and the server's sockets both hold bulk data that the
/// other side has not acknowledged: an upload and a download are under way.
pub(super) fn is_bulk_under_way(client: &Node, server: &Node) -> Result<bool> {
    let (up, down) = (unacknowledged(client)?, unacknowledged(server)?);
    Ok(up >= BULK && down >= BULK)
}

/// Bytes that the connections of one machine with the service have written and
/// not had acknowledged, sent or about to be.
fn unacknowledged(node: &Node) -> Result<u64> {
    let read = || -> std::io::Result<String> {
        let mut text = fs::read_to_string("/proc/thread-self/net/tcp")?;
        text += &fs::read_to_string("/proc/thread-self/net/tcp6")?;
        Ok(text)
    };
    let text = node.enter(read)?.context("reading the table of sockets")?;
    Ok(text.lines().filter_map(queued).sum())
}

/// A row: number, local and remote address, state, then `tx_queue:rx_queue`.
fn queued(row: &str) -> Option<u64> {
    let mut fields = row.split_whitespace();
    let (local, remote) = (fields.nth(1)?, fields.next()?);
    let port = format!(":{PORT:04X}");
    if fields.next()? != ESTABLISHED || !(local.ends_with(&port) || remote.ends_with(&port)) {
        return None;
    }
    let (sent, _) = fields.next()?.split_once(':')?;
    u64::from_str_radix(sent, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_service_are_counted() {
        let row = |local: &str, remote: &str, state: &str| {
            format!("   1: {local} {remote} {state} 0000F000:00000010 01:00000014 00000000")
        };
        let (service, other) = ("6400090A:0050", "0A00090A:C350");
        assert_eq!(queued(&row(service, other, "01")), Some(0xf000));
        assert_eq!(queued(&row(other, service, "01")), Some(0xf000));
        assert_eq!(queued(&row(other, other, "01")), None);
        assert_eq!(queued(&row(service, other, "0A")), None, "a listener");
        assert_eq!(
            queued("  sl  local_address rem_address   st tx_queue"),
            None
        );
    }
}
