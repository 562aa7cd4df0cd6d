//! Probes on the link, by which nothing is handed to a server that would not hear of it
//! ([`godwit_core::path`], `gw_path.h`).

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use godwit_bpf::{PlacingTable, TagKey};
use godwit_core::MonoTime;
use godwit_core::path::Path;
use godwit_sock::FrameSender;
use godwit_wire::{EthernetHeader, MacAddr, TagKind, tag_of};

use crate::tagging::Tagging;

/// As `GW_ETH_P_SLIP`, `GW_PROBE_ASK` and `GW_PROBE_VERSION`.
const PROBE: [u8; 4] = [0x88, 0xb6, 1, 1];

/// The version with a tag (`GW_PROBE_TAGGED`).
const TAGGED: u8 = 2;

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
        last = frames.send(&probe(ends, number, len, key));
        let is_long = |error: &io::Error| error.raw_os_error() == Some(libc::EMSGSIZE);
        if !last.as_ref().is_err_and(is_long) {
            break;
        }
    }
    last
}

fn probe((own, to): (MacAddr, MacAddr), number: u32, len: usize, key: Option<TagKey>) -> Vec<u8> {
    let mut frame = Vec::with_capacity(len);
    frame.extend(to.0);
    frame.extend(own.0);
    frame.extend(PROBE);
    frame.extend([0; 2]);
    frame.extend(number.to_be_bytes());
    if let Some(key) = key {
        if let Some(version) = frame.get_mut(EthernetHeader::LEN + 1) {
            *version = TAGGED;
        }
        let said = frame.get(EthernetHeader::LEN..).unwrap_or_default();
        let tag = tag_of(TagKind::Probe, said, key);
        frame.extend(tag.to_be_bytes());
    }
    frame.resize(len, 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_fills_the_frame() {
        let (own, to) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let frame = probe((own, to), 0x0102_0304, 1514, None);
        assert_eq!(frame.len(), 1514);
        assert_eq!((&frame[..6], &frame[6..12]), (&to.0[..], &own.0[..]));
        assert_eq!(frame[12..22], [0x88, 0xb6, 1, 1, 0, 0, 1, 2, 3, 4]);
        assert_eq!(frame[22..30], [0; 8]);
        let proved = probe((own, to), 0x0102_0304, 1514, Some([1; 16]));
        assert_eq!(proved.len(), 1514);
        assert_eq!(proved[12..22], [0x88, 0xb6, 1, 2, 0, 0, 1, 2, 3, 4]);
        let tag = tag_of(TagKind::Probe, &proved[14..22], [1; 16]);
        assert_eq!(proved[22..30], tag.to_be_bytes());
    }
}
