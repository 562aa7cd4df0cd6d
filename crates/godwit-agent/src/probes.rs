//! Probes of the link as agents send them (`gw_probe.h`).

use godwit_bpf::TagKey;
use godwit_wire::{EthernetHeader, MacAddr, TagKind, tag_of};

/// Which kind of frame a probe is: its EtherType, and the first byte behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Of a server to a server (`GW_ETH_P_SLIP`, `GW_PROBE_ASK`).
    Slip,
    /// Of a director to a back-end (`GW_ETH_P_NOTE`, `GW_NOTE_ASK`).
    Note,
}

/// `GW_PROBE_VERSION`.
const PLAIN: u8 = 1;
/// The version with a tag (`GW_PROBE_TAGGED`).
const TAGGED: u8 = 2;

impl Probe {
    const fn head(self) -> [u8; 3] {
        match self {
            Self::Slip => [0x88, 0xb6, 1],
            Self::Note => [0x88, 0xb5, 3],
        }
    }

    /// A frame of that length, from the first of both ends to the second one.
    pub(crate) fn frame(
        self,
        (own, to): (MacAddr, MacAddr),
        number: u32,
        len: usize,
        key: Option<TagKey>,
    ) -> Vec<u8> {
        let mut frame = Vec::with_capacity(len);
        frame.extend(to.0);
        frame.extend(own.0);
        frame.extend(self.head());
        frame.push(if key.is_some() { TAGGED } else { PLAIN });
        frame.extend([0; 2]);
        frame.extend(number.to_be_bytes());
        if let Some(key) = key {
            let said = frame.get(EthernetHeader::LEN..).unwrap_or_default();
            let tag = tag_of(TagKind::Probe, said, key);
            frame.extend(tag.to_be_bytes());
        }
        frame.resize(len, 0);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_fills_the_frame() {
        let ends = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        for (probe, head) in [
            (Probe::Slip, [0x88, 0xb6, 1]),
            (Probe::Note, [0x88, 0xb5, 3]),
        ] {
            let plain = probe.frame(ends, 0x0102_0304, 1514, None);
            assert_eq!(plain.len(), 1514);
            assert_eq!((&plain[..6], &plain[6..12]), (&ends.1.0[..], &ends.0.0[..]));
            assert_eq!(plain[12..15], head);
            assert_eq!(plain[15..22], [1, 0, 0, 1, 2, 3, 4]);
            assert_eq!(plain[22..30], [0; 8]);
            let proved = probe.frame(ends, 0x0102_0304, 60, Some([1; 16]));
            assert_eq!(proved.len(), 60);
            assert_eq!(proved[12..15], head);
            assert_eq!(proved[15..22], [2, 0, 0, 1, 2, 3, 4]);
            let tag = tag_of(TagKind::Probe, &proved[14..22], [1; 16]);
            assert_eq!(proved[22..30], tag.to_be_bytes());
        }
    }
}
