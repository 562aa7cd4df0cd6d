//! Probes on the link, by which nothing is handed to a server that would not hear of it
//! ([`godwit_core::path`], `gw_path.h`).

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use godwit_bpf::{PlacingTable, TagKey};
use godwit_core::MonoTime;
use godwit_core::path::Path;
use godwit_sock::FrameSender;
use godwit_wire::MacAddr;

use crate::probes::Probe;
use crate::tagging::Tagging;

/// Lengths of a probe: as long as a frame may be of an Ethernet link, or of the shortest link that
/// IPv6 may have. A link of longer frames is proved for as much as that.
const LENGTHS: [usize; 2] = [1514, 1294];

/// The paths to the other servers, by their addresses on the link.
#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: BTreeMap<MacAddr, Path>,
}

impl Paths {
    /// Whether what is sent there arrives, and comes back.
    pub(super) fn is_proved(&self, mac: MacAddr) -> bool {
        self.paths.get(&mac).is_some_and(Path::is_proved)
    }

    /// For how long it has not.
    pub(super) fn unproved_for(&self, mac: MacAddr, now: MonoTime) -> Option<Duration> {
        self.paths.get(&mac)?.unproved_for(now)
    }

    /// The link is another one: nothing is proved.
    pub(super) fn doubt(&mut self, now: MonoTime) {
        for path in self.paths.values_mut() {
            path.handle_change(now);
        }
    }

    /// Sends what probes are due, and looks for their answers.
    pub(super) fn prove(
        &mut self,
        (own, macs): (MacAddr, &[MacAddr]),
        (frames, table, keys): (&FrameSender, &PlacingTable, &Tagging),
        now: MonoTime,
    ) {
        self.paths.retain(|mac, _| macs.contains(mac));
        for mac in macs {
            // Any number will do that an earlier agent has not just used.
            let number = now.since(MonoTime::ZERO).subsec_nanos();
            let path = self
                .paths
                .entry(*mac)
                .or_insert_with(|| Path::new(number, now));
            match table.heard(*mac) {
                Ok(number) => path.handle_answer(number, now),
                Err(error) => tracing::error!(%error, "answers to probes can't be read"),
            }
            let Some(number) = path.poll_probe(now) else {
                continue;
            };
            if let Err(error) = table.expect(*mac, number) {
                tracing::error!(%error, "the answer to a probe can't be waited for");
                continue;
            }
            let key = keys.key_for(*mac);
            if let Err(error) = send(frames, (own, *mac), number, key) {
                tracing::debug!(%error, "a probe is not sent");
            }
        }
    }
}

fn send(
    frames: &FrameSender,
    ends: (MacAddr, MacAddr),
    number: u32,
    key: Option<TagKey>,
) -> io::Result<()> {
    let mut last = Ok(());
    for len in LENGTHS {
        last = frames.send(&Probe::Slip.frame(ends, number, len, key));
        let is_long = |error: &io::Error| error.raw_os_error() == Some(libc::EMSGSIZE);
        if !last.as_ref().is_err_and(is_long) {
            break;
        }
    }
    last
}
